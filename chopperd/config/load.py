"""Load the configuration: defaults, overridden by a TOML file, then by the environment.

A key's variable is `CHOPPERD_<SECTION>__<KEY>`; its text is a TOML value, else a string.
"""

import os
import tomllib
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

from chopperd.config.sections import Config
from chopperd.config.table import SETTINGS, Setting
from chopperd.errors import ConfigError

DEFAULT_PATH: Final = Path("/etc/chopperd/config.toml")
DEFAULT_ORIGIN: Final = "default"
_PREFIX: Final = "CHOPPERD_"
_SEPARATOR: Final = "__"
_BY_KEY: Final[Mapping[str, Setting]] = {setting.key: setting for setting in SETTINGS}


#: Key, possible values of its text (best first), and origin.
_Given: TypeAlias = tuple[str, tuple[object, ...], str]


def load_config(
    path: Path | None = DEFAULT_PATH, environment: Mapping[str, str] | None = None
) -> Config:
    """Read and validate the configuration in force.

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
    for key, candidates, origin in (*_from_file(path, problems), *_from_environment(variables)):
        setting = _BY_KEY.get(key)
        if setting is None:
            nearest = get_close_matches(key, _BY_KEY, n=1)
            known = f"known are: {', '.join(_BY_KEY)}"
            hint = f"did you mean {nearest[0]}?" if nearest else known
            problems.append(f"{origin}: unknown key {key}; {hint}")
            continue
        accepted = [value for value in candidates if setting.kind.accepts(value)]
        if accepted:
            values[key], origins[key] = accepted[0], origin
        else:
            problems.append(f"{origin}: {key}{setting.kind.why_not(candidates[0])}")
    if problems:
        raise ConfigError(problems)
    sections: dict[str, dict[str, object]] = {}
    for key, value in values.items():
        section, name = key.split(".")
        sections.setdefault(section, {})[name] = value
    return msgspec.convert({**sections, "origins": origins}, Config)


def effective(config: Config) -> Iterator[tuple[Setting, object, str]]:
    """Yield each setting, its value in force and where it was set, in the table's order."""
    for setting in SETTINGS:
        section, name = setting.key.split(".")
        yield setting, getattr(getattr(config, section), name), config.origins[setting.key]


def _from_file(file: Path | None, problems: list[str]) -> Iterator[_Given]:
    if file is None:
        return
    for section, content in _parsed(file, problems).items():
        if not isinstance(content, dict):
            problems.append(f"{file}: {section} is outside of a section such as [sampling]")
            continue
        for name, value in content.items():
            yield f"{section}.{name}", (value,), str(file)


def _parsed(file: Path, problems: list[str]) -> dict[str, object]:
    """Parse the file; return {}, with the problem added to `problems`, if it can't be used."""
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
            yield key, _candidates(text), name


def _candidates(text: str) -> tuple[object, ...]:
    """Return the text as a TOML value, if it is one, and as a string; best first."""
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return (text,)
    return (value,) if isinstance(value, str) else (value, text)
