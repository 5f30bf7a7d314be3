import pytest

from chopperd.traces.read.document import document_texts, find_opening, is_cut_short
from chopperd.traces.read.json_text import Fault, Refusal


def fault_of(found: object) -> Fault:
    assert isinstance(found, Refusal)
    return found.fault


def test_the_keys_of_a_document_are_read_and_what_follows_is_ignored() -> None:
    text = b'{"trace_id": "x", "a": [1, {"trace_id": 2}], "hip_driver_version": 7}\n\0'
    assert document_texts(text) == {"trace_id": b'"x"', "hip_driver_version": b"7"}


def test_what_is_no_whole_object_is_refused() -> None:
    assert fault_of(document_texts(b"[1]")) is Fault.INVALID
    assert fault_of(document_texts(b'{"a": ')) is Fault.INCOMPLETE
    assert fault_of(document_texts(b'{"a" 1}')) is Fault.MALFORMED


@pytest.mark.parametrize("bad", [b'"a\xff"', rb'"\ud83d"', b"NaN", b"[-Infinity]"])
def test_text_that_strict_readers_refuse_is_no_end(bad: bytes) -> None:
    assert document_texts(b'{"a": ' + bad + b', "trace_id": 1}') == {"trace_id": b"1"}
    assert not is_cut_short(document_texts(b'{"a": ' + bad + b"}"))
    assert is_cut_short(document_texts(b'{"a": ' + bad + b", "))


@pytest.mark.parametrize("value", [b"", b" ", b"nan", b"None", b"[1, , 2]", b'{"b": , "c": 7}'])
def test_a_value_that_is_missing_or_is_none_leaves_the_other_keys(value: bytes) -> None:
    text = b'{"a": ' + value + b', "distributedInfo": {"rank": , "world_size": 8}, "trace_id": "x"}'
    assert document_texts(text) == {
        "distributedInfo": b'{"rank":null , "world_size": 8}',
        "trace_id": b'"x"',
    }


def test_other_damage_beside_a_missing_value_is_damage_still() -> None:
    assert fault_of(document_texts(b'{"a": , "b" 1, "trace_id": "x"}')) is Fault.MALFORMED


def test_the_opening_is_found_only_at_the_top_of_the_document() -> None:
    data = b'{"a": {"traceEvents": [1]}, "b": "\\"traceEvents\\": [", "traceEvents": [2]}'
    opening = find_opening(data)
    assert opening is not None
    assert data[opening.position :] == b"2]}"


def test_a_byte_order_mark_and_a_bare_array_are_accepted() -> None:
    opening = find_opening(b"\xef\xbb\xbf \n[{")
    assert opening is not None
    assert (opening.head, opening.position) == (b"", 6)


def test_no_opening_is_seen_before_it_is_there() -> None:
    assert find_opening(b"") is None
    assert find_opening(b'{"traceEvents": ') is None
    assert find_opening(b'{"traceEvents": {}}') is None
