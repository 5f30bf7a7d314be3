"""Repair of text that strict JSON readers refuse and Python's accepts, or nearly so.

Stray bytes, half surrogate pairs, and numbers that are none.
"""

import codecs
import re
from typing import Final

_ESCAPE: Final = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|\\u(?P<lone>[dD][89a-fA-F][0-9a-fA-F]{2})"
    rb"|\\.",
    re.DOTALL,
)
_VALUE: Final = rb"(?<=[:,\[\s])(?:NaN|-?Infinity)(?=\s*[,\]}])"
_NUMBER: Final = re.compile(
    rb'(?:[^"NI-]++|"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)|(?!' + _VALUE + rb")[NI-])*+"
    rb"(?:(?P<value>" + _VALUE + rb")|\Z)",
    re.DOTALL,
)
"""All up to what is no number where a value stands: not in a string.

Quotes in damaged text mislead.
"""
_NULL: Final = b"null"
_NO_NUMBER: Final = re.compile(rb"NaN|Infinity")
_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")
_PAIR_BYTES: Final = len(rb"\ud83d\ude00")


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
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(data, final).encode()
    rest, _ = decoder.getstate()
    if _SURROGATE.search(text):
        end = len(text) if final else max(len(text) - _PAIR_BYTES, 0)
        text = _without_lone_surrogates(text, end)
    return text + rest


def with_nulls(text: bytes) -> bytes:
    """`text` with null for NaN and infinities, which Python's json writes as numbers."""
    return _NUMBER.sub(_with_null, text) if _NO_NUMBER.search(text) else text


def is_no_number(text: bytes, offset: int | None) -> bool:
    """Whether NaN or an infinity may be what a parser refuses at an offset."""
    return offset is not None and text[offset : offset + 1] in (b"N", b"I")


def offset_without_nulls(text: bytes, offset: int) -> int:
    """Where an offset into `with_nulls(text)` lies in `text`."""
    for found in _NUMBER.finditer(text):
        if found["value"] is None or found.start("value") >= offset:
            break
        offset += len(found["value"]) - len(_NULL)
    return offset


def _with_null(found: re.Match[bytes]) -> bytes:
    value: bytes | None = found["value"]
    return found[0] if value is None else found[0].removesuffix(value) + _NULL


def _without_lone_surrogates(text: bytes, end: int) -> bytes:
    """`text` with the escapes that begin before `end` made valid."""

    def valid(escape: re.Match[bytes]) -> bytes:
        return rb"\ufffd" if escape["lone"] and escape.start() < end else escape[0]

    return _ESCAPE.sub(valid, text)
