"""The configuration: defaults, then a TOML file, then the environment; all problems at once.

A key's variable is `CHOPPERD_<SECTION>__<KEY>`; its text is read as a TOML value where it is one,
else as a string.
"""

import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Final

import msgspec

from chopperd.config.sections import Config
from chopperd.config.table import SETTINGS, Setting
from chopperd.errors import ConfigError

DEFAULT_PATH: Final = Path("/etc/chopperd/config.toml")
DEFAULT_ORIGIN: Final = "default"
_PREFIX: Final = "CHOPPERD_"
_SEPARATOR: Final = "__"
_BY_KEY: Final[Mapping[str, Setting]] = {setting.key: setting for setting in SETTINGS}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Given:
    """A value as someone gave it; `readings` are what its text may mean, best first."""

    key: str
    readings: tuple[object, ...]
    origin: str


def load_config(
    path: Path | None = DEFAULT_PATH, environment: Mapping[str, str] | None = None
) -> Config:
    """The configuration in force.

    Args:
        path: The file, or None for no file; `DEFAULT_PATH` need not exist, any other must.
        environment: Variables; None takes those of this process.

    Raises:
        ConfigError: Lists every problem of file and environment.
    """
    problems: list[str] = []
    values = {setting.key: setting.default for setting in SETTINGS}
    origins = dict.fromkeys(values, DEFAULT_ORIGIN)
    variables = os.environ if environment is None else environment
    for given in (*_from_file(path, problems), *_from_environment(variables)):
        setting = _BY_KEY.get(given.key)
        if setting is None:
            problems.append(f"{given.origin}: {_unknown_key(given.key)}")
            continue
        accepted = [reading for reading in given.readings if setting.kind.accepts(reading)]
        if not accepted:
            problems.append(_not_allowed(given, setting))
            continue
        values[given.key], origins[given.key] = accepted[0], given.origin
    if problems:
        raise ConfigError(problems)
    return msgspec.convert({**_nested(values), "origins": origins}, Config)


def effective(config: Config) -> Iterator[tuple[Setting, object, str]]:
    """Each setting with the value in force and where it was set, in the table's order."""
    for setting in SETTINGS:
        section, name = setting.key.split(".")
        yield setting, getattr(getattr(config, section), name), config.origins[setting.key]


def variable(key: str) -> str:
    """The environment variable of a key."""
    return _PREFIX + key.upper().replace(".", _SEPARATOR)


def _from_file(file: Path | None, problems: list[str]) -> Iterator[_Given]:
    if file is None:
        return
    for section, content in _parsed(file, problems).items():
        if not isinstance(content, dict):
            problems.append(f"{file}: {section} stands outside a section such as [sampling]")
            continue
        for name, value in content.items():
            yield _Given(key=f"{section}.{name}", readings=(value,), origin=str(file))


def _parsed(file: Path, problems: list[str]) -> dict[str, object]:
    """The file's content; empty, with the problem noted, where there is none to use."""
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if file != DEFAULT_PATH:
            problems.append(f"{file}: no such file")
    except OSError as error:
        problems.append(f"{file}: can't be read: {error.strerror}")
    except UnicodeDecodeError:
        problems.append(f"{file}: is not UTF-8 text")
    except tomllib.TOMLDecodeError as error:
        problems.append(f"{file}: is not TOML: {error}")
    return {}


def _from_environment(variables: Mapping[str, str]) -> Iterator[_Given]:
    for name, text in sorted(variables.items()):
        if name.startswith(_PREFIX) and _SEPARATOR in name:
            key = name.removeprefix(_PREFIX).lower().replace(_SEPARATOR, ".", 1)
            yield _Given(key=key, readings=_readings(text), origin=name)


def _readings(text: str) -> tuple[object, ...]:
    """The text as a TOML value, if it is one, and as it stands."""
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return (text,)
    return (value,) if isinstance(value, str) else (value, text)


def _unknown_key(key: str) -> str:
    nearest = get_close_matches(key, _BY_KEY, n=1)
    hint = f"did you mean {nearest[0]}?" if nearest else f"known are: {', '.join(_BY_KEY)}"
    return f"unknown key {key}; {hint}"


def _not_allowed(given: _Given, setting: Setting) -> str:
    return f"{given.origin}: {given.key}{setting.kind.why_not(given.readings[0])}"


def _nested(values: Mapping[str, object]) -> dict[str, dict[str, object]]:
    sections: dict[str, dict[str, object]] = {}
    for key, value in values.items():
        section, name = key.split(".")
        sections.setdefault(section, {})[name] = value
    return sections
