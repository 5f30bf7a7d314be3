"""The configuration in force as a table: what `chopperd check-config` shows."""

from collections.abc import Iterable
from typing import Protocol

import msgspec
from rich.console import Group

from chopperd.report.text.sections import table


class Described(Protocol):
    """A configuration key with its help; the configuration itself is not imported here."""

    @property
    def key(self) -> str:
        """As written in the file, after its section: "sampling.hz"."""
        ...

    @property
    def help(self) -> str:
        """What it is for."""
        ...


def render_settings(settings: Iterable[tuple[Described, object, str]]) -> Group:
    """Key, value, where it was set, and what it is for, of each setting."""
    rows = [
        (setting.key, _shown(value), origin, setting.help) for setting, value, origin in settings
    ]
    return table("CONFIGURATION", ("<key", "<value", "<from", "<"), rows)


def _shown(value: object) -> str:
    return "not set" if value is None else msgspec.json.encode(value).decode()
