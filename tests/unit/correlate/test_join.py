"""One device joined with its samples: rows, labels, periods, coverage, by hand."""

import pytest

from chopperd.correlate.join import JoinedDevice, RowClocks, join_device
from chopperd.model.classes import KernelClass
from tests.unit.correlate.builders import MS, Rec, device, gpu_samples


def clocks_of(joined: JoinedDevice) -> RowClocks:
    assert joined.clocks is not None
    return joined.clocks


def every(period_ms: int, start_ms: int, end_ms: int) -> list[int]:
    return [t * MS for t in range(start_ms, end_ms, period_ms)]


def test_the_period_is_that_of_the_samples_in_the_traced_time() -> None:
    """A burst at 100 Hz for the 0.3 s of the trace, 10 Hz for two seconds on either side."""
    times = [*every(100, -1900, 0), *every(10, 0, 300), *every(100, 300, 2200)]
    timeline = device([Rec(0, 300 * MS)], windows=[(0, 300 * MS)])
    joined = join_device(timeline, (), gpu_samples(times, [1400.0] * len(times)), 1980.0)
    assert clocks_of(joined).period_ns == 10 * MS


def test_a_single_sample_in_the_traced_time_takes_the_period_of_those_around() -> None:
    times = every(100, -1000, 1000)
    timeline = device([Rec(10 * MS, 130 * MS)])
    joined = join_device(timeline, (), gpu_samples(times, [1400.0] * len(times)), 1980.0)
    assert clocks_of(joined).period_ns == 100 * MS
