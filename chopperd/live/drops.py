"""Drops of the busy clock: found in the sampler's records, queued for the store."""

import threading
from collections.abc import Iterable
from typing import Final

import numpy as np

from chopperd.correlate.clock.slots import ClockSamples
from chopperd.correlate.drops import DropDetector, DropRules
from chopperd.live.integrals import BusyRatio, GapRule
from chopperd.model.arrays import Int64s
from chopperd.model.captures import ClockDrop, GpuDrop
from chopperd.model.devices import GpuInfo
from chopperd.model.live import DropTotals
from chopperd.model.samples import VALUE_COLUMNS, GpuSamples
from chopperd.sampling.memory.layout import NO_DIE, RECORD, Records
from chopperd.units import NS_PER_S, TimeTriple

#: Samples with a lower busy ratio are ignored: they do not show the clock of work.
_LEAST_BUSY_RATIO: Final = 0.5
#: All records before a time have arrived after this delay.
_GRACE_NS: Final = 5 * NS_PER_S
#: An open drop is published again this often.
_PUBLISH_EVERY_NS: Final = 30 * NS_PER_S
_MOST_WAITING: Final = 1000


class GpuDrops:
    """Detects drops of one GPU's busy clock in its records.

    Busy time and gaps are as in the live integrals; a sample counts for the time since the one
    before. Samples of a time in which the GPU was busy for less than half are ignored.

    Args:
        info: The GPU.
        rules: Where drops begin and end; None for the defaults.
    """

    def __init__(self, info: GpuInfo, rules: DropRules | None = None) -> None:
        self._detector = DropDetector(rules)
        self._busy = BusyRatio(info)
        self._gaps = GapRule()
        self._last_ns: int | None = None
        self._is_known = False
        self._ended: list[ClockDrop] = []
        self._length_s = 0.0
        self._lost_s = 0.0
        self._open_begin: tuple[int, int] | None = None
        self._published_mono_ns = 0

    def add(self, records: Records, period_ns: int) -> None:
        """Search new records for drops.

        Args:
            records: (n,) of `RECORD`, rising in time, later than those before.
            period_ns: The sampler's present period.
        """
        if not len(records):
            return
        t_ns, clock_mhz = records["t_mono_ns"], records["sm_clock_mhz"]
        busy_ratio = self._busy.at(records)
        self._is_known |= bool((np.isfinite(busy_ratio) & np.isfinite(clock_mhz)).any())
        before_ns = int(t_ns[0]) if self._last_ns is None else self._last_ns
        self._last_ns = int(t_ns[-1])
        spacing_ns = np.diff(t_ns, prepend=before_ns)
        is_busy = self._gaps.are_covered(spacing_ns, period_ns) & (busy_ratio >= _LEAST_BUSY_RATIO)
        samples = ClockSamples(
            t_ns=t_ns,
            busy_s=np.where(is_busy, spacing_ns * busy_ratio / NS_PER_S, 0.0),
            sm_clock_mhz=clock_mhz,
            causes=records["causes"],
            power_w=records["power_w"],
            temperature_c=records["temperature_c"],
        )
        self._note(self._detector.add(samples))

    def totals(self) -> DropTotals | None:
        """Sum up the drops so far; None while clock and busy ratio were never known together."""
        if not self._is_known:
            return None
        return DropTotals(
            count=self._detector.found_count, length_s=self._length_s, lost_s=self._lost_s
        )

    def news(self, info: GpuInfo, now: TimeTriple) -> list[GpuDrop]:
        """Take the drops to store: those newly ended, and the open one every 30 s.

        Args:
            info: The GPU, with its present label.
            now: The present times.
        """
        self._note(self._detector.advance(now.mono_ns - _GRACE_NS))
        news = [self._published(each, info, now) for each in self._ended]
        self._ended = []
        current = self._detector.current()
        if current is not None and self._is_due(current, now.mono_ns):
            self._published_mono_ns = now.mono_ns
            news.append(self._published(current, info, now))
        return news

    def _note(self, ended: Iterable[ClockDrop]) -> None:
        for drop in ended:
            self._ended.append(drop)
            self._length_s += drop.length_s
            self._lost_s += drop.lost_s

    def _is_due(self, current: ClockDrop, now_mono_ns: int) -> bool:
        is_new = self._open_begin is None or self._open_begin[0] != current.begin_ns
        return is_new or now_mono_ns - self._published_mono_ns >= _PUBLISH_EVERY_NS

    def _published(self, drop: ClockDrop, info: GpuInfo, now: TimeTriple) -> GpuDrop:
        """Convert a drop to Unix time; store its begin, which stays even if the clock is set."""
        if self._open_begin is None or self._open_begin[0] != drop.begin_ns:
            self._open_begin = drop.begin_ns, now.unix_ns - now.mono_ns + drop.begin_ns
        begin_unix_ns = self._open_begin[1]
        end_ns = drop.end_ns
        return GpuDrop(
            gpu=info.gpu,
            uuid=info.uuid,
            state=drop.state,
            begin_unix_ns=begin_unix_ns,
            end_unix_ns=None if end_ns is None else begin_unix_ns + end_ns - drop.begin_ns,
            length_s=drop.length_s,
            busy_s=drop.busy_s,
            reference_mhz=drop.reference_mhz,
            lowest_mhz=drop.lowest_mhz,
            mean_mhz=drop.mean_mhz,
            depth_ratio=drop.depth_ratio,
            mean_depth_ratio=drop.mean_depth_ratio,
            lost_s=drop.lost_s,
            cause=drop.cause.label,
            lost_by_cause_s={each.label: lost for each, lost in drop.lost_by_cause_s.items()},
            onset_power_w=drop.onset_power_w,
            mean_power_w=drop.mean_power_w,
            onset_temperature_c=drop.onset_temperature_c,
            mean_temperature_c=drop.mean_temperature_c,
        )


def drops_in(
    records: Records, info: GpuInfo, period_ns: int, rules: DropRules | None = None
) -> list[GpuDrop]:
    """Return the drops in all records of a GPU, whose times are Unix times; one may be open."""
    if not len(records):
        return []
    found = GpuDrops(info, rules)
    found.add(records, period_ns)
    last_ns = int(records["t_mono_ns"][-1])
    return found.news(info, TimeTriple(unix_ns=last_ns, mono_ns=last_ns, boot_ns=last_ns))


def drops_between(
    samples: GpuSamples, begin_ns: int, end_ns: int, *, used_ns: tuple[int, int], step_s: float
) -> list[GpuDrop]:
    """Return the drops in stored samples that overlap `[begin_ns, end_ns)`, Unix ns.

    One that had not ended with the samples has no end.

    Args:
        samples: Of a GPU.
        begin_ns: Begin of the time.
        end_ns: Its end.
        used_ns: The time whose samples are used, which is longer at both ends: a drop is found
            against the minute before it, and a second after it began.
        step_s: The length of a step, 0 unknown; no mean is over less.
    """
    records = records_of(samples, slice(*samples.t_unix_ns.searchsorted(used_ns)))
    period_ns, rules = median_spacing_ns(records["t_mono_ns"]), DropRules(step_s=step_s)
    return [
        each
        for each in drops_in(records, samples.gpu, period_ns, rules)
        if each.begin_unix_ns < end_ns and (each.end_unix_ns is None or each.end_unix_ns > begin_ns)
    ]


def median_spacing_ns(t_ns: Int64s) -> int:
    """Return the median time between neighbouring samples; 0 with fewer than two."""
    return round(float(np.median(np.diff(t_ns)))) if len(t_ns) > 1 else 0


def records_of(samples: GpuSamples, rows: slice = slice(None)) -> Records:
    """Return stored samples as records whose times are Unix times."""
    t_unix_ns = samples.t_unix_ns[rows]
    records = np.zeros(len(t_unix_ns), RECORD)
    records["t_mono_ns"], records["causes"] = t_unix_ns, samples.causes[rows]
    for name in VALUE_COLUMNS:
        records[name] = getattr(samples, name)[rows]
    records["limited_ns"], records["die_clocks_mhz"] = np.nan, NO_DIE
    for cause, limited_ns in samples.limited_ns.items():
        records["limited_ns"][:, cause] = limited_ns[rows]
    return records


class DropQueue:
    """Queue of drops to be stored, only the newest version of each; for any thread.

    If more than 1000 wait, the oldest are discarded.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[tuple[str, int], GpuDrop] = {}

    def put(self, drops: Iterable[GpuDrop]) -> None:
        """Add drops; one with the same GPU and begin replaces its earlier version."""
        with self._lock:
            for drop in drops:
                self._waiting[drop.uuid, drop.begin_unix_ns] = drop
            while len(self._waiting) > _MOST_WAITING:
                del self._waiting[next(iter(self._waiting))]

    def take(self) -> tuple[GpuDrop, ...]:
        """Remove and return all waiting drops."""
        with self._lock:
            taken = tuple(self._waiting.values())
            self._waiting.clear()
        return taken
