"""Integrals over two rings."""

from chopperd.live.gpu_track import sum_of_totals
from chopperd.model.kinds import Cause
from chopperd.model.live import LiveTotals


def test_integrals_of_two_rings_add_up_and_unknown_stays_unknown() -> None:
    one = LiveTotals(sm_cycles=5.0, energy_j=2.0, lost_s={Cause.THERMAL: 1.0})
    other = LiveTotals(
        sm_cycles=7.0, sampled_s=1.5, lost_s={Cause.THERMAL: 0.5, Cause.POWER_CAP: 2.0}
    )
    assert sum_of_totals(one, other) == LiveTotals(
        sm_cycles=12.0,
        sampled_s=1.5,
        busy_s=None,
        energy_j=2.0,
        lost_s={Cause.THERMAL: 1.5, Cause.POWER_CAP: 2.0},
    )


def test_a_ring_without_integrals_leaves_those_before() -> None:
    one = LiveTotals(sm_cycles=5.0)
    assert sum_of_totals(one, None) == sum_of_totals(None, one) == one
    assert sum_of_totals(None, None) is None
