"""Check whether samples belong to a trace: on its time axis, and of the GPU that it ran on.

The clock or the power of most GPUs shows when work runs. Where samples fit best when moved by a
second, their times are not the trace's; where they show an idle GPU while the trace is busy, or the
reverse, they are of another GPU or of another time.
"""

from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopperd.correlate import intervals
from chopperd.correlate.clock.lag import LagEstimate, measure_lag
from chopperd.model.arrays import Bools, Float64s, Int64s
from chopperd.model.kinds import Cause
from chopperd.model.samples import GpuSamples
from chopperd.model.timeline import Intervals
from chopperd.units import NS_PER_MS, NS_PER_S

#: No sensor lags by more: what lies further away is on another time axis.
MAX_LAG_NS: Final = 250 * NS_PER_MS
#: The coarse search; wider than the 2 s that it is for, so that these are not its edge.
_SEARCHED_NS: Final = 4 * NS_PER_S
_LAG_STEP_NS: Final = 10 * NS_PER_MS
_CELL_NS: Final = 5 * NS_PER_MS // 2
_MOST_CELLS: Final = 1 << 18
#: Lags that `measure_lag` finds by itself, and the middle of its search.
_FINE_NS: Final = (-20 * NS_PER_MS, MAX_LAG_NS)
_FINE_MIDDLE_NS: Final = 100 * NS_PER_MS
#: Changes of the clock over at least so long are compared with changes of what ran.
_APART_NS: Final = 40 * NS_PER_MS
_MOST_PAIRS: Final = 1_024
_LAGS_AT_ONCE: Final = 64
_BLOCKS: Final = 20
#: Of few pairs some lag explains much by chance: the best of 800 up to about 12 / pairs.
_MIN_PAIRS: Final = 30
_MIN_EXPLAINED: Final = 0.15
_MIN_EXPLAINED_PAIRS: Final = 30
#: How many times as much a distant lag must explain, and by how many standard errors over 20 blocks
#: more. Of steps of nearly one length it is chance which of the lags a step apart fits best.
_MIN_TIMES: Final = 1.15
_MIN_ERRORS: Final = 3.0
#: So much counts against each second of lag: where steps are of one length, many lags fit alike.
_NEARER_PER_S: Final = 0.01

#: A mean over the last second, as which activity and some powers are reported.
_AVERAGE_NS: Final = NS_PER_S
#: `GpuInfo.power_source` of powers that are no such mean.
_MOMENTARY: Final = ("instant", "module")
_IDLE_ACTIVITY, _BUSY_ACTIVITY = 0.05, 0.5
#: Shares of the power limit.
_IDLE_POWER, _BUSY_POWER = 0.25, 0.6
#: Shares of the second before a sample in which the trace is busy, to call it busy or idle.
_BUSY_SHARE, _ALL_BUSY_SHARE, _IDLE_SHARE = 0.5, 0.9, 0.02
_MIN_SAMPLES: Final = 5
_MOST_COMPARED: Final = 4_096
_CONTRADICTED_SHARE: Final = 0.5


class Belonging(Struct, frozen=True, kw_only=True):
    """Whether samples belong to a trace."""

    #: How much later than the trace the samples lie, where no sensor's lag is that; None where the
    #: axes agree as far as can be seen.
    apart_ns: int | None = None
    #: "idle" or "busy", where the samples show that in more than half of the time in which the
    #: trace shows the opposite; None where they agree.
    says: str | None = None


def placed_lag(
    t_ns: Int64s, clock_mhz: Float64s, compute: Intervals, max_gap_ns: int, *, instant: bool = False
) -> LagEstimate:
    """Measure the lag of the clock: coarsely over seconds, then finely where it fits best.

    A lag beyond `MAX_LAG_NS` means another time axis, not a late sensor. Where steps repeat so
    evenly that lags a step apart fit alike, the lag nearest to 0 is returned. Arguments are as of
    `measure_lag`.
    """
    distant_ns = _distant_lag_ns(t_ns, clock_mhz, compute, max_gap_ns)
    if distant_ns is None:
        return measure_lag(t_ns, clock_mhz, compute, max_gap_ns, instant=instant)
    moved_ns = distant_ns - _FINE_MIDDLE_NS
    fine = measure_lag(t_ns - moved_ns, clock_mhz, compute, max_gap_ns, instant=instant)
    if fine.lag_ns is None or fine.low_ns is None or fine.high_ns is None:
        low_ns, high_ns = distant_ns - _APART_NS, distant_ns + _APART_NS
        return replace(fine, lag_ns=distant_ns, low_ns=low_ns, high_ns=high_ns, reason=None)
    return replace(
        fine,
        lag_ns=fine.lag_ns + moved_ns,
        low_ns=fine.low_ns + moved_ns,
        high_ns=fine.high_ns + moved_ns,
    )


def belonging(
    lag: LagEstimate, samples: GpuSamples, compute: Intervals, busy: Intervals, unknown: Intervals
) -> Belonging:
    """Check whether samples belong to a trace.

    Source: DESIGN.md section 2, "Samples must be this trace's".
    """
    return Belonging(
        apart_ns=_apart_ns(lag, samples, compute), says=_contradiction(samples, busy, unknown)
    )


def _apart_ns(lag: LagEstimate, samples: GpuSamples, compute: Intervals) -> int | None:
    """Return by how many ns samples lie after the trace, by clock, its halves or power; or None."""
    if lag.lag_ns is not None and abs(lag.lag_ns) > MAX_LAG_NS:
        return lag.lag_ns
    t_ns, clock_mhz = _around(samples, samples.sm_clock_mhz, compute)
    halves = slice(None, len(t_ns) // 2), slice(len(t_ns) // 2, None)
    limits_ns = -MAX_LAG_NS, MAX_LAG_NS
    tries = [(t_ns[half], clock_mhz[half], limits_ns) for half in halves]
    if lag.lag_ns is None:
        averaged_ns = 0 if samples.gpu.power_source in _MOMENTARY else _AVERAGE_NS
        limits_ns = -MAX_LAG_NS, MAX_LAG_NS + averaged_ns
        tries.append((*_around(samples, samples.power_w, compute), limits_ns))
    for taken_ns, value, (low_ns, high_ns) in tries:
        max_gap_ns = 3 * int(np.median(np.diff(taken_ns))) if len(taken_ns) > 1 else 0
        found_ns = _distant_lag_ns(taken_ns, value, compute, max_gap_ns)
        if found_ns is not None and not low_ns <= found_ns <= high_ns:
            return found_ns
    return None


def _around(samples: GpuSamples, column: Float64s, compute: Intervals) -> tuple[Int64s, Float64s]:
    """Return times and known values of a column in the traced time and `_SEARCHED_NS` around it."""
    t_ns, known = samples.t_unix_ns, np.isfinite(column)
    if len(compute):
        known &= t_ns >= compute.start_ns[0] - _SEARCHED_NS
        known &= t_ns < compute.end_ns[-1] + _SEARCHED_NS
    return t_ns[known], column[known]


def _distant_lag_ns(
    t_ns: Int64s, value: Float64s, compute: Intervals, max_gap_ns: int
) -> int | None:
    """Find the lag in ns outside `_FINE_NS` that fits clearly better than all inside; or None."""
    first, second = _pairs(t_ns, max_gap_ns)
    change = value[second] - value[first]
    if len(first) < _MIN_PAIRS or not len(compute) or not np.any(change):
        return None
    lags_ns = np.union1d(
        np.arange(-_SEARCHED_NS, _SEARCHED_NS + 1, _LAG_STEP_NS),
        np.arange(_FINE_NS[0], _FINE_NS[1] + 1, _CELL_NS),  # no better fit may lie between two
    )
    sums, counts = _agreement(t_ns[first], t_ns[second], change, compute, lags_ns)
    explained = _explained_share(sums.sum(axis=1), counts)
    fine = (lags_ns >= _FINE_NS[0]) & (lags_ns <= _FINE_NS[1])
    near = int(np.argmax(np.where(fine, explained, -1.0)))
    nearer = _NEARER_PER_S * np.abs(lags_ns) / NS_PER_S
    far = int(np.argmax(np.where(fine, -1.0, explained - nearer)))
    pairs = min(int(counts[near]), int(counts[far]))  # lags of few pairs need a better fit
    least = max(_MIN_EXPLAINED, _MIN_EXPLAINED_PAIRS / max(pairs, 1))
    if explained[far] < least or explained[far] < _MIN_TIMES * explained[near]:
        return None
    more = _explained_by_block(sums[far]) - _explained_by_block(sums[near])
    error = float(more.std(ddof=1)) / np.sqrt(_BLOCKS)
    return int(lags_ns[far]) if float(more.mean()) > _MIN_ERRORS * error else None


def _pairs(t_ns: Int64s, max_gap_ns: int) -> tuple[Int64s, Int64s]:
    """Pair samples with the next at least `_APART_NS` later; return the indices of both.

    At most `_MOST_PAIRS`, of samples of the first ten minutes or so.
    """
    if len(t_ns):
        t_ns = t_ns[: np.searchsorted(t_ns, t_ns[0] + _MOST_CELLS * _CELL_NS)]
    second = np.searchsorted(t_ns, t_ns + _APART_NS, "left")
    first = np.flatnonzero(second < len(t_ns))
    first = first[t_ns[second[first]] - t_ns[first] <= max(max_gap_ns, 2 * _APART_NS)]
    first = first[:: max(1, -(-len(first) // _MOST_PAIRS))]
    return first, second[first]


def _agreement(
    first_ns: Int64s, second_ns: Int64s, change: Float64s, compute: Intervals, lags_ns: Int64s
) -> tuple[Float64s, Int64s]:
    """Sum (change x model, model^2, change^2) by lag and block, (l, b, 3); count pairs by lag.

    The model is the change of the share of time in compute; pairs that a lag moves out of the
    traced time are left out.
    """
    base_ns = max(int(compute.start_ns[0]), int(first_ns[0]) - _SEARCHED_NS)
    end_ns = min(int(compute.end_ns[-1]), int(second_ns[-1]) + _SEARCHED_NS)
    edges_ns = base_ns + np.arange(max((end_ns - base_ns) // _CELL_NS, 1) + 1) * _CELL_NS
    part = intervals.clip(compute, base_ns, end_ns)
    duty = np.diff(intervals.length_before_ns(part, edges_ns)) / _CELL_NS
    first, second = ((t_ns - base_ns) // _CELL_NS for t_ns in (first_ns, second_ns))
    starts = np.arange(_BLOCKS) * len(change) // _BLOCKS
    sums, counts = np.empty((len(lags_ns), _BLOCKS, 3)), np.empty(len(lags_ns), np.int64)
    for at in range(0, len(lags_ns), _LAGS_AT_ONCE):
        lag = (lags_ns[at : at + _LAGS_AT_ONCE] // _CELL_NS)[:, None]
        inside = (first >= lag) & (second - lag < len(duty))
        model = (
            duty.take(second - lag, mode="clip") - duty.take(first - lag, mode="clip")
        ) * inside
        products = (change * model, model * model, change**2 * inside)
        for j, product in enumerate(products):
            sums[at : at + _LAGS_AT_ONCE, :, j] = np.add.reduceat(product, starts, axis=1)
        counts[at : at + _LAGS_AT_ONCE] = inside.sum(axis=1)
    return sums, counts


def _explained_share(sums: Float64s, counts: Int64s) -> Float64s:
    """Compute the share of squared changes that the best multiple of the model explains, (l,)."""
    whole = sums[:, 1] * sums[:, 2]
    return np.divide(
        sums[:, 0] ** 2, whole, out=np.zeros(len(whole)), where=(whole > 0) & (counts >= _MIN_PAIRS)
    )


def _explained_by_block(sums: Float64s) -> Float64s:
    """Compute how much of each block's squared changes the best multiple of one model explains."""
    square = float(sums[:, 1].sum())
    slope = float(sums[:, 0].sum()) / square if square else 0.0
    return 2 * slope * sums[:, 0] - slope**2 * sums[:, 1]


def _contradiction(samples: GpuSamples, busy: Intervals, unknown: Intervals) -> str | None:
    """Return "idle" or "busy" if samples show that for most of the time against the trace; or None.

    Each sample is compared with the trace in the second before it, as activity is a mean over that.
    Samples in whose second the trace may lack work, or has not begun, do not count.
    """
    if not len(busy):
        return None
    idle_shown, busy_shown, least_share = _states(samples)
    t_ns = samples.t_unix_ns
    inside = (t_ns - _AVERAGE_NS >= busy.start_ns[0]) & (t_ns <= busy.end_ns[-1])
    rows = np.flatnonzero(inside & np.isfinite(idle_shown))
    rows = rows[:: max(1, -(-len(rows) // _MOST_COMPARED))]
    share = _share_before(busy, t_ns[rows])
    share[_share_before(unknown, t_ns[rows]) > 0] = np.nan
    if _mostly(idle_shown[rows][share >= least_share]):
        return "idle"
    return "busy" if _mostly(busy_shown[rows][share <= _IDLE_SHARE]) else None


def _share_before(mask: Intervals, t_ns: Int64s) -> Float64s:
    edges = intervals.length_before_ns(mask, np.concatenate((t_ns - _AVERAGE_NS, t_ns)))
    return (edges[len(t_ns) :] - edges[: len(t_ns)]) / _AVERAGE_NS


def _states(samples: GpuSamples) -> tuple[Float64s, Float64s, float]:
    """Return whether each sample shows idle, and busy (1, 0; NaN unknown), and a least busy share.

    That share is what of a second the trace must be busy to contradict an idle sample: nearly all
    where activity is not known, as small kernels take little power and may set the idle bit.
    """
    limit_w = samples.gpu.power_limit_w
    if np.isfinite(samples.activity_ratio).any():
        activity = samples.activity_ratio
        idle, is_busy = activity <= _IDLE_ACTIVITY, activity >= _BUSY_ACTIVITY
        return _known(idle, activity), _known(is_busy, activity), _BUSY_SHARE
    known = samples.causes != Cause.UNKNOWN.bit
    if known.any():
        idle = (samples.causes & Cause.LOW_UTILIZATION.bit) != 0
        return np.where(known, idle, np.nan), np.full(len(known), np.nan), _ALL_BUSY_SHARE
    power = samples.power_w / limit_w if limit_w else np.full(len(known), np.nan)
    return _known(power < _IDLE_POWER, power), _known(power > _BUSY_POWER, power), _ALL_BUSY_SHARE


def _known(shows: Bools, value: Float64s) -> Float64s:
    return np.where(np.isfinite(value), shows, np.nan)


def _mostly(shows: Float64s) -> bool:
    """Whether of at least `_MIN_SAMPLES` known values more than half are 1."""
    known = shows[np.isfinite(shows)]
    return len(known) >= _MIN_SAMPLES and float(known.mean()) > _CONTRADICTED_SHARE
