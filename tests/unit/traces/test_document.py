import pytest

from chopperd.traces.decode import Fault, Refusal
from chopperd.traces.document import document_texts, is_cut_short


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
