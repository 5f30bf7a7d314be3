"""Compute how near matrix kernels come to the stated peak of their GPU, and the reasons.

Chopper's chain leads from the time that the work would take at the stated peak to the time that it
took: theoretical x utilization x overlap x frequency. Of these, frequency comes from sampled clocks
and overlap from like kernels; utilization is what is left, and holds all other reasons. Chopper
reads utilization and cycles from hardware counters of runs of their own, and has a factor for
operations that kernels do beyond the theoretical ones, which is in utilization here. What
communication costs through a lower clock is in frequency, and so not in overlap.

All is at the clock of the stated peak: nothing here knows of the `device_max` reference.

Source: "Chopper: A Multi-Level GPU Characterization Tool" (arXiv:2512.08242), of which the abstract
    was at hand; UnaryLab/chopper, `plots/overhead_breakdown.py` and `common/rocm_metrics.py`.
"""

from typing import Final

import numpy as np
from msgspec import Struct

from chopperd.correlate.clock.integrals import ClockPieces
from chopperd.correlate.groups import SumsOf
from chopperd.correlate.intervals import lengths_ns
from chopperd.correlate.waterfall import RowSums, Sums, is_class
from chopperd.model.arrays import Bools, Float64s, Int8s, Int64s
from chopperd.model.devices import GpuSpec, peak_of
from chopperd.model.kinds import COMPUTE_CLASSES, DType, KernelClass
from chopperd.model.timeline import DeviceTimeline, Intervals
from chopperd.units import NS_PER_S

#: A factor is known where it was measured for at least this share of what it is of.
MIN_MEASURED_SHARE: Final = 0.5
#: Fewer like kernels without concurrent communication are not compared.
MIN_LIKE_KERNELS: Final = 5
#: Upper over lower quartile of the durations of kernels above which they are not alike.
MAX_QUARTILE_RATIO: Final = 1.5
_MATRIX: Final = frozenset({KernelClass.GEMM, KernelClass.ATTENTION})


class EfficiencyTotals(Struct, frozen=True, kw_only=True):
    """Efficiency of each row or group, (r,); NaN unknown.

    Rows are steps, with the kernels that each launched, and last the whole file.

    A kernel is shaped where the work of its operator is known, and rated where the peak of what it
    multiplies is known too. Times sum durations, as of all kernels: they are no unions.
    """

    flops: Float64s  # of shaped kernels
    #: Of all, shaped and rated matrix kernels.
    matrix_ns: Int64s
    shaped_ns: Int64s
    rated_ns: Int64s
    dtype: Int8s  # `DType` of most of the FLOPs; `NONE` without any
    theoretical_ns: Float64s  # what the work of rated kernels takes at the stated peak
    #: Factors from there to `rated_ns`.
    utilization: Float64s
    overlap: Float64s
    frequency: Float64s
    clock_share: Float64s  # of `rated_ns` with a known clock
    #: Of rated kernels that overlap communication, by time, those with like ones without (of known
    #: clocks, where there are samples); NaN where nothing overlaps.
    overlap_share: Float64s


class MatrixKernels(Struct, frozen=True, kw_only=True):
    """The matrix kernels of a device, to be summed by row or by any other group."""

    timeline: DeviceTimeline
    #: Indices of records: all, shaped ones, rated ones.
    matrix: Int64s
    shaped: Int64s
    rated: Int64s
    theoretical_ns: Float64s  # (rated,) what their work takes at the stated peak
    clocked: "_Clocked | None"  # None without samples
    like: "_Like"

    @classmethod
    def of(
        cls,
        timeline: DeviceTimeline,
        comm: Intervals,
        pieces: ClockPieces | None,
        spec: GpuSpec | None,
    ) -> "MatrixKernels":
        """Find the matrix kernels of a device.

        `pieces`: the clock while it computes; None without samples. `spec`: what its vendor states;
        None if unknown.
        """
        peak_flops_per_ns, peak_mhz = _rates(spec)
        matrix = np.flatnonzero(is_class(timeline.kernel_class, _MATRIX))
        shaped = matrix[timeline.matrix_dtype[matrix] >= 0]
        rated = shaped[np.isfinite(peak_flops_per_ns[timeline.matrix_dtype[shaped]])]
        flops = np.nan_to_num(timeline.flops[rated])
        clocked = None if pieces is None else _clocked(timeline, rated, pieces, peak_mhz)
        return cls(
            timeline=timeline,
            matrix=matrix,
            shaped=shaped,
            rated=rated,
            theoretical_ns=flops / peak_flops_per_ns[timeline.matrix_dtype[rated]],
            clocked=clocked,
            like=_like(timeline, rated, comm, clocked),
        )

    def totals(self, sums_of: SumsOf) -> EfficiencyTotals:
        """Sum by what `sums_of` groups records by."""
        timeline, shaped, rated = self.timeline, self.shaped, self.rated
        duration_ns = timeline.end_ns - timeline.start_ns
        sums, shaped_sums = sums_of(rated), sums_of(shaped)
        flops = np.nan_to_num(timeline.flops[shaped])
        rated_ns = sums.of(duration_ns[rated])
        theoretical_ns = sums.of(self.theoretical_ns)
        overlap, overlap_share = _overlap(rated, self.like, sums_of)
        frequency, clock_share = _frequency(sums, self.clocked, rated_ns)
        known = theoretical_ns > 0
        return EfficiencyTotals(
            flops=shaped_sums.of(flops),
            matrix_ns=sums_of(self.matrix).whole(duration_ns[self.matrix]),
            shaped_ns=shaped_sums.whole(duration_ns[shaped]),
            rated_ns=sums.whole(duration_ns[rated]),
            dtype=_most(shaped_sums, timeline.matrix_dtype[shaped], flops),
            theoretical_ns=theoretical_ns,
            utilization=_ratio(rated_ns, theoretical_ns * overlap * frequency, known),
            overlap=np.where(known, overlap, np.nan),
            frequency=np.where(known, frequency, np.nan),
            clock_share=clock_share,
            overlap_share=overlap_share,
        )


def type_times_ns(timeline: DeviceTimeline) -> tuple[Int64s, Int64s]:
    """Sum matrix kernels by what they multiply, and all compute, of each row and the whole file.

    Returns (r, types) int64, by `DType`, of kernels of which that is known, and (r,) int64, in ns.
    """
    duration_ns = timeline.end_ns - timeline.start_ns
    typed = np.flatnonzero(timeline.matrix_dtype >= 0)
    compute = np.flatnonzero(is_class(timeline.kernel_class, COMPUTE_CLASSES))
    of_type = timeline.matrix_dtype[typed].astype(np.int64)
    by_type = RowSums(timeline, typed).apart(of_type, len(DType) - 1, duration_ns[typed])
    return by_type, RowSums(timeline, compute).whole(duration_ns[compute])


def _rates(spec: GpuSpec | None) -> tuple[Float64s, Float64s]:
    """Return stated peaks in FLOP/ns and their clocks in MHz by `DType`, (d,) each; NaN unknown."""
    flops_per_ns, mhz = np.full((2, len(DType)), np.nan)
    for dtype in DType:
        peak = None if spec is None or dtype is DType.NONE else peak_of(spec, dtype)
        if peak is None:
            continue
        flops_per_ns[dtype] = peak.flops_per_s / NS_PER_S
        mhz[dtype] = np.nan if peak.sm_clock_mhz is None else peak.sm_clock_mhz
    return flops_per_ns, mhz


def _ratio(of: Float64s, to: Float64s, known: Bools | None = None) -> Float64s:
    """Divide `of` by `to`; NaN where the divisor is not positive, or `known` is False."""
    usable = (to > 0) if known is None else (to > 0) & known
    quotient: Float64s = np.divide(of, to, out=np.full(len(of), np.nan), where=usable)
    return quotient


def _most(sums: Sums, dtype: Int8s, flops: Float64s) -> Int8s:
    """Return the type with the most FLOPs in each row, (r,) int8; `NONE` without any."""
    most_flops = np.zeros_like(sums.of(flops))
    most = np.full(len(most_flops), DType.NONE, np.int8)
    for each in np.flatnonzero(np.bincount(dtype, minlength=1)).tolist():
        its_flops = sums.of(np.where(dtype == each, flops, 0.0))
        more = its_flops > most_flops
        most[more], most_flops[more] = each, its_flops[more]
    return most


class _Clocked(Struct, frozen=True, kw_only=True):
    """Rated kernels with their clocks, (n,) float64 each."""

    covered_ns: Float64s  # how much of each has a known clock
    #: What the cycles of that take at the clock of the stated peak; NaN if that is not stated.
    at_peak_ns: Float64s
    #: What all of each would take at any one clock for all; NaN where no clock is known. Of
    #: kernels of one type it is in proportion to their cycles.
    steady_ns: Float64s


def _clocked(
    timeline: DeviceTimeline, rated: Int64s, pieces: ClockPieces, peak_mhz: Float64s
) -> _Clocked:
    start_ns, end_ns = timeline.start_ns[rated], timeline.end_ns[rated]
    spans = pieces.locate_spans(start_ns, end_ns)
    covered_ns, cycles = pieces.coverage().over(spans), pieces.clock().over(spans)
    mean_mhz = np.divide(cycles, covered_ns, out=np.full(len(rated), np.nan), where=covered_ns > 0)
    mhz = peak_mhz[timeline.matrix_dtype[rated]]
    return _Clocked(
        covered_ns=covered_ns,
        at_peak_ns=cycles / mhz,
        steady_ns=(end_ns - start_ns) * mean_mhz / np.where(np.isnan(mhz), 1.0, mhz),
    )


def _frequency(
    sums: Sums, clocked: _Clocked | None, rated_ns: Float64s
) -> tuple[Float64s, Float64s]:
    """Compute the clock's factor: covered time over what its cycles take at the stated clock.

    Return it and the share of rated time that it was measured for, (r,) each; NaN unknown.
    """
    if clocked is None:
        unknown = np.full(len(rated_ns), np.nan)
        return unknown, np.where(rated_ns > 0, 0.0, np.nan)
    covered_ns = sums.of(clocked.covered_ns)
    share = _ratio(covered_ns, rated_ns)
    factor = _ratio(covered_ns, sums.of(clocked.at_peak_ns))
    return np.where(share >= MIN_MEASURED_SHARE, factor, np.nan), share


class _Like(Struct, frozen=True, kw_only=True):
    """Rated kernels, (n,) each, beside like ones without communication at the same time."""

    taken_ns: Float64s  # durations
    #: What is compared: durations, or what they would be at one clock for all; NaN unknown.
    compared_ns: Float64s
    overlaps: Bools  # whether communication runs during it
    alone_ns: Float64s  # median of its like ones without communication; NaN unknown


def _like(
    timeline: DeviceTimeline, rated: Int64s, comm: Intervals, clocked: _Clocked | None
) -> _Like:
    start_ns, end_ns = timeline.start_ns[rated], timeline.end_ns[rated]
    taken_ns = (end_ns - start_ns).astype(np.float64)
    overlaps = lengths_ns(comm, start_ns, end_ns) > 0
    compared_ns = taken_ns if clocked is None else clocked.steady_ns
    lone = ~overlaps & np.isfinite(compared_ns)
    return _Like(
        taken_ns=taken_ns,
        compared_ns=compared_ns,
        overlaps=overlaps,
        alone_ns=_alone_ns(timeline, rated, compared_ns, lone)
        if overlaps.any()
        else np.full(len(rated), np.nan),
    )


def _overlap(rated: Int64s, like: _Like, sums_of: SumsOf) -> tuple[Float64s, Float64s]:
    """Compute communication's factor: kernels that overlap it over the median of like ones without.

    Return it and the share of overlapping time that it was measured for, (r,) each; NaN unknown.

    Like kernels are of one family and do the same work. Those without like ones are taken to be
    slowed as much as the others of their row. Where clocks are known, the times compared are those
    that kernels would take at one clock: communication lowers the clock too, which is in the
    factor of the clock.
    """
    known = np.isfinite(like.compared_ns)
    measured = like.overlaps & known & np.isfinite(like.alone_ns)

    def sums(values: Float64s, chosen: Bools) -> Float64s:
        return sums_of(rated[chosen]).of(values[chosen])

    measured_ns, all_ns = sums(like.compared_ns, measured), sums(like.compared_ns, known)
    slowed = _ratio(measured_ns, sums(like.alone_ns, measured))
    overlapped_ns = sums(like.compared_ns, like.overlaps & known)
    factor = _ratio(all_ns, all_ns - overlapped_ns + overlapped_ns / slowed)
    taken_overlapped_ns = sums(like.taken_ns, like.overlaps)
    share = _ratio(sums(like.taken_ns, measured), taken_overlapped_ns)
    factor[~(share >= MIN_MEASURED_SHARE)] = np.nan
    return np.where(taken_overlapped_ns > 0, factor, 1.0), share


def _alone_ns(
    timeline: DeviceTimeline, rated: Int64s, compared_ns: Float64s, lone: Bools
) -> Float64s:
    """Return the median time in ns of each kernel's like ones without communication: (n,) float64.

    NaN where there are too few, or where they differ too much.
    """
    work = np.unique(np.nan_to_num(timeline.flops[rated], nan=-1.0), return_inverse=True)[1]
    key = timeline.family[rated].astype(np.int64) * (len(rated) + 1) + work
    group = np.unique(key, return_inverse=True)[1]
    alone = np.flatnonzero(lone)
    alone = alone[np.lexsort((compared_ns[alone], group[alone]))]
    count = np.bincount(group[alone], minlength=int(group.max(initial=-1)) + 1)
    first = np.cumsum(count) - count
    median_ns = np.full(len(count), np.nan)
    many = np.flatnonzero(count >= MIN_LIKE_KERNELS)
    lasts = first[many] + count[many] - 1
    lower, upper = (first[many] + lasts) // 2, (first[many] + lasts + 1) // 2
    sorted_ns, quarter = compared_ns[alone], count[many] // 4
    median_ns[many] = (sorted_ns[lower] + sorted_ns[upper]) / 2
    like = sorted_ns[lasts - quarter] <= MAX_QUARTILE_RATIO * sorted_ns[first[many] + quarter]
    median_ns[many[~like]] = np.nan
    return median_ns[group]
