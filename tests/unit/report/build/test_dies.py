"""The dies of a GPU in rows and notes; expected values by hand.

The job computes in three steps; its samples are 10 ms apart and all of one second, so that every
sample sees all others around it.
"""

import numpy as np
import pytest
from msgspec.structs import replace

from chopperd.model.devices import Vendor
from chopperd.model.report_rows import ClockDies, RowClock
from chopperd.model.samples import GpuSamples
from chopperd.report.build.trace_report import TraceReport
from tests.unit.report.traced import Job, reported, sample_set, sampled

NAN = float("nan")


def with_dies(*die_mhz: float, vendor: Vendor = Vendor.AMD) -> GpuSamples:
    """A GPU whose dies stand at these clocks; its own clock is that of the first one."""
    samples = sampled(clock_mhz=die_mhz[0])
    return replace(
        samples,
        gpu=replace(samples.gpu, vendor=vendor),
        die_clocks_mhz=np.tile(np.array(die_mhz), (len(samples), 1)),
    )


def clocks(report: TraceReport) -> list[RowClock]:
    found = [draft.row.clock for draft in (*report.steps, *report.totals)]
    assert len(found) == 4
    return [clock for clock in found if clock is not None]


def mean_mhz(clock: RowClock) -> float:
    assert clock.compute is not None
    assert clock.compute.mean_mhz is not None
    return clock.compute.mean_mhz


def dies_notes(report: TraceReport) -> list[str]:
    return [note.text for note in report.notes if note.code == "several_dies"]


def test_rows_have_the_governing_die_s_clock_and_keep_the_mean_of_the_running() -> None:
    report = reported(Job(), sample_set(with_dies(1600.0, 1500.0, 1540.0, 0.0, NAN)))
    for clock in clocks(report):
        assert mean_mhz(clock) == pytest.approx(1500.0)
        assert clock.dies is not None
        # (1600 + 1500 + 1540) / 3
        assert clock.dies.mean_mhz == pytest.approx(1546.667, abs=0.001)
        whole = replace(clock.dies, mean_mhz=0.0)
        assert whole == ClockDies(running=3, gated=1, mean_mhz=0.0, spread_mhz=100.0, governing=1)
    assert dies_notes(report) == [
        "the clock of GPU 0 is its governing die's, mostly XCD 1; the mean of 3 running dies is "
        "3.1 % higher; 1 die left out while off"
    ]


def test_a_loss_is_that_of_the_governing_die() -> None:
    (total,) = reported(Job(), sample_set(with_dies(1600.0, 1500.0))).totals
    assert total.row.dvfs.gap_ratio == pytest.approx(1 - 1500 / 2000)


def test_the_mean_is_as_far_above_as_the_samples_say_where_the_clock_changes() -> None:
    samples = with_dies(1500.0, 1500.0)
    assert samples.die_clocks_mhz is not None
    samples.die_clocks_mhz[::2, 0] -= 100.0
    samples.die_clocks_mhz[:, 1] += np.arange(len(samples)) % 2 * 300.0
    (total,) = reported(Job(), sample_set(samples)).totals
    clock = total.row.clock
    assert clock is not None
    assert clock.dies is not None
    # Die 0 governs: 1400, 1500, ...; beside it runs 1500, 1800, ...: 50 and 150 above in turn.
    assert clock.dies.mean_mhz - mean_mhz(clock) == pytest.approx(100.0, abs=5.0)


def test_a_single_running_die_has_no_spread() -> None:
    report = reported(Job(), sample_set(with_dies(1500.0, 0.0, vendor=Vendor.OTHER)))
    (total,) = report.totals
    assert total.row.clock is not None
    assert total.row.clock.dies == ClockDies(
        running=1, gated=1, mean_mhz=1500.0, spread_mhz=None, governing=0
    )
    assert dies_notes(report) == [
        "the clock of GPU 0 is its governing die's, mostly die 0; 1 die left out while off"
    ]


@pytest.mark.parametrize("samples", [sampled(), with_dies(132.0, 0.0)])
def test_without_running_dies_nothing_is_said_of_dies(samples: GpuSamples) -> None:
    report = reported(Job(), sample_set(samples))
    assert [clock.dies for clock in clocks(report)] == [None] * 4
    assert dies_notes(report) == []
