"""Newest values, clock residency, die clocks and busy clocks of one GPU; its loss against peers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import inf, isnan
from statistics import median
from typing import Final

import numpy as np

from chopperd.correlate.clock.governing import are_gated, are_running
from chopperd.live.integrals import GapRule, LiveIntegrals
from chopperd.model.arrays import Float64s, Int64s
from chopperd.model.devices import DeviceReading, GpuInfo
from chopperd.model.kinds import CAUSES, Cause, causes_in
from chopperd.model.live import DiesLive
from chopperd.model.samples import VALUE_COLUMNS
from chopperd.sampling.memory.layout import Records
from chopperd.sampling.memory.ring_reader import DIE_WINDOW_NS, die_clocks_mhz
from chopperd.units import NS_PER_S

#: A value is valid for this many of its periods, and at least for this long.
_FRESH_PERIODS: Final = 3
_FRESH_NS: Final = 3 * NS_PER_S

_NEVER_NS: Final = -(2**62)


class NewestValues:
    """Stores the newest value of each field of a GPU, with its time."""

    def __init__(self, slow_period_ns: int) -> None:
        self._slow_period_ns = slow_period_ns
        self._values: dict[str, tuple[int, float]] = {}
        self._causes: tuple[int, int] = (_NEVER_NS, Cause.UNKNOWN.bit)
        self._limited_ns: tuple[int, dict[Cause, int]] = (_NEVER_NS, {})

    def take(self, records: Records) -> None:
        """Store the newest values in new records, (n,) of `RECORD`, rising in time."""
        if not len(records):
            return
        t_ns = records["t_mono_ns"]
        for name in VALUE_COLUMNS:
            known = np.flatnonzero(~np.isnan(records[name]))
            if len(known):
                self._values[name] = int(t_ns[known[-1]]), float(records[name][known[-1]])
        self._causes = int(t_ns[-1]), int(records["causes"][-1])
        counted = np.flatnonzero(~np.isnan(records["limited_ns"]).all(axis=1))
        if len(counted):
            row = records["limited_ns"][counted[-1]].tolist()
            by_cause = zip(CAUSES, row, strict=True)
            limited_ns = {cause: int(ns) for cause, ns in by_cause if not isnan(ns)}
            self._limited_ns = int(t_ns[counted[-1]]), limited_ns

    def reading(self, now_mono_ns: int, period_ns: int) -> DeviceReading:
        """Return the newest value of each field; None where it is no longer valid."""
        fast_ns = now_mono_ns - fresh_ns(period_ns)
        slow_ns = now_mono_ns - fresh_ns(max(period_ns, self._slow_period_ns))

        def value(name: str, since_ns: int = slow_ns) -> float | None:
            at_ns, newest = self._values.get(name, (_NEVER_NS, None))
            return newest if at_ns >= since_ns else None

        used_bytes = value("memory_used_bytes")
        causes_at_ns, bits = self._causes
        limited_at_ns, limited_ns = self._limited_ns
        return DeviceReading(
            sm_clock_mhz=value("sm_clock_mhz", fast_ns),
            mem_clock_mhz=value("mem_clock_mhz"),
            power_w=value("power_w"),
            energy_j=value("energy_j"),
            temperature_c=value("temperature_c"),
            activity_ratio=value("activity_ratio"),
            memory_used_bytes=None if used_bytes is None else round(used_bytes),
            causes=causes_in(bits) if causes_at_ns >= fast_ns else None,
            limited_ns=limited_ns if limited_at_ns >= fast_ns else {},
        )


def fresh_ns(period_ns: int) -> int:
    """Return how long a value that is read once a period is valid, in ns."""
    return max(_FRESH_PERIODS * period_ns, _FRESH_NS)


#: Residency buckets up to the highest SM clock; one more holds what is above it.
TENTHS: Final = 10


class ClockResidency:
    """Sampled time of one GPU in each clock bucket.

    A sample counts for half of the interval on either side, so the buckets sum to the sampled
    time of the live integrals, which leave out the same gaps. Bucket k of 1 to 10 holds clocks
    above (k - 1) tenths of the highest SM clock and up to k tenths; the last one holds those
    above it. Without a highest clock there are no buckets.
    """

    def __init__(self, info: GpuInfo) -> None:
        top_mhz = info.sm_clock_max_mhz
        tenths = np.arange(1, TENTHS + 1) / TENTHS
        self._edges_mhz: Float64s = np.append(tenths * (top_mhz or 0.0), inf)
        self._has_edges = top_mhz is not None
        self._dwelt_s: Float64s = np.zeros(TENTHS + 1)
        self._gaps = GapRule()
        self._last_ns: Int64s = np.zeros(0, np.int64)
        self._last_mhz: Float64s = np.zeros(0)

    def add(self, records: Records, period_ns: int) -> None:
        """Add the time between new records to the buckets.

        The (n,) `RECORD`s rise in time and are later than those before.
        """
        if not self._has_edges or not len(records):
            return
        t_ns = np.concatenate([self._last_ns, records["t_mono_ns"]])
        clock_mhz = np.concatenate([self._last_mhz, records["sm_clock_mhz"]])
        self._last_ns, self._last_mhz = t_ns[-1:].copy(), clock_mhz[-1:].copy()
        spacing_ns = np.diff(t_ns)
        covered = self._gaps.are_covered(spacing_ns, period_ns)
        covered &= ~np.isnan(clock_mhz[:-1]) & ~np.isnan(clock_mhz[1:])
        half_s = spacing_ns[covered] / (2 * NS_PER_S)
        buckets = np.searchsorted(self._edges_mhz, clock_mhz)
        for ends in (buckets[:-1], buckets[1:]):
            self._dwelt_s += np.bincount(ends[covered], half_s, minlength=TENTHS + 1)

    def seconds(self) -> Mapping[float, float]:
        """Return the sampled time in s by the upper edge of each bucket in MHz, rising.

        Empty without buckets, and while no clock was known for any time.
        """
        if not self._dwelt_s.any():
            return {}
        return dict(zip(self._edges_mhz.tolist(), self._dwelt_s.tolist(), strict=True))


class DieClocks:
    """The clocks of a GPU's dies over the last two seconds that it was sampled.

    The sampler finds the governing die by means over the same two seconds.
    """

    def __init__(self) -> None:
        self._t_ns: Int64s = np.zeros(0, np.int64)
        self._dies_mhz: Float64s | None = None

    def add(self, records: Records) -> None:
        """Store the die clocks in new records, (n,) of `RECORD`, rising in time."""
        added_mhz = die_clocks_mhz(records)
        is_reported = ~np.isnan(added_mhz).all(axis=1)
        if not is_reported.any():
            return
        t_ns, dies_mhz = records["t_mono_ns"][is_reported], added_mhz[is_reported]
        if self._dies_mhz is not None:
            t_ns = np.concatenate([self._t_ns, t_ns])
            dies_mhz = np.concatenate([self._dies_mhz, dies_mhz])
        recent = t_ns > t_ns[-1] - DIE_WINDOW_NS
        self._t_ns, self._dies_mhz = t_ns[recent], dies_mhz[recent]

    def live(self, since_mono_ns: int) -> DiesLive | None:
        """Return the dies' state at the newest record with die clocks; None if that is older."""
        if self._dies_mhz is None or self._t_ns[-1] < since_mono_ns:
            return None
        now_mhz = self._dies_mhz[-1]
        ran = are_running(self._dies_mhz)
        runs = ran[-1]
        clocks_mhz = np.where(ran, self._dies_mhz, np.nan)[:, runs]
        means_mhz = np.nanmean(clocks_mhz, axis=0)
        some = len(means_mhz) > 0
        return DiesLive(
            clocks_mhz=tuple(None if np.isnan(mhz) else mhz for mhz in now_mhz.tolist()),
            running=len(means_mhz),
            gated=int(are_gated(self._dies_mhz[-1:]).sum()),
            mean_mhz=float(means_mhz.mean()) if some else None,
            spread_mhz=float(np.ptp(means_mhz)) if len(means_mhz) > 1 else None,
            governing=int(np.flatnonzero(runs)[means_mhz.argmin()]) if some else None,
        )


#: GPUs are compared by means over windows of this length: momentary clocks of equal GPUs differ.
WINDOW_NS: Final = 10 * NS_PER_S
#: A GPU that was busy for less of a window has no mean to compare.
_LEAST_BUSY_S: Final = 1.0
#: With fewer GPUs of a model the median is meaningless.
_LEAST_PEERS: Final = 4
#: Smaller shares are rounding errors of sums over weeks (1e-16 of 1e6 windows).
_LEAST_RATIO: Final = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class BusyClock:
    """The busy clock of one GPU over one window."""

    model: str  # name of the GPU's model; only GPUs of one model are compared
    sampled_s: float  # time with known clock
    busy_s: float  # busy part of that time
    mean_hz: float  # mean SM clock over the busy part, in Hz


class BusyClocks:
    """Computes the busy clock of one GPU per window, by the rules of the live integrals."""

    def __init__(self, info: GpuInfo) -> None:
        self._model = info.name
        self._integrals = LiveIntegrals(info)
        self._pending: list[Records] = []

    def add(self, records: Records) -> None:
        """Store new records until their window ends."""
        if len(records):
            self._pending.append(records)

    def close_window(self, end_mono_ns: int, period_ns: int) -> BusyClock | None:
        """End the window at a time and return its busy clock; later records wait for the next.

        None if the GPU was busy with a known clock for less than 1 s.
        """
        if not self._pending:
            return None
        records = np.concatenate(self._pending)
        inside = records["t_mono_ns"] < end_mono_ns
        self._pending = [records[~inside]]
        before = self._integrals.totals()
        self._integrals.add(records[inside], period_ns)
        after = self._integrals.totals()
        busy_s = (after.busy_sampled_s or 0.0) - (before.busy_sampled_s or 0.0)
        cycles = (after.busy_sm_cycles or 0.0) - (before.busy_sm_cycles or 0.0)
        if busy_s < _LEAST_BUSY_S:
            return None
        sampled_s = (after.sampled_s or 0.0) - (before.sampled_s or 0.0)
        return BusyClock(
            model=self._model, sampled_s=sampled_s, busy_s=busy_s, mean_hz=cycles / busy_s
        )


def window_excess_s(
    clocks: Sequence[BusyClock | None], compute_ratios: Sequence[float | None] = ()
) -> tuple[float | None, ...]:
    """Compute each GPU's loss in a window against the median clock of its model, in s.

    `max(0, 1 - mean / median) * busy time`, times the share of compute where it is known. The
    median includes the GPU itself. It is an upper bound, as peers that wait for a slow GPU do
    so at high clocks. None for a GPU that was not busy, and where fewer than four of its model
    were. Both sequences are by GPU: None if it was not busy, and where the share of compute is
    not known.

    Source: design, "excess", live.
    """
    busy = [(index, clock) for index, clock in enumerate(clocks) if clock is not None]
    busy.sort(key=lambda item: item[1].model)
    excess_s: list[float | None] = [None] * len(clocks)
    for _, group in groupby(busy, key=lambda item: item[1].model):
        peers = list(group)
        if len(peers) >= _LEAST_PEERS:
            peers_hz = median(clock.mean_hz for _, clock in peers)
            for index, clock in peers:
                slower = 1.0 - clock.mean_hz / peers_hz if peers_hz else 0.0
                lost_s = slower * clock.busy_s if slower > _LEAST_RATIO else 0.0
                ratio = compute_ratios[index] if compute_ratios else None
                excess_s[index] = lost_s if ratio is None else lost_s * ratio
    return tuple(excess_s)
