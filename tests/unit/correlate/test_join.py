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


def test_samples_outside_the_traced_time_do_not_widen_the_interval() -> None:
    """What ran there is not known, so it says nothing of the clock beside compute.

    Compute at 1400 MHz and communication at 1401 MHz by turns of 50 ms, 100 Hz: an entry into
    compute each 100 ms and 1 ms of timing uncertainty move at most 2 % of its time, so 0.02 MHz.
    """
    records = [
        Rec(start * MS, (start + 50) * MS, kind)
        for at in range(0, 2000, 100)
        for start, kind in ((at, KernelClass.GEMM), (at + 50, KernelClass.COMM))
    ]
    times = every(10, -2000, 4000)

    def clock_at(t_ns: int) -> float:
        if not 0 <= t_ns < 2000 * MS:
            return 345.0
        return 1400.0 if t_ns // (50 * MS) % 2 == 0 else 1401.0

    samples = gpu_samples(times, [clock_at(t) for t in times], read_span_ns=2 * MS)
    clocks = clocks_of(join_device(device(records), (), samples, 1980.0))
    assert clocks.compute.mean_mhz[-1] == pytest.approx(1400.0, abs=0.01)
    assert clocks.compute.half_width_mhz[-1] == pytest.approx(0.02, rel=0.01)
