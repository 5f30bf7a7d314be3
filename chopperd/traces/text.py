"""Repair of text that strict JSON readers refuse and Python's accepts, or nearly so.

Stray bytes, half surrogate pairs, and numbers that are none.
"""

import codecs
import re
from typing import Final

import numpy as np

_NUMBER: Final = re.compile(
    rb'((?:[^":,\[]++|"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)'
    rb"|[:,\[](?!\s*+-?(?:NaN|Infinity)\s*+[,\]}]))*+)"
    rb"([:,\[]\s*+)?(-?(?:NaN|Infinity))?",
    re.DOTALL,
)
"""All up to the next value that is no number, and that value.

Strings count, as do a value's neighbours: quotes in damaged text mislead.
"""
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
    """`data` as valid UTF-8, U+FFFD in place of stray bytes and of lone surrogate escapes.

    NaN and infinities, which Python's json writes, become null.

    Args:
        data: Text that may end inside a character or an escape, when it is not the last.
        final: Whether nothing follows.
    """
    text, rest = (data, b"") if data.isascii() else _valid(data, final=final)
    if rb"\ud" in text or rb"\uD" in text:
        end = len(text) if final else max(len(text) - 2 * _ESCAPE_BYTES, 0)
        text = _without_lone_surrogates(text, end)
    if b"NaN" in text or b"Infinity" in text:
        text = _NUMBER.sub(_with_null, text)
    return text + rest


def _valid(data: bytes, *, final: bool) -> tuple[bytes, bytes]:
    """Valid UTF-8, and the beginning of a character that is left."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(data, final).encode()
    rest, _ = decoder.getstate()
    return text, rest


def _with_null(found: re.Match[bytes]) -> bytes:
    between, before, number = found.groups()
    return between + before + b"null" if number else found[0]


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
