"""Numbers are checked against the binding's own C union, filled by member."""

import ctypes

import pynvml
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chopperd.devices.nvml.calls import KIND_BY_TYPE, number_of

MEMBERS = {
    pynvml.NVML_VALUE_TYPE_UNSIGNED_INT: ("uiVal", 0, 2**32 - 1),
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG: ("ulVal", 0, 2**64 - 1),
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: ("ullVal", 0, 2**64 - 1),
    pynvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: ("sllVal", -(2**63), 2**63 - 1),
    pynvml.NVML_VALUE_TYPE_SIGNED_INT: ("siVal", -(2**31), 2**31 - 1),
    pynvml.NVML_VALUE_TYPE_UNSIGNED_SHORT: ("usVal", 0, 2**16 - 1),
}


def raw_bits(member: str, value: float) -> int:
    """The union's 64 bits when `member` is set and the bytes beyond it hold rubbish."""
    union = pynvml.c_nvmlValue_t()
    ctypes.memset(ctypes.byref(union), 0xA5, ctypes.sizeof(union))
    setattr(union, member, value)
    return int.from_bytes(bytes(union), "little")


@pytest.mark.parametrize("value_type", sorted(MEMBERS))
@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_an_integer_is_read_from_its_own_bits_only(value_type: int, data: st.DataObject) -> None:
    member, lowest, highest = MEMBERS[value_type]
    value = data.draw(st.integers(lowest, highest))
    assert number_of(value_type, raw_bits(member, value)) == value


@given(st.floats(allow_nan=False))
@settings(max_examples=25, deadline=None)
def test_a_double_keeps_its_value(value: float) -> None:
    assert number_of(pynvml.NVML_VALUE_TYPE_DOUBLE, raw_bits("dVal", value)) == value


def test_every_type_that_the_binding_knows_is_known() -> None:
    assert set(KIND_BY_TYPE) == set(range(pynvml.NVML_VALUE_TYPE_COUNT))


def test_a_type_that_is_not_known_gives_no_number() -> None:
    assert number_of(pynvml.NVML_VALUE_TYPE_COUNT, 1) is None
