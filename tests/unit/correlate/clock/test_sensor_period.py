"""The update period of a sensor from back-to-back reads, against simulated sensors."""

import numpy as np
import pytest

from chopperd.correlate.clock.sensor_updates import MIN_CHANGES, contradicts, sensor_period
from chopperd.model.arrays import Float64s, Int64s
from chopperd.units import NS_PER_MS

SEEDS = range(20)
SPAN_MS = 1500.0


def reads(
    period_ms: float, seed: int, *, levels: int | None = None, jitter_ms: float = 0.0
) -> tuple[Int64s, Float64s]:
    """1.5 s of reads 1 to 2 ms apart of a sensor that looks once a period, from a random phase on.

    1 read in 50 fails, 1 in 100 takes 3 to 12 ms. With `levels` each look shows one of so many
    values by chance, so that neighbours often agree; else it never shows one twice.
    """
    rng = np.random.default_rng([seed, round(10 * period_ms)])
    spacing_ms = rng.uniform(1.0, 2.0, round(SPAN_MS / 1.5))
    spacing_ms += np.where(rng.random(len(spacing_ms)) < 0.01, rng.uniform(3, 12), 0.0)
    t_ms = np.cumsum(spacing_ms)
    t_ms = t_ms[t_ms < SPAN_MS]
    count = int(SPAN_MS / period_ms) + 4
    looks_ms = (np.arange(count) - 1 + rng.random()) * period_ms
    looks_ms += rng.normal(0.0, jitter_ms, count)
    shown = rng.integers(0, levels, count) * 15.0 if levels else np.cumsum(rng.random(count))
    value = shown[np.searchsorted(np.sort(looks_ms), t_ms, "right") - 1].astype(np.float64)
    value[rng.random(len(t_ms)) < 0.02] = np.nan
    return (t_ms * NS_PER_MS).astype(np.int64), value


@pytest.mark.parametrize("period_ms", [5.0, 7.0, 10.0, 20.0, 33.3, 100.0, 150.0, 200.0])
def test_the_period_of_a_sensor_is_found_within_its_interval(period_ms: float) -> None:
    """Known truth: a sensor of that period, 20 seeds; the interval is one of 3 standard errors."""
    for seed in SEEDS:
        found = sensor_period(*reads(period_ms, seed))
        assert found is not None
        assert found.is_resolved
        assert found.low_ns <= period_ms * NS_PER_MS <= found.high_ns
        assert found.high_ns - found.low_ns < 0.03 * found.period_ns


@pytest.mark.parametrize("period_ms", [1.0, 1.5, 2.0, 3.0])
def test_a_sensor_as_fast_as_the_reads_is_bounded_not_measured(period_ms: float) -> None:
    """Reads 1.5 ms apart tell nothing below 4.5 ms but that it is below; beats are no period."""
    for seed in SEEDS:
        found = sensor_period(*reads(period_ms, seed))
        assert found is not None
        assert not found.is_resolved
        assert found.low_ns == 0
        assert found.high_ns > period_ms * NS_PER_MS


@pytest.mark.parametrize(("period_ms", "levels"), [(10.0, 2), (20.0, 3), (50.0, 3), (100.0, 4)])
def test_a_value_that_repeats_by_chance_does_not_lengthen_the_period(
    period_ms: float, levels: int
) -> None:
    """A half to a quarter of the looks show no change: gaps of 2, 3, ... periods.

    One seed in ten may leave it open; none may give another period.
    """
    found = [sensor_period(*reads(period_ms, seed, levels=levels)) for seed in SEEDS]
    known = [each for each in found if each is not None]
    assert len(known) >= 0.9 * len(found)
    assert all(each.low_ns <= period_ms * NS_PER_MS <= each.high_ns for each in known)


def test_what_changes_seldom_is_unknown_rather_than_wrong() -> None:
    """A 200 ms sensor with two levels shows 4 changes in 1.5 s on average: a few seeds suffice."""
    found = [sensor_period(*reads(200.0, seed, levels=2)) for seed in SEEDS]
    assert any(each is None for each in found)
    assert all(each.low_ns <= 200 * NS_PER_MS <= each.high_ns for each in found if each)


@pytest.mark.parametrize("period_ms", [10.0, 20.0, 100.0])
def test_a_sensor_whose_timer_shakes_is_found_to_three_percent(period_ms: float) -> None:
    """Looks 0.3 ms (standard deviation) off their grid."""
    for seed in SEEDS:
        found = sensor_period(*reads(period_ms, seed, jitter_ms=0.3))
        assert found is not None
        assert found.period_ns == pytest.approx(period_ms * NS_PER_MS, rel=0.03)


def test_a_clock_that_hops_as_it_pleases_has_no_sensor_period() -> None:
    """Dwells of 20 to 200 ms, or exponential ones, seen at once: no grid. 1 in 100 may pass."""
    passed = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        t_ms = np.cumsum(rng.uniform(1.0, 2.0, 1000))
        dwell_ms = rng.uniform(20, 200, 200) if seed % 2 else rng.exponential(30.0, 400)
        value = np.searchsorted(np.cumsum(dwell_ms), t_ms).astype(np.float64)
        passed += sensor_period((t_ms * NS_PER_MS).astype(np.int64), value) is not None
    assert passed <= 1


def test_a_step_that_moves_the_clock_a_few_times_is_no_sensor() -> None:
    """Phases of 20 to 400 ms, 3 to 6 a step, the same in each step, seen at once: no grid.

    In 3 cases of 60 two phases are alike or multiples of one another, to a few percent.
    """
    found = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        t_ms = np.cumsum(rng.uniform(1.0, 2.0, 1000))
        step_ms = rng.uniform(20, 400, rng.integers(3, 7))
        edges_ms = np.cumsum(np.tile(step_ms, 1 + int(SPAN_MS / step_ms.sum())))
        value = np.searchsorted(edges_ms, t_ms).astype(np.float64)
        found += sensor_period((t_ms * NS_PER_MS).astype(np.int64), value) is not None
    assert found <= 3


def test_a_value_that_stands_still_tells_nothing() -> None:
    t_ns = np.arange(1000) * NS_PER_MS
    assert sensor_period(t_ns, np.full(1000, 1980.0)) is None
    assert sensor_period(t_ns, np.full(1000, np.nan)) is None
    assert sensor_period(t_ns[:0], np.empty(0)) is None


def test_fewer_changes_than_needed_are_never_a_period() -> None:
    """One less than needed, perfectly 100 ms apart."""
    t_ns = np.arange(100 * MIN_CHANGES) * NS_PER_MS
    value = (np.arange(100 * MIN_CHANGES) // 100).astype(np.float64)
    assert sensor_period(t_ns, value) is None


def test_a_recording_contradicts_a_period_that_its_changes_undercut() -> None:
    """A value that is new each 20 ms, over 2 s, is no sensor of 100 ms; it may be one of 20."""
    t_ns = np.arange(0, 2000, 10) * NS_PER_MS
    value = (np.arange(0, 2000, 10) // 20).astype(np.float64)
    assert contradicts(t_ns, value, 100 * NS_PER_MS)
    assert not contradicts(t_ns, value, 20 * NS_PER_MS)
    assert not contradicts(t_ns, np.full(200, 1980.0), 100 * NS_PER_MS)


def test_reads_on_a_loaded_machine_find_the_period_not_a_third_of_it() -> None:
    """Reads 1 to 20 ms apart of a 100 ms sensor; a third of its period fits such reads as well."""
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        t_ms = np.cumsum(1.0 + rng.exponential(4.0, 300))
        t_ms = t_ms[t_ms < SPAN_MS]
        value = np.floor((t_ms - rng.uniform(0, 100)) / 100.0)
        found = sensor_period((t_ms * NS_PER_MS).astype(np.int64), value)
        assert found is not None
        assert found.period_ns == pytest.approx(100 * NS_PER_MS, rel=0.03)
