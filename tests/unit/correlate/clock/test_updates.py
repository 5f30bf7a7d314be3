"""Looks of a sensor behind its reads, by hand and against simulated sensors."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chopperd.correlate.clock.sensor_updates import clock_updates, period_in_samples, sensor_updates
from chopperd.model.arrays import Float64s
from tests.unit.correlate.builders import MS


def looked(
    times_ms: list[float], values: list[float], period_ms: float
) -> list[tuple[float, float]]:
    """(ms, value) of each look."""
    t_ns = np.array([t * MS for t in times_ms], np.int64)
    found = sensor_updates(t_ns, np.array(values), round(period_ms * MS))
    return [(t / MS, values[row]) for row, t in zip(found.row, found.t_ns.tolist(), strict=True)]


def test_a_new_value_was_taken_between_the_read_before_and_the_one_that_shows_it() -> None:
    """Reads each 10 ms of a 30 ms sensor: 1500 is taken between 20 and 30 ms, 1600 at 50 to 60."""
    times = [0.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0]
    values = [1400.0] * 3 + [1500.0] * 3 + [1600.0]
    assert looked(times, values, 30) == [(-15.0, 1400.0), (25.0, 1500.0), (55.0, 1600.0)]


def test_reads_further_apart_than_the_period_are_looks_of_their_own_half_a_period_old() -> None:
    times = [0.0, 100.0, 200.0, 300.0]
    assert looked(times, [1400.0, 1400.0, 1500.0, 1500.0], 20) == [
        (-10.0, 1400.0),
        (90.0, 1400.0),
        (190.0, 1500.0),
        (290.0, 1500.0),
    ]


def test_a_sensor_whose_value_stands_still_goes_on_looking() -> None:
    """1400 taken at 5 ms (read at 10), again at 35 and 65; 95 is too near the change at 105."""
    times = [0.0, *map(float, range(10, 130, 10))]
    values = [1300.0, *[1400.0] * 10, 1500.0, 1500.0]
    assert looked(times, values, 30) == [
        (-15.0, 1300.0),
        (5.0, 1400.0),
        (35.0, 1400.0),
        (65.0, 1400.0),
        (105.0, 1500.0),
    ]


def test_no_reads_are_no_looks() -> None:
    assert looked([], [], 30) == []


@settings(max_examples=60, deadline=None)
@given(
    gaps=st.lists(st.integers(1, 300), min_size=1, max_size=60),
    values=st.lists(st.sampled_from([1400.0, 1500.0]), min_size=60, max_size=60),
    period=st.integers(2, 200),
)
def test_looks_rise_precede_their_reads_and_keep_every_change(
    gaps: list[int], values: list[float], period: int
) -> None:
    t_ns = np.cumsum(gaps) * MS
    value = np.array(values[: len(gaps)])
    found = sensor_updates(t_ns, value, period * MS)
    assert (np.diff(found.t_ns) > 0).all()
    assert (np.diff(found.row) > 0).all()
    assert (found.t_ns <= t_ns[found.row]).all()
    assert (t_ns[found.row] - found.t_ns <= period * MS).all()
    changed = np.flatnonzero(np.diff(value)) + 1
    assert set(changed) <= set(found.row.tolist())


def held(period_ms: float, seed: int, *, hz: float = 100.0) -> tuple[Float64s, Float64s, Float64s]:
    """(read ms, true look ms, value) of 60 s: a random walk, one read at random in each period."""
    rng = np.random.default_rng(seed)
    step_ms = 1000.0 / hz
    read_ms = (np.arange(int(60 * hz)) + rng.uniform(0.05, 0.95, int(60 * hz))) * step_ms
    phase_ms = rng.uniform(0, period_ms)
    number = np.floor((read_ms - phase_ms) / period_ms)
    walk = np.cumsum(rng.choice([-15.0, 0.0, 15.0], int(60_000 / period_ms) + 3))
    return read_ms, number * period_ms + phase_ms, walk[number.astype(int) + 1]


@pytest.mark.parametrize("period_ms", [20.0, 50.0, 100.0])
def test_looks_are_as_many_as_the_sensors_and_at_their_time(period_ms: float) -> None:
    """Known truth: counts within 7 %; changes within 9.5 ms, and on average to 1 ms.

    (Not to 0: reads each 10 ms and looks each 100 ms keep step.)

    Taken as of its reads a value is half a period old on average.
    """
    read_ms, true_ms, value = held(period_ms, seed=3)
    t_ns = (read_ms * MS).astype(np.int64)
    found = sensor_updates(t_ns, value, round(period_ms * MS))
    assert len(found.row) == pytest.approx(len(np.unique(true_ms)), rel=0.07)
    changed = np.flatnonzero(np.diff(value)) + 1
    is_change = np.isin(found.row, changed)
    off_ms = found.t_ns[is_change] / MS - true_ms[found.row[is_change]]
    assert abs(off_ms.mean()) < 1.0
    assert np.abs(off_ms).max() <= 9.5
    assert (read_ms - true_ms).mean() == pytest.approx(period_ms / 2, rel=0.1)


def test_a_recording_betrays_a_sensor_that_is_much_slower_than_its_reads() -> None:
    for seed in range(5):
        read_ms, _, value = held(100.0, seed)
        found = period_in_samples((read_ms * MS).astype(np.int64), value)
        assert found is not None
        assert found.period_ns == pytest.approx(100 * MS, rel=0.01)


def test_a_recording_does_not_betray_a_sensor_as_fast_as_its_reads() -> None:
    for period_ms, hz in ((20.0, 100.0), (100.0, 10.0), (1.0, 100.0)):
        read_ms, _, value = held(period_ms, seed=0, hz=hz)
        assert period_in_samples((read_ms * MS).astype(np.int64), value) is None


def test_looks_that_only_samples_betray_are_as_of_the_first_read_that_shows_them() -> None:
    """Reads are at most 18 ms apart: so late at most, and no read is moved."""
    read_ms, true_ms, value = held(100.0, seed=0)
    t_ns = (read_ms * MS).astype(np.int64)
    found = clock_updates(t_ns, value, None)
    assert found.period_ns == pytest.approx(100 * MS, rel=0.01)
    assert found.t_ns.tolist() == t_ns[found.row].tolist()
    assert np.median(read_ms[found.row] - true_ms[found.row]) < 10


def test_what_was_found_on_the_device_stands_above_what_samples_betray() -> None:
    read_ms, _, value = held(100.0, seed=0)
    t_ns = (read_ms * MS).astype(np.int64)
    assert clock_updates(t_ns, value, 90 * MS).period_ns == 90 * MS
    steady = clock_updates(t_ns, np.full(len(t_ns), 1400.0), None)
    assert steady.period_ns is None
    assert steady.row.tolist() == list(range(len(t_ns)))
    assert steady.t_ns is t_ns


@pytest.mark.parametrize("phase_ms", [50, 100, 250])
def test_a_beat_of_the_job_that_was_taken_for_the_sensors_moves_no_look_over_a_border(
    phase_ms: int,
) -> None:
    """Known truth: 1400 MHz in every other phase, 1800 in the rest, shown at once."""
    random = np.random.default_rng(5)
    t_ns = ((np.arange(6000) + random.uniform(0.05, 0.95, 6000)) * 10 * MS).astype(np.int64)
    clock_mhz = np.where(t_ns // (phase_ms * MS) % 2, 1800.0, 1400.0)
    found = clock_updates(t_ns, clock_mhz, phase_ms * MS)
    labels = found.t_ns // (phase_ms * MS) % 2
    assert set(clock_mhz[found.row][labels == 0]) == {1400.0}
    assert set(clock_mhz[found.row][labels == 1]) == {1800.0}
