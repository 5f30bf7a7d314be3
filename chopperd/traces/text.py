"""Repair of text that strict JSON readers refuse and Python's accepts, or nearly so.

Stray bytes, half surrogate pairs, and numbers that are none.
"""

import codecs
import re
from typing import Final

import numpy as np

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
"""All up to where a value is due and none stands, or a word that is none: not in a string.

Quotes in damaged text mislead.
"""
_MAY_BE_NONE: Final = re.compile(rb"[\w\s.+,\]}-]")
_NULL: Final = b"null"
_LONG_DIGITS: Final = re.compile(rb"[0-9]{4301}")
_LONG_INTEGER: Final = re.compile(
    rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)'
    rb"|(?<![0-9.eE+])(?<![eE]-)(?P<digits>[0-9]{4301,}+)(?![.eE])",
    re.DOTALL,
)
"""Strings, and integers of more digits than Python makes an integer of."""
_NO_EXPONENT: Final = b"e0"
_ESCAPE_BYTES: Final = len(rb"\ud83d")
_BACKSLASH: Final = ord("\\")
_REPLACEMENT: Final = np.frombuffer(b"fffd", np.uint8)


def _nibbles() -> "np.ndarray[tuple[int], np.dtype[np.uint8]]":
    """What each byte is as a hex digit, 16 for none, (256,) uint8."""
    values = np.full(256, 16, np.uint8)
    for digit in range(16):
        for byte in (b"%x" % digit, b"%X" % digit):
            values[ord(byte)] = digit
    return values


def repaired(data: bytes, *, final: bool) -> bytes:
    """Valid text without NaN and infinities: `valid_text` and `with_nulls` in one.

    Args:
        data: As for `valid_text`; up to what is damaged in it, strings are told from what is not.
        final: Whether nothing follows.
    """
    return with_nulls(valid_text(data, final=final))


def valid_text(data: bytes, *, final: bool) -> bytes:
    """`data` as valid UTF-8, U+FFFD in place of stray bytes and of lone surrogate escapes.

    Args:
        data: Text that may end inside a character or an escape, when it is not the last.
        final: Whether nothing follows.
    """
    text, rest = (data, b"") if data.isascii() else _valid(data, final=final)
    if rb"\ud" in text or rb"\uD" in text:
        end = len(text) if final else max(len(text) - 2 * _ESCAPE_BYTES, 0)
        text = _without_lone_surrogates(text, end)
    return text + rest


def with_nulls(text: bytes) -> bytes:
    """`text` with null where a value is missing, or a word stands that is none.

    Python's json writes NaN and Infinity, C++ nan and -inf, other tools None, True or 0x7f; torch
    has written nothing at all.
    """
    return _NO_VALUE.sub(_with_null, text)


def with_floats(text: bytes) -> bytes:
    """`text` with integers longer than Python's as floats, which may have any length."""
    return _LONG_INTEGER.sub(_with_float, text) if _LONG_DIGITS.search(text) else text


def may_lack_value(text: bytes, offset: int | None) -> bool:
    """Whether what a parser refuses at an offset may be a value that is missing, or is none."""
    return offset is not None and _MAY_BE_NONE.match(text, offset) is not None


def offset_without_nulls(text: bytes, offset: int) -> int:
    """Where an offset into `with_nulls(text)` lies in `text`."""
    for found in _NO_VALUE.finditer(text):
        word, gap = found["word"], found["gap"]
        at = found.end() if word is None else found.start("word")
        if (word is None and gap is None) or at >= offset:
            break
        offset += len(word or b"") - len(_NULL)
    return offset


def offset_without_floats(text: bytes, offset: int) -> int:
    """Where an offset into `with_floats(text)` lies in `text`."""
    for found in _LONG_INTEGER.finditer(text) if _LONG_DIGITS.search(text) else ():
        if found.start() >= offset:
            break
        offset -= len(_NO_EXPONENT) if found["digits"] else 0
    return offset


def _with_float(found: re.Match[bytes]) -> bytes:
    return found[0] + _NO_EXPONENT if found["digits"] else found[0]


def _valid(data: bytes, *, final: bool) -> tuple[bytes, bytes]:
    """Valid UTF-8, and the beginning of a character that is left."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(data, final).encode()
    rest, _ = decoder.getstate()
    return text, rest


def _with_null(found: re.Match[bytes]) -> bytes:
    word: bytes | None = found["word"]
    if word is not None:
        return found[0].removesuffix(word) + _NULL
    return found[0] if found["gap"] is None else found[0] + _NULL


def _without_lone_surrogates(text: bytes, end: int) -> bytes:
    """`text` with U+FFFD for the lone surrogates whose escapes begin before `end`."""
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
    lone = at < end
    lone[pairs] = lone[pairs + 1] = False
    valid = codes.copy()
    valid[at[lone][:, None] + np.arange(2, _ESCAPE_BYTES)] = _REPLACEMENT
    return valid.tobytes()
