"""Drift between launches and kernels, on a simulated process whose drift is known.

The host launches in bursts, and kernels of two lengths let the queue run empty or grow to
milliseconds; the device's times are then stretched about the trace's end, where Kineto takes the
one offset. Rates over many seeds: docs/decisions/2026-11-28-rocm-traces.md.
"""

import numpy as np
import pytest

from chopperd.correlate.timebase import clock_drift
from chopperd.model.arrays import Float64s, Int64s
from chopperd.units import NS_PER_MS, NS_PER_S, NS_PER_US

EPOCH_NS = 1_790_000_000_000_000_000


def process(seed: int, drift: float, *, seconds: int = 4, unsteady: float = 0.1) -> list[Int64s]:
    """Starts, ends, launches of a process's kernels, ns; `unsteady`: how the host's pace walks."""
    rng = np.random.default_rng(seed)
    called: list[Float64s] = []
    started: list[Float64s] = []
    lasted: list[Float64s] = []
    now_us = free_us = 0.0
    pace = 1.0
    while now_us < seconds * 1e6:
        n = int(rng.integers(60, 140))
        pace = float(np.exp(0.9 * np.log(pace) + unsteady * rng.standard_normal()))
        between_us = (8 + rng.exponential(6, n) + rng.choice([0, 300], n, p=[0.95, 0.05])) * pace
        calls_us = now_us + np.cumsum(between_us)
        length_us = rng.exponential(rng.choice([2.0, 60.0]), n) + 1.5
        ready_us = calls_us + (9 + rng.gamma(2, 2, n)) * pace
        # A queue in order: each starts when it is ready and all before it are done.
        done_us = np.cumsum(length_us)
        before_us = np.concatenate(([0.0], done_us[:-1]))
        starts_us = np.maximum.accumulate(np.maximum(ready_us - before_us, free_us)) + before_us
        called.append(calls_us)
        started.append(starts_us)
        lasted.append(length_us)
        free_us = float(starts_us[-1] + length_us[-1])
        now_us = float(calls_us[-1])
        if rng.random() < 0.8:  # it waits for the device
            now_us = max(now_us, free_us) + float(rng.exponential(30))
        now_us += 2_000 * float(rng.random())
    call_us, start_us, length_us = map(np.concatenate, (called, started, lasted))
    last_us = start_us[-1]
    columns = (start_us, start_us + length_us)
    stretched = [last_us + (each - last_us) * (1 + drift) for each in columns]
    return [EPOCH_NS + np.rint(each * NS_PER_US).astype(np.int64) for each in (*stretched, call_us)]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("drift", [0.0, 20e-6, -20e-6, 200e-6, -200e-6])
def test_a_drift_is_found_with_an_interval_that_holds_it_and_none_where_there_is_none(
    drift: float, seed: int
) -> None:
    found = clock_drift(*process(seed, drift))
    assert found is not None
    assert found.low_ratio - 1e-6 <= drift <= found.high_ratio + 1e-6
    assert found.ratio == pytest.approx(drift, abs=3e-6)
    assert found.misleads == (drift != 0.0)
    assert found.span_ns == pytest.approx(4 * NS_PER_S, rel=0.05)
    assert found.apart_ns == pytest.approx(abs(drift) * 4 * NS_PER_S, abs=12 * NS_PER_US)


def test_a_queue_that_grows_all_along_is_no_drift() -> None:
    # Launched every 10 us, run for 12: the last starts 100 ms after its launch.
    called_ns = EPOCH_NS + np.arange(50_000, dtype=np.int64) * 10 * NS_PER_US
    start_ns = EPOCH_NS + np.arange(50_000, dtype=np.int64) * 12 * NS_PER_US
    assert start_ns[-1] - called_ns[-1] > 90 * NS_PER_MS
    assert clock_drift(start_ns, start_ns + 12 * NS_PER_US, called_ns) is None


def test_too_few_launches_or_none_that_are_known_tell_nothing() -> None:
    start_ns, end_ns, called_ns = process(0, 0.0, seconds=1)
    assert clock_drift(start_ns, end_ns, np.full_like(called_ns, -1)) is None
    assert clock_drift(start_ns[:50], end_ns[:50], called_ns[:50]) is None
    assert clock_drift(start_ns[:0], end_ns[:0], called_ns[:0]) is None
