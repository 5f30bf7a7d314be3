"""Parameters of requests: how each kind is read, and how the API's document describes it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Generic, Literal, Protocol, TypeAlias, TypeVar

from chopperd.errors import ConfigError
from chopperd.model.run import device_map_of
from chopperd.units import NS_PER_S

Json: TypeAlias = "Mapping[str, Json] | Sequence[Json] | str | int | float | bool | None"
V = TypeVar("V")
V_co = TypeVar("V_co", covariant=True)

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
#: Whole numbers below this are no times in ns of an age with GPUs, but likely in s, ms or us.
_LEAST_UNIX_NS: Final = 10**17
_MAX_INT64: Final = 2**63 - 1
# A plus sign that was not escaped arrives as a space.
_RFC_3339: Final = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(?:([Zz])|([-+ ])(\d\d:\d\d))",
    re.ASCII,
)
_SECONDS_OF_UNIT: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_DURATION: Final = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)([smhd]?)", re.ASCII)


class Kind(Protocol[V_co]):
    """A kind of value."""

    def read(self, text: str) -> V_co:
        """The value that the text says.

        Raises:
            ValueError: It says none of this kind; the message says what is expected.
        """
        ...

    def schema(self) -> Mapping[str, Json]:
        """The kind as JSON Schema."""
        ...


@dataclass(frozen=True, slots=True)
class Text:
    """A line of text of at most `longest` characters, none of them a control character."""

    longest: int = 256

    def read(self, text: str) -> str:
        """The text itself."""
        if not 0 < len(text) <= self.longest or not text.isprintable():
            raise ValueError(f"must be 1 to {self.longest} printable characters")
        return text

    def schema(self) -> Mapping[str, Json]:
        """The kind as JSON Schema."""
        return {"type": "string", "minLength": 1, "maxLength": self.longest}


@dataclass(frozen=True, slots=True)
class FileName:
    """A name that can be a file's or a folder's: no path."""

    longest: int = 200

    def read(self, text: str) -> str:
        """The name itself."""
        if not 0 < len(text.encode()) <= self.longest or not text.isprintable():
            raise ValueError(f"must be 1 to {self.longest} bytes of printable characters")
        if "/" in text or text.startswith("."):
            raise ValueError("must be a plain name: no '/', no '.' at its start")
        return text

    def schema(self) -> Mapping[str, Json]:
        """The kind as JSON Schema."""
        return {
            "type": "string",
            "minLength": 1,
            "maxLength": self.longest,
            "pattern": "^[^./][^/]*$",
        }


@dataclass(frozen=True, slots=True)
class DeviceMapText:
    """Which GPU each device of a trace is."""

    longest: int = 4096

    def read(self, text: str) -> str:
        """The text itself."""
        try:
            if len(text) <= self.longest and text.isprintable():
                device_map_of(text, "device_map")
                return text
        except ConfigError:
            pass
        raise ValueError("must be [RANK:]DEVICE=GPU, several separated by commas, or pci")

    def schema(self) -> Mapping[str, Json]:
        """The kind as JSON Schema."""
        return {"type": "string", "minLength": 1, "maxLength": self.longest}


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number from `low` to `high`."""

    low: int
    high: int

    def read(self, text: str) -> int:
        """The number."""
        value = int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else None
        if value is None or not self.low <= value <= self.high:
            raise ValueError(f"must be a whole number from {self.low} to {self.high}")
        return value

    def schema(self) -> Mapping[str, Json]:
        """The kind as JSON Schema."""
        return {"type": "integer", "minimum": self.low, "maximum": self.high}


@dataclass(frozen=True, slots=True)
class Instant:
    """A time: RFC 3339 with its offset, or a whole number of ns since 1970."""

    def read(self, text: str) -> int:
        """The time in ns since 1970."""
        if text.isascii() and text.isdecimal() and len(text) < 20:
            return self._checked(int(text))
        found = _RFC_3339.fullmatch(text)
        if found is None:
            raise ValueError("must be a time such as 2026-11-27T10:00:00Z, or unix time in ns")
        date, time, fraction, _, sign, offset = found.groups()
        zone = f"{sign.replace(' ', '+')}{offset}" if offset else "+00:00"
        try:
            since = datetime.fromisoformat(f"{date}T{time}{zone}") - _EPOCH
        except ValueError as error:
            raise ValueError("is no time that exists") from error
        whole_s = since.days * 86_400 + since.seconds
        return self._checked(whole_s * NS_PER_S + int((fraction or "").ljust(9, "0")))

    def _checked(self, unix_ns: int) -> int:
        if 0 < unix_ns < _LEAST_UNIX_NS:
            raise ValueError("is before 1974: unix time is in ns")
        if not 0 <= unix_ns <= _MAX_INT64:
            raise ValueError("is out of range")
        return unix_ns

    def schema(self) -> Mapping[str, Json]:
        """The kind as JSON Schema."""
        return {
            "oneOf": [
                {"type": "string", "format": "date-time"},
                {"type": "integer", "format": "int64", "description": "ns since 1970"},
            ]
        }


@dataclass(frozen=True, slots=True)
class Duration:
    """A length of time in s, or with a unit: s, m, h, d."""

    longest_s: float

    def read(self, text: str) -> float:
        """The length in s."""
        found = _DURATION.fullmatch(text)
        value_s = float(found[1]) * _SECONDS_OF_UNIT[found[2]] if found else 0.0
        if not 0 < value_s <= self.longest_s:
            raise ValueError(f"must be a time such as 90, 10m or 2h, at most {self.longest_s:g} s")
        return value_s

    def schema(self) -> Mapping[str, Json]:
        """The kind as JSON Schema."""
        return {"type": "string", "pattern": f"^(?:{_DURATION.pattern})$"}


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of some words."""

    words: tuple[str, ...]

    def read(self, text: str) -> str:
        """The word."""
        if text not in self.words:
            raise ValueError(f"must be one of: {', '.join(self.words)}")
        return text

    def schema(self) -> Mapping[str, Json]:
        """The kind as JSON Schema."""
        return {"type": "string", "enum": list(self.words)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter(Generic[V_co]):
    """A parameter of a request.

    Attributes:
        name: As it stands in the URL.
        kind: What it holds.
        help: What it is for.
        where: Part of the URL that it stands in.
        default: Its value where it is not given; one in the path always is.
    """

    name: str
    kind: Kind[object]
    help: str
    where: Literal["path", "query"]
    default: V_co | None


def in_path(name: str, kind: Kind[V], help_text: str) -> Parameter[V]:
    """A part of the path."""
    return Parameter(name=name, kind=kind, help=help_text, where="path", default=None)


def optional(name: str, kind: Kind[V], help_text: str) -> Parameter[V | None]:
    """A part of the query that need not be given."""
    return Parameter(name=name, kind=kind, help=help_text, where="query", default=None)


def defaulted(name: str, kind: Kind[V], default: V, help_text: str) -> Parameter[V]:
    """A part of the query that has a value also where it is not given."""
    return Parameter(name=name, kind=kind, help=help_text, where="query", default=default)
