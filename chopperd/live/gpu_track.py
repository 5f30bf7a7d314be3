"""Live state of one GPU, followed over restarts of the sampler and losses of the GPU."""

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final, TypeVar

from msgspec.structs import replace

from chopperd.live import readings
from chopperd.live.drops import GpuDrops
from chopperd.live.integrals import LiveIntegrals, LongestPeriod
from chopperd.model.devices import DeviceReading, GpuInfo
from chopperd.model.live import GpuLive, HungCall, LiveTotals
from chopperd.sampling.memory.layout import GpuState, Pace, Records
from chopperd.sampling.memory.ring_reader import GpuStatus, RingReader
from chopperd.sampling.memory.slow_state import SlowState
from chopperd.units import NS_PER_S, TimeTriple, seconds_from_ns

Key = TypeVar("Key")

#: A driver call that lasts longer is reported as hung.
_HUNG_NS: Final = 5 * NS_PER_S
#: A list of processes is valid for this long; one is made each 10 s.
_PROCESSES_NS: Final = 35 * NS_PER_S


class GpuTrack:
    """Live state and totals of one GPU since the agent started.

    `info` is as the newest sampler describes it; `drops` are those of its busy clock.
    """

    def __init__(self, info: GpuInfo, slow_period_ns: int) -> None:
        self.info = info
        self._slow_period_ns = slow_period_ns
        self._position = 0
        self._status: GpuStatus | None = None
        self._slow_state = SlowState()
        # Once the driver reports the power limit, the one at start is out of date.
        self._reports_limit = False
        #: Counts and integrals of the rings before the present one, and of that one.
        self._earlier_counts: Counter[str] = Counter()
        self._counts: Counter[str] = Counter()
        self._earlier_totals: LiveTotals | None = None
        self._newest = readings.NewestValues(slow_period_ns)
        self._dies = readings.DieClocks()
        self._begin(info)
        self._polled, self._windowed = LongestPeriod(), LongestPeriod()
        self._excess_s: float | None = None
        self._excess_ratio: float | None = None
        self._is_compared = False
        self._last_mono_ns: int | None = None

    def know(self, info: GpuInfo) -> None:
        """Replace the GPU's description by that of the newest sampler.

        If its name was unknown so far, integrals, drops, busy clock and residency start again:
        nothing was sampled yet.
        """
        was_unknown = not self.info.name
        self._reports_limit &= info.power_limit_w == self.info.power_limit_w
        self.info = info
        self._integrals.know(info)
        if was_unknown:
            self._begin(info)

    def _begin(self, info: GpuInfo) -> None:
        """Begin what depends on the GPU's description."""
        self._integrals = LiveIntegrals(info)
        self.drops = GpuDrops(info)
        self._busy = readings.BusyClocks(info)
        self._residency = readings.ClockResidency(info)

    def leave_ring(self) -> None:
        """Detach from the present ring; its counts and integrals add to those of the next one."""
        self._earlier_counts += self._counts
        self._earlier_totals = self._totals()
        self._counts = Counter()
        self._integrals = LiveIntegrals(self.info)
        self._position = 0
        self._status = None
        self._slow_state = SlowState()
        self._reports_limit = False

    def follow(self, reader: RingReader, slot: int) -> None:
        """Read the GPU's status and new records from its slot of the ring."""
        self._status = status = reader.status(slot)
        self._slow_state = reader.slow_state(slot)
        self._counts = _counts(status, self._slow_state)
        self._reports_limit |= "power_limit_w" in self._slow_state.state
        self._polled.note(status.period_ns)
        self._windowed.note(status.period_ns)
        drained = reader.drain(slot, self._position)
        self._position = drained.position
        if len(drained.records):
            self._add(drained.records, self._polled.taken_ns())

    def _add(self, records: Records, longest_ns: int) -> None:
        """Add new records to all statistics; `longest_ns` is the longest read period."""
        self._last_mono_ns = int(records["t_mono_ns"][-1])
        self._newest.take(records)
        self._integrals.add(records, longest_ns)
        self._residency.add(records, longest_ns)
        self._dies.add(records)
        self._busy.add(records)
        self.drops.add(records, longest_ns)

    def _totals(self) -> LiveTotals | None:
        """The GPU's totals over all rings; None before any record."""
        present = self._integrals.totals() if self._position else None
        return sum_of_totals(self._earlier_totals, present)

    def close_window(self, end_mono_ns: int) -> readings.BusyClock | None:
        """End the window at this time and return the GPU's busy clock in it; see `BusyClocks`."""
        return self._busy.close_window(end_mono_ns, self._windowed.taken_ns())

    def note_window(self, clock: readings.BusyClock | None, lost_s: float | None) -> None:
        """Add a window's loss against peers to its sum.

        Without peers the sum is hidden, as a constant sum would read as no loss; if the GPU
        was not busy nothing was lost, and the sum is shown. `lost_s` is None if the loss
        could not be compared.
        """
        self._excess_ratio = None
        if clock is None:
            return
        self._is_compared = lost_s is not None
        if lost_s is not None:
            self._excess_s = (self._excess_s or 0.0) + lost_s
            self._excess_ratio = lost_s / clock.sampled_s

    def live(self, now: TimeTriple, *, has_driver: bool, has_process: bool) -> GpuLive:
        """Return the GPU's present state.

        `has_driver`: a sampler uses the driver, or will again soon; `has_process`: one
        exists, whose calls can hang.
        """
        status = self._status
        period_ns = status.period_ns if status else 0
        counts = self._earlier_counts + self._counts
        up = has_driver and self._is_fresh(now.mono_ns)
        last_ns, slow_state = self._last_mono_ns, self._slow_state
        listed_ns = slow_state.processes_mono_ns
        is_listed = listed_ns is not None and now.mono_ns - listed_ns <= _PROCESSES_NS
        return GpuLive(
            info=self.info,
            up=up,
            last_sample_unix_ns=None if last_ns is None else now.unix_ns - now.mono_ns + last_ns,
            reading=self._reading(now.mono_ns, period_ns) if up else DeviceReading(),
            totals=self._totals(),
            excess_s=self._excess_s if self._is_compared else None,
            excess_ratio=self._excess_ratio if up else None,
            residency_s=self._residency.seconds(),
            drops=self.drops.totals(),
            ticks_count=counts["ticks"],
            missed_count=counts["missed"],
            failed_count=counts["failed"],
            lost_count=counts["losses"],
            driver_s=seconds_from_ns(counts["driver_ns"]),
            driver_fast_s=seconds_from_ns(counts["driver_ns"] - counts["driver_full_ns"]),
            driver_full_s=seconds_from_ns(counts["driver_full_ns"]),
            asked_hz=_rate_hz(status.asked_period_ns) if status else None,
            kept_hz=_rate_hz(period_ns) if up else None,
            hung=_hung_call(status, now.mono_ns) if has_process else None,
            pace=(status.pace if status else Pace.ASKED).name.lower(),
            timing=slow_state.timing,
            processes=slow_state.processes if up and is_listed else None,
            trouble=slow_state.trouble,
            driver_rare_s=seconds_from_ns(counts["driver_rare_ns"]),
            invalid_count=counts["invalid"],
            dies=self._dies.live(now.mono_ns - readings.fresh_ns(period_ns)) if up else None,
        )

    def _reading(self, now_mono_ns: int, period_ns: int) -> DeviceReading:
        """Return the newest value of each field; None where it is no longer valid."""
        oldest_ns = now_mono_ns - readings.fresh_ns(max(period_ns, self._slow_period_ns))
        is_fresh = (self._slow_state.state_mono_ns or 0) >= oldest_ns
        state = self._slow_state.state if is_fresh else {}
        reserved_bytes = state.get("memory_reserved_bytes")
        at_start_w = None if self._reports_limit else self.info.power_limit_w
        return replace(
            self._newest.reading(now_mono_ns, period_ns),
            power_average_w=state.get("power_average_w"),
            temperature_memory_c=state.get("temperature_memory_c"),
            memory_reserved_bytes=None if reserved_bytes is None else round(reserved_bytes),
            power_limit_w=state.get("power_limit_w", at_start_w),
        )

    def _is_fresh(self, now_mono_ns: int) -> bool:
        """Whether the newest sample is still valid, and the driver has not lost the GPU."""
        status, last_ns = self._status, self._last_mono_ns
        if status is None or last_ns is None or status.state is GpuState.LOST:
            return False
        return now_mono_ns - last_ns <= readings.fresh_ns(status.period_ns)


def _counts(status: GpuStatus, slow_state: SlowState) -> Counter[str]:
    """Return the counters of one ring, by name."""
    return Counter(
        ticks=status.ticks_count,
        missed=status.missed_count,
        failed=status.transient_count + status.unexpected_count,
        losses=status.losses_count,
        driver_ns=status.driver_ns,
        driver_full_ns=status.driver_full_ns,
        driver_rare_ns=slow_state.driver_rare_ns,
        invalid=slow_state.invalid_count,
    )


def _rate_hz(period_ns: int) -> float:
    return NS_PER_S / period_ns if period_ns else 0.0


def _hung_call(status: GpuStatus | None, now_mono_ns: int) -> HungCall | None:
    started_ns = status.call_started_mono_ns if status else None
    if status is None or started_ns is None or now_mono_ns - started_ns <= _HUNG_NS:
        return None
    return HungCall(scope=status.call_scope.value, age_s=seconds_from_ns(now_mono_ns - started_ns))


def sum_of_totals(one: LiveTotals | None, other: LiveTotals | None) -> LiveTotals | None:
    """Add the integrals of two rings; a sum is None if both parts are."""
    if one is None or other is None:
        return one or other
    sums: dict[str, Any] = {
        "limited_s": sum_by_key(one.limited_s, other.limited_s),
        "lost_s": sum_by_key(one.lost_s, other.lost_s),
    }
    for name in (name for name in one.__struct_fields__ if name not in sums):
        known = [each for each in (getattr(one, name), getattr(other, name)) if each is not None]
        sums[name] = sum(known) if known else None
    return LiveTotals(**sums)


def sum_by_key(one: Mapping[Key, float], other: Mapping[Key, float]) -> dict[Key, float]:
    """Add two tables by key; a missing key counts as 0."""
    return {key: one.get(key, 0.0) + other.get(key, 0.0) for key in {**one, **other}}
