"""Shares of a loss by reason bits, by driver counters, and whole ns, by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chopperd.correlate.causes import (
    bit_shares,
    counter_increments,
    counter_updates,
    largest_remainder,
    piece_shares,
)
from chopperd.correlate.signal import ClassClock, class_clock
from chopperd.model.arrays import Float64s
from chopperd.model.causes import CAUSES, Cause
from tests.unit.correlate.builders import COMM, COMPUTE, MS, labelled


def shares_of(*causes: Cause) -> dict[str, float]:
    bits = sum(cause.bit for cause in causes)
    row = bit_shares(np.array([bits], np.int64))[0]
    return {CAUSES[i].label: float(share) for i, share in enumerate(row) if share}


def named(row: Float64s) -> dict[str, float]:
    return {CAUSES[i].label: float(share) for i, share in enumerate(row) if share}


def test_a_single_bit_takes_all_and_no_bit_is_unexplained() -> None:
    assert shares_of(Cause.POWER_CAP) == {"power_cap": 1.0}
    assert shares_of() == {"unexplained": 1.0}
    assert shares_of(Cause.UNKNOWN) == {"unknown": 1.0}


def test_bits_of_equal_rank_split_evenly() -> None:
    assert shares_of(Cause.POWER_CAP, Cause.THERMAL) == {"power_cap": 0.5, "thermal": 0.5}


@pytest.mark.parametrize("specific", [Cause.HW_THERMAL, Cause.POWER_BRAKE])
def test_a_hardware_slowdown_counts_for_nothing_beside_what_caused_it(specific: Cause) -> None:
    """NVML sets 0x8 (slowdown) together with 0x40 (thermal) or 0x80 (power brake)."""
    assert shares_of(Cause.HW_SLOWDOWN, specific) == {specific.label: 1.0}
    assert shares_of(Cause.HW_SLOWDOWN, specific, Cause.POWER_CAP) == {
        specific.label: 0.5,
        "power_cap": 0.5,
    }


def test_a_hardware_slowdown_alone_stays() -> None:
    assert shares_of(Cause.HW_SLOWDOWN) == {"hw_slowdown": 1.0}


def two_pieces() -> ClassClock:
    return class_clock(labelled([0, 100, 200], [1400, 1400, 1400]), COMPUTE)


def test_a_piece_splits_by_the_bits_of_both_samples_it_hangs_on() -> None:
    bits = np.array([Cause.POWER_CAP.bit, 0, 0], np.int64)
    shares = piece_shares(two_pieces(), bits, {})
    assert named(shares[0]) == {"power_cap": 0.5, "unexplained": 0.5}
    assert named(shares[1]) == {"unexplained": 1.0}


def test_in_class_it_is_the_bits_of_the_class_that_count() -> None:
    """The communication sample between says "idle"; compute on both sides was power-capped."""
    samples = labelled([0, 100, 200], [1400, 1950, 1400], [COMPUTE, COMM, COMPUTE])
    power, idle = Cause.POWER_CAP.bit, Cause.LOW_UTILIZATION.bit
    shares = piece_shares(class_clock(samples, COMPUTE), np.array([power, idle, power]), {})
    assert [named(row) for row in shares] == [{"power_cap": 1.0}, {"power_cap": 1.0}]


@pytest.mark.parametrize(
    ("thermal_ns", "expected"),
    [(4.9, {"power_cap": 1.0}), (5.0, {"thermal": 1.0})],
)
def test_counters_decide_from_5_percent_of_the_piece_on(
    thermal_ns: float, expected: dict[str, float]
) -> None:
    bits = np.full(3, Cause.POWER_CAP.bit, np.int64)
    counters = {Cause.THERMAL: np.array([0.0, thermal_ns, thermal_ns])}
    shares = piece_shares(two_pieces(), bits, counters)
    assert named(shares[0]) == expected
    assert named(shares[1]) == {"power_cap": 1.0}


def test_counters_split_a_piece_in_proportion_to_their_increments() -> None:
    counters = {
        Cause.POWER_CAP: np.array([1000.0, 1060.0, 1060.0]),
        Cause.THERMAL: np.array([500.0, 520.0, 620.0]),
    }
    shares = piece_shares(two_pieces(), np.zeros(3, np.int64), counters)
    assert named(shares[0]) == {"power_cap": 0.75, "thermal": 0.25}
    assert named(shares[1]) == {"thermal": 1.0}


def test_a_counter_rises_evenly_between_reads_and_not_at_all_when_it_falls() -> None:
    times = np.array([0, 100, 200, 300], np.int64)
    counters = {
        Cause.POWER_CAP: np.array([0.0, np.nan, 80.0, 50.0]),
        Cause.THERMAL: np.array([np.nan, 7.0, np.nan, np.nan]),
    }
    rise = counter_increments(counters, times)
    assert rise[:, Cause.POWER_CAP].tolist() == [40.0, 40.0, 0.0]
    assert not rise[:, Cause.THERMAL].any()


def test_a_counter_that_comes_back_from_garbage_adds_nothing_where_it_does() -> None:
    """It read 0 once, after an hour under the limit: 100 ms before and after are its own."""
    times = np.array([0, 100, 200, 300, 400], np.int64) * MS
    hour = 3600.0 * 1000 * MS
    power_cap = np.array([hour, hour + 100 * MS, 0.0, hour + 150 * MS, hour + 250 * MS])
    rise = counter_increments({Cause.POWER_CAP: power_cap}, times)
    assert (rise[:, Cause.POWER_CAP] / MS).tolist() == [100.0, 0.0, 0.0, 100.0]


def test_a_single_sample_has_no_pieces_for_counters() -> None:
    counters = {Cause.THERMAL: np.array([5.0])}
    assert counter_increments(counters, np.array([0], np.int64)).shape == (0, len(CAUSES))


def test_updates_are_those_of_the_busiest_counter_inside_the_window() -> None:
    """Power rises at 100, 200, 300 and 400; thermal at 300 only; brake is never read."""
    times = np.array([0, 100, 200, 300, 400], np.int64)
    counters = {
        Cause.POWER_CAP: np.array([0.0, 1.0, 2.0, 3.0, 4.0]),
        Cause.THERMAL: np.array([0.0, 0.0, 0.0, 9.0, 9.0]),
        Cause.POWER_BRAKE: np.full(5, np.nan),
    }
    start, end = np.array([0, 150, 300], np.int64), np.array([400, 250, 300], np.int64)
    updates = counter_updates(counters, times, start, end)
    assert updates is not None
    assert updates.tolist() == [3, 1, 0]
    assert counter_updates({}, times, start, end) is None


@settings(max_examples=25, deadline=None)
@given(
    parts=st.lists(st.floats(0.0, 1e12), min_size=1, max_size=10).filter(lambda p: sum(p) > 1e-3),
    total=st.integers(0, 10**12),
)
def test_whole_parts_sum_to_the_total_and_lie_within_one_of_their_shares(
    parts: list[float], total: int
) -> None:
    found = largest_remainder(np.array([parts]), np.array([total]))[0]
    exact = np.array(parts) / sum(parts) * total
    assert found.sum() == total
    assert (found >= 0).all()
    assert np.abs(found - exact).max() <= 1 + 1e-9 * total


def test_the_largest_remainders_are_rounded_up() -> None:
    """Exact shares of 10: 3.33, 3.33, 3.33 -> the first; of 7 by 1:2:4.5 -> .93, 1.87, 4.2."""
    parts = np.array([[1.0, 1.0, 1.0], [1.0, 2.0, 4.5], [0.0, 0.0, 0.0]])
    found = largest_remainder(parts, np.array([10, 7, 0]))
    assert found.tolist() == [[4, 3, 3], [1, 2, 4], [0, 0, 0]]
