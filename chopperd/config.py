"""The configuration: defaults, then a TOML file, then the environment; all problems at once.

`SETTINGS` is the one table of keys: type, allowed values, default and help. A key's variable is
`CHOPPERD_<SECTION>__<KEY>`; its text is read as a TOML value where it is one, else as a string.
"""

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from math import isfinite
from pathlib import Path
from typing import Final, Literal, Protocol

import msgspec

from chopperd.errors import ConfigError

DEFAULT_PATH: Final = Path("/etc/chopperd/config.toml")
DEFAULT_ORIGIN: Final = "default"
_PREFIX: Final = "CHOPPERD_"
_SEPARATOR: Final = "__"


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingConfig:
    """`[sampling]`: how often the GPUs are read, and what the reading may cost."""

    backend: str
    hz: float
    slow_hz: float
    record_hz: float
    driver_budget_ratio: float
    record_driver_budget_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestConfig:
    """`[ingest]`: how large a trace may be."""

    max_stored_bytes: int
    max_decompressed_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TracesConfig:
    """`[traces]`: what a site knows about its own traces."""

    data_wait_patterns: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceConfig:
    """`[reference]`: the clock that losses are measured against, where the driver's is not it.

    A model's own goes before the one for all.
    """

    sm_clock_mhz: float | None
    limit_mhz: float | None
    models: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivacyConfig:
    """`[privacy]`: what may be shown; names of kernels and modules reveal architectures."""

    names: Literal["full", "hashed", "classes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The whole configuration; `origins` says for each key ("sampling.hz") where it was set."""

    sampling: SamplingConfig
    ingest: IngestConfig
    traces: TracesConfig
    reference: ReferenceConfig
    privacy: PrivacyConfig
    origins: Mapping[str, str]


class Kind(Protocol):
    """What values a key takes."""

    @property
    def allowed(self) -> str:
        """The allowed values, for people."""
        ...

    def accepts(self, value: object) -> bool:
        """Whether `value`, as TOML gives it, is allowed."""
        ...


@dataclass(frozen=True, slots=True)
class Number:
    """A number in a closed range."""

    low: float
    high: float
    unit: str = ""

    @property
    def allowed(self) -> str:
        """The range with its unit."""
        return f"a number from {self.low:g} to {self.high:g} {self.unit}".rstrip()

    def accepts(self, value: object) -> bool:
        """Whether it is a number, not a truth value, in the range."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return isfinite(value) and self.low <= value <= self.high


@dataclass(frozen=True, slots=True)
class Size:
    """A whole number of bytes in a closed range."""

    low: int
    high: int

    @property
    def allowed(self) -> str:
        """The range in bytes."""
        return f"a whole number of bytes from {self.low} to {self.high}"

    def accepts(self, value: object) -> bool:
        """Whether it is whole and in the range."""
        return type(value) is int and self.low <= value <= self.high


@dataclass(frozen=True, slots=True)
class Name:
    """Any text that is not empty."""

    allowed: str = "a name in quotes"

    def accepts(self, value: object) -> bool:
        """Whether it is text with something in it."""
        return isinstance(value, str) and bool(value.strip())


@dataclass(frozen=True, slots=True)
class Choice:
    """One of a closed set of words."""

    options: tuple[str, ...]

    @property
    def allowed(self) -> str:
        """The words."""
        return " | ".join(self.options)

    def accepts(self, value: object) -> bool:
        """Whether it is one of the words."""
        return value in self.options


@dataclass(frozen=True, slots=True)
class Patterns:
    """A list of regular expressions."""

    allowed: str = "a list of regular expressions"

    def accepts(self, value: object) -> bool:
        """Whether it is a list in which every entry compiles."""
        return isinstance(value, list) and all(map(_compiles, value))


@dataclass(frozen=True, slots=True)
class PerModel:
    """A table of GPU product names and a number for each."""

    each: Number

    @property
    def allowed(self) -> str:
        """The form of the table."""
        return f'a table "GPU name" = {self.each.allowed}'

    def accepts(self, value: object) -> bool:
        """Whether every number of the table is allowed."""
        return isinstance(value, dict) and all(map(self.each.accepts, value.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A key of the configuration; `default` None is "not set"."""

    key: str
    kind: Kind
    default: object
    help: str


_RATE: Final = Number(0.1, 1000, "Hz")
_BUDGET: Final = Number(0.0001, 0.5)
_CLOCK: Final = Number(100, 10_000, "MHz")
_SIZE: Final = Size(1024, 2**42)

SETTINGS: Final = tuple(
    Setting(key=key, kind=kind, default=default, help=help_text)
    for key, kind, default, help_text in (
        ("sampling.backend", Name(), "auto", "driver to read GPUs through; auto takes what works"),
        ("sampling.hz", _RATE, 10.0, "reads of clock and limits a second"),
        ("sampling.slow_hz", Number(0.1, 10, "Hz"), 1.0, "reads of everything else a second"),
        ("sampling.record_hz", _RATE, 100.0, "reads a second under `chopperd record`"),
        ("sampling.driver_budget_ratio", _BUDGET, 0.002, "share of time in driver calls, a GPU"),
        ("sampling.record_driver_budget_ratio", _BUDGET, 0.02, "the same under `record`"),
        ("ingest.max_stored_bytes", _SIZE, 8 * 2**30, "largest trace file, as stored"),
        ("ingest.max_decompressed_bytes", _SIZE, 32 * 2**30, "largest trace, decompressed"),
        (
            "traces.data_wait_patterns",
            Patterns(),
            [],
            "spans that wait for data, besides known ones",
        ),
        ("reference.sm_clock_mhz", _CLOCK, None, "reference clock of every GPU"),
        ("reference.limit_mhz", _CLOCK, None, "clock that the GPUs are locked or limited to"),
        ("reference.models", PerModel(_CLOCK), {}, "reference clock by product name"),
        ("privacy.names", Choice(("full", "hashed", "classes")), "full", "names in what is shown"),
    )
)
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
    value = given.readings[0]
    return f"{given.origin}: {given.key} = {value!r} is not allowed: {setting.kind.allowed}"


def _nested(values: Mapping[str, object]) -> dict[str, dict[str, object]]:
    sections: dict[str, dict[str, object]] = {}
    for key, value in values.items():
        section, name = key.split(".")
        sections.setdefault(section, {})[name] = value
    return sections


def _compiles(pattern: object) -> bool:
    try:
        return isinstance(pattern, str) and bool(re.compile(pattern))
    except re.error:
        return False
