"""The clock part of a row from hand-made columns: NaN becomes None, known numbers stay."""

from math import nan

import numpy as np
import pytest
from msgspec.structs import replace

from chopperd.correlate.groups import GroupTotals
from chopperd.correlate.join import RowClocks, join_device
from chopperd.model.kinds import Cause
from chopperd.report.build.clocks import (
    clock_of,
    compute_rows,
    dvfs_of,
    known_or_none,
    mean_of_samples,
    temperature_of,
)
from chopperd.report.build.work import families_of
from tests.unit.correlate.builders import MS, Rec, device, gpu_samples


def joined(clock_mhz: list[float], *, causes: list[int] | None = None) -> RowClocks:
    """A device that computes for 100 ms in one window, sampled every 10 ms."""
    timeline = device([Rec(0, 100 * MS)], windows=[(0, 100 * MS)])
    samples = gpu_samples([10 * k * MS for k in range(len(clock_mhz))], clock_mhz, causes=causes)
    clocks = join_device(timeline, (), samples, 1980.0).clocks
    assert clocks is not None
    return clocks


def test_nan_is_none_and_zero_is_zero() -> None:
    assert known_or_none(nan) is None
    assert known_or_none(0.0) == 0.0


def test_percentiles_are_those_of_the_samples_in_compute() -> None:
    clocks = joined([1000.0 + 10 * k for k in range(11)])
    row = clock_of(clocks, 0)
    assert row.compute is not None
    # Samples at 0, 10, ... 90 ms: the one at 100 ms lies behind the window.
    assert clocks.samples.clock_mhz[compute_rows(clocks, 0)].tolist() == [
        1000.0 + 10 * k for k in range(10)
    ]
    assert row.compute.samples == 10
    assert row.compute.p05_mhz == pytest.approx(1004.5)
    assert row.compute.p95_mhz == pytest.approx(1085.5)
    assert row.compute.std_mhz == pytest.approx(30.2765)
    assert row.compute.mean_mhz == pytest.approx(1050.0)
    assert row.coverage_ratio == 1.0


def test_the_gap_interval_is_the_clocks_over_the_reference() -> None:
    clocks = joined([1485.0, 1500.0, 1470.0] * 3 + [1485.0, 1485.0])
    row, dvfs = clock_of(clocks, 0), dvfs_of(clocks, 1980.0, 0)
    assert row.compute is not None
    assert row.compute.low_mhz is not None
    assert row.compute.high_mhz is not None
    assert row.compute.mean_mhz is not None
    half_mhz = row.compute.high_mhz - row.compute.mean_mhz
    assert half_mhz > 0
    assert dvfs.gap_ratio is not None
    assert dvfs.gap_low == pytest.approx(dvfs.gap_ratio - half_mhz / 1980)
    assert dvfs.gap_high == pytest.approx(dvfs.gap_ratio + half_mhz / 1980)
    assert dvfs.method == "sampled"


def test_causes_without_loss_are_left_out_and_the_rest_sums_to_it() -> None:
    bits = [Cause.POWER_CAP.bit] * 6 + [Cause.THERMAL.bit] * 5
    dvfs = dvfs_of(joined([990.0] * 11, causes=bits), 1980.0, 0)
    assert dvfs.lost_ns == 50 * MS
    assert dvfs.by_cause_ns is not None
    assert set(dvfs.by_cause_ns) == {"power_cap", "thermal"}
    assert sum(dvfs.by_cause_ns.values()) == 50 * MS


def test_without_a_reference_every_figure_of_the_loss_is_none() -> None:
    dvfs = dvfs_of(joined([990.0] * 11), None, 0)
    assert {getattr(dvfs, name) for name in dvfs.__struct_fields__} == {None}


def test_means_of_samples_leave_out_what_was_not_read() -> None:
    assert mean_of_samples(np.array([nan, 2600.0, 2620.0])) == 2610.0
    assert mean_of_samples(np.array([nan])) is None
    assert temperature_of(np.array([nan, 60.0, 70.0])) is not None
    found = temperature_of(np.array([nan, 60.0, 70.0]))
    assert found is not None
    assert (found.mean, found.max) == (65.0, 70.0)
    assert temperature_of(np.array([nan])) is None


def test_families_that_were_not_sampled_have_no_clock_and_no_loss() -> None:
    totals = GroupTotals(
        group=np.array([1, 0]),
        merged=np.array([0, 0]),
        kind=np.array([0, 8], np.int8),
        count=np.array([2, 1]),
        time_ns=np.array([200, 100]),
        samples=np.array([1, 0]),
        mean_mhz=np.array([1500.0, nan]),
        lost_ns=np.array([40.4, nan]),
        half_ns=np.array([50.0, nan]),
    )
    gemm, comm = families_of(totals, ("ncclKernel", "gemm"), None)
    assert (gemm.name, gemm.class_, gemm.count, gemm.time_ns) == ("gemm", "gemm", 2, 200)
    assert (gemm.mean_mhz, gemm.lost_ns) == (1500.0, 40)
    assert (gemm.lost_low_ns, gemm.lost_high_ns) == (0, 90)
    assert (comm.lost_low_ns, comm.lost_high_ns) == (None, None)
    assert (comm.class_, comm.mean_mhz, comm.lost_ns) == ("comm", None, None)
    assert gemm.beta is None
    assert gemm.beta_reason


def test_a_line_on_other_samples_says_so() -> None:
    clocks = joined([1500.0] * 11)
    whole = replace(clocks.compute, in_class_ns=clocks.compute.covered_ns)
    nothing = replace(clocks.compute, in_class_ns=np.zeros_like(clocks.compute.in_class_ns))
    half = replace(clocks.compute, in_class_ns=clocks.compute.covered_ns // 2)
    assert clock_of(replace(clocks, compute=whole), 0).basis == "in_class"
    assert clock_of(replace(clocks, compute=half), 0).basis == "mixed"
    assert clock_of(replace(clocks, compute=nothing), 0).basis == "all"
