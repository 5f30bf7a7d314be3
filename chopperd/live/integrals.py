"""Live integrals of one GPU over its records: cycles, busy time, energy, loss by cause.

They need no trace: busy is what the GPU reports of itself, the loss is against its highest clock.
"""

from math import isnan, nan
from typing import Final

import numpy as np

from chopperd.model.arrays import Bools, Float64s, Int64s
from chopperd.model.devices import GpuInfo, Vendor
from chopperd.model.kinds import CAUSES, OUTRANKED, PROTECTIONS, Cause, has_protection, ranked
from chopperd.model.live import LiveTotals
from chopperd.plausible import EnergyCounter, most_limited_ns
from chopperd.sampling.memory.layout import Records
from chopperd.units import HZ_PER_MHZ, NS_PER_S

#: Samples further apart than so many periods as achieved are not integrated over.
_GAP_PERIODS: Final = 3
#: The achieved period is the median of about so many spacings.
_SPACINGS: Final = 32
#: An activity reading (1 Hz) is valid for this long.
_ACTIVITY_NS: Final = 3 * NS_PER_S
#: Counter increments that cover less of an interval than this leave its cause to the reason bits.
_COUNTED_RATIO: Final = 0.05

_INTEGRATED: Final = ("t_mono_ns", "causes", "sm_clock_mhz")
_CAUSE_BITS: Final = np.array([cause.bit for cause in CAUSES], dtype=np.int64)


class GapRule:
    """Decides between which neighbouring samples of a GPU to integrate.

    They may lie three periods apart: of the sampler's period or, where that is longer, of the
    achieved one, which is the median of the last spacings.
    """

    def __init__(self) -> None:
        self._spacings_ns: Int64s = np.zeros(0, np.int64)

    def are_covered(self, spacing_ns: Int64s, period_ns: int) -> Bools:
        """Whether each spacing is short enough to integrate over, (m,); stores the last spacings.

        Of (m,) int64 spacings, later than those before, at the sampler's period.
        """
        recent_ns = np.concatenate([self._spacings_ns, spacing_ns])[
            -max(_SPACINGS, len(spacing_ns)) :
        ]
        self._spacings_ns = recent_ns[-_SPACINGS:]
        covered: Bools = spacing_ns <= _GAP_PERIODS * max(_median(recent_ns), period_ns)
        return covered & (spacing_ns > 0)


class LongestPeriod:
    """Tracks the longest read period since the last `taken_ns`, for the gap rule.

    Where the rate has changed between two samples, the slower one says how far apart they may lie.
    """

    def __init__(self) -> None:
        self._present_ns = 0
        self._longest_ns = 0

    def note(self, period_ns: int) -> None:
        """Set the read period from now on."""
        self._present_ns = period_ns
        self._longest_ns = max(self._longest_ns, period_ns)

    def taken_ns(self) -> int:
        """Return the longest period since the last call, the present one included; start again."""
        longest_ns, self._longest_ns = self._longest_ns, self._present_ns
        return longest_ns


class BusyRatio:
    """Computes how busy a GPU reports itself, as a share of time.

    The idle bit wins (it is of this instant), then the activity of the last seconds. But an idle
    bit that is set while the GPU reports activity is wrong, until it reports again. A GPU that has
    an idle bit and does not set it is busy.
    """

    def __init__(self, info: GpuInfo) -> None:
        self._has_idle_bit = info.vendor is Vendor.NVIDIA
        #: When the last activity was read, what it was, and whether the idle bit was set with it.
        self._activity: Float64s = np.full((3, 1), nan)

    def at(self, records: Records) -> Float64s:
        """Compute the busy ratio at (n,) records later than those before; NaN if not reported."""
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


class LiveIntegrals:
    """Integrates cycles, busy time, energy and losses of one GPU over its records.

    Between two samples the clock is linear; a state (busy, a reason) that each of them reports
    holds for the half of the interval on its side.
    """

    def __init__(self, info: GpuInfo) -> None:
        self.know(info)
        self._single: dict[str, float] = {}
        self._limited_s: Float64s = np.full(len(CAUSES), nan)
        self._lost_s: Float64s = np.full(len(CAUSES), nan)
        self._busy = BusyRatio(info)
        self._energy = EnergyCounter()
        self._gaps = GapRule()
        #: Time, causes, clock and busy ratio of the newest record.
        self._last: tuple[np.ndarray, ...] = (*np.zeros((2, 0), np.int64), *np.zeros((2, 0)))
        self._limited_ns: Float64s = np.full((1, len(CAUSES)), nan)
        self._limited_mono_ns: Float64s = np.full((1, len(CAUSES)), nan)

    def know(self, info: GpuInfo) -> None:
        """Set the GPU's highest clock and clock limit, by which losses are split from now on."""
        self._reference_mhz = info.sm_clock_max_mhz
        self._limit_mhz = info.sm_clock_limit_mhz

    def totals(self) -> LiveTotals:
        """Return the integrals over all records so far; None, or no entry, if never known."""
        return LiveTotals(
            **self._single, limited_s=_by_cause(self._limited_s), lost_s=_by_cause(self._lost_s)
        )

    def add(self, records: Records, period_ns: int) -> None:
        """Add new records to the integrals.

        The (n,) `RECORD`s rise in time and are later than those before.
        """
        if not len(records):
            return
        read = records[~np.isnan(records["energy_j"])]
        if len(read):
            energy_j, t_mono_ns = read["energy_j"].tolist(), read["t_mono_ns"].tolist()
            self._add("energy_j", sum(map(self._energy.increment_j, energy_j, t_mono_ns)))
        counted_s = self._count_limits(records["limited_ns"], records["t_mono_ns"])
        new = *(records[name] for name in _INTEGRATED), self._busy.at(records)
        columns = [np.concatenate(pair) for pair in zip(self._last, new, strict=True)]
        self._last = tuple(column[-1:].copy() for column in columns)
        t_ns, causes, clock_mhz, busy_ratio = (
            np.stack([column[:-1], column[1:]]) for column in columns
        )
        spacing_ns = t_ns[1] - t_ns[0]
        covered = self._gaps.are_covered(spacing_ns, period_ns)
        self._integrate(
            spacing_ns[covered] / (2 * NS_PER_S),
            causes[:, covered],
            clock_mhz[:, covered],
            busy_ratio[:, covered],
            counted_s[len(counted_s) - len(spacing_ns) :][covered],
        )

    def _add(self, name: str, amount: float) -> None:
        self._single[name] = self._single.get(name, 0.0) + amount

    def _count_limits(self, limited_ns: Float64s, t_mono_ns: Int64s) -> Float64s:
        """Add the driver's counters to their totals; return the increments, (n, causes), in s.

        A counter that fell has restarted and adds nothing at that record, nor does one that rose
        by more than time passed.
        """
        counted_s = np.zeros(limited_ns.shape)
        rows = np.flatnonzero(~np.isnan(limited_ns).all(axis=1))
        if not len(rows):
            return counted_s
        at_ns = np.where(np.isnan(limited_ns[rows]), nan, t_mono_ns[rows, np.newaxis])
        filled_ns = _filled(np.concatenate([self._limited_ns, limited_ns[rows]]))
        read_ns = _filled(np.concatenate([self._limited_mono_ns, at_ns]))
        self._limited_ns, self._limited_mono_ns = filled_ns[-1:], read_ns[-1:]
        rise_ns = np.fmax(filled_ns[1:] - filled_ns[:-1], 0)  # fmax: NaN becomes 0
        rise_ns[rise_ns > most_limited_ns(read_ns[1:] - read_ns[:-1])] = 0
        counted_s[rows] = rise_ns / NS_PER_S
        seen = ~np.isnan(filled_ns[-1])
        self._limited_s[seen] = _grown(self._limited_s[seen], counted_s.sum(axis=0)[seen])
        return counted_s

    def _integrate(
        self,
        half_s: Float64s,
        causes: Int64s,
        clock_mhz: Float64s,
        busy_ratio: Float64s,
        counted_s: Float64s,
    ) -> None:
        """Add intervals to the integrals.

        They have (m,) half lengths, (2, m) values at both ends, (m, causes) counter increments.
        """
        clocks_mhz, busy = clock_mhz[0] + clock_mhz[1], busy_ratio[0] + busy_ratio[1]
        has_clock, has_busy = ~np.isnan(clocks_mhz), ~np.isnan(busy)
        if has_busy.any():
            self._add("busy_s", float(half_s[has_busy] @ busy[has_busy]))
        if has_clock.any():
            clocked_s = half_s[has_clock]
            self._add("sm_cycles", float(clocked_s @ clocks_mhz[has_clock]) * HZ_PER_MHZ)
            self._add("sampled_s", float(clocked_s.sum()) * 2)
        both = has_clock & has_busy
        if both.any():
            busy_s = half_s[both] * busy_ratio[:, both]
            self._add("busy_sampled_s", float(busy_s.sum()))
            cycles_mhz = float((busy_s * clock_mhz[:, both]).sum())
            self._add("busy_sm_cycles", cycles_mhz * HZ_PER_MHZ)
            if self._reference_mhz:
                lost_s = self._losses_s(
                    half_s[both], busy_s, causes[:, both], clock_mhz[:, both], counted_s[both]
                )
                self._add_lost(lost_s, (causes[:, both] & Cause.UNKNOWN.bit) != 0)

    def _add_lost(self, lost_s: Float64s, is_unknown: Bools) -> None:
        """Add losses by cause; a cause without loss is known to be 0 where causes were readable."""
        known = np.full(len(CAUSES), not is_unknown.all())
        known[Cause.UNKNOWN] = is_unknown.any()
        known |= lost_s > 0
        self._lost_s[known] = _grown(self._lost_s[known], lost_s[known])

    def _losses_s(
        self,
        half_s: Float64s,
        busy_s: Float64s,
        causes: Int64s,
        clock_mhz: Float64s,
        counted_s: Float64s,
    ) -> Float64s:
        """Compute the busy time lost against the highest clock, by cause, (causes,) float64 s.

        From the highest clock to the standing limit it is `user_limit`. Below that each end has
        its own loss, by the reasons in force there and the increments of the driver's counters.

        A counter read in some records only has its whole rise on the interval that ends in the
        reading; the others go by the reasons. At 100 Hz with a counter read at 1 Hz that is 99 of
        100 intervals: where reasons and counter disagree, the live split follows the reasons.
        """
        reference_mhz = self._reference_mhz or nan
        standing_mhz = min(self._limit_mhz or reference_mhz, reference_mhz)
        below_s = busy_s * np.maximum(standing_mhz - clock_mhz, 0) / reference_mhz
        user_mhz = np.maximum(reference_mhz - np.maximum(clock_mhz, standing_mhz), 0)
        shares = _blamed(causes)
        rows = np.flatnonzero(counted_s.any(axis=1))
        if len(rows):
            is_held = (has_protection(causes[:, rows]) != 0).all(axis=0)
            counted = _counted_ratio(counted_s[rows], 2 * half_s[rows], is_held)
            enough = counted.sum(axis=1) >= _COUNTED_RATIO
            rows = rows[enough]
            shares[:, rows] = _with_counted(shares[:, rows], counted[enough])
        lost_s: Float64s = below_s.ravel() @ shares.reshape(-1, len(CAUSES))
        lost_s[Cause.USER_LIMIT] += float((busy_s * user_mhz).sum()) / reference_mhz
        return lost_s


def _blamed(causes: Int64s) -> Float64s:
    """Compute the causes' shares in a loss below the standing limit, (..., causes), from bits.

    The reasons in force share it evenly, as in a report, `user_limit` among them; a hardware
    protection outranks what is set with it.

    Source: DESIGN.md section 2, "Cause".
    """
    bits = ranked(causes)
    bits = np.where(bits == 0, Cause.UNEXPLAINED.bit, bits)
    shares = (bits[..., np.newaxis] & _CAUSE_BITS) != 0
    shared: Float64s = shares / shares.sum(axis=-1, keepdims=True)
    return shared


def _counted_ratio(counted_s: Float64s, length_s: Float64s, is_held: Bools) -> Float64s:
    """Compute the share of each interval that each cause was counted for, (m, causes), sum <= 1.

    From (m, causes) counter increments, (m,) lengths, and whether a hardware protection is in
    force at both ends.
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
    """Correct the shares of causes at both ends, (2, m, causes), by the counted shares.

    A cause that neither end names gets the time that it was counted for. Causes that an end names
    share the rest of its loss: counted ones get their time, the others what is left.
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


def _by_cause(seconds: Float64s) -> dict[Cause, float]:
    """Map causes to their seconds, from (causes,) values; NaN is left out."""
    pairs = zip(CAUSES, seconds.tolist(), strict=True)
    return {cause: value for cause, value in pairs if not isnan(value)}


def _grown(totals: Float64s, amounts: Float64s) -> Float64s:
    """Add amounts to totals; a total that was never known (NaN) counts as 0."""
    return np.where(np.isnan(totals), 0.0, totals) + amounts


def _median(values: Int64s) -> float:
    """Compute the median, 0 of no values; for few values much cheaper than numpy's."""
    if not len(values):
        return 0.0
    ordered = np.sort(values)
    return float(ordered[(len(values) - 1) // 2] + ordered[len(values) // 2]) / 2


def _filled(values: Float64s) -> Float64s:
    """Replace each NaN by the last number above it in its column, if any."""
    rows = np.where(np.isnan(values), 0, np.arange(len(values))[:, np.newaxis])
    filled: Float64s = values[np.maximum.accumulate(rows, axis=0), np.arange(values.shape[1])]
    return filled
