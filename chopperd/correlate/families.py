"""Kernels of one normalised name taken together: count, time, clock and loss."""

from dataclasses import dataclass

import numpy as np

from chopperd.correlate.pieces import ClockPieces
from chopperd.correlate.signal import Primitive
from chopperd.correlate.waterfall import is_class
from chopperd.model.arrays import Float64s, Int8s, Int64s
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
    family, first, inverse = np.unique(timeline.family, return_index=True, return_inverse=True)
    kernel_class = timeline.kernel_class[first]

    def sums(values: Int64s | Float64s) -> Float64s:
        return np.bincount(inverse, values, len(family)).astype(np.float64)

    duration_ns = timeline.end_ns - timeline.start_ns
    hits = np.searchsorted(sample_t_ns, timeline.end_ns)
    hits = hits - np.searchsorted(sample_t_ns, timeline.start_ns)
    mean_mhz, lost_ns = _clock_figures(timeline, pieces, reference_mhz, inverse, len(family))
    time_ns = np.rint(sums(duration_ns)).astype(np.int64)
    order = np.argsort(-time_ns, kind="stable")
    return FamilyTotals(
        family=family[order].astype(np.int64),
        kernel_class=kernel_class[order],
        count=np.bincount(inverse, minlength=len(family))[order],
        time_ns=time_ns[order],
        samples=sums(hits).astype(np.int64)[order],
        mean_mhz=mean_mhz[order],
        lost_ns=lost_ns[order],
    )


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
    clock = pieces.clock()
    compute = np.flatnonzero(is_class(timeline.kernel_class, COMPUTE_CLASSES))
    start, end = timeline.start_ns[compute], timeline.end_ns[compute]
    which = inverse[compute]
    cycles = np.bincount(which, _over(clock, start, end), count)
    covered = np.bincount(which, _over(pieces.coverage(), start, end), count)
    np.divide(cycles, covered, out=mean_mhz, where=covered > 0)
    if reference_mhz is not None:
        deficit = pieces.deficit(reference_mhz)
        lost = np.bincount(which, _shared(deficit, start, end), count) / reference_mhz
        lost_ns = np.where(covered > 0, lost, np.nan)
    return mean_mhz, lost_ns


def _over(g: Primitive, start_ns: Int64s, end_ns: Int64s) -> Float64s:
    """∫ g over each kernel."""
    return g.at(*g.locate(end_ns)) - g.at(*g.locate(start_ns))


def _shared(g: Primitive, start_ns: Int64s, end_ns: Int64s) -> Float64s:
    """∫ g / k over each kernel, k being how many of the kernels run at that instant."""
    if np.all(start_ns[1:] >= np.maximum.accumulate(end_ns)[:-1]):
        return _over(g, start_ns, end_ns)
    edges_ns, position = np.unique(np.concatenate((start_ns, end_ns)), return_inverse=True)
    at_start, at_end = position[: len(start_ns)], position[len(start_ns) :]
    running = np.cumsum(
        np.bincount(at_start, minlength=len(edges_ns))
        - np.bincount(at_end, minlength=len(edges_ns))
    )[:-1]
    share = np.diff(g.at(*g.locate(edges_ns))) / np.maximum(running, 1)
    total = np.concatenate(([0.0], np.cumsum(share)))
    shared: Float64s = total[at_end] - total[at_start]
    return shared
