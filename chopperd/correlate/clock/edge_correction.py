"""Corrects what lines between samples miss where a class begins: the clock's settling there.

Just after compute begins the clock still falls towards its compute level. A sample taken there
stands for less time than its period (the line towards the class's previous sample lies mostly
outside the class), later ones for more, so lines lean to the settled level: up to 0.6 points of
gap at 10 Hz. Counting each sample for its whole period instead has no such bias but is noisy;
the difference of the two, pooled over the run and taken on residuals only, takes most of the bias
away for a little noise: what is left, and the price, stand in `docs/decisions/`.
"""

from dataclasses import replace
from typing import Final

import numpy as np

from chopperd.correlate.clock.signal import LabelledSamples, RunningClass
from chopperd.model.arrays import Bools, Float64s, Int64s
from chopperd.model.timeline import Intervals

MIN_SAMPLES: Final = 30


def border_correction_mhz(
    samples: LabelledSamples, running: RunningClass, mask: Intervals
) -> float:
    """What to add to the in-class clock so that its mean over the run is unbiased, MHz.

    For each in-class sample k with residual r_k against the line through its in-class neighbours:
    w_k is the time it stands for as one of all samples, a_k the class's time that the in-class
    lines give it; the correction is the mean of r weighted by w less that weighted by a. Samples
    beside a stretch that is not covered, or that hangs on other lines, are left out; with fewer
    than `MIN_SAMPLES` left the correction would be more noise than it takes away, and is 0.

    Args:
        samples: All samples of the GPU.
        running: The class.
        mask: When it ran; every sample of the class lies inside.
    """
    member = np.flatnonzero(samples.label == running)
    t_ns, clock_mhz = samples.t_ns[member], samples.clock_mhz[member]
    usable = _near_both(samples.t_ns, samples.max_gap_ns)[member]
    usable &= _near_both(t_ns, samples.max_in_class_gap_ns)
    if usable.sum() < MIN_SAMPLES:
        return 0.0
    residual = _residuals(t_ns, clock_mhz)[usable]
    stands_for_ns = _time_of_each(samples.t_ns)[member][usable]
    given_ns = _line_weights(t_ns, mask)[usable]
    by_time = np.average(residual, weights=stands_for_ns)
    return float(by_time - np.average(residual, weights=given_ns))


def _residuals(t_ns: Int64s, clock_mhz: Float64s) -> Float64s:
    """Each sample against the line through its neighbours; 0 at the ends."""
    residual = np.zeros(len(t_ns))
    share = (t_ns[1:-1] - t_ns[:-2]) / (t_ns[2:] - t_ns[:-2])
    on_line = clock_mhz[:-2] + share * (clock_mhz[2:] - clock_mhz[:-2])
    residual[1:-1] = clock_mhz[1:-1] - on_line
    return residual


def _time_of_each(t_ns: Int64s) -> Float64s:
    """Half the way between both neighbours, ns; 0 at the ends."""
    time_ns = np.zeros(len(t_ns))
    time_ns[1:-1] = (t_ns[2:] - t_ns[:-2]) / 2
    return time_ns


def _near_both(t_ns: Int64s, limit_ns: int) -> Bools:
    """Whether each sample has neighbours on both sides, neither further off than the limit."""
    both = np.zeros(len(t_ns), bool)
    near = np.diff(t_ns) <= limit_ns
    both[1:-1] = near[:-1] & near[1:]
    return both


def _line_weights(t_ns: Int64s, mask: Intervals) -> Float64s:
    """∫ over the mask of each sample's hat function (1 there, 0 at both neighbours), ns."""
    base_ns = int(t_ns[0])
    length, moment = _moments_before(mask, t_ns, base_ns)
    at = (t_ns - base_ns).astype(np.float64)
    length_between, moment_between = np.diff(length), np.diff(moment)
    to_later = (moment_between - at[:-1] * length_between) / np.diff(at)
    weights = np.zeros(len(t_ns))
    weights[1:] += to_later
    weights[:-1] += length_between - to_later
    return weights


def _moments_before(mask: Intervals, points_ns: Int64s, base_ns: int) -> tuple[Float64s, Float64s]:
    """∫ dt and ∫ (t - base) dt over the mask before each point."""
    start = (mask.start_ns - base_ns).astype(np.float64)
    end = (mask.end_ns - base_ns).astype(np.float64)
    point = (points_ns - base_ns).astype(np.float64)
    lengths = np.concatenate(([0.0], np.cumsum(end - start)))
    moments = np.concatenate(([0.0], np.cumsum((end**2 - start**2) / 2)))
    done = np.searchsorted(end, point, "right")
    current = np.minimum(done, len(mask) - 1)
    inside = (done < len(mask)) & (start[current] < point)
    length = lengths[done] + np.where(inside, point - start[current], 0.0)
    moment = moments[done] + np.where(inside, (point**2 - start[current] ** 2) / 2, 0.0)
    return length, moment


# Tells which classes run at one clock level, so that their samples can serve one another.
#
# Lines in class throw away what was sampled while something else ran. Where the clock does not
# depend on what runs that is a fifth of the samples, and those at the borders. So a class's
# samples are added to another's where its equality is shown, not where a difference is not: the
# whole interval of the difference must lie within 0.5 % (`docs/decisions/`).

MAX_DIFFERENCE_RATIO: Final = 0.005
MIN_LEVEL_SAMPLES: Final = 20
_BLOCKS: Final = 20
_MIN_IN_BLOCK: Final = 2


def pooled_by_level(samples: LabelledSamples, running: RunningClass) -> LabelledSamples:
    """The samples with those of classes at the same level labelled as `running`.

    The same object where no class is shown to be.
    """
    member = np.flatnonzero(samples.label == running)
    label = samples.label.copy()
    for other in RunningClass:
        mine = samples.label == other
        if other != running and is_one_level(samples, member, mine):
            label[mine] = running
    return samples if np.array_equal(label, samples.label) else replace(samples, label=label)


def is_one_level(samples: LabelledSamples, member: Int64s, other: Bools) -> bool:
    """Whether the other samples are shown to lie on the class's lines.

    Each other sample between two of the class is held against their line; d is the mean
    difference, its error comes from the means of up to 20 blocks of time (neighbouring samples
    are correlated), and |d| + 2 se must stay below 0.5 % of the class's mean clock.

    Args:
        samples: All samples.
        member: (k,) int64, indices of the class's samples.
        other: (n,) bool, the other class's.
    """
    difference = _off_the_lines_mhz(samples, member, np.flatnonzero(other))
    if len(difference) < MIN_LEVEL_SAMPLES:
        return False
    blocks = min(_BLOCKS, len(difference) // _MIN_IN_BLOCK)
    means = np.array([block.mean() for block in np.array_split(difference, blocks)])
    error = means.std(ddof=1) / np.sqrt(blocks)
    limit = MAX_DIFFERENCE_RATIO * samples.clock_mhz[member].mean()
    return bool(abs(means.mean()) + 2 * error < limit)


def _off_the_lines_mhz(samples: LabelledSamples, member: Int64s, other: Int64s) -> Float64s:
    """How far the clock at each of `other` lies off the class's line there: those with one."""
    t_ns, clock_mhz = samples.t_ns, samples.clock_mhz
    at = np.searchsorted(member, other)
    between = (at > 0) & (at < len(member))
    other, at = other[between], at[between]
    before, after = member[at - 1], member[at]
    near = t_ns[after] - t_ns[before] <= samples.max_in_class_gap_ns
    other, before, after = other[near], before[near], after[near]
    share = (t_ns[other] - t_ns[before]) / (t_ns[after] - t_ns[before])
    line_mhz = clock_mhz[before] + share * (clock_mhz[after] - clock_mhz[before])
    off: Float64s = clock_mhz[other] - line_mhz
    return off
