"""Parameters and media types of requests: parsing, validation and description."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Generic, Literal, TypeAlias, TypeVar

from chopperd.errors import ConfigError
from chopperd.model.run import device_map_of
from chopperd.units import NS_PER_S

Json: TypeAlias = "Mapping[str, Json] | Sequence[Json] | str | int | float | bool | None"
V = TypeVar("V")
V_co = TypeVar("V_co", covariant=True)

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
#: Whole numbers below this, in 1973, are most likely times in s, ms or us, not in ns.
_LEAST_UNIX_NS: Final = 10**17
_MAX_INT64: Final = 2**63 - 1
_LONGEST_DEVICE_MAP: Final = 4096
# A plus sign that was not escaped arrives as a space.
_RFC_3339: Final = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(?:([Zz])|([-+ ])(\d\d:\d\d))", re.ASCII
)
_SECONDS_OF_UNIT: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_DURATION: Final = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)([smhd]?)", re.ASCII)
_ANY: Final = "*"


@dataclass(frozen=True, slots=True)
class Kind(Generic[V_co]):
    """A parser of a parameter's text, and the JSON schema of its values."""

    read: Callable[[str], V_co]  # parses a text; a ValueError says what is expected
    schema: Mapping[str, Json]  # as JSON Schema


def line(longest: int = 256) -> Kind[str]:
    """Make a kind for text of at most `longest` characters without control characters."""

    def read(given: str) -> str:
        if not 0 < len(given) <= longest or not given.isprintable():
            raise ValueError(f"must be 1 to {longest} printable characters")
        return given

    return Kind(read, {"type": "string", "minLength": 1, "maxLength": longest})


def file_name(longest: int = 200) -> Kind[str]:
    """Make a kind for a name of a file or folder, without a path."""

    def read(given: str) -> str:
        if not 0 < len(given.encode()) <= longest or not given.isprintable():
            raise ValueError(f"must be 1 to {longest} bytes of printable characters")
        if "/" in given or given.startswith("."):
            raise ValueError("must be a plain name: no '/', no leading '.'")
        return given

    return Kind(read, {**line(longest).schema, "pattern": "^[^./][^/]*$"})


def whole(low: int, high: int) -> Kind[int]:
    """Make a kind for a whole number from `low` to `high`."""

    def read(given: str) -> int:
        value = _digits(given)
        if value is None or not low <= value <= high:
            raise ValueError(f"must be a whole number from {low} to {high}")
        return value

    return Kind(read, {"type": "integer", "minimum": low, "maximum": high})


def duration(longest_s: float) -> Kind[float]:
    """Make a kind for a length of time: in s, or with a unit (s, m, h, d)."""

    def read(given: str) -> float:
        found = _DURATION.fullmatch(given)
        value_s = float(found[1]) * _SECONDS_OF_UNIT[found[2]] if found else 0.0
        if not 0 < value_s <= longest_s:
            raise ValueError(f"must be a time such as 90, 10m or 2h, at most {longest_s:g} s")
        return value_s

    return Kind(read, {"type": "string", "pattern": f"^(?:{_DURATION.pattern})$"})


def one_of(*words: str) -> Kind[str]:
    """Make a kind for one of some words."""

    def read(given: str) -> str:
        if given not in words:
            raise ValueError(f"must be one of: {', '.join(words)}")
        return given

    return Kind(read, {"type": "string", "enum": list(words)})


def _device_map(given: str) -> str:
    try:
        if len(given) <= _LONGEST_DEVICE_MAP and given.isprintable():
            device_map_of(given, "device_map")
            return given
    except ConfigError:
        pass
    raise ValueError("must be [RANK:]DEVICE=GPU, several separated by commas, or pci")


def _unix_ns(given: str) -> int:
    """Parse a time to ns since 1970, exact to the ns."""
    unix_ns = _digits(given)
    if unix_ns is None:
        unix_ns = _rfc_3339_ns(given)
    if 0 < unix_ns < _LEAST_UNIX_NS:
        raise ValueError("is before 1974: unix time is in ns")
    if not 0 <= unix_ns <= _MAX_INT64:
        raise ValueError("is out of range")
    return unix_ns


def _rfc_3339_ns(given: str) -> int:
    found = _RFC_3339.fullmatch(given)
    if found is None:
        raise ValueError("must be a time such as 2026-11-27T10:00:00Z, or unix time in ns")
    date, time, fraction, _, sign, offset = found.groups()
    zone = f"{sign.replace(' ', '+')}{offset}" if offset else "+00:00"
    try:
        since = datetime.fromisoformat(f"{date}T{time}{zone}") - _EPOCH
    except ValueError as error:
        raise ValueError("is not a time that exists") from error
    whole_s = since.days * 86_400 + since.seconds
    return whole_s * NS_PER_S + int((fraction or "").ljust(9, "0"))


def _digits(given: str) -> int | None:
    return int(given) if given.isascii() and given.isdecimal() and len(given) < 20 else None


#: Which GPU each device of a trace is.
DEVICE_MAP_TEXT: Final = Kind(_device_map, line(_LONGEST_DEVICE_MAP).schema)
#: A time: RFC 3339 with its offset, or a whole number of ns since 1970.
INSTANT: Final = Kind(
    _unix_ns,
    {
        "oneOf": [
            {"type": "string", "format": "date-time"},
            {"type": "integer", "format": "int64", "description": "ns since 1970"},
        ]
    },
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter(Generic[V_co]):
    """Definition of a parameter of a route."""

    name: str
    kind: Kind[object]
    help: str
    where: Literal["path", "query"]
    default: V_co | None


def in_path(name: str, kind: Kind[V], help_text: str) -> Parameter[V]:
    """Declare a parameter that is a part of the path."""
    return Parameter(name=name, kind=kind, help=help_text, where="path", default=None)


def optional(name: str, kind: Kind[V], help_text: str) -> Parameter[V | None]:
    """Declare an optional query parameter; its value is None if it is absent."""
    return Parameter(name=name, kind=kind, help=help_text, where="query", default=None)


def defaulted(name: str, kind: Kind[V], default: V, help_text: str) -> Parameter[V]:
    """Declare an optional query parameter with a default value."""
    return Parameter(name=name, kind=kind, help=help_text, where="query", default=default)


FROM: Final = optional("from", INSTANT, "start, inclusive")
TO: Final = optional("to", INSTANT, "end, exclusive")
LIMIT: Final = defaulted("limit", whole(1, 1000), 100, "most entries to return")


def best_media_type(accept: str | None, offers: Sequence[str]) -> str | None:
    """Return the offer with the highest quality, the first of equals; None if none is acceptable.

    Invalid parts of the header are ignored; an absent or empty header accepts all.
    """
    if accept is None or not accept.strip():
        return offers[0]
    ranges = [each for part in accept.split(",") if (each := _media_range(part)) is not None]
    best = max(offers, key=lambda offer: _quality(offer, ranges))
    return best if _quality(best, ranges) > 0 else None


def accepts_gzip(accept_encoding: str | None) -> bool:
    """Whether an `Accept-Encoding` header names gzip, with a quality above 0 (RFC 9110, 12.5.3)."""
    for part in (accept_encoding or "").lower().split(","):
        name, *parameters = ("".join(each.split()) for each in part.split(";"))
        if name == "gzip":
            return not any(re.fullmatch(r"q=0(\.0*)?", each) for each in parameters)
    return False


def _media_range(text: str) -> tuple[str, str, float] | None:
    """Parse one part of the header to type, subtype and quality; None if it is invalid."""
    name, *parameters = (each.strip().lower() for each in text.split(";"))
    kind, slash, subtype = name.partition("/")
    if not (kind and slash and subtype) or (kind == _ANY and subtype != _ANY):
        return None
    quality = 1.0
    for parameter in parameters:
        key, _, value = parameter.partition("=")
        if key.strip() == "q":
            try:
                quality = float(value)
            except ValueError:
                return None
    return (kind, subtype, quality) if 0 <= quality <= 1 else None


def _quality(offer: str, ranges: Sequence[tuple[str, str, float]]) -> float:
    """Return the quality of an offer by the most specific matching range; 0.0 if none matches."""
    kind, _, subtype = offer.partition("/")
    for wanted in ((kind, subtype), (kind, _ANY), (_ANY, _ANY)):
        matching = [quality for *names, quality in ranges if tuple(names) == wanted]
        if matching:
            return max(matching)
    return 0.0
