"""Counts over two rings."""

from chopperd.live.counters import GpuCounters
from chopperd.model.kinds import Cause
from chopperd.model.live import LiveTotals


def test_what_two_rings_counted_adds_up_and_unknown_stays_unknown() -> None:
    one = GpuCounters(
        totals=LiveTotals(sm_cycles=5.0, energy_j=2.0, lost_s={Cause.THERMAL: 1.0}),
        ticks_count=10,
        missed_count=1,
        failed_count=2,
        lost_count=3,
        driver_ns=40,
        driver_full_ns=4,
        invalid_count=6,
    )
    other = GpuCounters(
        totals=LiveTotals(
            sm_cycles=7.0, sampled_s=1.5, lost_s={Cause.THERMAL: 0.5, Cause.POWER_CAP: 2.0}
        ),
        ticks_count=5,
        driver_ns=2,
        driver_full_ns=1,
        invalid_count=1,
    )
    assert one.plus(other) == GpuCounters(
        totals=LiveTotals(
            sm_cycles=12.0,
            sampled_s=1.5,
            busy_s=None,
            energy_j=2.0,
            lost_s={Cause.THERMAL: 1.5, Cause.POWER_CAP: 2.0},
        ),
        ticks_count=15,
        missed_count=1,
        failed_count=2,
        lost_count=3,
        driver_ns=42,
        driver_full_ns=5,
        invalid_count=7,
    )


def test_a_ring_without_totals_leaves_those_before() -> None:
    one = GpuCounters(totals=LiveTotals(sm_cycles=5.0))
    assert one.plus(GpuCounters()).totals == one.totals
    assert GpuCounters().plus(one).totals == one.totals
    assert GpuCounters().plus(GpuCounters()).totals is None
