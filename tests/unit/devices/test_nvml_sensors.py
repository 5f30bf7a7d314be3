"""Reason bits as a plan has them, against what a read makes of the same bits."""

from hypothesis import given, settings
from hypothesis import strategies as st

from chopperd.devices.nvml.codes import causes_of
from chopperd.devices.nvml.sensors import CAUSES_BY_BIT


@given(st.integers(0, (1 << 64) - 1))
@settings(max_examples=100, deadline=None)
def test_bits_taken_one_by_one_give_the_causes_of_all(bits: int) -> None:
    one_by_one = 0
    for position, causes in enumerate(CAUSES_BY_BIT):
        if bits >> position & 1:
            one_by_one |= causes
    assert one_by_one == sum(cause.bit for cause in causes_of(bits))
