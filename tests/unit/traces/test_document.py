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
