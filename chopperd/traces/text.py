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
_NUMBER: Final = re.compile(
    rb'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)'
    rb"|(?P<before>[:,\[]\s*)-?(?:NaN|Infinity)(?=\s*[,\]}])",
    re.DOTALL,
)
"""Strings, and what is no number where a value stands: quotes in damaged text mislead."""
_NO_NUMBER: Final = re.compile(rb"NaN|Infinity")
_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")
_PAIR_BYTES: Final = len(rb"\ud83d\ude00")


def repaired(data: bytes, *, final: bool) -> bytes:
    """`data` as valid UTF-8, U+FFFD in place of stray bytes and of lone surrogate escapes.

    NaN and infinities, which Python's json writes, become null.

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
    if _NO_NUMBER.search(text):
        text = _NUMBER.sub(_with_null, text)
    return text + rest


def _with_null(found: re.Match[bytes]) -> bytes:
    before: bytes | None = found["before"]
    return found[0] if before is None else before + b"null"


def _without_lone_surrogates(text: bytes, end: int) -> bytes:
    """`text` with the escapes that begin before `end` made valid."""

    def valid(escape: re.Match[bytes]) -> bytes:
        return rb"\ufffd" if escape["lone"] and escape.start() < end else escape[0]

    return _ESCAPE.sub(valid, text)
