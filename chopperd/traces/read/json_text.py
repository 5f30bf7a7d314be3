"""JSON texts: decode values, classify decoding errors, repair what strict decoders refuse."""

import re
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from enum import Enum
from typing import Final, TypeAlias, TypeVar, cast

import msgspec
import numpy as np
from msgspec import Raw, Struct

Scalar: TypeAlias = int | float | str | None
"""A field whose type differs between Kineto versions: a stream is 7, "7", "stream 7" or "0x0"."""

NO_TEXT: Final = Raw()
"""Default of a key whose value is read as JSON text."""

EVENT_KEYS: Final = rb'"(?:ph|cat|name|pid|tid|ts|dur|id|args|s|bp)"'
EVENT_BORDER: Final = re.compile(rb"\}\s*,\s*(?=\{\s*" + EVENT_KEYS + rb")")
"""What separates two events; strings and lists inside an event may contain the same bytes."""

ValueT = TypeVar("ValueT")


def decimal_of(text: str) -> Decimal:
    """Convert a JSON number to Decimal; 0 or infinite if it can't hold the exponent."""
    try:
        return Decimal(text)
    except InvalidOperation:
        digits, _, exponent = text.lower().partition("e")
        is_least = exponent.startswith("-") or not digits.strip("-0.")
        return Decimal(0 if is_least else "Infinity")


ANY_VALUE: Final = msgspec.json.Decoder(float_hook=decimal_of)
"""Decodes any value; numbers with a point or an exponent are decimals."""
_SKIPPED: Final = msgspec.json.Decoder(Raw)
_SCALARS: Final = frozenset({int, bool, str, type(None)})
"""Types of decoded values that need no conversion."""
REFUSALS: Final = (msgspec.DecodeError, ValueError, RecursionError, InvalidOperation)
"""What a decoder raises: ValueError for text that is not UTF-8 and for numbers without end."""
_OFFSET: Final = re.compile(r"\(byte (\d+)\)")

_BLANKS: Final = rb"[ \t\n\r]*"
_SCALAR: Final = (
    rb"(?:-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][-+]?[0-9]++)?|true|false|null)(?![\w.+-])"
)
_WORD: Final = rb"(?<=[:,\[\s])(?!" + _SCALAR + rb")[\w.+-]++(?=" + _BLANKS + rb"[,\]}])"
_GAP: Final = rb":(?=" + _BLANKS + rb"[,}])|\[(?=" + _BLANKS + rb",)|,(?=" + _BLANKS + rb"[,\]])"
_NO_VALUE: Final = re.compile(
    rb'(?:[^"\w.+:,\[-]++|"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)|(?!'
    + _WORD
    + rb")[\w.+-]++|(?!"
    + _GAP
    + rb")[:,\[])*+(?:(?P<word>"
    + _WORD
    + rb")|(?P<gap>"
    + _GAP
    + rb")|\Z)",
    re.DOTALL,
)
"""Text up to and including a missing value or an invalid word, outside strings.

Quotes in damaged text mislead it.
"""
_MAY_BE_NONE: Final = re.compile(rb"[\w\s.+,\]}-]")
_NULL: Final = b"null"
_LONG_DIGITS: Final = re.compile(rb"[0-9]{4301}")
_LONG_INTEGER: Final = re.compile(
    rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)'
    rb"|(?<![0-9.eE+])(?<![eE]-)(?P<digits>[0-9]{4301,}+)(?![.eE])",
    re.DOTALL,
)
"""Strings, and integers of more digits than Python converts."""
_NO_EXPONENT: Final = b"e0"
_ESCAPE_BYTES: Final = len(rb"\ud83d")
_BACKSLASH: Final = ord("\\")
_REPLACEMENT: Final = np.frombuffer(b"fffd", np.uint8)


class Fault(Enum):
    """Why a decoder refused its input."""

    TRAILING = "whole, but more follows"
    INCOMPLETE = "ends inside a value"
    MALFORMED = "not JSON"
    INVALID = "JSON, but a field has an unexpected type or size"
    BAD_TEXT = "not UTF-8"


class Refusal(Struct, frozen=True):
    """A decoder's refusal; `offset`, if known, is that of the fault or value's end (TRAILING)."""

    fault: Fault
    offset: int | None = None


def first_value(
    decoder: "msgspec.json.Decoder[ValueT]", data: memoryview
) -> tuple[ValueT, int] | Refusal:
    """Decode the value that `data` starts with; return it and its length in bytes, or the refusal.

    The parser stops at the first byte after a whole value and names it.
    """
    try:
        return decoder.decode(data), len(data)
    except REFUSALS as error:
        refusal = refusal_of(error, len(data))
    if refusal.fault is not Fault.TRAILING or refusal.offset is None:
        return refusal
    return decoder.decode(data[: refusal.offset]), refusal.offset


def is_json(text: bytes) -> bool:
    """Whether the text is one JSON value and nothing else; makes no values."""
    try:
        _SKIPPED.decode(text)
    except REFUSALS:
        return False
    return True


def values_of(texts: Sequence[bytes]) -> Sequence[object]:
    """Decode JSON texts; texts that strict decoders refuse are repaired first."""
    array = b"[" + b",".join(texts) + b"]"
    try:
        values: Sequence[object] = ANY_VALUE.decode(array)
    except REFUSALS:
        values = ANY_VALUE.decode(with_floats(repaired(array)))
    return values


def scalars_of(texts: Sequence[bytes]) -> list[Scalar]:
    """Decode JSON texts of fields of mixed type; None for lists and objects."""
    return scalars(values_of(texts))


def scalars(values: Sequence[object]) -> list[Scalar]:
    """Convert decoded values of mixed type: decimals to floats, lists and objects to None."""
    if _SCALARS.issuperset(map(type, values)):
        return list(cast("Sequence[Scalar]", values))
    return list(map(scalar, values))


def scalar(value: object) -> Scalar:
    """Convert a decoded value of mixed type: a decimal to float, a list or an object to None."""
    if isinstance(value, Decimal):
        return float(value)
    return value if isinstance(value, int | str) else None


def refusal_of(error: Exception, size_bytes: int) -> Refusal:
    """Classify a decoder's error on an input of `size_bytes`.

    Source: msgspec's messages; `tests/unit/traces/read/test_json_text.py` holds each of them.
    """
    text = str(error)
    place = _OFFSET.search(text)
    offset = int(place[1]) if place else None
    if isinstance(error, UnicodeDecodeError) or "UTF-8" in text:  # msgspec before 0.23, and since
        return Refusal(Fault.BAD_TEXT)
    if isinstance(error, msgspec.ValidationError | InvalidOperation):
        return Refusal(Fault.INVALID)
    if offset is not None and "trailing characters" in text:
        # The message counts the first foreign byte in.
        return Refusal(Fault.TRAILING, offset - 1)
    if "truncated" in text or ("invalid" in text and offset == size_bytes):
        return Refusal(Fault.INCOMPLETE)
    return Refusal(Fault.MALFORMED, offset)


def repaired(text: bytes) -> bytes:
    """Return text that strict decoders accept, as far as strings are recognised before damage.

    U+FFFD replaces invalid bytes and lone surrogate escapes, null invalid values (`with_nulls`).
    """
    if not text.isascii():
        text = text.decode("utf-8", "replace").encode()
    if rb"\ud" in text or rb"\uD" in text:
        text = _without_lone_surrogates(text)
    return with_nulls(text)


def with_nulls(text: bytes) -> bytes:
    """Return `text` with null for missing values and invalid words.

    Python's json writes NaN and Infinity, C++ nan and -inf, other tools None, True or 0x7f; torch
    has written nothing at all.
    """
    return _NO_VALUE.sub(_with_null, text)


def with_floats(text: bytes) -> bytes:
    """Return `text` with integers too long for Python written as floats, which have no limit."""
    if not _LONG_DIGITS.search(text):
        return text
    return _LONG_INTEGER.sub(lambda at: at[0] + _NO_EXPONENT if at["digits"] else at[0], text)


def may_lack_value(text: bytes, offset: int | None) -> bool:
    """Whether a missing or invalid value may be what a parser refused at an offset."""
    return offset is not None and _MAY_BE_NONE.match(text, offset) is not None


def _with_null(found: re.Match[bytes]) -> bytes:
    word: bytes | None = found["word"]
    if word is not None:
        return found[0].removesuffix(word) + _NULL
    return found[0] if found["gap"] is None else found[0] + _NULL


def _without_lone_surrogates(text: bytes) -> bytes:
    codes, digits = np.frombuffer(text, np.uint8), _nibbles()
    slashes = np.flatnonzero(codes == _BACKSLASH)
    # The first of a run of backslashes begins an escape, and every other one after it.
    run = np.concatenate(([True], np.diff(slashes) != 1))
    since = slashes[np.maximum.accumulate(np.where(run, np.arange(len(slashes)), 0))]
    at = slashes[((slashes - since) % 2 == 0) & (slashes <= len(codes) - _ESCAPE_BYTES)]
    at = at[(codes[at + 1] == ord("u")) & (digits[codes[at + 2]] == 0xD)]
    at = at[
        (digits[codes[at + 3]] & 0x18 == 0x8) & (digits[codes[at + 4]] | digits[codes[at + 5]] < 16)
    ]
    low = digits[codes[at + 3]] >= 0xC
    pairs = np.flatnonzero(~low[:-1] & low[1:] & (np.diff(at) == _ESCAPE_BYTES))
    lone = np.ones(len(at), np.bool_)
    lone[pairs] = lone[pairs + 1] = False
    valid = codes.copy()
    valid[at[lone][:, None] + np.arange(2, _ESCAPE_BYTES)] = _REPLACEMENT
    return valid.tobytes()


def _nibbles() -> "np.ndarray[tuple[int], np.dtype[np.uint8]]":
    """Return the value of each byte as a hex digit, (256,) uint8; 16 if it is none."""
    values = np.full(256, 16, np.uint8)
    for digit in range(16):
        for byte in (b"%x" % digit, b"%X" % digit):
            values[ord(byte)] = digit
    return values
