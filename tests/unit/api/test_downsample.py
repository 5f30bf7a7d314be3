"""Bins against an independent brute force over the definition, in plain Python."""

import math
from itertools import pairwise
from statistics import median

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chopperd.api.history import add_sums, bin_sums, empty_sums
from chopperd.model.arrays import Float64s, Int64s

MS = 1_000_000


def times(*values_ms: float) -> Int64s:
    return np.array([round(each * MS) for each in values_ms], np.int64)


def column(*values: float) -> Float64s:
    return np.array(values, np.float64)


def test_a_mean_is_weighted_by_time() -> None:
    # 0..10 ms rises from 1000 to 2000 (mean 1500), 10..40 ms stays at 2000: (15000 + 60000) / 40.
    sums = bin_sums(times(0, 10, 40), column(1000, 2000, 2000), times(0, 40))
    assert sums.mean == pytest.approx([1875])
    assert (sums.low[0], sums.high[0]) == (1000, 2000)


def test_a_bin_has_the_extremes_of_the_line_in_it() -> None:
    # The line from 1000 at 0 to 2000 at 10 ms is at 1200 to 1700 between 2 and 7 ms.
    sums = bin_sums(times(0, 10), column(1000, 2000), times(2, 7))
    assert sums.mean == pytest.approx([1450])
    assert sums.low == pytest.approx([1200])
    assert sums.high == pytest.approx([1700])
    assert sums.count[0] == 0


def test_nothing_is_said_of_gaps_and_of_time_outside() -> None:
    # Period 10 ms; from 20 to 60 ms is a gap of four periods.
    t_ns = times(0, 10, 20, 60, 70, 80)
    sums = bin_sums(t_ns, column(*[1500.0] * 6), times(-20, 0, 20, 25, 55, 60, 80, 90))
    assert [math.isnan(each) for each in sums.mean] == [
        True,
        False,
        False,
        True,
        True,
        False,
        False,
    ]
    assert sums.covered_ns / MS == pytest.approx([0, 20, 0, 0, 0, 20, 0])


def test_samples_far_apart_have_no_line_between_them_even_if_they_are_all() -> None:
    minute_ns = 60 * 10**9
    t_ns = np.array([0, minute_ns], np.int64)
    edges_ns = np.array([0, minute_ns // 2, 2 * minute_ns], np.int64)
    sums = bin_sums(t_ns, column(100, 300), edges_ns)
    assert sums.mean.tolist() == [100, 300]
    assert sums.covered_ns.tolist() == [0, 0]


def test_an_idle_hour_at_another_rate_is_covered_and_a_gap_in_it_is_not() -> None:
    """Ten reads a second at 1600 for 4 s, one a second at 300 for 10 s, then ten a second again.

    The gap of 0.5 s in the fast part is longer than three of its periods, and so is that of 6 s in
    the slow part. Lines of 1 s and of 0.1 s lead into the slow part and out of it.
    """
    fast, again = [*range(0, 2000, 100), *range(2400, 4000, 100)], range(15_000, 20_000, 100)
    slow = [*range(4900, 8000, 1000), 13_900, 14_900]
    t_ms = np.array([*fast, *slow, *again])
    values = np.where((t_ms < 4500) | (t_ms >= 15_000), 1600.0, 300.0)
    whole = bin_sums(times(*t_ms), values, times(0, 20_000))
    assert whole.covered_ns[0] / MS == pytest.approx(19_900 - 500 - 6000)
    # 1.9 + 1.5 + 4.9 s at 1600, 3 + 1 s at 300, and the lines in between.
    level = 1600 * 8.3 + 300 * 4.0 + 950 * 1.1
    assert whole.mean[0] == pytest.approx(level / 13.4)


def test_values_that_were_not_read_are_passed_over() -> None:
    sums = bin_sums(times(0, 10, 20), column(1, math.nan, 3), times(0, 10, 20))
    assert sums.mean == pytest.approx([1.5, 2.5])
    nothing = bin_sums(times(0, 10), column(math.nan, math.nan), times(0, 10))
    assert math.isnan(nothing.mean[0])


def test_a_constant_comes_back_exactly() -> None:
    t_ns = 1_750_000_000 * 10**9 + np.arange(1000, dtype=np.int64) * 99_999_973
    sums = bin_sums(t_ns, np.full(1000, 1979.3), t_ns[::7])
    assert set(sums.mean.tolist()) == {1979.3}


def brute_force(
    t_ns: list[int], values: list[float], start_ns: int, end_ns: int
) -> tuple[float, float, float]:
    """Mean, lowest and highest over [start, end), piece by piece."""
    known = [(t, value) for t, value in zip(t_ns, values, strict=True) if not math.isnan(value)]
    pairs = list(pairwise(known))
    period_ns = int(median(b[0] - a[0] for a, b in pairs)) if pairs else 0
    integral = covered_ns = 0.0
    seen = [value for t, value in known if start_ns <= t < end_ns]
    samples = list(seen)
    spacings = [0] * 5 + [b[0] - a[0] for a, b in pairs] + [0] * 5
    for place, ((t0, v0), (t1, v1)) in enumerate(pairs):
        around_ns = max(
            median(spacings[place : place + 5]), median(spacings[place + 6 : place + 11])
        )
        left, right = max(t0, start_ns), min(t1, end_ns)
        if t1 - t0 > 3 * max(period_ns, around_ns) or left >= right:
            continue
        ends = [v0 + (v1 - v0) * (each - t0) / (t1 - t0) for each in (left, right)]
        integral += (right - left) * sum(ends) / 2
        covered_ns += right - left
        seen += ends
    if covered_ns:
        return integral / covered_ns, min(seen), max(seen)
    if samples:
        return sum(samples) / len(samples), min(samples), max(samples)
    return math.nan, math.nan, math.nan


def same(found: float, expected: float) -> bool:
    if math.isnan(expected):
        return math.isnan(found)
    return found == pytest.approx(expected, rel=1e-9, abs=1e-6)


@st.composite
def recordings(draw: st.DrawFn) -> tuple[list[int], list[float], list[int]]:
    steps = draw(st.lists(st.sampled_from([90, 100, 110, 250, 350, 2000]), min_size=1, max_size=30))
    t_ns = [sum(steps[: index + 1]) * 1000 for index in range(len(steps))]
    value = st.one_of(st.floats(200, 2000), st.just(math.nan))
    values = draw(st.lists(value, min_size=len(t_ns), max_size=len(t_ns)))
    edges = draw(st.lists(st.integers(-500, sum(steps) + 500), min_size=2, max_size=8, unique=True))
    return t_ns, values, sorted(each * 1000 for each in edges)


@settings(max_examples=100, deadline=None)
@given(recordings())
def test_bins_agree_with_brute_force(recording: tuple[list[int], list[float], list[int]]) -> None:
    t_ns, values, edges_ns = recording
    sums = bin_sums(
        np.array(t_ns, np.int64), np.array(values, np.float64), np.array(edges_ns, np.int64)
    )
    for index, (start_ns, end_ns) in enumerate(pairwise(edges_ns)):
        mean, low, high = brute_force(t_ns, values, start_ns, end_ns)
        is_lone = sums.covered_ns[index] == 0
        assert same(sums.mean[index], mean)
        # A bin that the line only touches at its edge still has that value as an extreme.
        if not is_lone:
            assert same(sums.low[index], low)
            assert same(sums.high[index], high)


@settings(max_examples=50, deadline=None)
@given(recordings(), st.integers(1, 2_000_000))
def test_parts_add_up_to_the_whole(
    recording: tuple[list[int], list[float], list[int]], cut_ns: int
) -> None:
    t_ns, values = np.array(recording[0], np.int64), np.array(recording[1], np.float64)
    edges_ns = np.array([0, 4_000_000], np.int64)
    whole = bin_sums(t_ns, values, edges_ns)
    parts = empty_sums(1)
    fine = np.array([0, cut_ns, 4_000_000], np.int64)
    add_sums(parts, bin_sums(t_ns, values, fine), np.zeros(2, np.int64))
    assert same(parts.mean[0], float(whole.mean[0]))
    assert same(parts.low[0], float(whole.low[0]))
    assert same(parts.high[0], float(whole.high[0]))
