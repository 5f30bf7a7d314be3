import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chopperd.traces.read.json_text import (
    ANY_VALUE,
    Fault,
    Refusal,
    first_value,
    is_json,
    repaired,
    scalars_of,
    with_floats,
)


def test_stray_bytes_become_the_replacement_character() -> None:
    assert repaired(b'"a\xff_x"').decode() == '"a\ufffd_x"'


def test_lone_surrogate_escapes_become_valid_and_pairs_stay() -> None:
    text = rb'"\udcff \ud83d\ude00 \\ud800 \u0041\ude00 \ud800"'
    assert json.loads(repaired(text)) == "\ufffd \U0001f600 \\ud800 A\ufffd \ufffd"


def test_a_cut_surrogate_escape_is_a_lone_one() -> None:
    assert repaired(rb'"\ud83d"') == rb'"\ufffd"'


def test_numbers_that_are_none_become_null_but_not_inside_strings() -> None:
    text = rb'{"a": NaN, "b": [-Infinity, Infinity], "NaN": "\"NaN, Infinity"}'
    expected = {"a": None, "b": [None, None], "NaN": '"NaN, Infinity'}
    assert json.loads(repaired(text)) == expected


@pytest.mark.parametrize("start", [b'{"name": "a NaN', b'{"name": "a NaN \\', b'"NaN \\" NaN'])
def test_a_string_that_the_piece_cuts_is_left(start: bytes) -> None:
    assert repaired(start) == start


@settings(max_examples=25, deadline=None)
@given(st.text())
def test_valid_json_text_is_left_as_it_is(text: str) -> None:
    clean = text.encode("utf-8", "replace").decode()
    for data in (json.dumps(clean).encode(), json.dumps(clean, ensure_ascii=False).encode()):
        assert repaired(data) == data


@settings(max_examples=25, deadline=None)
@given(st.text(alphabet=st.characters(codec=None)))
def test_whatever_python_dumps_is_readable_after_repair(text: str) -> None:
    data = repaired(json.dumps(text).encode())
    json.loads(data).encode()


def test_integers_of_any_length_become_floats_but_not_parts_of_numbers_or_texts() -> None:
    long = b"9" * 4301
    text = b'[%s, -%s, 1.%s, 1e%s, 1e-%s, "%s", %s]' % (*(long,) * 6, b"9" * 4300)
    expected = text.replace(b"[" + long, b"[" + long + b"e0").replace(
        b", -" + long, b", -" + long + b"e0"
    )
    assert with_floats(text) == expected


class Event(msgspec.Struct, tag_field="ph", tag="X"):
    name: str = ""
    ts: float = 0.0


EVENTS = msgspec.json.Decoder(list[Event])


# The messages that `refusal_of` reads are msgspec's; this table holds each of them.
@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (b'[{"ph":"X"}', Fault.INCOMPLETE),
        (b'[{"ph":"X","name":"a},{', Fault.INCOMPLETE),
        (b"", Fault.INCOMPLETE),
        (b'[{"ph":"X","ts":12.', Fault.INCOMPLETE),
        (b'[{"ph":"X","ts":-', Fault.INCOMPLETE),
        (b'[{"ph":"X","ts":1e+', Fault.INCOMPLETE),
        (b'[{"ph":"X","ts":-}', Fault.MALFORMED),
        (b'[{"ph":"X"}], "traceName": 1', Fault.TRAILING),
        (b'[{"ph":"X"},]', Fault.MALFORMED),
        (b'[{"ph":"X"}{"ph":"X"}]', Fault.MALFORMED),
        (b'[{"ph":"X","name":"a"b"}]', Fault.MALFORMED),
        (b'[{"ph":"X","name":"C:\\app"}]', Fault.MALFORMED),
        (b'[{"ph":"X","name":"a\tb"}]', Fault.MALFORMED),
        (b'[{"ph":"X","ts":NaN}]', Fault.MALFORMED),
        (b'[{"ph":"X","name":"\xff"}]', Fault.BAD_TEXT),
        (b'[{"ph":"X","name":5}]', Fault.INVALID),
        (b"[null]", Fault.INVALID),
    ],
)
def test_refusals_say_what_is_wrong(text: bytes, fault: Fault) -> None:
    found = first_value(EVENTS, memoryview(text))
    if fault is Fault.TRAILING:
        assert not isinstance(found, Refusal)
        assert text[found[1] - 1 : found[1]] == b"]"
    else:
        assert isinstance(found, Refusal)
        assert found.fault is fault


def test_deep_nesting_is_refused_and_does_not_crash() -> None:
    found = first_value(ANY_VALUE, memoryview(b"[" * 100_000))
    assert isinstance(found, Refusal)


@pytest.mark.parametrize("rest", [b", 1", b"]", b"\n  ],\n", b'{"ph":"X"}'])
def test_the_end_of_the_first_value_is_found_whatever_follows(rest: bytes) -> None:
    text = b'{"ph":"X","name":"}],{","args":{"x":[{"a":1},{"b":2}]}}'
    found = first_value(ANY_VALUE, memoryview(text + rest))
    assert not isinstance(found, Refusal)
    assert (text + rest)[: found[1]].rstrip() == text


def test_lists_and_objects_are_no_scalars() -> None:
    texts = [b"7", b"7.5", b'"a"', b"null", b"true", b"[7]", b"{}"]
    assert scalars_of(texts) == [7, 7.5, "a", None, True, None, None]


def test_a_text_is_json_only_as_a_whole() -> None:
    assert is_json(b'{"a": [1]}')
    assert not is_json(b'{"a": [1]} 2')
    assert not is_json(b'{"a": [1]')
