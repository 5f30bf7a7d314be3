"""What is counted of one GPU, and how counts go on over a new ring so that none ever falls."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from chopperd.model.live import LiveTotals
from chopperd.sampling.memory.ring_reader import GpuStatus
from chopperd.sampling.memory.slow_state import GpuAside

Key = TypeVar("Key")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuCounters:
    """Counts of one GPU; names as in `GpuLive`."""

    totals: LiveTotals | None = None
    ticks_count: int = 0
    missed_count: int = 0
    failed_count: int = 0
    lost_count: int = 0
    driver_ns: int = 0
    driver_full_ns: int = 0
    driver_rare_ns: int = 0
    invalid_count: int = 0

    def plus(self, other: "GpuCounters") -> "GpuCounters":
        """Both together."""
        return GpuCounters(
            totals=_sum_of_totals(self.totals, other.totals),
            ticks_count=self.ticks_count + other.ticks_count,
            missed_count=self.missed_count + other.missed_count,
            failed_count=self.failed_count + other.failed_count,
            lost_count=self.lost_count + other.lost_count,
            driver_ns=self.driver_ns + other.driver_ns,
            driver_full_ns=self.driver_full_ns + other.driver_full_ns,
            driver_rare_ns=self.driver_rare_ns + other.driver_rare_ns,
            invalid_count=self.invalid_count + other.invalid_count,
        )


def counters_of(status: GpuStatus, aside: GpuAside, totals: LiveTotals | None) -> GpuCounters:
    """The counts of one ring."""
    return GpuCounters(
        totals=totals,
        ticks_count=status.ticks_count,
        missed_count=status.missed_count,
        failed_count=status.transient_count + status.unexpected_count,
        lost_count=status.losses_count,
        driver_ns=status.driver_ns,
        driver_full_ns=status.driver_full_ns,
        driver_rare_ns=aside.driver_rare_ns,
        invalid_count=aside.invalid_count,
    )


def _sum_of_totals(one: LiveTotals | None, other: LiveTotals | None) -> LiveTotals | None:
    if one is None or other is None:
        return one or other
    return LiveTotals(
        sm_cycles=_sum(one.sm_cycles, other.sm_cycles),
        sampled_s=_sum(one.sampled_s, other.sampled_s),
        busy_s=_sum(one.busy_s, other.busy_s),
        busy_sm_cycles=_sum(one.busy_sm_cycles, other.busy_sm_cycles),
        busy_sampled_s=_sum(one.busy_sampled_s, other.busy_sampled_s),
        energy_j=_sum(one.energy_j, other.energy_j),
        limited_s=sum_by_key(one.limited_s, other.limited_s),
        lost_s=sum_by_key(one.lost_s, other.lost_s),
    )


def _sum(one: float | None, other: float | None) -> float | None:
    """The sum of what is known of two; None if neither is."""
    if one is None or other is None:
        return other if one is None else one
    return one + other


def sum_by_key(one: Mapping[Key, float], other: Mapping[Key, float]) -> dict[Key, float]:
    """The sums of two tables, over the keys of either."""
    return {key: one.get(key, 0.0) + other.get(key, 0.0) for key in {**one, **other}}
