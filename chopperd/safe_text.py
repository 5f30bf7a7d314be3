"""Escape text from other sources so that it is safe to show.

Terminals obey control characters, bidirectional ones change the order of a line, and spreadsheets
compute cells that begin like a formula.
"""

import re
from typing import Final

#: C0 but the line feed, DEL, C1, bidirectional controls, line separators, lone surrogates.
_UNSAFE: Final = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
_UNSAFE_UTF8: Final = re.compile(
    rb"[\x00-\x09\x0b-\x1f\x7f]|\xc2[\x80-\x9f]|\xd8\x9c|\xe2\x80[\x8e\x8f\xa8-\xae]|\xe2\x81[\xa6-\xa9]"
)
_SHORT: Final = {"\t": r"\t", "\r": r"\r"}
_FORMULA: Final = ("=", "+", "-", "@")


def visible_lines(text: str) -> str:
    r"""Return the text with every unsafe character but line feeds as its JSON escape (`\u001b`).

    In JSON such characters occur in strings only, so the text remains the same JSON.
    """
    return _UNSAFE.sub(lambda found: _SHORT.get(found[0]) or f"\\u{ord(found[0]):04x}", text)


def visible(text: str) -> str:
    r"""Return the text as one line: line feeds as `\n`, other characters as by `visible_lines`."""
    return visible_lines(text).replace("\n", r"\n")


def visible_json(data: bytes) -> bytes:
    """Return equivalent JSON (UTF-8) with every character that a terminal obeys escaped."""
    return visible_lines(data.decode()).encode() if _UNSAFE_UTF8.search(data) else data


def csv_text(text: str) -> str:
    """Return text for a cell of a CSV file: one line, and `'` before what would be a formula."""
    shown = visible(text)
    return f"'{shown}" if shown.startswith(_FORMULA) else shown
