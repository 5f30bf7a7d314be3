"""The sensor's lag, found in scenarios whose lag is known and refused where nothing tells it."""

from itertools import accumulate

import numpy as np
import pytest

from bench.scenarios import observe, scenario
from chopperd.correlate import intervals
from chopperd.correlate.clock.lag import ASSUMED_LAG_NS, UNMEASURED_LAG_NS, LagEstimate, measure_lag
from chopperd.model.arrays import Float64s, Int64s
from chopperd.model.timeline import Intervals
from tests.unit.correlate.builders import MS, spans


def estimate(preset: str, hz: float, lag_ms: int, steps: int = 60) -> LagEstimate:
    known = scenario(preset, seed=3, step_s=1.0, steps=steps)
    seen = observe(known, hz=hz, lag_ns=lag_ms * MS, seed=3)
    compute = intervals.union(known.compute.start_ns, known.compute.end_ns)
    return measure_lag(seen.t_unix_ns, seen.sm_clock_mhz, compute, int(3e9 / hz))


@pytest.mark.parametrize("hz", [10.0, 100.0])
@pytest.mark.parametrize("lag_ms", [0, 20])
def test_a_clock_that_follows_what_runs_betrays_the_lag(hz: float, lag_ms: int) -> None:
    found = estimate("phase-locked", hz, lag_ms)
    assert found.lag_ns is not None
    assert found.low_ns is not None
    assert found.high_ns is not None
    assert found.lag_ns == pytest.approx(lag_ms * MS, abs=1.5 * MS)
    assert found.low_ns <= found.lag_ns <= found.high_ns
    assert found.high_ns - found.low_ns < 10 * MS


def test_neighbours_on_both_sides_of_a_gap_are_no_pair() -> None:
    """Two stretches of samples with 2 s missing between, in which the clock moves by 1000 MHz.

    As a pair these would outweigh all others; the lag is the known one of 20 ms.
    """
    known = scenario("phase-locked", seed=3, step_s=1.0, steps=60)
    seen = observe(known, hz=100.0, lag_ns=20 * MS, seed=3)
    compute = intervals.union(known.compute.start_ns, known.compute.end_ns)
    t_ns, middle = seen.t_unix_ns, len(seen.t_unix_ns) // 2
    left = np.abs(np.arange(len(t_ns)) - middle) > 100
    clock_mhz = seen.sm_clock_mhz + np.where(np.arange(len(t_ns)) < middle, 0.0, 1000.0)
    found = measure_lag(t_ns[left], clock_mhz[left], compute, 30 * MS)
    assert found.lag_ns == pytest.approx(20 * MS, abs=1.5 * MS)


@pytest.mark.parametrize("preset", ["steady", "hopping"])
@pytest.mark.parametrize("hz", [10.0, 100.0])
def test_a_clock_blind_to_what_runs_has_no_measurable_lag(preset: str, hz: float) -> None:
    found = estimate(preset, hz, 20, steps=30)
    assert found.lag_ns is None
    assert found.reason == "the clock does not follow what runs"
    assert found.to_subtract_ns == ASSUMED_LAG_NS
    assert found.uncertainty_ns == UNMEASURED_LAG_NS - ASSUMED_LAG_NS


def test_a_lag_is_subtracted_only_if_its_interval_excludes_zero() -> None:
    behind = LagEstimate(lag_ns=20 * MS, low_ns=15 * MS, high_ns=26 * MS)
    ahead = LagEstimate(lag_ns=-4 * MS, low_ns=-6 * MS, high_ns=-1 * MS)
    unclear = LagEstimate(lag_ns=3 * MS, low_ns=-1 * MS, high_ns=7 * MS)
    assert (behind.to_subtract_ns, behind.uncertainty_ns) == (20 * MS, 6 * MS)
    assert (ahead.to_subtract_ns, ahead.uncertainty_ns) == (-4 * MS, 3 * MS)
    assert (unclear.to_subtract_ns, unclear.uncertainty_ns) == (0, 7 * MS)


def recorded(average_ms: int, settling_ms: int, hz: int) -> tuple[Int64s, Float64s, Intervals]:
    """Reads of a clock of 1400 MHz in compute (about 200 of 250 ms) and 1950 else, on a 1 ms grid.

    The clock settles by plain recursion; the sensor shows its mean over the time before.
    """
    rng = np.random.default_rng(8)
    chunks = rng.integers((180, 40), (220, 60), (160, 2))
    edges = np.cumsum(chunks).reshape(160, 2)
    compute = spans(
        *(
            (int(end - work) * MS, int(end) * MS)
            for (work, _), (end, _) in zip(chunks.tolist(), edges.tolist(), strict=True)
        )
    )
    grid = np.arange(int(edges[-1, 1]))
    target = np.where(intervals.contains(compute, grid * MS), 1400.0, 1950.0)
    clock = np.array(list(accumulate(target, lambda f, to: f + (to - f) / max(settling_ms, 1))))
    before = np.concatenate(([0.0], np.cumsum(clock)))
    at = np.arange(average_ms, len(grid) - 1, 1000 // hz) + rng.integers(0, 1000 // hz)
    at = np.minimum(at + rng.integers(0, 1000 // hz, len(at)), len(grid) - 1)
    shown = (before[at + 1] - before[at + 1 - max(average_ms, 1)]) / max(average_ms, 1)
    keep = np.flatnonzero(np.diff(at, prepend=-1) > 0)
    return at[keep] * MS, shown[keep], compute


@pytest.mark.parametrize("hz", [10, 100])
@pytest.mark.parametrize("average_ms", [50, 100])
def test_an_average_betrays_its_length_and_how_far_the_clock_swings(
    hz: int, average_ms: int
) -> None:
    """It is late by half its length, and mixes a quarter of it with the other side of a border."""
    found = measure_lag(*recorded(average_ms, 0, hz), 3000 * MS // hz)
    assert found.lag_ns is not None
    assert found.lag_ns == pytest.approx(average_ms / 2 * MS, abs=2.5 * MS)
    assert found.settling_ns == pytest.approx(average_ms / 4 * MS, rel=0.25)
    assert found.swing_mhz == pytest.approx(550, rel=0.08)


@pytest.mark.parametrize("hz", [10, 100])
def test_a_clock_that_settles_slowly_betrays_its_time_constant(hz: int) -> None:
    found = measure_lag(*recorded(0, 40, hz), 3000 * MS // hz)
    assert found.settling_ns == pytest.approx(40 * MS, rel=0.25)
    assert found.swing_mhz == pytest.approx(550, rel=0.15)


def test_a_sensor_known_to_show_instants_is_not_taken_for_one_that_averages() -> None:
    """The same reads: an average of 100 ms fits, settling does as far as it can."""
    averaged = measure_lag(*recorded(100, 0, 100), 30 * MS)
    settled = measure_lag(*recorded(100, 0, 100), 30 * MS, instant=True)
    assert averaged.settling_ns == 25 * MS
    assert settled.settling_ns > 25 * MS


def test_few_samples_or_a_clock_that_never_changes_tell_nothing() -> None:
    times = np.arange(100, dtype=np.int64) * 10 * MS
    compute = spans((0, 400 * MS), (500 * MS, 1000 * MS))
    constant = np.full(100, 1400.0)
    assert measure_lag(times[:20], constant[:20], compute, 30 * MS).reason == (
        "too few samples in the trace"
    )
    assert measure_lag(times, constant, compute, 30 * MS).reason == "the clock never changes"
    assert measure_lag(times, constant, spans(), 30 * MS).reason == "too few samples in the trace"


@pytest.mark.parametrize("seed", range(8))
def test_a_few_jumps_of_the_clock_are_no_evidence_of_a_lag(seed: int) -> None:
    """Three jumps in five equal steps: some lag or other always lays them on borders of compute.

    The sensor here has no lag at all, and the jumps at 0.5, 1.2 and 2 s have other reasons.
    """
    into = np.random.default_rng(seed).uniform(0.05, 0.95, 270)
    times = ((np.arange(-10, 260) + into) * 10 * MS).astype(np.int64)
    jumps = np.searchsorted([500 * MS, 1200 * MS, 2000 * MS], times, "right")
    clock_mhz = np.array([1980.0, 1386.0, 1782.0, 1980.0])[jumps]
    compute = spans(*((start * 500 * MS, (start * 500 + 400) * MS) for start in range(5)))
    found = measure_lag(times, clock_mhz, compute, 30 * MS)
    assert found.reason == "the clock changes too seldom"
    assert found.to_subtract_ns == 0


def test_work_that_repeats_within_the_range_of_lags_leaves_them_ambiguous() -> None:
    """Compute for 60 of every 100 ms: lags of 0, 100 and 200 ms explain the clock alike."""
    rng = np.random.default_rng(5)
    compute = spans(*((n * 100 * MS, (n * 100 + 60) * MS) for n in range(60)))
    times = ((np.arange(600) + rng.uniform(0.05, 0.95, 600)) * 10 * MS).astype(np.int64)
    level = np.where(intervals.contains(compute, times), 1400.0, 1950.0)
    found = measure_lag(times, level + rng.normal(0, 60, 600), compute, 30 * MS)
    assert found.lag_ns is None
    assert found.reason == "several lags fit alike"


@pytest.mark.parametrize("lag_ms", [0, 20])
def test_the_interval_holds_the_lag_of_a_clock_that_jumps_at_once(lag_ms: int) -> None:
    """Compute for 100 of about 260 ms, 1400 MHz in it and 1950 MHz else, without settling."""
    rng = np.random.default_rng(6)
    edges = np.cumsum(rng.integers((180, 40), (220, 80), (200, 2))).reshape(200, 2) * MS
    compute = spans(*((int(end) - 100 * MS, int(end)) for end, _ in edges))
    times = ((np.arange(5000) + rng.uniform(0.05, 0.95, 5000)) * 10 * MS).astype(np.int64)
    computing = intervals.contains(compute, times - lag_ms * MS)
    found = measure_lag(times, np.where(computing, 1400.0, 1950.0), compute, 30 * MS)
    assert found.low_ns is not None
    assert found.high_ns is not None
    assert found.low_ns <= lag_ms * MS <= found.high_ns
    assert found.high_ns - found.low_ns < 3 * MS
