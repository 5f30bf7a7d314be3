import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chopperd.safe_text import csv_text, visible, visible_json, visible_lines

#: The characters of the rule, written out one by one from the Unicode tables.
UNSAFE = {
    *map(chr, range(0x20)),
    "\x7f",
    *map(chr, range(0x80, 0xA0)),
    "\u061c",
    *("\u200e", "\u200f", "\u2028", "\u2029"),
    *("\u202a", "\u202b", "\u202c", "\u202d", "\u202e"),
    *("\u2066", "\u2067", "\u2068", "\u2069"),
}


def test_exactly_the_unsafe_characters_are_shown_as_escapes() -> None:
    for code in range(0x3000):
        character = chr(code)
        if character not in UNSAFE:
            assert visible(character) == character
        else:
            assert visible(character).isascii()
            assert json.loads(f'"{visible(character)}"') == character


def test_how_escapes_look() -> None:
    assert visible("a\x1b[31m\u202eb\nc\td") == r"a\u001b[31m\u202eb\nc\td"
    assert visible("/data/\udcff.json") == r"/data/\udcff.json"
    assert visible_lines("a\nb\x9b") == "a\nb\\u009b"


@given(st.text())
def test_json_says_the_same_and_holds_nothing_unsafe(text: str) -> None:
    data = json.dumps({"name": text}, ensure_ascii=False, indent=2)
    try:
        encoded = data.encode()
    except UnicodeEncodeError:  # lone surrogates are no UTF-8
        return
    shown = visible_json(encoded)
    assert json.loads(shown) == {"name": text}
    assert not (UNSAFE - {"\n"}) & set(shown.decode())
    assert shown == visible_lines(data).encode()


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@x", "=cmd|' /C calc'!A0"])
def test_a_cell_like_a_formula_is_text(text: str) -> None:
    assert csv_text(text) == "'" + text


def test_other_cells_stay_as_they_are() -> None:
    for text in ("", "gemm", "0", "a=b", "'=1", " =1", "GPU-1", "\u00e9"):
        assert csv_text(text) == text
    assert csv_text("\t=1\r") == r"\t=1\r"
