"""Bytes of trace events to typed events; no files, no columns, no repair here.

Only what the columns need is decoded: msgspec skips every other key without making an object.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from enum import Enum
from itertools import chain
from typing import Annotated, Final, Generic, TypeAlias, TypeVar, cast

import msgspec
from msgspec import Meta, Raw, Struct

from chopperd.traces.text import repaired, with_floats

Scalar: TypeAlias = int | float | str | None
"""A field whose type differs between Kineto versions: a stream is 7, "7", "stream 7" or "0x0"."""

EXACT_FLOAT_LIMIT_US: Final = 2.0**43
"""Below it a float64 tells neighbouring ns apart: half its spacing is 0.488 ns (102 days in us)."""

QuickTime: TypeAlias = (
    Annotated[int, Meta(ge=-(2**62), le=2**62)]
    | Annotated[float, Meta(gt=-EXACT_FLOAT_LIMIT_US, lt=EXACT_FLOAT_LIMIT_US)]
    | None
)
"""Microseconds that int64 or float64 hold to the ns; the decoder refuses any other."""

ExactTime: TypeAlias = Raw | None
"""Microseconds as JSON text, with all their digits: epoch times with decimals need 19."""

NO_TEXT: Final = Raw()
"""Stands for an absent key whose value is kept as JSON text."""

TimeT = TypeVar("TimeT")
ValueT = TypeVar("ValueT")


class EventArgs(Struct, gc=False):
    """The keys of `args` that columns are made of; shapes stay JSON text."""

    device: Scalar = None
    stream: Scalar = None
    correlation: Scalar = None
    external_id: Scalar = msgspec.field(name="External id", default=None)
    external_id_of_2021: Scalar = msgspec.field(name="external id", default=None)
    sequence: Scalar = msgspec.field(name="Sequence number", default=None)
    forward_thread: Scalar = msgspec.field(name="Fwd thread id", default=None)
    bytes: Scalar = None
    size: Scalar = None
    hsa_queue: Scalar = None
    collective: Scalar = msgspec.field(name="Collective name", default=None)
    dtype: Scalar = None
    in_elements: Scalar = msgspec.field(name="In msg nelems", default=None)
    out_elements: Scalar = msgspec.field(name="Out msg nelems", default=None)
    group: Scalar = msgspec.field(name="Process Group Name", default=None)
    group_description: Scalar = msgspec.field(name="Process Group Description", default=None)
    group_size: Scalar = msgspec.field(name="Group size", default=None)
    ranks: Scalar = msgspec.field(name="Process Group Ranks", default=None)
    dims: Raw = msgspec.field(name="Input Dims", default=NO_TEXT)
    types: Raw = msgspec.field(name="Input type", default=NO_TEXT)
    values: Raw = msgspec.field(name="Concrete Inputs", default=NO_TEXT)


class Complete(Struct, Generic[TimeT], gc=False, tag_field="ph", tag="X"):
    """An event with a duration (`ph` X): every row of a `Trace` comes from one of these.

    Attributes:
        ts, dur: us, as `QuickTime` or `ExactTime`; None if absent.
    """

    cat: str | None = None
    name: str = ""
    pid: Scalar = None
    tid: Scalar = None
    ts: TimeT = cast("TimeT", None)
    dur: TimeT = cast("TimeT", None)
    args: EventArgs | None = None


class FlowEnd(Struct, Generic[TimeT], gc=False, tag_field="ph", tag="f"):
    """Where an arrow between two events ends; `FlowStart` is where one starts.

    Attributes:
        ts: us, as `QuickTime` or `ExactTime`; None if absent.
    """

    cat: str | None = None
    id: Scalar = None
    pid: Scalar = None
    tid: Scalar = None
    ts: TimeT = cast("TimeT", None)


class FlowStart(FlowEnd[TimeT], Generic[TimeT], gc=False, tag="s"):
    """Where an arrow between two events starts."""


class Other(Struct, gc=False, tag_field="ph", tag="?"):
    """An event that is only counted: metadata, instants, counters."""

    cat: str | None = None


class _Instant(Other, tag="i"): ...


class _OldInstant(Other, tag="I"): ...


class _Metadata(Other, tag="M"): ...


class _FlowStep(Other, tag="t"): ...


class _Counter(Other, tag="C"): ...


class _Begin(Other, tag="B"): ...


class _End(Other, tag="E"): ...


_Others: TypeAlias = _Instant | _OldInstant | _Metadata | _FlowStep | _Counter | _Begin | _End
QuickEvent: TypeAlias = Complete[QuickTime] | FlowStart[QuickTime] | FlowEnd[QuickTime] | Other
ExactEvent: TypeAlias = Complete[ExactTime] | FlowStart[ExactTime] | FlowEnd[ExactTime] | Other
_ExactForms: TypeAlias = Complete[Raw] | FlowStart[Raw] | FlowEnd[Raw] | _Others
"""Decoded as; an absent time is None all the same."""

_QUICK: Final = msgspec.json.Decoder(
    list[Complete[QuickTime] | FlowStart[QuickTime] | FlowEnd[QuickTime] | _Others]
)
_EXACT: Final = cast(
    "msgspec.json.Decoder[list[ExactEvent]]", msgspec.json.Decoder(list[_ExactForms])
)


_ELEMENT: Final = cast("msgspec.json.Decoder[ExactEvent]", msgspec.json.Decoder(_ExactForms))


def _decimal_of(text: str) -> Decimal:
    """A number; 0 or infinite where its exponent is one that decimals can't have."""
    try:
        return Decimal(text)
    except InvalidOperation:
        digits, _, exponent = text.lower().partition("e")
        is_least = exponent.startswith("-") or not digits.strip("-0.")
        return Decimal(0 if is_least else "Infinity")


_UNTYPED: Final = msgspec.json.Decoder(float_hook=_decimal_of)
_SKIPPED: Final = msgspec.json.Decoder(Raw)
_FLOWS: Final = {"s": FlowStart[ExactTime], "f": FlowEnd[ExactTime]}
_ARGS: Final = tuple((one.name, one.encode_name) for one in msgspec.structs.fields(EventArgs))
_TEXTS: Final = ("dims", "types", "values")
SCALAR_ARGS: Final = tuple(key for name, key in _ARGS if name not in _TEXTS)
"""Keys of arguments that are numbers or texts."""
_SCALARS: Final = frozenset({int, bool, str, type(None)})
"""What is decoded as what it is."""
_REFUSALS: Final = (msgspec.DecodeError, ValueError, RecursionError, InvalidOperation)
"""What a decoder raises: ValueError for text that is not UTF-8 and for numbers without end."""
_PLACE: Final = re.compile(r"\(byte (\d+)\)")


_FINE_PART: Final = re.compile(rb"\.[0-9]{4}")
_NEGATIVE: Final = re.compile(rb"-[0-9]")
_MINUS: Final = ord("-")
_EXPONENT: Final = b"eE"
"""In a number that may have more than three decimals: behind its point, or in its exponent.

The patterns begin with one byte that is rare, which is ten times as fast to look for as a choice.
"""
_NUMERALS: Final = b"0123456789.-eE"
_TIME_KEYS: Final = (b'"ts"', b'"dur"')
_ESCAPED_KEYS: Final = (b'"\\u00', b'"t\\u00', b'"d\\u00', b'"du\\u00')
_LONGEST_BYTES: Final = 256
"""From a time's key to its decimals."""
_FEWEST_MANY: Final = 16
_BYTES_PER_PART: Final = 100
"""Texts with more such numbers than one in so many bytes are not looked through: it takes longer.

Events of allocations have two in 300 bytes, kernels three in 500.
"""


class Fault(Enum):
    """Why a decoder refused its input."""

    TRAILING = "whole, but more follows"
    INCOMPLETE = "ends inside a value"
    MALFORMED = "not JSON"
    INVALID = "JSON, but a field has an unexpected type or size"
    BAD_TEXT = "not UTF-8"


@dataclass(frozen=True, slots=True)
class Refusal:
    """A decoder's refusal.

    Attributes:
        fault: The kind.
        offset: Byte at which the value ends (TRAILING) or the trouble lies; None if unknown.
    """

    fault: Fault
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class Element:
    """One element of the array.

    Attributes:
        event: None if it is JSON but no event.
        size_bytes: Its length.
    """

    event: ExactEvent | None
    size_bytes: int


Bytes: TypeAlias = bytes | bytearray | memoryview


def quick_events(array: bytes) -> Sequence[QuickEvent] | Refusal:
    """The events of a JSON array, times as int or float; refuses times that these can't hold."""
    if _has_fine_times(array):
        return Refusal(Fault.INVALID)
    try:
        return _QUICK.decode(array)
    except _REFUSALS as error:
        return _refusal(error, len(array))


def _has_fine_times(text: bytes) -> bool:
    """Whether a time may have more than three decimals.

    A float64 may lie on the other side of half a ns then.
    """
    if b"\\" in text and any(key in text for key in _ESCAPED_KEYS):
        return True
    parts = (found.start() for found in chain(_FINE_PART.finditer(text), _NEGATIVE.finditer(text)))
    many = _FEWEST_MANY + len(text) // _BYTES_PER_PART
    return any(number == many or _is_in_time(text, start) for number, start in enumerate(parts))


def _is_in_time(text: bytes, position: int) -> bool:
    """Whether a point or a minus within the number of a time stands at a position."""
    if text[position] == _MINUS and text[position - 1] not in _EXPONENT:
        return False
    key = text[max(position - _LONGEST_BYTES, 0) : position].rstrip(_NUMERALS).rstrip()
    return key.endswith(b":") and key[:-1].rstrip().endswith(_TIME_KEYS)


def exact_events(array: Bytes) -> Sequence[ExactEvent] | Refusal:
    """The events of a JSON array, times as text; about half as fast as `quick_events`."""
    try:
        return _EXACT.decode(array)
    except _REFUSALS as error:
        return _refusal(error, len(array))


def first_element(data: memoryview) -> Element | Refusal:
    """The JSON value that `data` starts with, whatever follows it.

    Where the typed decoder refuses valid JSON, the fields are taken one by one.
    """
    typed = first_value(_ELEMENT, data)
    if not isinstance(typed, Refusal):
        return Element(*typed)
    if typed.fault is not Fault.INVALID:
        return typed
    untyped = first_value(_UNTYPED, data)
    if isinstance(untyped, Refusal):
        return untyped
    value, size_bytes = untyped
    return Element(event_from(value), size_bytes)


def first_value(
    decoder: "msgspec.json.Decoder[ValueT]", data: memoryview
) -> tuple[ValueT, int] | Refusal:
    """The value that `data` starts with, and its length.

    The parser stops at the first byte after a whole value and names it, so the end of an element
    is found without scanning for brackets that may lie inside strings.
    """
    try:
        return decoder.decode(data), len(data)
    except _REFUSALS as error:
        refusal = _refusal(error, len(data))
    if refusal.fault is not Fault.TRAILING or refusal.offset is None:
        return refusal
    return decoder.decode(data[: refusal.offset]), refusal.offset


def is_json(text: bytes) -> bool:
    """Whether the text is one JSON value and nothing else; makes no values."""
    try:
        _SKIPPED.decode(text)
    except _REFUSALS:
        return False
    return True


def values_of(texts: Sequence[bytes]) -> Sequence[object]:
    """The values of JSON texts, of which only what they stand for need be sound."""
    array = b"[" + b",".join(texts) + b"]"
    try:
        values: Sequence[object] = _UNTYPED.decode(array)
    except _REFUSALS:
        values = _UNTYPED.decode(with_floats(repaired(array, final=True)))
    return values


def scalars_of(texts: Sequence[bytes]) -> list[Scalar]:
    """Values of fields of mixed type; None for any other."""
    values = values_of(texts)
    if _SCALARS.issuperset(map(type, values)):
        return list(cast("Sequence[Scalar]", values))
    return list(map(_scalar, values))


def event_from(value: object) -> ExactEvent | None:
    """An event from decoded JSON, field by field; None if it is none."""
    if not isinstance(value, dict) or not isinstance(value.get("ph"), str):
        return None
    cat = value.get("cat")
    cat = cat if isinstance(cat, str) else None
    if value["ph"] in _FLOWS:
        return _FLOWS[value["ph"]](
            cat=cat,
            id=_scalar(value.get("id")),
            pid=_scalar(value.get("pid")),
            tid=_scalar(value.get("tid")),
            ts=_time_text(value.get("ts")),
        )
    if value["ph"] != "X":
        return Other(cat=cat)
    args = value.get("args")
    return Complete(
        cat=cat,
        name=str(value.get("name", "")),
        pid=_scalar(value.get("pid")),
        tid=_scalar(value.get("tid")),
        ts=_time_text(value.get("ts")),
        dur=_time_text(value.get("dur")),
        args=_args_from(args) if isinstance(args, dict) else None,
    )


def _args_from(args: Mapping[str, object]) -> EventArgs:
    found = EventArgs()
    for name, key in _ARGS:
        if key in args:
            value = args[key]
            setattr(found, name, _text(value) if name in _TEXTS else _scalar(value))
    return found


def _text(value: object) -> Raw:
    return Raw(msgspec.json.encode(value))


def _scalar(value: object) -> Scalar:
    if isinstance(value, Decimal):
        return float(value)
    return value if isinstance(value, int | str) else None


def _time_text(value: object) -> Raw | None:
    if isinstance(value, bool) or not isinstance(value, int | Decimal | str):
        return None
    return Raw(msgspec.json.encode(value) if isinstance(value, str) else str(value).encode())


def _refusal(error: Exception, size_bytes: int) -> Refusal:
    """The kind of a decoder's error on an input of `size_bytes`.

    Source: msgspec's messages; `tests/unit/traces/test_decode.py` holds each of them.
    """
    text = str(error)
    place = _PLACE.search(text)
    offset = int(place[1]) if place else None
    if isinstance(error, UnicodeDecodeError):
        return Refusal(Fault.BAD_TEXT)
    if isinstance(error, msgspec.ValidationError | InvalidOperation):
        return Refusal(Fault.INVALID)
    if offset is not None and "trailing characters" in text:
        # The message counts the first foreign byte in.
        return Refusal(Fault.TRAILING, offset - 1)
    if "truncated" in text or ("invalid" in text and offset == size_bytes):
        return Refusal(Fault.INCOMPLETE)
    return Refusal(Fault.MALFORMED, offset)
