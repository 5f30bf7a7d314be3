"""What a report must say of clocks laid over a real trace, worked out from its plain rows."""

from bisect import bisect_right
from collections.abc import Sequence

import pytest

from chopperd.model.report_rows import Row
from tests.integration import reference_reader as plain

TOP_MHZ = 1980.0  # of the builder's GPU


def compute_intervals(rows: Sequence[plain.Row]) -> list[tuple[int, int]]:
    return plain.merged(filter(plain.is_compute, rows))


def in_compute(compute: Sequence[tuple[int, int]], t_ns: int) -> bool:
    at = bisect_right(compute, (t_ns, 1 << 62)) - 1
    return at >= 0 and compute[at][0] <= t_ns < compute[at][1]


def sample_times(compute: Sequence[tuple[int, int]], step_ns: int = 500_000) -> list[int]:
    """Every 0.5 ms or another step, from the first to the last such instant while compute runs."""
    times = list(range(compute[0][0], compute[-1][1], step_ns))
    inside = [k for k, t_ns in enumerate(times) if in_compute(compute, t_ns)]
    return times[inside[0] : inside[-1] + 1]


def brute_force(
    compute: Sequence[tuple[int, int]],
    t_ns: Sequence[int],
    clock_mhz: Sequence[float],
    window: tuple[int, int],
    top_mhz: float = TOP_MHZ,
) -> tuple[int, float, float]:
    """Covered compute, its mean clock and its loss: a line between samples, piece by piece.

    Args:
        compute: When compute ran, ns.
        t_ns: Times of the samples taken in compute.
        clock_mhz: Their clocks.
        window: Of the row.
        top_mhz: The reference.
    """
    covered_ns, cycles, lost_ns = 0, 0.0, 0.0
    for busy_start, busy_end in compute:
        start, end = max(busy_start, window[0], t_ns[0]), min(busy_end, window[1], t_ns[-1])
        while start < end:
            k = bisect_right(t_ns, start) - 1
            stop = min(end, t_ns[k + 1])
            slope = (clock_mhz[k + 1] - clock_mhz[k]) / (t_ns[k + 1] - t_ns[k])
            mean_mhz = clock_mhz[k] + slope * ((start + stop) / 2 - t_ns[k])
            covered_ns += stop - start
            cycles += mean_mhz * (stop - start)
            lost_ns += (1 - mean_mhz / top_mhz) * (stop - start)
            start = stop
    return covered_ns, cycles / covered_ns, lost_ns


def assert_clocks(
    row: Row,
    expected: tuple[int, float, float],
    *,
    gap_error: float = 1e-6,
    top_mhz: float = TOP_MHZ,
) -> None:
    """The row has what was expected, its mean clock and gap to within `gap_error` of the top."""
    covered_ns, mean_mhz, lost_ns = expected
    assert row.clock is not None
    assert row.clock.compute is not None
    assert row.clock.coverage_ratio == pytest.approx(covered_ns / (row.compute_ns or 0))
    assert row.clock.compute.mean_mhz == pytest.approx(mean_mhz, abs=gap_error * top_mhz)
    assert row.dvfs.lost_ns == pytest.approx(lost_ns, abs=2 + gap_error * covered_ns)
    assert row.dvfs.gap_ratio == pytest.approx(lost_ns / covered_ns, abs=gap_error)
    assert row.dvfs.overhead_factor == pytest.approx(top_mhz / mean_mhz, abs=2 * gap_error)
