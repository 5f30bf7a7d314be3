import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chopperd.traces.text import (
    offset_without_floats,
    offset_without_nulls,
    repaired,
    with_floats,
    with_nulls,
)


def test_stray_bytes_become_the_replacement_character() -> None:
    assert repaired(b'"a\xff_x"', final=True).decode() == '"a\ufffd_x"'


def test_a_character_cut_by_the_end_of_a_piece_is_kept_for_the_next() -> None:
    whole = "é".encode()
    assert repaired(b"a" + whole[:1], final=False) == b"a" + whole[:1]
    assert repaired(b"a" + whole[:1], final=True).decode() == "a\ufffd"


def test_lone_surrogate_escapes_become_valid_and_pairs_stay() -> None:
    text = rb'"\udcff \ud83d\ude00 \\ud800 \u0041\ude00 \ud800"'
    assert json.loads(repaired(text, final=True)) == "\ufffd \U0001f600 \\ud800 A\ufffd \ufffd"


def test_an_escape_that_may_go_on_in_the_next_piece_is_left() -> None:
    assert repaired(rb'"\ud83d', final=False) == rb'"\ud83d'
    assert repaired(rb'"\ud83d\ud', final=False) == rb'"\ud83d\ud'
    assert repaired(rb'"\ud83d"', final=True) == rb'"\ufffd"'


def test_numbers_that_are_none_become_null_but_not_inside_strings() -> None:
    text = rb'{"a": NaN, "b": [-Infinity, Infinity], "NaN": "\"NaN, Infinity"}'
    expected = {"a": None, "b": [None, None], "NaN": '"NaN, Infinity'}
    assert json.loads(repaired(text, final=True)) == expected


@pytest.mark.parametrize("start", [b'{"name": "a NaN', b'{"name": "a NaN \\', b'"NaN \\" NaN'])
def test_a_string_that_the_piece_cuts_is_left(start: bytes) -> None:
    assert repaired(start, final=False) == start


@settings(max_examples=25, deadline=None)
@given(st.text())
def test_valid_json_text_is_left_as_it_is(text: str) -> None:
    clean = text.encode("utf-8", "replace").decode()
    for data in (json.dumps(clean).encode(), json.dumps(clean, ensure_ascii=False).encode()):
        assert repaired(data, final=True) == data


@settings(max_examples=25, deadline=None)
@given(st.text(alphabet=st.characters(codec=None)))
def test_whatever_python_dumps_is_readable_after_repair(text: str) -> None:
    data = repaired(json.dumps(text).encode(), final=True)
    json.loads(data).encode()


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            [
                *(b"NaN", b"-Infinity", b"7", b"9" * 4400, b'"NaN, 1"', b"1." + b"9" * 4400),
                *(b"-1", b"nan", b"None", b"0x7f", b"true", b'{"a": }', b'{"a":,"b":nan}'),
            ]
        )
    )
)
def test_places_behind_odd_numbers_are_found_again(values: list[bytes]) -> None:
    text = b"[" + b",".join(values) + b"]"
    nulls = with_nulls(text)
    floats = with_floats(nulls)
    json.loads(floats)
    for number in range(len(values)):
        rest = b",".join(values[number:]) + b"]"
        behind = len(with_floats(with_nulls(b"[" + rest))) - 1
        place = offset_without_floats(nulls, len(floats) - behind)
        assert text[offset_without_nulls(text, place) :] == rest


def test_integers_of_any_length_become_floats_but_not_parts_of_numbers_or_texts() -> None:
    long = b"9" * 4301
    text = b'[%s, -%s, 1.%s, 1e%s, 1e-%s, "%s", %s]' % (*(long,) * 6, b"9" * 4300)
    expected = text.replace(b"[" + long, b"[" + long + b"e0").replace(
        b", -" + long, b", -" + long + b"e0"
    )
    assert with_floats(text) == expected
