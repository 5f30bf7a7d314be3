"""Device records taken together by a column (family, operation, layer, phase): time, clock, loss.

What each record adds is worked out once; every grouping only sums it.
"""

from dataclasses import dataclass

import numpy as np

from chopperd.correlate.order import places_of_spans
from chopperd.correlate.pieces import ClockPieces
from chopperd.correlate.signal import Primitive
from chopperd.correlate.waterfall import is_class
from chopperd.model.arrays import Float64s, Int8s, Int32s, Int64s
from chopperd.model.classes import COMPUTE_CLASSES
from chopperd.model.timeline import DeviceTimeline


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordFigures:
    """What each record of a device adds to the figures of its group.

    Attributes:
        duration_ns: (n,) int64.
        samples: (n,) int64, clock samples that fell into it.
        compute: (m,) int64, which records the rest is of: those that compute; none without samples.
        cycles, covered_ns: (m,) float64, MHz x ns and ns covered by samples.
        lost: (m,) float64, ceiling loss x f_ref in MHz x ns; where k compute kernels run at once
            each carries 1/k. None without a reference.
        reference_mhz: f_ref; None if unknown.
    """

    duration_ns: Int64s
    samples: Int64s
    compute: Int64s
    cycles: Float64s
    covered_ns: Float64s
    lost: Float64s | None
    reference_mhz: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTotals:
    """Figures of each group that occurs on a device, (g,) each, longest first.

    Attributes:
        group: (g,) int64, its number in the column; -1 for records of which it is not known.
        first: (g,) int64, its first record.
        count: (g,) int64.
        time_ns: (g,) int64, sum of durations (not a union).
        samples: (g,) int64, clock samples that fell into its records.
        mean_mhz: (g,) float64, over its covered compute; NaN for others and where not covered.
        lost_ns: (g,) float64, ceiling loss. NaN for groups without covered compute, or without a
            reference.
    """

    group: Int64s
    first: Int64s
    count: Int64s
    time_ns: Int64s
    samples: Int64s
    mean_mhz: Float64s
    lost_ns: Float64s

    def __len__(self) -> int:
        """The number of groups."""
        return len(self.group)


def record_figures(
    timeline: DeviceTimeline,
    pieces: ClockPieces | None,
    reference_mhz: float | None,
    sample_t_ns: Int64s,
) -> RecordFigures:
    """What each record adds.

    Args:
        timeline: The device.
        pieces: The compute clock, cut at the reference; None without samples.
        reference_mhz: f_ref; None if unknown.
        sample_t_ns: (s,) int64, times of the clock samples, rising.
    """
    first_hit, hits = places_of_spans(sample_t_ns, timeline.start_ns, timeline.end_ns, "left")
    hits -= first_hit
    duration_ns = timeline.end_ns - timeline.start_ns
    if pieces is None:
        return RecordFigures(
            duration_ns=duration_ns,
            samples=hits,
            compute=np.empty(0, np.int64),
            cycles=np.empty(0),
            covered_ns=np.empty(0),
            lost=None,
            reference_mhz=reference_mhz,
        )
    compute = np.flatnonzero(is_class(timeline.kernel_class, COMPUTE_CLASSES))
    start, end = timeline.start_ns[compute], timeline.end_ns[compute]
    spans = pieces.locate_spans(start, end)

    def over(g: Primitive) -> Float64s:
        return g.over(spans)

    lost: Float64s | None = None
    if reference_mhz is not None:
        deficit = pieces.deficit(reference_mhz)
        lost = deficit.over(spans)
        crowded = _crowded(start, end)
        ends = [deficit.at(ends.of(crowded)) for ends in (spans.start, spans.end)]
        lost[crowded] = _shared(np.concatenate(ends), start[crowded], end[crowded])
    return RecordFigures(
        duration_ns=duration_ns,
        samples=hits,
        compute=compute,
        cycles=over(pieces.clock()),
        covered_ns=over(pieces.coverage()),
        lost=lost,
        reference_mhz=reference_mhz,
    )


def group_totals(column: Int32s | Int8s, figures: RecordFigures) -> GroupTotals:
    """The figures of each group of records.

    Args:
        column: (n,) int32 or int8, the number of each record's group; -1 not known.
        figures: What each record adds.
    """
    group, first, inverse = _distinct(column)

    def sums(values: Int64s | Float64s) -> Float64s:
        return np.bincount(inverse, values, len(group)).astype(np.float64)

    mean_mhz, lost_ns = _clock_figures(figures, inverse, len(group))
    time_ns = np.rint(sums(figures.duration_ns)).astype(np.int64)
    order = np.argsort(-time_ns, kind="stable")
    return GroupTotals(
        group=group[order],
        first=first[order],
        count=np.bincount(inverse, minlength=len(group))[order],
        time_ns=time_ns[order],
        samples=sums(figures.samples).astype(np.int64)[order],
        mean_mhz=mean_mhz[order],
        lost_ns=lost_ns[order],
    )


def _distinct(column: Int32s | Int8s) -> tuple[Int64s, Int64s, Int64s]:
    """The groups that occur, rising, the first record of each, and each record's place in them.

    Counts where a sort would do too: groups are small numbers and records are millions.
    """
    shifted = column.astype(np.int64) + 1  # from -1 on
    present = np.flatnonzero(np.bincount(shifted))
    size = int(present[-1]) + 1 if len(present) else 0
    place, first = np.zeros(size, np.int64), np.zeros(size, np.int64)
    place[present] = np.arange(len(present))
    first[shifted[::-1]] = np.arange(len(shifted))[::-1]
    return present - 1, first[present], place[shifted]


def _clock_figures(
    figures: RecordFigures, inverse: Int64s, count: int
) -> tuple[Float64s, Float64s]:
    """Mean clock and loss of each group; NaN where it is no compute or not covered."""
    mean_mhz, lost_ns = np.full(count, np.nan), np.full(count, np.nan)
    which = inverse[figures.compute]

    def sums(values: Float64s) -> Float64s:
        return np.bincount(which, values, count).astype(np.float64)

    cycles, covered = sums(figures.cycles), sums(figures.covered_ns)
    np.divide(cycles, covered, out=mean_mhz, where=covered > 0)
    if figures.lost is not None and figures.reference_mhz is not None:
        lost_ns = np.where(covered > 0, sums(figures.lost) / figures.reference_mhz, np.nan)
    return mean_mhz, lost_ns


def _crowded(start_ns: Int64s, end_ns: Int64s) -> Int64s:
    """Indices of the kernels that run beside another, of kernels in order of their starts."""
    reach_ns = np.maximum.accumulate(end_ns)
    apart = np.ones(len(start_ns) + 1, bool)
    np.greater_equal(start_ns[1:], reach_ns[:-1], out=apart[1:-1])
    return np.flatnonzero(~(apart[:-1] & apart[1:]))


def _shared(done: Float64s, start_ns: Int64s, end_ns: Int64s) -> Float64s:
    """∫ g / k over each kernel, k being how many of the kernels run at that instant: (n,).

    Args:
        done: (2 n,) float64, ∫ g up to each start, then up to each end.
        start_ns: (n,) int64.
        end_ns: (n,) int64.
    """
    count = len(start_ns)
    order = np.argsort(np.concatenate((start_ns, end_ns)), kind="stable")
    running = np.cumsum(np.where(order < count, 1.0, -1.0))[:-1]
    share = np.diff(done[order])
    share /= np.maximum(running, 1.0, out=running)
    total = np.zeros(2 * count)
    total[order[1:]] = np.cumsum(share, out=share)
    shared: Float64s = total[count:] - total[:count]
    return shared
