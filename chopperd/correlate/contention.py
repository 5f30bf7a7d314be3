"""Compute what runs at the same time: contention, and time that nothing hides.

Contention is how much longer kernels of a family take during communication than without.
"""

from enum import IntEnum
from math import comb, sqrt
from statistics import NormalDist
from typing import Final

import numpy as np
from msgspec import Struct

from chopperd.correlate.clock.precision import Z_95
from chopperd.correlate.intervals import length_ns, lengths_ns, union
from chopperd.correlate.waterfall import BusyMasks, is_class
from chopperd.model.arrays import Bools, Float64s, Int8s, Int32s, Int64s
from chopperd.model.kinds import COMPUTE_CLASSES, KERNEL_CLASSES, CopyDirection, KernelClass
from chopperd.model.timeline import DeviceTimeline, Intervals

#: Fewer kernels of a family, or in one of the two sets that an interval compares, are too few.
MIN_KERNELS: Final = 5
#: Upper over lower quartile of durations in one set above which a family's kernels are of several
#: sizes; alike ones stay below 1.2 in real traces.
MAX_QUARTILE_RATIO: Final = 1.5
_NORMAL_QUARTILE: Final = 0.6745
#: Above this many a binomial is as good as normal.
_EXACT_COUNT: Final = 200
_MOST_INT16: Final = 2**15 - 1


class ContentionReason(IntEnum):
    """Why a factor or its interval is missing; the value is its code in an int8 column."""

    NONE = 0
    FEW_KERNELS = 1
    SAME_OVERLAP = 2
    FEW_TO_COMPARE = 3
    SEVERAL_SIZES = 4


class ContentionTotals(Struct, frozen=True, kw_only=True):
    """Contention of each family that computes, (f,) each, by rising family; NaN unknown."""

    family: Int64s  # (f,) index into `Timeline.families`
    count: Int64s  # (f,) kernels of some length
    #: (f,) the factor with its 95 % interval.
    factor: Float64s
    low: Float64s
    high: Float64s
    e50_e0: Float64s  # (f,) Chopper's E50 / E0
    reason: Int8s  # (f,) `ContentionReason`
    #: Of each step's kernels with at least the median overlap, their time over what like kernels
    #: of the whole file with the least take: families with a factor, index as `Timeline.steps`.
    by_step: Float64s


class _Kernels(Struct, frozen=True, kw_only=True):
    """Kernels by family, then by overlap with communication, then by start."""

    family: Int64s  # (f,)
    #: (f,) where each family's kernels begin and how many they are.
    first: Int64s
    count: Int64s
    group: Int64s  # (n,) index of each kernel's family
    overlap_ratio: Float64s  # (n,)
    duration_ns: Int64s  # (n,)
    step: Int32s  # (n,) index into `Timeline.steps`; -1 none


def contention(timeline: DeviceTimeline, comm: Intervals) -> ContentionTotals | None:
    """Compute the contention factor of each kernel family; None where nothing communicates.

    The factor is the median duration of the kernels with at least the median overlap over that of
    the tenth with the least (and all with no more overlap than those). Overlap of a kernel is the
    share of its duration in which communication runs. It is NaN where kernels of a family are shown
    to differ in size: durations within one of the two sets differ much, or the interval would lie
    below 1.

    A longer kernel is likelier to be met by communication, which gives a factor of up to exp(s^2)
    where communication costs nothing, s being the deviation of the logarithm of durations: the
    lower end of the interval is divided by that.

    Source: DESIGN.md section 2. Interval: Price and Bonett, "Distribution-free confidence intervals
    for difference and ratio of medians", J. Stat. Comput. Simul. 72 (2002), which takes the kernels
    as independent. Lengths met with a chance in proportion to them: their median is exp(s^2) times
    as long, if log-normal.
    """
    if not len(comm):
        return None
    kernels = _by_overlap(timeline, comm)
    first, count, overlap_ratio = kernels.first, kernels.count, kernels.overlap_ratio
    below, above = first + (count - 1) // 2, first + count // 2
    middle = (overlap_ratio[below] + overlap_ratio[above]) / 2
    least = overlap_ratio[first + (count + 9) // 10 - 1]
    reason = np.where(middle > least, ContentionReason.NONE, ContentionReason.SAME_OVERLAP)
    reason[count < MIN_KERNELS] = ContentionReason.FEW_KERNELS
    compared = (reason == ContentionReason.NONE)[kernels.group]
    much = _medians(kernels, compared & (overlap_ratio >= middle[kernels.group]))
    little = _medians(kernels, compared & (overlap_ratio <= least[kernels.group]))
    factor = much.median_ns / little.median_ns
    spread = np.exp(Z_95 * np.hypot(much.log_error, little.log_error))
    reason[np.isfinite(factor) & ~np.isfinite(spread)] = ContentionReason.FEW_TO_COMPARE
    several_sizes = np.maximum(much.quartile_ratio, little.quartile_ratio) > MAX_QUARTILE_RATIO
    several_sizes |= factor * spread < 1
    reason[several_sizes] = ContentionReason.SEVERAL_SIZES
    factor[several_sizes] = np.nan
    # Deviation of the logarithms of durations, by quartiles as of a normal distribution.
    deviation = np.log(little.quartile_ratio) / (2 * _NORMAL_QUARTILE)
    return ContentionTotals(
        family=kernels.family,
        count=count,
        factor=factor,
        low=factor / spread * np.exp(-(deviation**2)),
        high=factor * spread,
        e50_e0=_e50_e0(kernels),
        reason=reason.astype(np.int8),
        by_step=_by_step(
            kernels,
            np.isfinite(factor)[kernels.group] & (overlap_ratio >= middle[kernels.group]),
            little.median_ns,
        ),
    )


def _by_overlap(timeline: DeviceTimeline, comm: Intervals) -> _Kernels:
    computes = is_class(timeline.kernel_class, COMPUTE_CLASSES)
    rows = np.flatnonzero(computes & (timeline.end_ns > timeline.start_ns))
    start_ns, end_ns = timeline.start_ns.take(rows), timeline.end_ns.take(rows)
    duration_ns = end_ns - start_ns
    overlap_ratio = lengths_ns(comm, start_ns, end_ns) / duration_ns
    of_family = timeline.family.take(rows)
    order = _order(of_family, overlap_ratio)
    counts = np.bincount(of_family, minlength=1)
    family = np.flatnonzero(counts)
    count = counts[family]
    return _Kernels(
        family=family,
        first=np.cumsum(count) - count,
        count=count,
        group=np.repeat(np.arange(len(family)), count),
        overlap_ratio=overlap_ratio.take(order),
        duration_ns=duration_ns.take(order),
        step=timeline.step.take(rows).take(order),
    )


def _by_step(kernels: _Kernels, chosen: Bools, alone_ns: Float64s) -> Float64s:
    """Return each step's time of chosen kernels over that of like ones alone; NaN without any.

    `alone_ns`: (f,) of each family.
    """
    rows = np.flatnonzero(chosen & (kernels.step >= 0))
    step = kernels.step.take(rows)
    taken_ns = np.bincount(step, kernels.duration_ns.take(rows))
    alone = np.bincount(step, alone_ns.take(kernels.group.take(rows)))
    found: Float64s = taken_ns / np.where(alone > 0, alone, np.nan)
    return found


def _order(family: Int32s, overlap_ratio: Float64s) -> Int64s:
    """Return the indices that sort by family, then overlap (most: none), then as given."""
    overlaps = overlap_ratio > 0
    groups = 2 * family.astype(np.int64) + overlaps
    if int(groups.max(initial=0)) <= _MOST_INT16:
        groups = groups.astype(np.int16)  # sorted by counting, without comparing
    order = np.argsort(groups, kind="stable")
    places = np.flatnonzero(overlaps.take(order))
    rows = order.take(places)
    order[places] = rows.take(np.lexsort((overlap_ratio.take(rows), family.take(rows))))
    return order


class _Medians(Struct, frozen=True, kw_only=True):
    """Statistics of each family's chosen kernels, (f,) float64: NaN without any, or too few."""

    median_ns: Float64s
    log_error: Float64s
    quartile_ratio: Float64s


def _medians(kernels: _Kernels, chosen: Bools) -> _Medians:
    """Compute median durations, standard errors of their logarithms, upper over lower quartiles."""
    rows = np.flatnonzero(chosen)
    rows = rows[np.lexsort((kernels.duration_ns[rows], kernels.group[rows]))]
    duration_ns = kernels.duration_ns[rows].astype(np.float64)
    count = np.bincount(kernels.group[rows], minlength=len(kernels.family))
    first = np.cumsum(count) - count
    median_ns, log_error, quartile_ratio = np.full((3, len(count)), np.nan)
    some = np.flatnonzero(count)
    middle = duration_ns[first[some] + (count[some] - 1) // 2]
    median_ns[some] = (middle + duration_ns[first[some] + count[some] // 2]) / 2
    many = np.flatnonzero(count >= MIN_KERNELS)
    sizes, which = np.unique(count[many], return_inverse=True)
    ranks = [_rank_and_z(size) for size in sizes.tolist()]
    rank = np.array([rank for rank, _ in ranks], np.int64)[which]
    z = np.array([z for _, z in ranks], np.float64)[which]
    low, high = first[many] + rank - 1, first[many] + count[many] - rank
    log_error[many] = np.log(duration_ns[high] / duration_ns[low]) / (2 * z)
    quarter = count[many] // 4
    upper_ns = duration_ns[first[many] + count[many] - 1 - quarter]
    quartile_ratio[many] = upper_ns / duration_ns[first[many] + quarter]
    return _Medians(median_ns=median_ns, log_error=log_error, quartile_ratio=quartile_ratio)


def _rank_and_z(count: int) -> tuple[int, float]:
    """Return the rank from either end of the values that bound the median, and their distance.

    That is in standard errors of the median.

    Source: Price and Bonett (2002): rank (n + 1) / 2 - sqrt(n), and the normal quantile of the
    binomial chance that fewer than `rank` of n values lie below the median.
    """
    rank = max(round((count + 1) / 2 - sqrt(count)), 1)
    if count > _EXACT_COUNT:
        return rank, (count - 2 * rank + 1) / sqrt(count)
    chance = sum(comb(count, below) for below in range(rank)) / 2**count
    return rank, -NormalDist().inv_cdf(chance)


def _e50_e0(kernels: _Kernels) -> Float64s:
    """Compute Chopper's overlap overhead E50 / E0 of each family: (f,) float64.

    The duration of the kernel in the middle by overlap over that of the first, at least 1; 1 where
    the middle one has no overlap. Where this uses kernels, Chopper uses instances of operations.

    Source: UnaryLab/chopper `plots/overhead_breakdown.py`: the instance whose share of the
    cumulated distribution, 100 (i + 1) / n, is nearest 50, the first of two.
    """
    first, count = kernels.first, kernels.count
    lower = np.maximum(count // 2, 1)
    upper = np.minimum(lower + 1, count)
    apart_lower, apart_upper = (np.abs(100 * one / count - 50) for one in (lower, upper))
    middle = first + np.where(apart_upper < apart_lower, upper, lower) - 1
    ratio = np.maximum(kernels.duration_ns[middle] / kernels.duration_ns[first], 1.0)
    return np.where(kernels.overlap_ratio[middle] > 0, ratio, 1.0)


# For how long each class ran with nothing at the same time that hides it.


def exposed_by_class_ns(timeline: DeviceTimeline, masks: BusyMasks) -> Int64s:
    """Compute for how long each class ran exposed, over the whole file: (classes,) int64 ns.

    A class of compute is exposed while no other class of compute runs; communication and copies
    beside it do not hide it, as it hides them. Communication is exposed while no compute runs,
    copies while neither does, fills while no copy does either. No ns counts for two classes:
    communication, copies and fills sum to the waterfall's rows, and the classes of compute to its
    compute less the time in which several of them run at once.
    """
    copies_ns = {way: length_ns(mask) for way, mask in masks.exposed_copy_by.items()}
    exposed_ns = _alone_ns(timeline)
    exposed_ns[KernelClass.COMM] = length_ns(masks.exposed_comm)
    exposed_ns[KernelClass.MEMSET] = copies_ns.pop(CopyDirection.MEMSET)
    exposed_ns[KernelClass.MEMCPY] = sum(copies_ns.values())
    return exposed_ns


def _alone_ns(timeline: DeviceTimeline) -> Int64s:
    """Compute for how long just one class of compute runs, by class: (classes,) int64 ns."""
    length = timeline.end_ns - timeline.start_ns
    rows = np.flatnonzero(is_class(timeline.kernel_class, COMPUTE_CLASSES) & (length > 0))
    start_ns, end_ns = timeline.start_ns.take(rows), timeline.end_ns.take(rows)
    kernel_class = timeline.kernel_class.take(rows)
    # Few records overlap others: only their unions by class are walked through.
    apart = start_ns[1:] >= np.maximum.accumulate(end_ns)[:-1]
    edge = np.ones(min(len(rows), 1), bool)
    lonely = np.concatenate((edge, apart)) & np.concatenate((apart, edge))
    total = np.zeros(len(KERNEL_CLASSES))
    total += np.bincount(kernel_class[lonely], length[rows[lonely]], len(total))
    crowded = np.flatnonzero(~lonely)
    masks = [
        (kind, union(start_ns[mine], end_ns[mine]))
        for kind in np.unique(kernel_class[crowded]).tolist()
        for mine in (crowded[kernel_class[crowded] == kind],)
    ]
    if masks:
        t_ns = np.concatenate([each for _, mask in masks for each in (mask.start_ns, mask.end_ns)])
        change = np.concatenate([np.repeat([1, -1], len(mask)) for _, mask in masks])
        kinds = np.repeat([kind for kind, _ in masks], [2 * len(mask) for _, mask in masks])
        order = np.argsort(t_ns, kind="stable")
        running, kind = np.cumsum(change[order])[:-1], np.cumsum((change * kinds)[order])[:-1]
        single, between_ns = running == 1, np.diff(t_ns[order])
        total += np.bincount(kind[single], between_ns[single], len(total))
    return total.astype(np.int64)
