"""How far a sampled mean clock may be from the truth: sampling error and timing bias."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from chopperd.correlate.signal import LabelledSamples, RunningClass
from chopperd.model.arrays import Float64s, Int64s
from chopperd.model.timeline import Intervals

MIN_RESIDUALS: Final = 30
MIN_FOR_A_RESIDUAL: Final = 3
Z_95: Final = 1.96
#: NVIDIA's clocks come in steps of 7.5 or 15 MHz (`nvidia-smi -q -d SUPPORTED_CLOCKS`), AMD's in 1.
LARGEST_STEP_MHZ: Final = 15.0
DITHERED_SPREAD: Final = 0.75
_UNCORRELATED: Final = 2 / 3
_SMOOTH: Final = 1 / 6


@dataclass(frozen=True, slots=True, kw_only=True)
class _Residuals:
    """Leave-one-out residuals of one class's samples, as running sums.

    Attributes:
        t_ns: (k,) int64, the class's samples.
        single, double: (k + 1,) float64, running sums of squared residuals at the samples'
            own and at double spacing, MHz^2.
        single_count, double_count: (k + 1,) int64, running counts of residuals.
    """

    t_ns: Int64s
    single: Float64s
    double: Float64s
    single_count: Int64s
    double_count: Int64s


def standard_error_mhz(
    samples: LabelledSamples,
    running: RunningClass,
    start_ns: Int64s,
    end_ns: Int64s,
    covered_ns: Int64s,
) -> Float64s:
    """Standard error in MHz of each window's mean in-class clock: (w,) float64, NaN if unknown.

    A class with too few samples for a residual has its clock from the line through all samples,
    and so its error.

    From leave-one-out residuals r_i = f_i - (f_{i-1} + f_{i+1}) / 2 of the class's samples in the
    window, or of the nearest 30 of them if it holds fewer: V1 = mean r^2, V2 the same at double
    spacing, k = clip(2/3 - (V2/V1 - 1)/2, 1/6, 2/3), se = sqrt(k V1 / n), n = covered time x rate.

    Source: DESIGN.md section 2, "Interval".
    """
    member = samples.label == running
    if np.count_nonzero(member) < MIN_FOR_A_RESIDUAL:
        member = np.ones(len(samples), bool)
    residuals = _residuals(samples.t_ns[member], samples.clock_mhz[member])
    first, last = _sample_range(residuals.t_ns, start_ns, end_ns)
    v1 = _mean(residuals.single, residuals.single_count, first, last)
    v2 = _mean(residuals.double, residuals.double_count, first, last)
    ratio = np.divide(v2, v1, out=np.ones_like(v1), where=(v1 > 0) & np.isfinite(v2))
    k = np.clip(_UNCORRELATED - (ratio - 1) / 2, _SMOOTH, _UNCORRELATED)
    n = covered_ns / max(samples.period_ns, 1)
    variance = np.divide(k * v1, n, out=np.full(len(n), np.nan), where=n > 0)
    error: Float64s = np.sqrt(variance)
    return error


def _residuals(t_ns: Int64s, clock_mhz: Float64s) -> _Residuals:
    single, double = _squares(clock_mhz, 1), _squares(clock_mhz, 2)
    return _Residuals(
        t_ns=t_ns,
        single=_running_sum(np.nan_to_num(single)),
        double=_running_sum(np.nan_to_num(double)),
        single_count=_running_count(single),
        double_count=_running_count(double),
    )


def _squares(clock_mhz: Float64s, spacing: int) -> Float64s:
    """Squared residual of each sample against its neighbours `spacing` away; NaN at the ends."""
    squares = np.full(len(clock_mhz), np.nan)
    if len(clock_mhz) > 2 * spacing:
        middle = clock_mhz[spacing:-spacing]
        neighbours = (clock_mhz[: -2 * spacing] + clock_mhz[2 * spacing :]) / 2
        squares[spacing:-spacing] = (middle - neighbours) ** 2
    return squares


def _running_sum(values: Float64s) -> Float64s:
    return np.concatenate(([0.0], np.cumsum(values)))


def _running_count(values: Float64s) -> Int64s:
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(np.isfinite(values))))


def _sample_range(t_ns: Int64s, start_ns: Int64s, end_ns: Int64s) -> tuple[Int64s, Int64s]:
    """The samples in each window, widened to the nearest `MIN_RESIDUALS` where it holds fewer."""
    first = np.searchsorted(t_ns, start_ns, "left")
    last = np.searchsorted(t_ns, end_ns, "left")
    few = last - first < MIN_RESIDUALS
    wide_first = np.clip((first + last - MIN_RESIDUALS) // 2, 0, max(len(t_ns) - MIN_RESIDUALS, 0))
    wide_last = np.minimum(wide_first + MIN_RESIDUALS, len(t_ns))
    return np.where(few, wide_first, first), np.where(few, wide_last, last)


def _mean(sums: Float64s, counts: Int64s, first: Int64s, last: Int64s) -> Float64s:
    total, count = sums[last] - sums[first], counts[last] - counts[first]
    mean: Float64s = np.divide(total, count, out=np.full(len(total), np.nan), where=count > 0)
    return mean


def misplaced_ratio(
    mask: Intervals, uncertainty_ns: float, start_ns: Int64s, end_ns: Int64s, in_class_ns: Int64s
) -> Float64s:
    """The share of each window's time in class that a timing error can have mislabelled: (w,).

    An edge misplaced by up to u moves at most min(u, length of the gap there) of the neighbours'
    time into the class; each entry into the class has one such gap.

    Args:
        mask: When the class ran.
        uncertainty_ns: u: half the read span, plus the join's and the lag's uncertainty.
        start_ns: (w,) int64, the windows' starts.
        end_ns: (w,) int64, their ends.
        in_class_ns: (w,) int64, time in class in each window.

    Source: DESIGN.md section 2, "timing_bias"; the gap's length as a bound is ours, as a device
    with gaps of microseconds between kernels enters the class 10^5 times a second.
    """
    gap_ns = np.full(len(mask), np.inf)
    gap_ns[1:] = mask.start_ns[1:] - mask.end_ns[:-1]
    running = np.concatenate(([0.0], np.cumsum(np.minimum(gap_ns, uncertainty_ns))))
    moved_ns = (
        running[np.searchsorted(mask.start_ns, end_ns, "left")]
        - running[np.searchsorted(mask.start_ns, start_ns, "left")]
    )
    share = np.divide(moved_ns, in_class_ns, out=np.zeros(len(moved_ns)), where=in_class_ns > 0)
    at_most_all: Float64s = np.minimum(share, 1.0)
    return at_most_all


def resolution_mhz(
    samples: LabelledSamples, running: RunningClass, start_ns: Int64s, end_ns: Int64s
) -> Float64s:
    """How far a sensor that rounds to steps may be off in each window's mean: (w,) float64, MHz.

    Half a step q where the clock hardly moves, as then every sample is rounded alike; a spread s
    of the samples dithers it away, wholly from 3/4 of a step on: q/2 (1 - s / (3/4 q)). The step
    is the smallest difference between any two values that the sensor showed, at most 15 MHz.

    Args:
        samples: All samples of the GPU.
        running: The class.
        start_ns: (w,) int64, the windows' starts.
        end_ns: (w,) int64, their ends.

    Source: a bound found by simulation (rounded normal clocks of any mean and spread).
    """
    levels = np.unique(samples.clock_mhz)
    if len(levels) < 2:
        return np.zeros(len(start_ns))
    step_mhz = min(float(np.diff(levels).min()), LARGEST_STEP_MHZ)
    member = samples.label == running
    t_ns, clock_mhz = samples.t_ns[member], samples.clock_mhz[member]
    first, last = _sample_range(t_ns, start_ns, end_ns)
    level_mhz = float(clock_mhz.mean()) if len(clock_mhz) else 0.0
    sums, squares = (_running_sum((clock_mhz - level_mhz) ** power) for power in (1, 2))
    count = np.maximum(last - first, 1)
    variance = (squares[last] - squares[first]) / count
    variance = np.maximum(variance - ((sums[last] - sums[first]) / count) ** 2, 0.0)
    spread = np.sqrt(variance) / step_mhz
    off: Float64s = step_mhz / 2 * np.maximum(1.0 - spread / DITHERED_SPREAD, 0.0)
    return off
