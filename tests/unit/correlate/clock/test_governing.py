"""The governing die against an independent brute force: exact fractions, sample by sample."""

from fractions import Fraction
from math import isnan

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from chopperd.correlate.clock.governing import are_gated, governed, reported_dies
from chopperd.model.samples import GpuSamples
from tests.unit.correlate.builders import gpu_samples

NAN = float("nan")
NS_PER_MS = 1_000_000


def sampled(t_ms: list[int], dies_mhz: list[list[float]]) -> GpuSamples:
    """Samples of the dies; their own clock is the mark 1.0, which no die has."""
    dies = np.array(dies_mhz, np.float64).reshape(len(t_ms), -1)
    samples = gpu_samples([t * NS_PER_MS for t in t_ms], [1.0] * len(t_ms))
    return replace(samples, die_clocks_mhz=dies)


def clocks(samples: GpuSamples) -> list[float]:
    found: list[float] = governed(samples).sm_clock_mhz.tolist()
    return found


def by_brute_force(samples: GpuSamples) -> list[float]:
    dies_mhz = samples.die_clocks_mhz
    assert dies_mhz is not None
    rows, times = dies_mhz.tolist(), samples.t_unix_ns.tolist()
    return [governing_mhz(row, times, rows) for row in range(len(rows))]


def governing_mhz(row: int, times: list[int], rows: list[list[float]]) -> float:
    around = [other for other, t in enumerate(times) if abs(t - times[row]) <= 10**9]
    reported = [clock for clock in rows[row] if not isnan(clock)]
    if not reported:
        return 1.0
    best: tuple[Fraction, int] | None = None
    for die, clock in enumerate(rows[row]):
        if clock > 140:  # False of NaN
            ran = [Fraction(rows[other][die]) for other in around if rows[other][die] > 140]
            mean = sum(ran, Fraction(0)) / len(ran)
            best = min(best or (mean, die), (mean, die))
    if best is not None:
        return rows[row][best[1]]
    return min((clock for clock in reported if clock > 0), default=NAN)


CLOCK = st.one_of(
    st.sampled_from([NAN, 0.0, 132.0, 140.0, 141.0, 2098.0, 2099.0, 2100.0]),
    st.integers(0, 2500).map(float),
)


@st.composite
def recordings(draw: st.DrawFn) -> GpuSamples:
    """Some samples with steps and gaps around the half window, of a few dies."""
    steps = draw(st.lists(st.sampled_from([1, 10, 333, 500, 999, 1000, 1001, 5000]), max_size=25))
    t_ms = np.cumsum([0, *steps]).tolist()
    dies = draw(st.integers(1, 4))
    row = st.lists(CLOCK, min_size=dies, max_size=dies)
    return sampled(t_ms, draw(st.lists(row, min_size=len(t_ms), max_size=len(t_ms))))


@given(recordings())
@example(sampled([0, 1000, 2000], [[2000.0, 1990.0], [1900.0, 1910.0], [2000.0, 2000.0]]))
@settings(max_examples=100, deadline=None)
def test_the_governing_clock_is_the_brute_force_s(samples: GpuSamples) -> None:
    assert clocks(samples) == pytest.approx(by_brute_force(samples), nan_ok=True, abs=0)


def test_the_lowest_of_the_means_governs_and_not_the_lowest_of_the_moment() -> None:
    samples = sampled([0, 10, 20], [[2000.0, 1980.0], [1970.0, 1990.0], [2010.0, 1985.0]])
    assert clocks(samples) == [1980.0, 1990.0, 1985.0]


def test_what_lies_one_second_away_counts_and_what_lies_further_does_not() -> None:
    dies = [[1500.0, 2000.0], [1900.0, 1890.0]]
    assert clocks(sampled([0, 1000], dies)) == [1500.0, 1900.0]
    assert clocks(sampled([0, 1001], dies)) == [1500.0, 1890.0]


def test_a_die_that_sleeps_now_does_not_govern_and_its_sleep_does_not_lower_its_mean() -> None:
    samples = sampled([0, 10, 20], [[1900.0, 2000.0], [0.0, 2000.0], [1900.0, 2000.0]])
    assert clocks(samples) == [1900.0, 2000.0, 1900.0]


def test_of_equal_dies_the_first_governs() -> None:
    samples = sampled([0, 10], [[2000.0, 1990.0], [1990.0, 2000.0]])
    assert clocks(samples) == [2000.0, 1990.0]


def test_where_no_die_runs_it_is_the_lowest_clock_that_is_not_zero() -> None:
    samples = sampled([0, 10, 20], [[0.0, 132.0], [0.0, 0.0], [NAN, 95.0]])
    assert clocks(samples) == pytest.approx([132.0, NAN, 95.0], nan_ok=True)


def test_where_no_die_is_reported_the_clock_stays() -> None:
    samples = sampled([0, 10], [[NAN, NAN], [2000.0, NAN]])
    assert clocks(samples) == [1.0, 2000.0]


def test_samples_without_dies_are_the_same_ones() -> None:
    samples = gpu_samples([0, 10], [1.0, 2.0])
    assert governed(samples) is samples


def test_a_die_is_gated_only_while_another_runs() -> None:
    dies_mhz = np.array([[2000.0, 0.0, 140.0, NAN], [0.0, 132.0, 0.0, NAN]])
    assert are_gated(dies_mhz).tolist() == [[False, True, True, False], [False] * 4]


def test_dies_are_cut_after_the_last_that_was_ever_reported() -> None:
    clocks = np.array([[2100.0, np.nan, np.nan, np.nan], [2100.0, np.nan, 0.0, np.nan]])
    found = reported_dies(clocks)
    assert found is not None
    assert found.shape == (2, 3)
    assert np.isnan(found[:, 1]).all()
    assert reported_dies(np.full((2, 4), np.nan)) is None
