"""The clock as a function of time: in-class lines between samples, and their exact integrals.

Clocks follow what runs, so a line drawn across a compute/communication border would mix two
levels (2.5-3.8 points of bias at 10 Hz). Each sample is therefore labelled with what ran at its
instant, and inside a class the clock is linear between the nearest samples of that class.
"""

from enum import IntEnum
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopperd.model.arrays import Bools, Float64s, Int8s, Int64s
from chopperd.model.timeline import Intervals
from chopperd.units import NS_PER_S

MAX_GAP_PERIODS: Final = 3
MAX_IN_CLASS_GAP_NS: Final = NS_PER_S


class RunningClass(IntEnum):
    """What a device did at an instant, by the waterfall's precedence."""

    COMPUTE = 0
    COMM = 1
    COPY = 2
    IDLE = 3


class LabelledSamples(Struct, frozen=True, kw_only=True):
    """Clock samples of one GPU, on the trace's time axis, with what ran at each."""

    t_ns: Int64s  # (n,) strictly rising, sensor lag already subtracted
    clock_mhz: Float64s  # (n,) no NaN
    label: Int8s  # (n,) `RunningClass`
    period_ns: int  # period as achieved: median spacing; 0 with fewer than two samples

    def __len__(self) -> int:
        return len(self.t_ns)

    @property
    def max_gap_ns(self) -> int:
        """Longest spacing of samples, ns, across which the time between them is covered."""
        return MAX_GAP_PERIODS * self.period_ns

    @property
    def max_in_class_gap_ns(self) -> int:
        """Longest spacing of samples of a class, ns, that a line of the class joins."""
        return max(self.max_gap_ns, MAX_IN_CLASS_GAP_NS)


class ClassClock(Struct, frozen=True, kw_only=True):
    """The clock while one class runs: linear on each piece between neighbouring samples."""

    edges_ns: Int64s  # (m + 1,) piece j is [edges[j], edges[j + 1])
    #: (m,) the line's ends; NaN where nothing is covered.
    left_mhz: Float64s
    right_mhz: Float64s
    #: (m,) the samples whose limits explain the clock: those that the line joins.
    left_sample: Int64s
    right_sample: Int64s
    covered: Bools  # (m,)
    in_class: Bools  # (m,) whether the line joins samples of the class and of no other

    def covered_intervals(self) -> Intervals:
        """The covered time, abutting pieces merged."""
        return _runs(self.edges_ns, self.covered)

    def in_class_intervals(self) -> Intervals:
        """The covered time in which the line joins samples of the class."""
        return _runs(self.edges_ns, self.covered & self.in_class)


def achieved_period_ns(t_ns: Int64s) -> int:
    """The median spacing of samples in ns; 0 with fewer than two."""
    return int(np.median(np.diff(t_ns))) if len(t_ns) > 1 else 0


def class_clock(samples: LabelledSamples, running: RunningClass | None) -> ClassClock:
    """Compute the clock while `running` runs; with None, the line through all (at least 2) samples.

    Nothing is covered before the first and after the last sample, nor between samples further
    apart than three periods. Inside, the line joins the nearest samples of the class where these
    are no further apart than max(3 periods, 1 s), else the nearest samples of any class.

    Source: DESIGN.md section 2, "Clock signal".
    """
    t_ns, count = samples.t_ns, len(samples)
    pieces = np.arange(count - 1)
    spacing_ns = np.diff(t_ns)
    covered = spacing_ns <= samples.max_gap_ns
    member = np.ones(count, bool) if running is None else samples.label == running
    before, after = _bracket(member, pieces)
    bracketed = (before >= 0) & (after < count)
    before, after = np.where(bracketed, before, pieces), np.where(bracketed, after, pieces + 1)
    in_class = bracketed & (t_ns[after] - t_ns[before] <= samples.max_in_class_gap_ns)
    before, after = np.where(in_class, before, pieces), np.where(in_class, after, pieces + 1)
    left, right = _on_lines(samples, before, after)
    return ClassClock(
        edges_ns=t_ns,
        left_mhz=np.where(covered, left, np.nan),
        right_mhz=np.where(covered, right, np.nan),
        left_sample=before,
        right_sample=after,
        covered=covered,
        in_class=in_class & (running is not None),
    )


def _bracket(member: Bools, pieces: Int64s) -> tuple[Int64s, Int64s]:
    """Return each piece's last member at or before it (-1: none) and first after it (n: none)."""
    count = len(member)
    index = np.arange(count)
    last = np.maximum.accumulate(np.where(member, index, -1))
    following = np.minimum.accumulate(np.where(member, index, count)[::-1])[::-1]
    return last[pieces], following[pieces + 1]


def _on_lines(samples: LabelledSamples, before: Int64s, after: Int64s) -> tuple[Float64s, Float64s]:
    """Return the clock at each piece's start and end on the line through `before` and `after`."""
    start_ns, start_mhz = samples.t_ns[before], samples.clock_mhz[before]
    length_ns = np.maximum(samples.t_ns[after] - start_ns, 1)
    rise_mhz = samples.clock_mhz[after] - start_mhz
    left, right = (
        start_mhz + (t_ns - start_ns) / length_ns * rise_mhz
        for t_ns in (samples.t_ns[:-1], samples.t_ns[1:])
    )
    return left, right


def _runs(edges_ns: Int64s, wanted: Bools) -> Intervals:
    padded = np.concatenate(([False], wanted, [False]))
    change = np.flatnonzero(padded[1:] != padded[:-1])
    return Intervals(start_ns=edges_ns[change[::2]], end_ns=edges_ns[change[1::2]])


# Just after compute begins the clock still falls towards its compute level. A sample taken there
# represents less time than its period (the line towards the class's previous sample lies mostly
# outside the class), later ones more, so lines lean to the settled level: up to 0.6 points of gap
# at 10 Hz. Weighting each sample by its whole period instead has no such bias but is noisy; the
# difference of the two, pooled over the run and taken on residuals only, removes most of the bias
# for a little noise (`docs/decisions/`).

MIN_SAMPLES: Final = 30


def border_correction_mhz(
    samples: LabelledSamples, running: RunningClass, mask: Intervals
) -> float:
    """Compute what to add to the in-class clock so that its mean over the run is unbiased, MHz.

    For each in-class sample k with residual r_k against the line through its in-class neighbours:
    w_k is the time it represents as one of all samples, a_k the class's time that the in-class
    lines give it; the correction is the mean of r weighted by w less that weighted by a. Samples
    next to a stretch that is not covered, or not on an in-class line, are left out; with fewer
    than `MIN_SAMPLES` left the correction would be more noise than it takes away, and is 0.

    `mask`: when it ran; every sample of the class lies inside.
    """
    member = np.flatnonzero(samples.label == running)
    t_ns, clock_mhz = samples.t_ns[member], samples.clock_mhz[member]
    usable = _near_both(samples.t_ns, samples.max_gap_ns)[member]
    usable &= _near_both(t_ns, samples.max_in_class_gap_ns)
    if usable.sum() < MIN_SAMPLES:
        return 0.0
    residual = _residuals(t_ns, clock_mhz)[usable]
    represented_ns = _time_of_each(samples.t_ns)[member][usable]
    given_ns = _line_weights(t_ns, mask)[usable]
    by_time = np.average(residual, weights=represented_ns)
    return float(by_time - np.average(residual, weights=given_ns))


def _residuals(t_ns: Int64s, clock_mhz: Float64s) -> Float64s:
    """Return each sample less the line through its two neighbours, MHz; 0 at the ends."""
    residual = np.zeros(len(t_ns))
    share = (t_ns[1:-1] - t_ns[:-2]) / (t_ns[2:] - t_ns[:-2])
    on_line = clock_mhz[:-2] + share * (clock_mhz[2:] - clock_mhz[:-2])
    residual[1:-1] = clock_mhz[1:-1] - on_line
    return residual


def _time_of_each(t_ns: Int64s) -> Float64s:
    """Return half the time between each sample's two neighbours, ns; 0 at the ends."""
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
    """Integrate each sample's hat function (1 there, 0 at both neighbours) over the mask, ns."""
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
    """Integrate dt and (t - base) dt over the mask up to each point, ns and ns^2."""
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


# Lines in class drop what was sampled while something else ran: a fifth of the samples, and those
# at the borders, where the clock does not depend on what runs. So a class's samples are added to
# another's where both are shown to be at one level: the whole interval of the difference must lie
# within 0.5 % (`docs/decisions/`).

MAX_DIFFERENCE_RATIO: Final = 0.005
MIN_LEVEL_SAMPLES: Final = 20
_BLOCKS: Final = 20
_MIN_IN_BLOCK: Final = 2


def pooled_by_level(samples: LabelledSamples, running: RunningClass) -> LabelledSamples:
    """Relabel as `running` the samples of classes that are shown to be at its clock level.

    Returns `samples` itself where no class is shown to be.
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

    Each other sample between two of the class is compared with their line; d is the mean
    difference, its error comes from the means of up to 20 blocks of time (neighbouring samples
    are correlated), and |d| + 2 se must stay below 0.5 % of the class's mean clock.

    `member`: (k,), indices of the class's samples.
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
    """Return the clock at `other` less the class's line there, MHz; only of those with a line."""
    t_ns, clock_mhz = samples.t_ns, samples.clock_mhz
    at = np.searchsorted(member, other)
    between = (at > 0) & (at < len(member))
    other, at = other[between], at[between]
    before, after = member[at - 1], member[at]
    near = t_ns[after] - t_ns[before] <= samples.max_in_class_gap_ns
    other, before, after = other[near], before[near], after[near]
    share = (t_ns[other] - t_ns[before]) / (t_ns[after] - t_ns[before])
    line_mhz = clock_mhz[before] + share * (clock_mhz[after] - clock_mhz[before])
    return clock_mhz[other] - line_mhz
