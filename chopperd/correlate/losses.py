"""What the clock cost: covered time, cycles, ceiling loss by cause, and their intervals."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from chopperd.correlate import intervals
from chopperd.correlate.causes import (
    MIN_COUNTER_UPDATES,
    counter_updates,
    edge_weights,
    end_shares,
    largest_remainder,
)
from chopperd.correlate.clock.edge_correction import border_correction_mhz, pooled_by_level
from chopperd.correlate.clock.lag import UNMEASURED_LAG_NS
from chopperd.correlate.clock.pieces import ClockPieces
from chopperd.correlate.clock.precision import (
    Z_95,
    TimingUncertainty,
    misplaced_ratio,
    mixed_ratio,
    resolution_mhz,
    standard_errors_mhz,
)
from chopperd.correlate.clock.signal import (
    ClassClock,
    LabelledSamples,
    MaskPositions,
    Primitive,
    RunningClass,
    class_clock,
    masked_integral,
)
from chopperd.correlate.waterfall import lengths_ns
from chopperd.model.arrays import Bools, Float64s, Int64s
from chopperd.model.kinds import CAUSES, Cause
from chopperd.model.timeline import Intervals


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """Stretches of device time to report on, in any order: (w,) int64 starts and ends."""

    start_ns: Int64s
    end_ns: Int64s

    def __len__(self) -> int:
        """The number of windows."""
        return len(self.start_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanClock:
    """The mean clock of one class in each window.

    Attributes:
        in_mask_ns, covered_ns, in_class_ns: (w,) int64: time of the class, of that covered by
            samples, of that with the line on samples of the class.
        mean_mhz, half_width_mhz: (w,) float64, mean and half of its 95 % interval; NaN unknown.
        pooled_mhz: (w,) float64, half width by the sampling error of the whole recording: what
            decides whether the rate resolves a window.
        bias_mhz: (w,) float64, the part of the half width that does not average out over windows.
        blur_mhz: (w,) float64, the part of that which a sensor that averages may be off by.
        clock: The signal it was taken from.
        covered: The mask where covered.
    """

    in_mask_ns: Int64s
    covered_ns: Int64s
    in_class_ns: Int64s
    mean_mhz: Float64s
    half_width_mhz: Float64s
    pooled_mhz: Float64s
    bias_mhz: Float64s
    blur_mhz: Float64s
    clock: ClassClock
    covered: Intervals


def mean_clock(
    samples: LabelledSamples,
    running: RunningClass,
    mask: Intervals,
    windows: Windows,
    timing: TimingUncertainty,
) -> MeanClock:
    """The time-weighted mean clock while `running` ran, in each window, with its interval.

    The interval adds up: 1.96 standard errors; what mislabelled samples may have moved; what a
    sensor that averages may have; by how much the mean changes if the sensor lags by
    `timing.lag_ns` more; what rounding may hide. It is at least half a step of the sensor.

    Args:
        samples: All samples of the GPU, at least two.
        running: The class.
        mask: When it ran (for communication and copies: exposed).
        windows: Where.
        timing: How far samples and trace may lie apart.
    """
    level = pooled_by_level(samples, running)
    clock = _signal(samples, level, running, mask)
    covered = intervals.intersection(mask, clock.covered_intervals())
    covered_ns = lengths_ns(covered, windows.start_ns, windows.end_ns)
    in_class = intervals.intersection(mask, clock.in_class_intervals())
    in_mask_ns = lengths_ns(mask, windows.start_ns, windows.end_ns)
    mean_mhz = _mean_mhz(clock, covered, covered_ns, windows)
    within = windows.start_ns, windows.end_ns
    reads = covered_ns / max(samples.period_ns, 1)
    borders = None
    if not timing.instant:
        borders = mixed_ratio(mask, UNMEASURED_LAG_NS / 4, *within, in_mask_ns)
    distinct = np.minimum(reads, timing.distinct_reads)
    errors = standard_errors_mhz(level, running, within, distinct, borders)
    error_mhz, pooled_mhz = (Z_95 * each for each in errors)
    bias_mhz = misplaced_ratio(mask, timing.total_ns, *within, in_mask_ns)
    bias_mhz *= _level_difference_mhz(samples, running, windows)
    blur_mhz = timing.swing_mhz * misplaced_ratio(mask, timing.settling_ns, *within, in_mask_ns)
    bias_mhz += blur_mhz
    bias_mhz += _change_by_lag_mhz(clock, covered, windows, mean_mhz, timing.lag_ns)
    bias_mhz += resolution_mhz(samples, running, *within)
    half_mhz = np.maximum(error_mhz + bias_mhz, timing.least_mhz)
    repeated = np.sqrt(np.minimum(reads / timing.distinct_reads, 1.0))
    lasting_mhz = np.maximum(bias_mhz + repeated * error_mhz, timing.least_mhz)
    return MeanClock(
        in_mask_ns=in_mask_ns,
        covered_ns=covered_ns,
        in_class_ns=lengths_ns(in_class, windows.start_ns, windows.end_ns),
        mean_mhz=mean_mhz,
        half_width_mhz=half_mhz,
        pooled_mhz=pooled_mhz + np.maximum(bias_mhz, np.median(bias_mhz)),
        bias_mhz=np.minimum(lasting_mhz, half_mhz),
        blur_mhz=blur_mhz,
        clock=clock,
        covered=covered,
    )


def _signal(
    samples: LabelledSamples, level: LabelledSamples, running: RunningClass, mask: Intervals
) -> ClassClock:
    """The class's clock: through all samples of its level, else in class and corrected for that.

    Limits in force are always those at the class's own samples.
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
) -> Float64s:
    pieces = ClockPieces.of(clock, ())
    cycles = _between(pieces.locate_mask(covered), pieces.clock(), windows)
    unknown = np.full(len(windows), np.nan)
    mean: Float64s = np.divide(cycles, covered_ns, out=unknown, where=covered_ns > 0)
    return mean


def _change_by_lag_mhz(
    clock: ClassClock, covered: Intervals, windows: Windows, mean_mhz: Float64s, lag_ns: int
) -> Float64s:
    """By how much each window's mean changes if all samples lie `lag_ns` earlier; 0 if unknown."""
    if lag_ns == 0:
        return np.zeros(len(windows))
    earlier = replace(clock, edges_ns=clock.edges_ns - lag_ns)
    still = intervals.intersection(covered, earlier.covered_intervals())
    still_ns = lengths_ns(still, windows.start_ns, windows.end_ns)
    return np.nan_to_num(np.abs(_mean_mhz(earlier, still, still_ns, windows) - mean_mhz))


def _level_difference_mhz(
    samples: LabelledSamples, running: RunningClass, windows: Windows
) -> float:
    """How far the class's mean clock lies from that of everything else; 0 if there is no else.

    Only samples inside the windows count: what ran at others is not known.
    """
    inside = (samples.t_ns >= windows.start_ns.min()) & (samples.t_ns < windows.end_ns.max())
    member = inside & (samples.label == running)
    other = inside & (samples.label != running)
    if not member.any() or not other.any():
        return 0.0
    return abs(float(samples.clock_mhz[member].mean() - samples.clock_mhz[other].mean()))


@dataclass(frozen=True, slots=True, kw_only=True)
class CeilingLoss:
    """Time lost against the reference in each window.

    Attributes:
        lost_ns: (w,) int64.
        by_cause_ns: (w, causes) int64; each row sums to `lost_ns`.
        coarse: (w,) bool: fewer than 5 counter updates in the window.
    """

    lost_ns: Int64s
    by_cause_ns: Int64s
    coarse: Bools


def ceiling_loss(
    mean: MeanClock,
    windows: Windows,
    reference_mhz: float,
    limit_mhz: float | None,
    causes: Int64s,
    limited_ns: Mapping[Cause, Float64s],
) -> CeilingLoss:
    """∫ max(0, 1 - f/f_ref) dt over covered compute of each window, split by cause.

    What lies between the reference and the lowest standing limit is `user_limit`; the rest goes
    by the driver's counters and reason bits.

    Args:
        mean: The compute clock.
        windows: The windows it was taken over.
        reference_mhz: f_ref.
        limit_mhz: Lowest standing limit; None if there is none or it is not known.
        causes: (n,) int64 bit sets at the samples.
        limited_ns: (n,) cumulative counters at the samples.

    Source: DESIGN.md section 2, "Three losses" and "Cause".
    """
    limit_mhz = reference_mhz if limit_mhz is None else min(limit_mhz, reference_mhz)
    pieces = ClockPieces.of(mean.clock, (reference_mhz, limit_mhz))
    covered = pieces.locate_mask(mean.covered)
    total = _between(covered, pieces.deficit(reference_mhz), windows) / reference_mhz
    lost_ns = np.minimum(np.rint(total).astype(np.int64), mean.covered_ns)
    below = _between(covered, pieces.deficit(limit_mhz), windows) / reference_mhz
    left, right = edge_weights(mean.clock, end_shares(mean.clock, causes, limited_ns), limit_mhz)
    parts = np.zeros((len(windows), len(CAUSES)))
    for cause in np.flatnonzero(left.any(axis=0) | right.any(axis=0)):
        weighted = pieces.deficit(limit_mhz, (left[:, cause], right[:, cause]))
        parts[:, cause] = _between(covered, weighted, windows)
    parts = np.maximum(parts, 0.0)
    whole = parts.sum(axis=1)
    parts *= np.divide(below, whole, out=np.zeros(len(windows)), where=whole > 0)[:, np.newaxis]
    parts[:, Cause.UNEXPLAINED] += np.where(whole > 0, 0.0, below)
    parts[:, Cause.USER_LIMIT] += np.maximum(total - below, 0.0)
    return CeilingLoss(
        lost_ns=lost_ns,
        by_cause_ns=largest_remainder(parts, lost_ns),
        coarse=_coarse(mean.clock.edges_ns, limited_ns, windows),
    )


def _coarse(t_ns: Int64s, limited_ns: Mapping[Cause, Float64s], windows: Windows) -> Bools:
    updates = counter_updates(limited_ns, t_ns, windows.start_ns, windows.end_ns)
    if updates is None:
        return np.zeros(len(windows), bool)
    return updates < MIN_COUNTER_UPDATES


def _between(mask: MaskPositions, g: Primitive, windows: Windows) -> Float64s:
    return masked_integral(mask, g).between(windows.start_ns, windows.end_ns)
