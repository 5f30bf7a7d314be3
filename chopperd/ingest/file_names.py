"""Names of files that others chose: made fit to be shown, and to be file names of ours."""

import os
import re
from pathlib import Path
from typing import Final

_MOST_CHARACTERS: Final = 255
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]+")
_MOST_KEPT: Final = 100
_BEING_WRITTEN: Final = (".part", ".tmp")


def shown_name(name: str) -> str:
    """The name in printable characters on one line; what is none becomes "�"."""
    text = os.fsencode(name).decode("utf-8", "replace")
    return "".join(c if c.isprintable() else "�" for c in text)[-_MOST_CHARACTERS:]


def sent_name(name: str) -> str:
    """The last part of a name that came over the network, as `shown_name`."""
    text = name.encode("utf-8", "replace").decode()
    return shown_name(Path(text.replace("\0", "�")).name) or "trace"


def safe_name(name: str) -> str:
    """What of the name can be part of a file name without surprise: its end, if it is long."""
    return _UNSAFE.sub("_", name)[-_MOST_KEPT:].lstrip(".-") or "trace"


def is_being_written(name: str) -> bool:
    """Whether the name says that the file is not done, or not meant to be seen."""
    return name.startswith(".") or name.endswith(_BEING_WRITTEN)
