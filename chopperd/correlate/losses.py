"""Compute what the clock cost: mean clock, covered time, ceiling loss by cause, and intervals."""

from collections.abc import Mapping
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopperd.correlate import intervals
from chopperd.correlate.causes import edge_weights, end_shares
from chopperd.correlate.clock import precision
from chopperd.correlate.clock.integrals import ClockPieces, MaskedWindows, Spans
from chopperd.correlate.clock.lag import UNMEASURED_LAG_NS
from chopperd.correlate.clock.signal import (
    ClassClock,
    LabelledSamples,
    RunningClass,
    border_correction_mhz,
    class_clock,
    pooled_by_level,
)
from chopperd.correlate.intervals import lengths_ns
from chopperd.correlate.waterfall import Windows
from chopperd.model.arrays import Bools, Float64s, Int64s
from chopperd.model.kinds import CAUSES, Cause
from chopperd.model.timeline import Intervals
from chopperd.plausible import EnergyCounter, most_energy_j

MAX_ERROR_RATIO: Final = 0.15
#: From this share of reads that show a new value on, the counter changes as often as it is read.
_MIN_CHANGED_READS: Final = 0.75


class WindowEnergy(Struct, frozen=True, kw_only=True):
    """Energy of each window and its error, J: (w,) float64, NaN where not known.

    NaN outside the counter's changes, and for single steps where the error passes 15 %.
    """

    energy_j: Float64s
    energy_error_j: Float64s


def window_energy(
    t_ns: Int64s,
    counter_j: Float64s,
    start_ns: Int64s,
    end_ns: Int64s,
    *,
    is_sum: Bools,
    period_ns: int | None = None,
) -> WindowEnergy:
    """Compute the energy used in each window [start, end).

    The counter is taken as linear between its change points. An edge at fraction a of a change
    interval of energy E errs by 2a(1 - a)E; the two edges add in quadrature. A step in which the
    counter dipped or restarted is not known; a window of many steps (`is_sum`) continues over it
    (`EnergyCounter`), and errs by the mean power times the time that was not seen.

    `t_ns`: (n,), rising. `counter_j`: (n,) cumulative, NaN where not read. `period_ns`: time
    between two updates of the counter; None if not known.

    Source: DESIGN.md section 2, "Energy".
    """
    unknown = np.full(len(start_ns), np.nan)
    read = np.isfinite(counter_j)
    followed = _followed(t_ns[read], counter_j[read])
    at_ns, value_j = _change_points(followed, period_ns)
    if len(at_ns) < 2:
        return WindowEnergy(energy_j=unknown, energy_error_j=unknown)
    start_j, start_error_j = _edge(at_ns, value_j, start_ns)
    end_j, end_error_j = _edge(at_ns, value_j, end_ns)
    energy_j = end_j - start_j
    doubtful_ns = _doubtful_ns(followed, start_ns, end_ns)
    mean_j_per_ns = (value_j[-1] - value_j[0]) / (at_ns[-1] - at_ns[0])
    error_j = np.hypot(np.hypot(start_error_j, end_error_j), doubtful_ns * mean_j_per_ns)
    known = is_sum | ((error_j <= MAX_ERROR_RATIO * energy_j) & (doubtful_ns == 0))
    return WindowEnergy(
        energy_j=np.where(known, energy_j, np.nan), energy_error_j=np.where(known, error_j, np.nan)
    )


class _Followed(Struct, frozen=True, kw_only=True):
    """The accepted reads of a counter, as energy used so far, which only rises."""

    #: (n,) accepted reads; what was used before each, J.
    t_ns: Int64s
    counter_j: Float64s
    after_doubt: Bools  # (n,) reads before which others were rejected


def _followed(t_ns: Int64s, counter_j: Float64s) -> _Followed:
    """Return the counter's accepted reads, without dips, torn numbers and restarts."""
    rise_j = np.diff(counter_j)
    if np.all((rise_j >= 0) & (rise_j <= most_energy_j(np.diff(t_ns).astype(np.float64)))):
        return _Followed(t_ns=t_ns, counter_j=counter_j, after_doubt=np.zeros(len(t_ns), np.bool_))
    counter, used_j = EnergyCounter(), np.zeros(len(t_ns))
    believed = np.ones(len(t_ns), np.bool_)
    for row, reading in enumerate(zip(counter_j.tolist(), t_ns.tolist(), strict=True)):
        used_j[row] = counter.increment_j(*reading)
        believed[row] = not counter.is_in_doubt
    rows = np.flatnonzero(believed)
    return _Followed(
        t_ns=t_ns[rows],
        counter_j=np.cumsum(used_j)[rows],
        after_doubt=np.diff(rows, prepend=-1) > 1,
    )


def _doubtful_ns(followed: _Followed, start_ns: Int64s, end_ns: Int64s) -> Int64s:
    """Return how many ns of each window lie where reads of the counter were rejected: (w,)."""
    found = np.zeros(len(start_ns), np.int64)
    for row in np.flatnonzero(followed.after_doubt).tolist():
        begin_ns, until_ns = followed.t_ns[row - 1], followed.t_ns[row]
        found += np.maximum(np.minimum(end_ns, until_ns) - np.maximum(start_ns, begin_ns), 0)
    return found


def _change_points(followed: _Followed, period_ns: int | None) -> tuple[Int64s, Float64s]:
    """Estimate when the counter took each new value: (k,) times in ns and (k,) values in J.

    Half-way between the read that shows it and the read before, at most one period ago. With no
    period known, a counter that is new at every read changes more often than it is read (a slow
    loop reads once a second what the driver updates each 20-100 ms): the read's time is taken.
    """
    t_ns, counter_j = followed.t_ns, followed.counter_j
    rise = np.diff(counter_j)
    if not np.any(rise):
        return np.empty(0, np.int64), np.empty(0)
    changed = np.flatnonzero(rise > 0)
    at_ns, apart_ns = t_ns[changed + 1], t_ns[changed + 1] - t_ns[changed]
    if period_ns is not None:
        at_ns = at_ns - np.minimum(apart_ns, period_ns) // 2
    elif len(changed) < _MIN_CHANGED_READS * len(rise):
        at_ns = at_ns - apart_ns // 2
    return at_ns, counter_j[changed + 1]


def _edge(at_ns: Int64s, value_j: Float64s, edge_ns: Int64s) -> tuple[Float64s, Float64s]:
    """Return the counter at each edge and its error, J, (w,) each; NaN outside change points."""
    inside = (edge_ns >= at_ns[0]) & (edge_ns <= at_ns[-1])
    left = np.clip(np.searchsorted(at_ns, edge_ns, "right") - 1, 0, len(at_ns) - 2)
    share = (edge_ns - at_ns[left]) / (at_ns[left + 1] - at_ns[left])
    step_j = value_j[left + 1] - value_j[left]
    return (
        np.where(inside, value_j[left] + share * step_j, np.nan),
        np.where(inside, 2 * share * (1 - share) * step_j, np.nan),
    )


MIN_COUNTER_UPDATES: Final = 5


class MeanClock(Struct, frozen=True, kw_only=True):
    """The mean clock of one class in each window, (w,) each; NaN unknown."""

    in_mask_ns: Int64s  # time of the class
    covered_ns: Int64s  # of that, covered by samples
    in_class_ns: Int64s  # of that, with the line on samples of the class
    mean_mhz: Float64s
    half_width_mhz: Float64s  # half of its 95 % interval
    #: Half width by the sampling error of the whole recording: decides whether the rate of the
    #: samples resolves a window.
    pooled_mhz: Float64s
    bias_mhz: Float64s  # the part of the half width that does not average out over windows
    blur_mhz: Float64s  # the part of that which a sensor that averages may be off by
    clock: ClassClock  # the signal that it was taken from
    covered: Intervals  # the mask where covered
    spans: Spans  # of `covered` among the pieces of `clock`


def mean_clock(
    samples: LabelledSamples,
    running: RunningClass,
    mask: Intervals,
    windows: Windows,
    timing: precision.TimingUncertainty,
) -> MeanClock:
    """Compute the time-weighted mean clock while `running` ran in each window, with its interval.

    The interval adds up: 1.96 standard errors; what mislabelled samples may have moved; what an
    averaging sensor may have moved; by how much the mean changes if the sensor lags by
    `timing.lag_ns` more; what rounding may hide. It is at least half a step of the sensor.
    `samples`: at least two, of the GPU. `mask`: when it ran (for communication and copies:
    exposed).
    """
    level = pooled_by_level(samples, running)
    clock = _signal(samples, level, running, mask)
    within = windows.start_ns, windows.end_ns
    covered = intervals.intersection(mask, clock.covered_intervals())
    covered_ns = lengths_ns(covered, *within)
    in_class = intervals.intersection(mask, clock.in_class_intervals())
    in_mask_ns = lengths_ns(mask, *within)
    mean_mhz, spans = _mean_mhz(clock, covered, covered_ns, windows)
    reads = covered_ns / max(samples.period_ns, 1)
    borders = None
    if not timing.instant:
        borders = precision.mixed_ratio(mask, UNMEASURED_LAG_NS / 4, *within, in_mask_ns)
    distinct = np.minimum(reads, timing.distinct_reads)
    errors = precision.standard_errors_mhz(level, running, within, distinct, borders)
    error_mhz, pooled_mhz = (precision.Z_95 * each for each in errors)
    bias_mhz = precision.misplaced_ratio(mask, timing.total_ns, *within, in_mask_ns)
    bias_mhz *= _level_difference_mhz(samples, running, windows)
    blur_mhz = timing.swing_mhz * precision.misplaced_ratio(
        mask, timing.settling_ns, *within, in_mask_ns
    )
    bias_mhz += blur_mhz
    bias_mhz += _change_by_lag_mhz(clock, covered, windows, mean_mhz, timing.lag_ns)
    bias_mhz += precision.resolution_mhz(samples, running, *within)
    half_mhz = np.maximum(error_mhz + bias_mhz, timing.least_mhz)
    repeated = np.sqrt(np.minimum(reads / timing.distinct_reads, 1.0))
    lasting_mhz = np.maximum(bias_mhz + repeated * error_mhz, timing.least_mhz)
    return MeanClock(
        in_mask_ns=in_mask_ns,
        covered_ns=covered_ns,
        in_class_ns=lengths_ns(in_class, *within),
        mean_mhz=mean_mhz,
        half_width_mhz=half_mhz,
        pooled_mhz=pooled_mhz + np.maximum(bias_mhz, np.median(bias_mhz)),
        bias_mhz=np.minimum(lasting_mhz, half_mhz),
        blur_mhz=blur_mhz,
        clock=clock,
        covered=covered,
        spans=spans,
    )


def _signal(
    samples: LabelledSamples, level: LabelledSamples, running: RunningClass, mask: Intervals
) -> ClassClock:
    """Return the class's clock: a line through all samples of its level, or its in-class lines.

    The latter, where no other class is at its level, have the border correction added. The samples
    whose limits explain the clock are always the class's own.
    """
    own = class_clock(samples, running)
    if level is not samples:
        pooled = class_clock(level, running)
        nowhere = np.zeros(len(own.in_class), bool)
        return replace(own, left_mhz=pooled.left_mhz, right_mhz=pooled.right_mhz, in_class=nowhere)
    correction_mhz = np.where(own.in_class, border_correction_mhz(samples, running, mask), 0.0)
    return replace(
        own, left_mhz=own.left_mhz + correction_mhz, right_mhz=own.right_mhz + correction_mhz
    )


def _mean_mhz(
    clock: ClassClock, covered: Intervals, covered_ns: Int64s, windows: Windows
) -> tuple[Float64s, Spans]:
    """Compute each window's mean clock over its covered time, and the spans of that time."""
    pieces = ClockPieces.of(clock)
    spans, g = pieces.locate_spans(covered.start_ns, covered.end_ns), pieces.clock()
    cycles = MaskedWindows.of(g, covered, spans, windows.start_ns, windows.end_ns).integral(g)
    unknown = np.full(len(windows), np.nan)
    return np.divide(cycles, covered_ns, out=unknown, where=covered_ns > 0), spans


def _change_by_lag_mhz(
    clock: ClassClock, covered: Intervals, windows: Windows, mean_mhz: Float64s, lag_ns: int
) -> Float64s:
    """Compute how much each window's mean changes with samples `lag_ns` earlier; 0 if unknown."""
    if lag_ns == 0:
        return np.zeros(len(windows))
    earlier = replace(clock, edges_ns=clock.edges_ns - lag_ns)
    still = intervals.intersection(covered, earlier.covered_intervals())
    still_ns = lengths_ns(still, windows.start_ns, windows.end_ns)
    changed_mhz, _ = _mean_mhz(earlier, still, still_ns, windows)
    return np.nan_to_num(np.abs(changed_mhz - mean_mhz))


def _level_difference_mhz(
    samples: LabelledSamples, running: RunningClass, windows: Windows
) -> float:
    """Compute how far the class's mean clock lies from all others' in the windows, MHz; or 0."""
    inside = (samples.t_ns >= windows.start_ns.min()) & (samples.t_ns < windows.end_ns.max())
    member = inside & (samples.label == running)
    other = inside & (samples.label != running)
    if not member.any() or not other.any():
        return 0.0
    return abs(float(samples.clock_mhz[member].mean() - samples.clock_mhz[other].mean()))


class CeilingLoss(Struct, frozen=True, kw_only=True):
    """Time lost against the reference in each window."""

    lost_ns: Int64s  # (w,)
    by_cause_ns: Int64s  # (w, causes); each row sums to `lost_ns`
    coarse: Bools  # (w,) fewer than 5 counter updates in the window


def ceiling_loss(
    mean: MeanClock,
    windows: Windows,
    reference_mhz: float,
    limit_mhz: float | None,
    causes: Int64s,
    limited_ns: Mapping[Cause, Float64s],
) -> CeilingLoss:
    """Integrate max(0, 1 - f/f_ref) over the covered compute of each window, split by cause.

    What lies between the reference and `limit_mhz`, the lowest standing limit, is `user_limit`; the
    rest goes by the driver's counters, (n,) cumulative, and reason bits, (n,), at the samples.

    Source: DESIGN.md section 2, "Three losses" and "Cause".
    """
    limit_mhz = reference_mhz if limit_mhz is None else min(limit_mhz, reference_mhz)
    clock, covered = mean.clock, mean.covered
    pieces = ClockPieces.of(clock, (reference_mhz, limit_mhz))
    spans = mean.spans  # holds where no piece was cut
    if len(pieces.parent) > len(clock.covered):
        spans = pieces.locate_spans(covered.start_ns, covered.end_ns)
    lost = pieces.deficit(reference_mhz)
    within = MaskedWindows.of(lost, covered, spans, windows.start_ns, windows.end_ns)
    total = within.integral(lost) / reference_mhz
    lost_ns = np.minimum(np.rint(total).astype(np.int64), mean.covered_ns)
    below = total
    if limit_mhz < reference_mhz:
        below = within.integral(pieces.deficit(limit_mhz)) / reference_mhz
    left, right = edge_weights(clock, end_shares(clock, causes, limited_ns), limit_mhz)
    parts = np.zeros((len(windows), len(CAUSES)))
    for cause in np.flatnonzero(left.any(axis=0) | right.any(axis=0)):
        weighted = pieces.deficit(limit_mhz, (left[:, cause], right[:, cause]))
        parts[:, cause] = within.integral(weighted)
    parts = np.maximum(parts, 0.0)
    whole = parts.sum(axis=1)
    parts *= np.divide(below, whole, out=np.zeros(len(windows)), where=whole > 0)[:, np.newaxis]
    parts[:, Cause.UNEXPLAINED] += np.where(whole > 0, 0.0, below)
    parts[:, Cause.USER_LIMIT] += np.maximum(total - below, 0.0)
    updates = counter_updates(limited_ns, clock.edges_ns, windows)
    return CeilingLoss(
        lost_ns=lost_ns,
        by_cause_ns=largest_remainder(parts, lost_ns),
        coarse=np.zeros(len(windows), bool) if updates is None else updates < MIN_COUNTER_UPDATES,
    )


def counter_updates(
    limited_ns: Mapping[Cause, Float64s], t_ns: Int64s, windows: Windows
) -> Int64s | None:
    """Count the updates in each window of the counter with most: (w,); None without counters."""
    most: Int64s | None = None
    for counter in limited_ns.values():
        read = np.isfinite(counter)
        if not read.any():
            continue
        changed = np.diff(counter[read], prepend=counter[read][0]) != 0
        running = np.concatenate((np.zeros(1, np.int64), np.cumsum(changed)))
        at_start, at_end = (
            np.searchsorted(t_ns[read], edge) for edge in (windows.start_ns, windows.end_ns)
        )
        updates: Int64s = running[at_end] - running[at_start]
        most = updates if most is None else np.maximum(most, updates)
    return most


def largest_remainder(parts: Float64s, totals: Int64s) -> Int64s:
    """Round rows of parts, (w, n), to integers that sum to `totals`, each within 1 of its share.

    No part is negative; a row of zeros stays one and needs a total of 0.
    """
    whole = parts.sum(axis=1, keepdims=True)
    exact = np.divide(parts, whole, out=np.zeros_like(parts), where=whole > 0) * totals[:, None]
    floor: Int64s = np.floor(exact).astype(np.int64)
    short = np.where(whole[:, 0] > 0, totals - floor.sum(axis=1), 0)
    order = np.argsort(floor - exact, axis=1, kind="stable")
    rounded_up = np.zeros_like(floor)
    np.put_along_axis(rounded_up, order, np.arange(parts.shape[1]) < short[:, None], axis=1)
    return floor + rounded_up
