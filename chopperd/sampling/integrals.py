"""Live integrals of one GPU over its records: kept up to date and published by the sampler."""

from dataclasses import dataclass
from math import isnan, nan
from typing import Final, Protocol

import numpy as np

from chopperd.model.arrays import Bools, Float64s, Int64s
from chopperd.model.devices import GpuInfo, Vendor
from chopperd.model.kinds import CAUSES, OUTRANKED, PROTECTIONS, Cause, has_protection, ranked
from chopperd.model.plausible import EnergyCounter, most_limited_ns
from chopperd.sampling.memory.gpu_writer import GpuWriter
from chopperd.sampling.memory.layout import (
    LIMITED_FIRST,
    LOST_FIRST,
    TOTAL_COUNT,
    TOTAL_NAMES,
    Records,
)
from chopperd.units import HZ_PER_MHZ, NS_PER_S

# Live integrals of one GPU, taken over its records every second or so inside the sampler.
#
# They need no trace: busy is what the GPU reports of itself, the loss is against its highest clock.
# All are cumulative and never fall; one that was never known is NaN, not 0.

#: Samples further apart than so many periods as achieved are not integrated over.
_GAP_PERIODS: Final = 3
#: The achieved period is the median of about so many spacings.
_SPACINGS: Final = 32
#: An activity reading (1 Hz) holds for so long.
_ACTIVITY_NS: Final = 3 * NS_PER_S
#: Counter increments that cover less of an interval than this leave its cause to the reason bits.
_COUNTED_RATIO: Final = 0.05

_CAUSE_BITS: Final = np.array([cause.bit for cause in CAUSES], dtype=np.int64)


class GapRule:
    """Tells which neighbouring samples of a GPU are close enough to integrate between.

    They may lie three periods apart, of the period kept or of the one achieved where that is
    longer: the median of the last spacings.
    """

    def __init__(self) -> None:
        self._spacings_ns: Int64s = np.zeros(0, np.int64)

    def are_covered(self, spacing_ns: Int64s, period_ns: int) -> Bools:
        """Whether the clock is known between two neighbours, (m,).

        Args:
            spacing_ns: (m,) int64 times between neighbouring samples that follow on those before.
            period_ns: The period that the loop keeps.
        """
        recent_ns = np.concatenate([self._spacings_ns, spacing_ns])[
            -max(_SPACINGS, len(spacing_ns)) :
        ]
        self._spacings_ns = recent_ns[-_SPACINGS:]
        covered: Bools = spacing_ns <= _GAP_PERIODS * max(_median(recent_ns), period_ns)
        return covered & (spacing_ns > 0)


class BusyRatio:
    """Tells how busy a GPU reports itself.

    The idle bit wins (it is of this instant), then the activity of the last seconds. But an idle
    bit that is set while the GPU reports activity is wrong, until it reports again. A GPU that has
    an idle bit and does not set it is busy.

    Args:
        info: The GPU.
    """

    def __init__(self, info: GpuInfo) -> None:
        self._has_idle_bit = info.vendor is Vendor.NVIDIA
        #: When the last activity was read, what it was, and whether the idle bit was set with it.
        self._activity: Float64s = np.full((3, 1), nan)

    def at(self, records: Records) -> Float64s:
        """The share at each of (n,) records that follow on those before; NaN if it does not say."""
        t_ns, causes, activity = (records[n] for n in ("t_mono_ns", "causes", "activity_ratio"))
        is_idle = (causes & Cause.LOW_UTILIZATION.bit) != 0
        given = np.stack([t_ns.astype(np.float64), activity, is_idle & (activity > 0)])
        given[:, np.isnan(activity)] = nan
        filled = _filled(np.concatenate([self._activity, given], axis=1).T).T
        self._activity = filled[:, -1:]
        fresh = t_ns - filled[0, 1:] <= _ACTIVITY_NS
        is_told = (causes & Cause.UNKNOWN.bit) == 0
        untold = np.where(is_told & self._has_idle_bit, 1.0, nan)
        ratio: Float64s = np.where(fresh, filled[1, 1:], untold)
        ratio[is_idle & ~(fresh & (filled[2, 1:] > 0))] = 0.0
        return ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class _Intervals:
    """Covered intervals between neighbouring samples, columns (m,); ends are (2, m).

    Attributes:
        half_s: Half of each interval's length.
        sm_clock_mhz: Clock at both ends, NaN where not reported.
        busy_ratio: How busy the GPU said it was at both ends, NaN where it did not.
        causes: Bit sets at both ends.
        counted_s: (m, causes) Increments of the driver's counters.
    """

    half_s: Float64s
    sm_clock_mhz: Float64s
    busy_ratio: Float64s
    causes: Int64s
    counted_s: Float64s

    def chosen(self, rows: Bools) -> "_Intervals":
        """The intervals for which `rows`, (m,), holds."""
        if rows.all():
            return self
        return _Intervals(
            half_s=self.half_s[rows],
            sm_clock_mhz=self.sm_clock_mhz[:, rows],
            busy_ratio=self.busy_ratio[:, rows],
            causes=self.causes[:, rows],
            counted_s=self.counted_s[rows],
        )


class LiveIntegrals:
    """The integrals of one GPU.

    Between two samples the clock is linear; a state (busy, a reason) that each of them reports
    holds for the half of the interval on its side.

    Attributes:
        totals: (TOTAL_COUNT,) float64, see `layout`.

    Args:
        info: The GPU; its highest clock and its standing limit split the loss.
    """

    def __init__(self, info: GpuInfo) -> None:
        self.totals: Float64s = np.full(TOTAL_COUNT, nan)
        self._reference_mhz = info.sm_clock_max_mhz
        self._limit_mhz = info.sm_clock_limit_mhz
        self._busy = BusyRatio(info)
        self._energy = EnergyCounter()
        self._last: dict[str, np.ndarray] = {
            "t_mono_ns": np.zeros(0, np.int64),
            "sm_clock_mhz": np.zeros(0),
            "causes": np.zeros(0, np.int64),
            "busy_ratio": np.zeros(0),
        }
        self._gaps = GapRule()
        self._limited_ns: Float64s = np.full((1, len(CAUSES)), nan)
        self._limited_mono_ns: Float64s = np.full((1, len(CAUSES)), nan)

    def resume(self, totals: Float64s, seen: Records) -> None:
        """Go on from another sampler's totals, which already hold the records `seen`."""
        self.add(seen, 0)
        self.totals = totals.copy()

    def add(self, records: Records, period_ns: int) -> None:
        """Integrate on over new records.

        Args:
            records: (n,) of `RECORD`, rising in time, later than those before.
            period_ns: The period that the loop keeps.
        """
        if not len(records):
            return
        told = records[~np.isnan(records["energy_j"])]
        if len(told):
            energy_j, t_mono_ns = told["energy_j"].tolist(), told["t_mono_ns"].tolist()
            self._add("energy_j", sum(map(self._energy.increment_j, energy_j, t_mono_ns)))
        counted_s = self._count_limits(records["limited_ns"], records["t_mono_ns"])
        columns = {
            "t_mono_ns": records["t_mono_ns"],
            "sm_clock_mhz": records["sm_clock_mhz"],
            "causes": records["causes"],
            "busy_ratio": self._busy.at(records),
        }
        joined = {name: np.concatenate([self._last[name], columns[name]]) for name in columns}
        self._last = {name: column[-1:].copy() for name, column in columns.items()}
        spacing_ns = np.diff(joined["t_mono_ns"])
        intervals = _Intervals(
            half_s=spacing_ns / (2 * NS_PER_S),
            sm_clock_mhz=_ends(joined["sm_clock_mhz"]),
            busy_ratio=_ends(joined["busy_ratio"]),
            causes=_ends(joined["causes"]),
            counted_s=counted_s[len(counted_s) - len(spacing_ns) :],
        )
        self._integrate(intervals.chosen(self._gaps.are_covered(spacing_ns, period_ns)))

    def _add(self, name: str, amount: float) -> None:
        place = TOTAL_NAMES.index(name)
        total = float(self.totals[place])
        self.totals[place] = amount if isnan(total) else total + amount

    def _count_limits(self, limited_ns: Float64s, t_mono_ns: Int64s) -> Float64s:
        """Add the driver's counters to their totals; the increment at each record, (n, causes), s.

        A counter that fell has restarted and adds nothing at that record, nor does one that rose
        by more than time passed.
        """
        filled_ns = _filled(np.concatenate([self._limited_ns, limited_ns]))
        at_ns = np.where(np.isnan(limited_ns), nan, t_mono_ns[:, np.newaxis])
        read_ns = _filled(np.concatenate([self._limited_mono_ns, at_ns]))
        self._limited_ns, self._limited_mono_ns = filled_ns[-1:], read_ns[-1:]
        rise_ns = np.fmax(np.diff(filled_ns, axis=0), 0)  # fmax: NaN becomes 0
        rise_ns[rise_ns > most_limited_ns(np.diff(read_ns, axis=0))] = 0
        counted_s = rise_ns / NS_PER_S
        seen = ~np.isnan(filled_ns[-1])
        totals = self.totals[LIMITED_FIRST:LOST_FIRST]
        totals[seen] = _grown(totals[seen], counted_s.sum(axis=0)[seen])
        return counted_s

    def _integrate(self, intervals: _Intervals) -> None:
        is_told = _at_both_ends(intervals.busy_ratio)
        has_clock = _at_both_ends(intervals.sm_clock_mhz)
        if is_told.any():
            told = intervals.chosen(is_told)
            self._add("busy_s", float((told.half_s * told.busy_ratio).sum()))
        if has_clock.any():
            clocked = intervals.chosen(has_clock)
            cycles_mhz = (clocked.half_s * clocked.sm_clock_mhz).sum()
            self._add("sm_cycles", float(cycles_mhz) * HZ_PER_MHZ)
            self._add("sampled_s", float(clocked.half_s.sum()) * 2)
        if (is_told & has_clock).any():
            self._integrate_busy(intervals.chosen(is_told & has_clock))

    def _integrate_busy(self, intervals: _Intervals) -> None:
        busy_s = intervals.half_s * intervals.busy_ratio
        self._add("busy_sampled_s", float(busy_s.sum()))
        self._add("busy_sm_cycles", float((busy_s * intervals.sm_clock_mhz).sum()) * HZ_PER_MHZ)
        if self._reference_mhz:
            lost_s = _lost_s(intervals, busy_s, self._reference_mhz, self._limit_mhz)
            is_unknown = (intervals.causes & Cause.UNKNOWN.bit) != 0
            known = np.full(len(CAUSES), not is_unknown.all())
            known[Cause.UNKNOWN] = is_unknown.any()
            known |= lost_s > 0
            totals = self.totals[LOST_FIRST:]
            totals[known] = _grown(totals[known], lost_s[known])


def _lost_s(
    intervals: _Intervals, busy_s: Float64s, reference_mhz: float, limit_mhz: float | None
) -> Float64s:
    """The loss of busy time against the reference by cause, (causes,) float64 s.

    From the reference down to the standing limit it is `user_limit`. Below that each end has its
    own loss, by the reasons in force there and the increments of the driver's counters.

    A counter read in some records only has its whole rise on the interval that ends in the reading;
    the others go by the reasons. At 100 Hz with a counter read at 1 Hz that is 99 of 100 intervals:
    where reasons and counter disagree, the live split follows the reasons.
    """
    standing_mhz = min(limit_mhz or reference_mhz, reference_mhz)
    clock_mhz = intervals.sm_clock_mhz
    below_s = busy_s * np.maximum(standing_mhz - clock_mhz, 0) / reference_mhz
    user_mhz = np.maximum(reference_mhz - np.maximum(clock_mhz, standing_mhz), 0)
    shares = _blamed(intervals.causes)
    is_held = (has_protection(intervals.causes) != 0).all(axis=0)
    counted = _counted_ratio(intervals.counted_s, 2 * intervals.half_s, is_held)
    by_count = counted.sum(axis=1) >= _COUNTED_RATIO
    if by_count.any():
        shares[:, by_count] = _with_counted(shares[:, by_count], counted[by_count])
    lost_s: Float64s = below_s.ravel() @ shares.reshape(-1, len(CAUSES))
    lost_s[Cause.USER_LIMIT] += float((busy_s * user_mhz).sum()) / reference_mhz
    return lost_s


def _blamed(causes: Int64s) -> Float64s:
    """The share of each cause in a loss below the standing limit, (..., causes), from bit sets.

    The reasons in force share it evenly, as in a report, `user_limit` among them; a hardware
    protection outranks what is set beside it.

    Source: DESIGN.md section 2, "Cause".
    """
    bits = ranked(causes)
    bits = np.where(bits == 0, Cause.UNEXPLAINED.bit, bits)
    shares = (bits[..., np.newaxis] & _CAUSE_BITS) != 0
    shared: Float64s = shares / shares.sum(axis=-1, keepdims=True)
    return shared


def _counted_ratio(counted_s: Float64s, length_s: Float64s, is_held: Bools) -> Float64s:
    """The share of each interval that each cause was counted for, (m, causes), at most 1 in all.

    Args:
        counted_s: (m, causes) increments of the counters.
        length_s: (m,) lengths.
        is_held: (m,) whether a hardware protection is in force at both ends.
    """
    ratio = counted_s / length_s[:, np.newaxis]
    above, below = (ratio[:, list(some)].sum(axis=1) for some in (PROTECTIONS, OUTRANKED))
    room = np.where(above > 0, np.maximum(1.0 - above, 0.0), below)
    room[is_held] = 0.0
    left = np.divide(room, below, out=np.ones(len(below)), where=below > 0)
    ratio[:, list(OUTRANKED)] *= np.minimum(left, 1.0)[:, np.newaxis]
    counted: Float64s = ratio / np.maximum(ratio.sum(axis=1, keepdims=True), 1.0)
    return counted


def _with_counted(shares: Float64s, counted: Float64s) -> Float64s:
    """The shares of both ends, (2, m, causes), of intervals that go by counters as well.

    Causes that neither end names have the time that they were counted for. Those that an end names
    have the rest of its loss: of several the counted ones their time, the others what is left.
    """
    named = shares > 0
    unseen = np.where(named.any(axis=0), 0.0, counted)
    rest = 1.0 - unseen.sum(axis=1, keepdims=True)
    seen = np.where(named, counted, 0.0)
    uncounted = named & (counted == 0)
    over = np.maximum(1.0 - seen.sum(axis=2, keepdims=True), 0.0)
    seen += uncounted * over / np.maximum(uncounted.sum(axis=2, keepdims=True), 1)
    split: Float64s = unseen + rest * seen / seen.sum(axis=2, keepdims=True)
    return split


def _grown(totals: Float64s, amounts: Float64s) -> Float64s:
    """The totals with the amounts added; one that was never known begins at 0."""
    return np.where(np.isnan(totals), 0.0, totals) + amounts


def _median(values: Int64s) -> float:
    """The median; 0 of none. For few values much cheaper than numpy's, which runs all the time."""
    if not len(values):
        return 0.0
    ordered = np.sort(values)
    return float(ordered[(len(values) - 1) // 2] + ordered[len(values) // 2]) / 2


def _ends(values: np.ndarray) -> np.ndarray:
    """The values at both ends of the intervals between neighbours, (2, n - 1)."""
    return np.stack([values[:-1], values[1:]])


def _at_both_ends(values: Float64s) -> Bools:
    """Whether a value is known at both ends of each interval, (m,)."""
    known: Bools = ~np.isnan(values[0]) & ~np.isnan(values[1])
    return known


def _filled(values: Float64s) -> Float64s:
    """Rows in which NaN is replaced by the last number above it in the column, if any."""
    rows = np.where(np.isnan(values), 0, np.arange(len(values))[:, np.newaxis])
    filled: Float64s = values[np.maximum.accumulate(rows, axis=0), np.arange(values.shape[1])]
    return filled


# Live integrals of one GPU, brought up to its newest record now and then, and published.


class RunningTotals(Protocol):
    """One GPU's totals, for the thread that reads it."""

    def resume(self) -> None:
        """Go on from the totals of the sampler before this one, if there was one."""
        ...

    def update_if_due(self, now_mono_ns: int) -> None:
        """Bring them up to the newest record where that was last done long enough ago."""
        ...

    def update(self, now_mono_ns: int) -> None:
        """Bring them up to the newest record and publish them."""
        ...


class PythonTotals:
    """The totals as `LiveIntegrals` works them out.

    Args:
        info: The GPU.
        gpu: Its part of the shared memory.
        every_ns: How often they are brought up to date.
    """

    def __init__(self, info: GpuInfo, gpu: GpuWriter, every_ns: int) -> None:
        self._gpu = gpu
        self._every_ns = every_ns
        self._due_mono_ns = 0
        self._integrals = LiveIntegrals(info)
        self._integrated_count = 0
        self._period_ns = 0

    def resume(self) -> None:
        """Go on from the totals of the sampler before this one, if there was one."""
        self._integrated_count, totals = self._gpu.totals()
        if totals is not None:
            self._integrals.resume(totals, self._gpu.integrated_records())

    def update_if_due(self, now_mono_ns: int) -> None:
        """Bring them up to the newest record where that was last done long enough ago."""
        if now_mono_ns >= self._due_mono_ns:
            self.update(now_mono_ns)

    def update(self, now_mono_ns: int) -> None:
        """Bring them up to the newest record and publish them."""
        self._due_mono_ns = now_mono_ns + self._every_ns
        records = self._gpu.records(self._integrated_count)
        self._integrated_count = self._gpu.written_count
        # Where the rate has changed meanwhile, the slower one tells how far apart samples may lie.
        longest_ns = max(self._period_ns, self._gpu.period_ns)
        self._period_ns = self._gpu.period_ns if len(records) else longest_ns
        self._integrals.add(records, longest_ns)
        self._gpu.write_totals(self._integrals.totals, self._integrated_count)
