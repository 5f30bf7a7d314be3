"""One GPU as the agent follows it: over rings, sampler processes, losses and returns."""

from dataclasses import replace
from typing import Final

from chopperd.live.counters import GpuCounters, counters_of
from chopperd.live.drops import GpuDrops
from chopperd.live.excess import BusyClock, BusyClocks
from chopperd.live.integrals import LiveIntegrals, LongestPeriod
from chopperd.live.readings import ClockResidency, DieClocks, NewestValues, fresh_ns
from chopperd.model.devices import DeviceReading, GpuInfo
from chopperd.model.live import GpuLive, HungCall
from chopperd.model.samples import TimeTriple
from chopperd.sampling.memory.layout import GpuState, Pace, Records
from chopperd.sampling.memory.ring_reader import GpuStatus, RingReader
from chopperd.sampling.memory.slow_state import GpuAside
from chopperd.sampling.orders import LONGEST_NS
from chopperd.units import NS_PER_S, seconds_from_ns

#: A driver call that lasts longer is named.
_HUNG_NS: Final = 5 * NS_PER_S

#: A list of processes stands for so long; one is made each 10 s.
_PROCESSES_NS: Final = 35 * NS_PER_S


class GpuTrack:
    """What is known of one GPU since the agent started.

    Attributes:
        info: What it is, as the newest sampler says.
        drops: The drops of its busy clock.

    Args:
        info: What it is.
        slow_period_ns: Period of the reads that cover all fields.
    """

    def __init__(self, info: GpuInfo, slow_period_ns: int) -> None:
        self.info = info
        self.drops = GpuDrops(info)
        self._slow_period_ns = slow_period_ns
        self._position = 0
        self._status: GpuStatus | None = None
        self._aside = GpuAside()
        # Once the driver tells the limit again, the one at start stands for nothing.
        self._tells_limit = False
        self._earlier = GpuCounters()
        self._present = GpuCounters()
        self._newest = NewestValues(slow_period_ns)
        self._dies = DieClocks()
        self._busy = BusyClocks(info)
        self._residency = ClockResidency(info)
        self._integrals = LiveIntegrals(info)
        self._polled, self._windowed = LongestPeriod(), LongestPeriod()
        self._excess_s: float | None = None
        self._excess_ratio: float | None = None
        self._is_compared = False
        self._last_mono_ns: int | None = None

    def know(self, info: GpuInfo) -> None:
        """Take over what the newest sampler says that it is.

        What depends on who it is begins anew where that was not known; nothing was sampled then.
        """
        was_unknown = not self.info.name
        self._tells_limit &= info.power_limit_w == self.info.power_limit_w
        self.info = info
        self._integrals.know(info)
        if was_unknown:
            self._integrals = LiveIntegrals(info)
            self.drops = GpuDrops(info)
            self._busy = BusyClocks(info)
            self._residency = ClockResidency(info)

    def leave_ring(self) -> None:
        """Forget the ring that it was read from, and let its counts go on over the next one."""
        self._earlier = self._earlier.plus(self._present)
        self._present = GpuCounters()
        self._integrals = LiveIntegrals(self.info)
        self._position = 0
        self._status = None
        self._aside = GpuAside()
        self._tells_limit = False

    def follow(self, reader: RingReader, slot: int) -> None:
        """Take over what the ring holds that is new."""
        self._status = reader.status(slot)
        self._aside = reader.aside(slot)
        self._tells_limit |= "power_limit_w" in self._aside.state
        self._polled.note(self._status.period_ns)
        self._windowed.note(self._status.period_ns)
        drained = reader.drain(slot, self._position)
        self._position = drained.position
        if len(drained.records):
            self._add(drained.records, self._polled.taken_ns())
        totals = self._integrals.totals() if self._position else None
        self._present = counters_of(self._status, self._aside, totals)

    def _add(self, records: Records, longest_ns: int) -> None:
        """Go on over new records, between which this was the longest period."""
        self._last_mono_ns = int(records["t_mono_ns"][-1])
        self._newest.take(records)
        self._integrals.add(records, longest_ns)
        self._residency.add(records, longest_ns)
        self._dies.add(records)
        self._busy.add(records)
        self.drops.add(records, longest_ns)

    def close_window(self, end_mono_ns: int) -> BusyClock | None:
        """Its busy clock over the window that ends then; see `BusyClocks`."""
        return self._busy.close_window(end_mono_ns, self._windowed.taken_ns())

    def note_window(self, clock: BusyClock | None, lost_s: float | None) -> None:
        """Take down what a window says of it.

        A sum that stood still while there are no peers would read as no loss, so it is not shown
        then; where the GPU was not busy nothing was lost, and it stays.

        Args:
            clock: Its busy clock over the window, as `close_window` gave it.
            lost_s: What it lost against its peers; None if it could not be compared.
        """
        self._excess_ratio = None
        if clock is None:
            return
        self._is_compared = lost_s is not None
        if lost_s is not None:
            self._excess_s = (self._excess_s or 0.0) + lost_s
            self._excess_ratio = lost_s / clock.sampled_s

    def live(self, now: TimeTriple, *, has_driver: bool, has_process: bool) -> GpuLive:
        """The GPU now.

        Args:
            now: The clocks.
            has_driver: Whether a sampler works with the driver, or is about to again.
            has_process: Whether a sampler process exists, whose calls can hang.
        """
        status = self._status
        period_ns = status.period_ns if status else 0
        counted = self._earlier.plus(self._present)
        up = has_driver and self._is_fresh(now.mono_ns)
        last_ns, aside = self._last_mono_ns, self._aside
        return GpuLive(
            info=self.info,
            up=up,
            last_sample_unix_ns=None if last_ns is None else now.unix_ns - now.mono_ns + last_ns,
            reading=self._reading(now.mono_ns, period_ns) if up else DeviceReading(),
            totals=counted.totals,
            excess_s=self._excess_s if self._is_compared else None,
            excess_ratio=self._excess_ratio if up else None,
            residency_s=self._residency.seconds(),
            drops=self.drops.totals(),
            ticks_count=counted.ticks_count,
            missed_count=counted.missed_count,
            failed_count=counted.failed_count,
            lost_count=counted.lost_count,
            driver_s=seconds_from_ns(counted.driver_ns),
            driver_fast_s=seconds_from_ns(counted.driver_ns - counted.driver_full_ns),
            driver_full_s=seconds_from_ns(counted.driver_full_ns),
            asked_hz=_rate_hz(status.asked_period_ns) if status else None,
            kept_hz=_rate_hz(period_ns) if up else None,
            hung=_hung_call(status, now.mono_ns) if has_process else None,
            pace=(status.pace if status else Pace.ASKED).name.lower(),
            timing=aside.timing,
            processes=aside.processes if up and _is_known(aside, now.mono_ns) else None,
            trouble=aside.trouble,
            driver_rare_s=seconds_from_ns(counted.driver_rare_ns),
            invalid_count=counted.invalid_count,
            dies=self._dies.live(now.mono_ns - fresh_ns(period_ns)) if up else None,
        )

    def _reading(self, now_mono_ns: int, period_ns: int) -> DeviceReading:
        """The newest values that may stand for now."""
        oldest_ns = now_mono_ns - fresh_ns(max(period_ns, self._slow_period_ns))
        is_fresh = (self._aside.state_mono_ns or 0) >= oldest_ns
        state = self._aside.state if is_fresh else {}
        reserved_bytes = state.get("memory_reserved_bytes")
        at_start_w = None if self._tells_limit else self.info.power_limit_w
        return replace(
            self._newest.reading(now_mono_ns, period_ns),
            power_average_w=state.get("power_average_w"),
            temperature_memory_c=state.get("temperature_memory_c"),
            memory_reserved_bytes=None if reserved_bytes is None else round(reserved_bytes),
            power_limit_w=state.get("power_limit_w", at_start_w),
        )

    def _is_fresh(self, now_mono_ns: int) -> bool:
        """Whether its newest sample may stand for now and the driver does not say it is lost.

        Where no driver call is made on purpose, silence says nothing against it; what was read
        before is not shown as of now for all that.
        """
        status, last_ns = self._status, self._last_mono_ns
        if status is None or last_ns is None or status.state is GpuState.LOST:
            return False
        silent_ns = LONGEST_NS if status.pace is Pace.QUIET else fresh_ns(status.period_ns)
        return now_mono_ns - last_ns <= silent_ns


def _is_known(aside: GpuAside, now_mono_ns: int) -> bool:
    """Whether the processes that were listed last may stand for now."""
    listed_ns = aside.processes_mono_ns
    return listed_ns is not None and now_mono_ns - listed_ns <= _PROCESSES_NS


def _rate_hz(period_ns: int) -> float:
    return NS_PER_S / period_ns if period_ns else 0.0


def _hung_call(status: GpuStatus | None, now_mono_ns: int) -> HungCall | None:
    started_ns = status.call_started_mono_ns if status else None
    if status is None or started_ns is None or now_mono_ns - started_ns <= _HUNG_NS:
        return None
    return HungCall(scope=status.call_scope.value, age_s=seconds_from_ns(now_mono_ns - started_ns))
