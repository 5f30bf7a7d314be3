"""Estimate how far a sampled mean clock may be from the truth: sampling error and timing bias."""

from itertools import pairwise
from typing import Final

import numpy as np
from msgspec import Struct

from chopperd.correlate.clock.lag import LagEstimate
from chopperd.correlate.clock.signal import LabelledSamples, RunningClass
from chopperd.model.arrays import Bools, Float64s, Int64s
from chopperd.model.devices import GpuInfo, Vendor
from chopperd.model.timeline import Intervals

MIN_RESIDUALS: Final = 30
MIN_FOR_A_RESIDUAL: Final = 3
Z_95: Final = 1.96
#: NVIDIA's clocks come in steps of 7.5 or 15 MHz (`nvidia-smi -q -d SUPPORTED_CLOCKS`), AMD's in 1.
LARGEST_STEP_MHZ: Final = 15.0
LEAST_HALF_STEP_MHZ: Final = 1.0
DITHERED_SPREAD: Final = 0.75
#: The mean square of residuals at double spacing over that at single: 2 for a random walk and for
#: a clock that hops, up to 8 for averages of these over several samples.
SMOOTH_RATIO: Final = 2.6
_SPACINGS: Final = (1, 2, 4, 8, 16)
#: Spacings that spread by less than this share of the period are regular.
REGULAR_RATIO: Final = 0.05
_UNCORRELATED: Final = 2 / 3
_SMOOTH: Final = 1 / 6


class TimingUncertainty(Struct, frozen=True, kw_only=True):
    """How far samples may lie from their assigned instants, and their clocks from the true ones."""

    join_ns: float  # half the read span plus the uncertainty of the common time axis
    lag_ns: int  # how much larger or smaller the sensor's lag may be than what was subtracted
    #: For how long after a border the sensor may show a mixture, and of clocks how far apart; 0
    #: where it is known to show instants.
    settling_ns: int = 0
    swing_mhz: float = 0.0
    instant: bool = True  # whether that is known
    least_mhz: float = 0.0  # half a step of the sensor: no interval reaches less far to either side
    #: At how many different points of the step reads were taken while the class ran; inf unless
    #: they come at regular intervals.
    distinct_reads: float = np.inf

    @property
    def total_ns(self) -> float:
        """How far in ns a sample may lie from its instant."""
        return self.join_ns + self.lag_ns


def timing_of(
    gpu: GpuInfo,
    lag: LagEstimate,
    known_ns: int | None,
    join_ns: float,
    clock_mhz: Float64s,
    distinct_reads: float,
) -> TimingUncertainty:
    """Compute the timing uncertainty from what is known of the GPU's sensor.

    Averaging and settling cannot be distinguished, so the interval must hold both unless the sensor
    is known to show instants. Where its lag is known and shorter than the one measured, the rest
    of that is time over which it averages, too.

    `known_ns`: the lag of its sensor that was subtracted; None if the measured one was.

    Source: DESIGN.md section 2, "Clock signal".
    """
    instant = gpu.sm_clock_average_ns == 0
    settling_ns = lag.settling_ns
    if known_ns is not None and lag.lag_ns is not None:
        settling_ns += max(lag.lag_ns - known_ns, 0)
    return TimingUncertainty(
        join_ns=join_ns,
        lag_ns=lag.uncertainty_ns if known_ns is None else 0,
        settling_ns=0 if instant else settling_ns,
        swing_mhz=0.0 if instant else lag.swing_mhz,
        instant=instant,
        least_mhz=half_step_mhz(gpu.vendor, clock_mhz),
        distinct_reads=distinct_reads,
    )


def known_lag_ns(gpu: GpuInfo) -> int | None:
    """Return the known lag of a sensor update in ns; None if unknown.

    It is that of a read less half a period, the mean age of an update when read.
    """
    if gpu.sensor_lag_ns is None:
        return None
    return max(gpu.sensor_lag_ns - (gpu.sm_clock_period_ns or 0) // 2, 0)


def is_regular(t_ns: Int64s) -> bool:
    """Whether reads come at regular intervals: their spacings spread by less than 5 % of a period.

    The spread is half of what holds two thirds of them; a few late reads do not count.

    Source: DESIGN.md section 2, "Interval".
    """
    if len(t_ns) < MIN_RESIDUALS:
        return False
    low, period, high = np.quantile(np.diff(t_ns), [1 / 6, 1 / 2, 5 / 6])
    return bool((high - low) / 2 < REGULAR_RATIO * period)


def distinct_reads(samples: LabelledSamples, start_ns: Int64s, end_ns: Int64s) -> float:
    """Estimate at how many different points of a step compute was read regularly; inf without any.

    Their phases in the step fall into as many cells as there are reads: random ones fill 1 - 1/e
    of them, ones that keep a beat with the step few.

    `start_ns`: (s,), the steps' starts, rising.
    """
    t_ns = samples.t_ns[samples.label == RunningClass.COMPUTE]
    step = np.searchsorted(start_ns, t_ns, "right") - 1
    inside = step >= 0
    inside[inside] = t_ns[inside] < end_ns[step[inside]]
    t_ns, step = t_ns[inside], step[inside]
    if not len(t_ns):
        return np.inf
    phase = (t_ns - start_ns[step]) / (end_ns[step] - start_ns[step])
    filled = len(np.unique((phase * len(phase)).astype(np.int64)))
    return min(filled / (1 - 1 / np.e), float(len(phase)))


def standard_errors_mhz(
    samples: LabelledSamples,
    running: RunningClass,
    windows: tuple[Int64s, Int64s],
    counts: Float64s,
    borders: Float64s | None = None,
) -> tuple[Float64s, Float64s]:
    """Estimate the standard error of each window's mean in-class clock: (w,) MHz, NaN if unknown.

    Return it by the window's own residuals, and by those of all samples. A class with too few
    samples for a residual has its clock from the line through all samples, and so its error.

    From leave-one-out residuals r_i = f_i - (f_{i-1} + f_{i+1}) / 2 of the class's samples in the
    window, or of the nearest 30 of them if it holds fewer: V1 = mean r^2, V2 the same at double
    spacing, k = clip(2/3 - (V2/V1 - 1)/2, 1/6, 2/3), se = sqrt(k V1 / n), n = covered time x rate.

    `borders`: (w,) the share of each window's time in class that an average over 2
    `UNMEASURED_LAG_NS` mixes with what comes before and after, as independent errors; None if the
    sensor is known to show instants. Where the samples seem smooth, the lowest k is not believed,
    as it may be the sensor that is smooth, and the borders count.

    Source: DESIGN.md section 2, "Interval".
    """
    member = samples.label == running
    if np.count_nonzero(member) < MIN_FOR_A_RESIDUAL:
        member = np.ones(len(samples), bool)
    t_ns, clock_mhz = samples.t_ns[member], samples.clock_mhz[member]
    first, last = _sample_range(t_ns, *windows)
    first, last = np.append(first, 0), np.append(last, len(t_ns))  # last: over all samples
    v1, v2 = (_means(_squares(clock_mhz, spacing), first, last) for spacing in (1, 2))
    smooth = borders is not None and _is_smooth(clock_mhz)
    square = _k(v1, v2, _UNCORRELATED if smooth else _SMOOTH) * v1
    n = np.where(counts > 0, counts, np.nan)
    own, pooled = np.sqrt(square[:-1] / n), np.sqrt(square[-1] / n)
    if borders is not None and smooth:
        mixed = borders * float(clock_mhz.std())
        return np.hypot(own, mixed), np.hypot(pooled, mixed)
    return own, pooled


def _is_smooth(clock_mhz: Float64s) -> bool:
    """Whether residuals grow faster with the spacing than those of any clock that jumps.

    Residuals at spacings of 1, 2, 4, 8 and 16 samples are compared, each with the next: rounding
    hides the growth at the shortest, and beyond the time of an average it ends.
    """
    spacings = [spacing for spacing in _SPACINGS if len(clock_mhz) >= MIN_RESIDUALS + 2 * spacing]
    v = [float(np.nanmean(_squares(clock_mhz, spacing))) for spacing in spacings]
    return any(wider > SMOOTH_RATIO * near for near, wider in pairwise(v))


def _k(v1: Float64s, v2: Float64s, least: float) -> Float64s:
    ratio = np.divide(v2, v1, out=np.ones_like(v1), where=(v1 > 0) & np.isfinite(v2))
    return np.clip(_UNCORRELATED - (ratio - 1) / 2, least, _UNCORRELATED)


def _squares(clock_mhz: Float64s, spacing: int) -> Float64s:
    """Squared residual of each sample against its neighbours `spacing` away; NaN at the ends."""
    squares = np.full(len(clock_mhz), np.nan)
    if len(clock_mhz) > 2 * spacing:
        middle = clock_mhz[spacing:-spacing]
        neighbours = (clock_mhz[: -2 * spacing] + clock_mhz[2 * spacing :]) / 2
        squares[spacing:-spacing] = (middle - neighbours) ** 2
    return squares


def _running_sum(values: Float64s | Bools) -> Float64s:
    return np.concatenate(([0.0], np.cumsum(values)))


def _sample_range(t_ns: Int64s, start_ns: Int64s, end_ns: Int64s) -> tuple[Int64s, Int64s]:
    """Return the rows [first, last) in each window, or the nearest `MIN_RESIDUALS` if fewer."""
    first = np.searchsorted(t_ns, start_ns, "left")
    last = np.searchsorted(t_ns, end_ns, "left")
    few = last - first < MIN_RESIDUALS
    wide_first = np.clip((first + last - MIN_RESIDUALS) // 2, 0, max(len(t_ns) - MIN_RESIDUALS, 0))
    wide_last = np.minimum(wide_first + MIN_RESIDUALS, len(t_ns))
    return np.where(few, wide_first, first), np.where(few, wide_last, last)


def _means(squares: Float64s, first: Int64s, last: Int64s) -> Float64s:
    """Compute the mean of the squares that are not NaN over rows [first, last); NaN without any."""
    sums, counts = _running_sum(np.nan_to_num(squares)), _running_sum(np.isfinite(squares))
    total, count = sums[last] - sums[first], counts[last] - counts[first]
    mean: Float64s = np.divide(total, count, out=np.full(len(total), np.nan), where=count > 0)
    return mean


def misplaced_ratio(
    mask: Intervals, uncertainty_ns: float, start_ns: Int64s, end_ns: Int64s, in_class_ns: Int64s
) -> Float64s:
    """Bound the share of each window's time in class that a timing error has mislabelled: (w,).

    An edge misplaced by up to u moves at most min(u, length of the gap there) of the neighbours'
    time into the class; each entry into the class has one such gap.

    `uncertainty_ns` is u: half the read span, plus the join's and the lag's uncertainty.

    Source: DESIGN.md section 2, "timing_bias"; the gap's length as a bound is ours, as a device
    with gaps of microseconds between kernels enters the class 10^5 times a second.
    """
    moved_ns = _of_entries(mask, start_ns, end_ns, np.minimum(_gaps_ns(mask), uncertainty_ns))
    share = np.divide(moved_ns, in_class_ns, out=np.zeros(len(moved_ns)), where=in_class_ns > 0)
    return np.minimum(share, 1.0)


def mixed_ratio(
    mask: Intervals, mixing_ns: float, start_ns: Int64s, end_ns: Int64s, in_class_ns: Int64s
) -> Float64s:
    """Compute `misplaced_ratio` for independent errors at both borders of each entry: (w,)."""
    square = np.minimum(_gaps_ns(mask), mixing_ns) ** 2
    moved_ns = np.sqrt(2 * _of_entries(mask, start_ns, end_ns, square))
    return np.divide(moved_ns, in_class_ns, out=np.zeros(len(moved_ns)), where=in_class_ns > 0)


def _gaps_ns(mask: Intervals) -> Float64s:
    """Return the time in ns since the class last ran at each of its entries; inf at the first."""
    gap_ns = np.full(len(mask), np.inf)
    gap_ns[1:] = mask.start_ns[1:] - mask.end_ns[:-1]
    return gap_ns


def _of_entries(mask: Intervals, start_ns: Int64s, end_ns: Int64s, each: Float64s) -> Float64s:
    """Sum `each`, a value of each entry into the class, over the entries in each window."""
    running = _running_sum(each)
    return (
        running[np.searchsorted(mask.start_ns, end_ns, "left")]
        - running[np.searchsorted(mask.start_ns, start_ns, "left")]
    )


def half_step_mhz(vendor: Vendor, clock_mhz: Float64s) -> float:
    """Return half a step of the sensor, MHz: the least by which any mean clock may be off.

    Source: DESIGN.md section 2, "Interval".
    """
    if vendor is Vendor.NVIDIA:
        return LARGEST_STEP_MHZ / 2
    steps = np.diff(np.unique(clock_mhz))
    return max(float(steps.min()) / 2, LEAST_HALF_STEP_MHZ) if len(steps) else LEAST_HALF_STEP_MHZ


def resolution_mhz(
    samples: LabelledSamples, running: RunningClass, start_ns: Int64s, end_ns: Int64s
) -> Float64s:
    """Bound the error that a sensor's steps make in each window's mean: (w,) float64, MHz.

    Half a step q where the clock hardly moves, as then every sample is rounded alike; a spread s
    of the samples dithers it away, fully from 3/4 of a step on: q/2 (1 - s / (3/4 q)). The step
    is the smallest difference between any two values that the sensor showed, at most 15 MHz.

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
