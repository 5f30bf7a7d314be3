"""Kernels of one normalised name taken together: count, time, clock and loss."""

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
class FamilyTotals:
    """Figures of each family that occurs on a device, (f,) each, longest first.

    Attributes:
        family: (f,) int64, index into `Timeline.families`.
        kernel_class: (f,) int8.
        count: (f,) int64.
        time_ns: (f,) int64, sum of durations (not a union).
        samples: (f,) int64, clock samples that fell into its kernels.
        mean_mhz: (f,) float64, over its covered compute; NaN for others and where not covered.
        lost_ns: (f,) float64, ceiling loss; where k compute kernels run at once each carries 1/k.
            NaN for families that are no compute, or without a reference.
    """

    family: Int64s
    kernel_class: Int8s
    count: Int64s
    time_ns: Int64s
    samples: Int64s
    mean_mhz: Float64s
    lost_ns: Float64s


def family_totals(
    timeline: DeviceTimeline,
    pieces: ClockPieces | None,
    reference_mhz: float | None,
    sample_t_ns: Int64s,
) -> FamilyTotals:
    """The figures of each family of the device.

    Args:
        timeline: The device.
        pieces: The compute clock, cut at the reference; None without samples.
        reference_mhz: f_ref; None if unknown.
        sample_t_ns: (n,) int64, times of the clock samples, rising.
    """
    family, first, inverse = _distinct(timeline.family)
    kernel_class = timeline.kernel_class[first]

    def sums(values: Int64s | Float64s) -> Float64s:
        return np.bincount(inverse, values, len(family)).astype(np.float64)

    duration_ns = timeline.end_ns - timeline.start_ns
    first_hit, hits = places_of_spans(sample_t_ns, timeline.start_ns, timeline.end_ns, "left")
    hits -= first_hit
    mean_mhz, lost_ns = _clock_figures(timeline, pieces, reference_mhz, inverse, len(family))
    time_ns = np.rint(sums(duration_ns)).astype(np.int64)
    order = np.argsort(-time_ns, kind="stable")
    return FamilyTotals(
        family=family[order],
        kernel_class=kernel_class[order],
        count=np.bincount(inverse, minlength=len(family))[order],
        time_ns=time_ns[order],
        samples=sums(hits).astype(np.int64)[order],
        mean_mhz=mean_mhz[order],
        lost_ns=lost_ns[order],
    )


def _distinct(family: Int32s) -> tuple[Int64s, Int64s, Int64s]:
    """The families that occur, rising, the first record of each, and each record's place in them.

    Counts where a sort would do too: families are small numbers and records are millions.
    """
    present = np.flatnonzero(np.bincount(family))
    size = int(present[-1]) + 1 if len(present) else 0
    place, first = np.zeros(size, np.int64), np.zeros(size, np.int64)
    place[present] = np.arange(len(present))
    first[family[::-1]] = np.arange(len(family))[::-1]
    return present, first[present], place[family]


def _clock_figures(
    timeline: DeviceTimeline,
    pieces: ClockPieces | None,
    reference_mhz: float | None,
    inverse: Int64s,
    count: int,
) -> tuple[Float64s, Float64s]:
    """Mean clock and loss of each family; NaN where it is no compute or not covered."""
    mean_mhz, lost_ns = np.full(count, np.nan), np.full(count, np.nan)
    if pieces is None:
        return mean_mhz, lost_ns
    compute = np.flatnonzero(is_class(timeline.kernel_class, COMPUTE_CLASSES))
    start, end = timeline.start_ns[compute], timeline.end_ns[compute]
    spans = pieces.locate_spans(start, end)
    which = inverse[compute]

    def over(g: Primitive) -> Float64s:
        return np.bincount(which, g.over(spans), count).astype(np.float64)

    cycles, covered = over(pieces.clock()), over(pieces.coverage())
    np.divide(cycles, covered, out=mean_mhz, where=covered > 0)
    if reference_mhz is not None:
        deficit = pieces.deficit(reference_mhz)
        each = deficit.over(spans)
        crowded = _crowded(start, end)
        ends = [deficit.at(ends.of(crowded)) for ends in (spans.start, spans.end)]
        each[crowded] = _shared(np.concatenate(ends), start[crowded], end[crowded])
        lost = np.bincount(which, each, count) / reference_mhz
        lost_ns = np.where(covered > 0, lost, np.nan)
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
