from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chopperd.correlate.timebase import realtime_step_ns, unix_from_mono
from chopperd.units import TimeTriple

UNIX_NS = 1_795_000_000_123_456_789
SECOND_NS = 1_000_000_000


def triple(mono_ns: int, offset_ns: int = 0) -> TimeTriple:
    """A triple whose REALTIME is UNIX_NS + offset ahead of MONOTONIC."""
    return TimeTriple(unix_ns=UNIX_NS + mono_ns + offset_ns, mono_ns=mono_ns, boot_ns=mono_ns)


def test_a_time_between_two_triples_gets_the_offset_in_proportion() -> None:
    triples = [triple(0), triple(SECOND_NS, 1000)]
    got = unix_from_mono(np.array([0, 250_000_000, SECOND_NS]), triples)
    # By hand: a quarter of the way the offset has grown by a quarter of 1000 ns.
    assert got.tolist() == [UNIX_NS, UNIX_NS + 250_000_250, UNIX_NS + SECOND_NS + 1000]
    assert got.dtype == np.int64


def test_outside_the_triples_the_nearest_offset_holds() -> None:
    triples = [triple(SECOND_NS, 7), triple(2 * SECOND_NS, 9)]
    got = unix_from_mono(np.array([0, 5 * SECOND_NS]), triples)
    assert got.tolist() == [UNIX_NS + 7, UNIX_NS + 5 * SECOND_NS + 9]


def test_one_triple_is_enough_and_none_is_an_error() -> None:
    assert unix_from_mono(np.array([3]), [triple(0, 5)]).tolist() == [UNIX_NS + 8]
    with pytest.raises(ValueError, match="no clock triple"):
        unix_from_mono(np.array([3]), [])


@given(
    offsets=st.lists(st.integers(-(10**10), 10**10), min_size=2, max_size=6),
    at=st.lists(st.integers(0, 5 * SECOND_NS), min_size=1, max_size=8),
)
@settings(max_examples=25, deadline=None)
def test_conversion_agrees_with_exact_fractions_to_half_a_nanosecond(
    offsets: list[int], at: list[int]
) -> None:
    triples = [triple(i * SECOND_NS, offset) for i, offset in enumerate(offsets)]
    got = unix_from_mono(np.array(at), triples).tolist()
    for t, unix in zip(at, got, strict=True):
        left = min(t // SECOND_NS, len(offsets) - 1)
        right = min(left + 1, len(offsets) - 1)
        share = Fraction(t - left * SECOND_NS, SECOND_NS) if right > left else 0
        exact = UNIX_NS + t + offsets[left] + share * (offsets[right] - offsets[left])
        assert abs(unix - exact) <= Fraction(51, 100)


def test_a_steady_slew_is_no_step() -> None:
    triples = [triple(i * SECOND_NS, i * 500_000) for i in range(10)]
    step_ns = realtime_step_ns(triples, UNIX_NS, UNIX_NS + 20 * SECOND_NS)
    assert step_ns == 0


def test_a_step_on_top_of_a_slew_is_its_own_size_whatever_its_sign() -> None:
    offsets_ns = [0, 50_000, 100_000, 150_000 - 2_000_000, 200_000 - 2_000_000]
    triples = [triple(i * SECOND_NS, offset) for i, offset in enumerate(offsets_ns)]
    assert realtime_step_ns(triples, UNIX_NS, UNIX_NS + 9 * SECOND_NS) == 2_000_000


def test_a_step_outside_the_window_does_not_count() -> None:
    triples = [triple(i * SECOND_NS, 0 if i < 5 else 10**6) for i in range(10)]
    assert realtime_step_ns(triples, UNIX_NS, UNIX_NS + 3 * SECOND_NS) == 0
    assert realtime_step_ns(triples, UNIX_NS, UNIX_NS + 6 * SECOND_NS) == 10**6


def test_too_few_triples_to_tell_give_none_not_zero() -> None:
    assert realtime_step_ns([triple(0)], UNIX_NS, UNIX_NS + 1) is None
    far_ns = UNIX_NS + 100 * SECOND_NS
    assert realtime_step_ns([triple(0), triple(SECOND_NS)], far_ns, far_ns + 1) is None


def test_with_two_triples_all_of_the_change_is_a_step() -> None:
    triples = [triple(0), triple(SECOND_NS, 300_000)]
    assert realtime_step_ns(triples, UNIX_NS, UNIX_NS + SECOND_NS) == 300_000
