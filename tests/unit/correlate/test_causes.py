"""Shares of a loss by reason bits, by driver counters, and whole ns, by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from chopperd.correlate.causes import (
    bit_shares,
    counter_increments,
    edge_weights,
    end_shares,
    false_causes,
)
from chopperd.correlate.clock.signal import ClassClock, class_clock
from chopperd.correlate.losses import counter_updates, largest_remainder
from chopperd.correlate.waterfall import Windows
from chopperd.model.arrays import Float64s
from chopperd.model.kinds import CAUSES, Cause
from tests.unit.correlate.builders import COMM, COMPUTE, MS, gpu_samples, labelled


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
@pytest.mark.parametrize("beside", [Cause.HW_SLOWDOWN, Cause.POWER_CAP, Cause.THERMAL])
def test_a_hardware_protection_outranks_what_is_set_beside_it(
    specific: Cause, beside: Cause
) -> None:
    """NVML sets 0x8 (slowdown) with 0x40 or 0x80, and a brake holds whatever the cap says."""
    assert shares_of(beside, specific) == {specific.label: 1.0}
    assert shares_of(beside, specific, Cause.SYNC_BOOST) == {specific.label: 0.5, "sync_boost": 0.5}


def test_two_hardware_protections_split_evenly() -> None:
    both = shares_of(Cause.HW_THERMAL, Cause.POWER_BRAKE)
    assert both == {"hw_thermal": 0.5, "power_brake": 0.5}


def test_a_hardware_slowdown_alone_stays() -> None:
    assert shares_of(Cause.HW_SLOWDOWN) == {"hw_slowdown": 1.0}


def two_pieces() -> ClassClock:
    return class_clock(labelled([0, 100, 200], [1400, 1400, 1400]), COMPUTE)


def sides(
    causes: list[int], counters: dict[Cause, list[float]], piece: int = 0
) -> tuple[dict[str, object], dict[str, object]]:
    """The shares at both ends of a piece of `two_pieces`."""
    limited = {cause: np.array(each) for cause, each in counters.items()}
    shares = end_shares(two_pieces(), np.array(causes, np.int64), limited)
    return {**named(shares.left[piece])}, {**named(shares.right[piece])}


POWER, THERMAL, BRAKE = Cause.POWER_CAP.bit, Cause.THERMAL.bit, Cause.POWER_BRAKE.bit
#: No reason at either end of the first piece, of a driver that reports reasons.
NO_REASON = [0, 0, Cause.SYNC_BOOST.bit]


def test_each_end_of_a_piece_has_its_own_bits() -> None:
    assert sides([POWER, 0, 0], {}) == ({"power_cap": 1.0}, {"unexplained": 1.0})
    assert sides([POWER, 0, 0], {}, piece=1) == ({"unexplained": 1.0}, {"unexplained": 1.0})


def test_each_end_of_a_piece_has_its_own_deficit() -> None:
    """1000 MHz under the brake, then 1800 under the cap, of 2000: 1000 and 200 below.

    A quarter of the way the line is 800 below, of which 750 are the brake's.
    """
    clock = class_clock(
        labelled([0, 25, 100], [1000, 1200, 1800], [COMPUTE, COMM, COMPUTE]), COMPUTE
    )
    assert clock.left_sample.tolist() == [0, 0]
    shares = end_shares(clock, np.array([BRAKE, 0, POWER], np.int64), {})
    left, right = edge_weights(clock, shares, 2000.0)
    assert named(left[0]) == {"power_brake": 1.0}
    assert (
        named(right[0])
        == named(left[1])
        == {"power_brake": pytest.approx(750 / 800), "power_cap": pytest.approx(50 / 800)}
    )
    assert named(right[1]) == {"power_cap": 1.0}


def test_in_class_it_is_the_bits_of_the_class_that_count() -> None:
    """The communication sample between says "idle"; compute on both sides was power-capped."""
    samples = labelled([0, 100, 200], [1400, 1950, 1400], [COMPUTE, COMM, COMPUTE])
    power, idle = Cause.POWER_CAP.bit, Cause.LOW_UTILIZATION.bit
    shares = end_shares(class_clock(samples, COMPUTE), np.array([power, idle, power]), {})
    for end in (shares.left, shares.right):
        assert [named(row) for row in end] == [{"power_cap": 1.0}, {"power_cap": 1.0}]


@pytest.mark.parametrize(
    ("thermal_ns", "expected"),
    [(4.9, {"power_cap": 1.0}), (5.0, {"power_cap": 0.95, "thermal": 0.05})],
)
def test_counters_count_from_5_percent_of_the_piece_on_and_for_no_more_than_their_time(
    thermal_ns: float, expected: dict[str, float]
) -> None:
    counters = {Cause.THERMAL: [0.0, thermal_ns, thermal_ns]}
    assert sides([POWER] * 3, counters) == (expected, expected)
    assert sides([POWER] * 3, counters, piece=1)[0] == {"power_cap": 1.0}


def test_time_that_neither_counters_nor_bits_explain_is_unexplained() -> None:
    counters = {Cause.POWER_CAP: [1000.0, 1060.0, 1060.0], Cause.THERMAL: [500.0, 520.0, 620.0]}
    told = {"power_cap": 0.6, "thermal": 0.2, "unexplained": pytest.approx(0.2)}
    assert sides(NO_REASON, counters) == (told, told)
    assert sides(NO_REASON, counters, piece=1) == ({"thermal": 1.0}, {"thermal": 1.0})


def test_a_counted_cause_has_its_time_at_the_end_that_names_it() -> None:
    """Thermal for 40 of 100 ns, at the left; power for 60, at the right: of halves, 0.8 and 1.2."""
    counters = {Cause.POWER_CAP: [0.0, 60.0, 60.0], Cause.THERMAL: [0.0, 40.0, 40.0]}
    assert sides([THERMAL, POWER, POWER], counters) == ({"thermal": 0.8}, {"power_cap": 1.2})


def test_a_counter_read_seldom_follows_the_bits_between_its_reads() -> None:
    """Thermal for 60 of 200 ns, named by the left end of the first piece alone: it has 100 at most.

    Of the other 140 ns the power counter has none; its bits have what is left of each piece.
    """
    counters = {Cause.THERMAL: [0.0, np.nan, 60.0]}
    assert sides([THERMAL, POWER, POWER], counters) == (
        {"thermal": pytest.approx(1.2)},
        {"power_cap": pytest.approx(0.8)},
    )
    assert sides([THERMAL, POWER, POWER], counters, piece=1) == (
        {"power_cap": 1.0},
        {"power_cap": 1.0},
    )


def test_what_was_counted_beyond_what_samples_saw_is_spread_evenly() -> None:
    """150 of 200 ns, 100 at the one end that names it; 50 over the 200."""
    counters = {Cause.THERMAL: [0.0, np.nan, 150.0]}
    left, right = sides([THERMAL, POWER, POWER], counters)
    assert left == {"thermal": pytest.approx(2.25)}
    assert right == {"thermal": pytest.approx(0.25)}
    left, right = sides([THERMAL, POWER, POWER], counters, piece=1)
    assert left == right == {"thermal": 0.25, "power_cap": 0.75}


def test_counters_of_software_limits_have_what_the_brake_leaves() -> None:
    """Both counted all of the piece; where only the cap is counted the brake's bits hold it."""
    both = {Cause.POWER_BRAKE: [0.0, 100.0, 100.0], Cause.POWER_CAP: [0.0, 100.0, 100.0]}
    assert sides(NO_REASON, both) == ({"power_brake": 1.0}, {"power_brake": 1.0})
    some = {Cause.POWER_BRAKE: [0.0, 30.0, 30.0], Cause.POWER_CAP: [0.0, 100.0, 100.0]}
    split = {"power_brake": pytest.approx(0.3), "power_cap": pytest.approx(0.7)}
    assert sides(NO_REASON, some) == (split, split)
    cap = {Cause.POWER_CAP: [0.0, 100.0, 100.0]}
    assert sides([BRAKE | POWER] * 3, cap) == ({"power_brake": 1.0}, {"power_brake": 1.0})


def test_a_counter_read_once_tells_nothing() -> None:
    counters = {Cause.THERMAL: [np.nan, 7.0, np.nan], Cause.POWER_CAP: [0.0, 50.0, 50.0]}
    half = {"power_cap": 0.5, "unexplained": 0.5}
    assert sides(NO_REASON, counters) == (half, half)


def test_at_a_border_a_counter_counts_however_little_it_rose() -> None:
    """Thermal for 2 of 100 ns at the right, then for 100: of halves 0.04; no cause has 1.96.

    Where it counts nothing next to the border it may stand still, and where it counts more than
    the time it is updated seldom: there the bits count.
    """
    evenly = {"unexplained": 1.0}, {"thermal": 1.0}
    counters = {Cause.THERMAL: [0.0, 2.0, 102.0]}
    assert sides([0, THERMAL, THERMAL], counters) == (
        {"unexplained": pytest.approx(1.96)},
        {"thermal": pytest.approx(0.04)},
    )
    assert sides([0, THERMAL, THERMAL], {Cause.THERMAL: [0.0, 2.0, 4.0]}) == evenly
    assert sides([0, THERMAL, THERMAL], {Cause.THERMAL: [0.0, 0.0, 200.0]}) == evenly
    unread = {Cause.THERMAL: [np.nan, 2.0, 102.0]}
    assert sides([0, THERMAL, THERMAL], unread) == evenly


@pytest.mark.parametrize(("bits", "rest"), [(0, "unexplained"), (Cause.UNKNOWN.bit, "unknown")])
def test_where_no_sample_has_a_reason_counters_name_the_ends(bits: int, rest: str) -> None:
    """Power for 60 of 100 ns, thermal for 20, then for 100, as of drivers that only count.

    Power has the first sample, thermal the others, at which it counted on both sides; the 20 ns of
    neither are of both ends. Where thermal alone counts, at the right, the left has the rest.
    """
    counters = {Cause.POWER_CAP: [0.0, 60.0, 60.0], Cause.THERMAL: [0.0, 20.0, 120.0]}
    left, right = sides([bits] * 3, counters)
    assert left == {"power_cap": pytest.approx(1.2), rest: pytest.approx(0.2)}
    assert right == {"thermal": pytest.approx(0.4), rest: pytest.approx(0.2)}
    assert sides([bits] * 3, counters, piece=1) == ({"thermal": 1.0}, {"thermal": 1.0})
    left, right = sides([bits] * 3, {Cause.THERMAL: [0.0, 2.0, 102.0]})
    assert left == {rest: pytest.approx(1.96, rel=1e-5)}
    assert right == {"thermal": pytest.approx(0.04), rest: pytest.approx(0.0, abs=1e-5)}


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
    windows = Windows(start_ns=np.array([0, 150, 300]), end_ns=np.array([400, 250, 300]))
    updates = counter_updates(counters, times, windows)
    assert updates is not None
    assert updates.tolist() == [3, 1, 0]
    assert counter_updates({}, times, windows) is None


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


def idle_and_cool(
    causes: list[int], activity: float = 0.0, temperature_c: float = 37.0, count: int = 8
) -> int:
    """The bits that mean nothing, of so many samples at work with none, then `causes`."""
    samples = gpu_samples(range(count + len(causes)), [345.0] * (count + len(causes)))
    samples = replace(
        samples,
        causes=np.array([POWER] * count + causes, np.int64),
        activity_ratio=np.array([1.0] * count + [activity] * len(causes)),
        temperature_c=np.array([72.0] * count + [temperature_c] * len(causes)),
    )
    return false_causes(samples)


def test_a_limit_that_is_also_set_while_idle_and_cool_means_nothing() -> None:
    idle = Cause.LOW_UTILIZATION.bit
    assert idle_and_cool([THERMAL] * 5) == THERMAL
    assert idle_and_cool([THERMAL | idle] * 5, activity=np.nan) == THERMAL
    assert idle_and_cool([THERMAL] * 3 + [0] * 2) == THERMAL


@pytest.mark.parametrize(
    ("causes", "activity", "temperature_c"),
    [
        ([THERMAL] * 4, 0.0, 37.0),  # too few
        ([THERMAL] * 2 + [0] * 3, 0.0, 37.0),  # mostly not
        ([THERMAL] * 5, 0.0, 71.0),  # hot
        ([THERMAL] * 5, 1.0, 37.0),  # at work
        ([THERMAL | Cause.LOW_UTILIZATION.bit] * 5, 1.0, 37.0),  # at work whatever the idle bit
        ([THERMAL] * 5, np.nan, 37.0),  # not known to be idle
        ([THERMAL] * 5, 0.0, np.nan),  # nor to be cool
        ([BRAKE] * 5, 0.0, 37.0),  # from outside
    ],
)
def test_other_limits_stay(causes: list[int], activity: float, temperature_c: float) -> None:
    assert idle_and_cool(causes, activity, temperature_c) == 0
