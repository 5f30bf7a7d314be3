"""Device records taken together by a column (family, operation, layer, phase): time, clock, loss.

What each record adds is worked out once. Records that agree in every column are summed first, so
that a grouping sums hundreds of these instead of millions of records.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from chopperd.correlate.clock.pieces import AtOnce, ClockPieces
from chopperd.correlate.clock.precision import Z_95
from chopperd.correlate.intervals import places_of_spans
from chopperd.correlate.waterfall import is_class
from chopperd.model.arrays import Float64s, Int8s, Int32s, Int64s
from chopperd.model.kinds import COMPUTE_CLASSES
from chopperd.model.timeline import DeviceTimeline

#: Lines of a grouping in a report, one for what is not known aside. The largest of 19 real traces
#: has 79 families, 25 operations and 39 layers.
MOST_GROUPS: Final = 500
#: With fewer samples of its own the clock of a group is not known.
MIN_OWN_SAMPLES: Final = 30
#: The number of groups that are put together, beyond those with the most time.
OTHER: Final = -2
#: Larger numbers than so many times the number of records and so many more are sorted, not counted.
_COUNTED_RANGE: Final = 4
_SMALL_RANGE: Final = 65_536


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
        shared_ns: (m,) float64, ns covered by samples, of kernels that run at once each 1/k.
        own: The samples that fell into each of them; None without samples.
        reference_mhz: f_ref; None if unknown.
        count: (n,) int64, how many records each is the sum of; None if it is one.
    """

    duration_ns: Int64s
    samples: Int64s
    compute: Int64s
    cycles: Float64s
    covered_ns: Float64s
    lost: Float64s | None
    shared_ns: Float64s
    own: "OwnSamples | None"
    reference_mhz: float | None
    count: Int64s | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnSamples:
    """Sums over the clock samples that fell into records that compute, (k,) float64 each.

    Attributes:
        record: (k,) int64, into which of those that compute; none of the others has a sample.
        count: How many.
        clock_mhz: Their clocks.
        below_mhz, below_square: How far they lie below the reference, and its squares.
    """

    record: Int64s
    count: Float64s
    clock_mhz: Float64s
    below_mhz: Float64s
    below_square: Float64s

    def summed(self, which: Int64s, count: int) -> "OwnSamples":
        """The sums over each of so many groups, given which group each record is of: (m,) int64."""
        which = which.take(self.record)
        columns = self.count, self.clock_mhz, self.below_mhz, self.below_square
        sums = [np.bincount(which, one, count).astype(np.float64) for one in columns]
        return OwnSamples(
            record=np.arange(count),
            count=sums[0],
            clock_mhz=sums[1],
            below_mhz=sums[2],
            below_square=sums[3],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTotals:
    """Figures of each group that occurs on a device, (g,) each, longest first.

    Attributes:
        group: (g,) int64, its number in the column; -1 for records of which it is not known,
            `OTHER` for those of several groups.
        merged: (g,) int64, how many groups `OTHER` holds; 0 for others.
        first: (g,) int64, its first record.
        count: (g,) int64.
        time_ns: (g,) int64, sum of durations (not a union).
        samples: (g,) int64, clock samples that fell into its records.
        line_mhz, line_lost_ns: (g,) float64, mean clock over its covered compute and ceiling loss
            by the line through all compute samples; NaN for others, where not covered, and (loss)
            without a reference.
        mean_mhz, lost_ns, half_ns: (g,) float64, the same by samples of its own, and half of the
            loss's 95 % interval. NaN with fewer than `MIN_OWN_SAMPLES`.

    Source: DESIGN.md section 2, "Loss of a class": the line was 5-13 points off for kernels whose
    clock follows the kernel.
    """

    group: Int64s
    merged: Int64s
    first: Int64s
    count: Int64s
    time_ns: Int64s
    samples: Int64s
    line_mhz: Float64s
    line_lost_ns: Float64s
    mean_mhz: Float64s
    lost_ns: Float64s
    half_ns: Float64s

    def __len__(self) -> int:
        """The number of groups."""
        return len(self.group)


def record_figures(
    timeline: DeviceTimeline,
    pieces: ClockPieces | None,
    reference_mhz: float | None,
    sample_t_ns: Int64s,
    sample_mhz: Float64s,
) -> RecordFigures:
    """What each record adds.

    Args:
        timeline: The device.
        pieces: The compute clock, cut at the reference; None without samples.
        reference_mhz: f_ref; None if unknown.
        sample_t_ns: (s,) int64, times of the clock samples, rising.
        sample_mhz: (s,) float64, their clocks.
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
            shared_ns=np.empty(0),
            own=None,
            reference_mhz=reference_mhz,
        )
    compute = np.flatnonzero(is_class(timeline.kernel_class, COMPUTE_CLASSES))
    start, end = timeline.start_ns.take(compute), timeline.end_ns.take(compute)
    spans = pieces.locate_spans(start, end)

    at_once = AtOnce.of(start, end, spans)
    crowded = at_once.which
    coverage = pieces.coverage()
    covered_ns = coverage.over(spans)
    shared_ns = covered_ns.copy()
    shared_ns[crowded] = at_once.shares(coverage)
    lost = None
    if reference_mhz is not None:
        deficit = pieces.deficit(reference_mhz)
        lost = deficit.over(spans)
        lost[crowded] = at_once.shares(deficit)
    return RecordFigures(
        duration_ns=duration_ns,
        samples=hits,
        compute=compute,
        cycles=pieces.clock().over(spans),
        covered_ns=covered_ns,
        lost=lost,
        shared_ns=shared_ns,
        own=_own(first_hit.take(compute), hits.take(compute), sample_mhz, reference_mhz or 0.0),
        reference_mhz=reference_mhz,
    )


def _own(first: Int64s, hits: Int64s, clock_mhz: Float64s, reference_mhz: float) -> OwnSamples:
    """Sums over the samples from `first` on, `hits` of them, for each record that has any."""
    record = np.flatnonzero(hits)
    first, hits = first.take(record), hits.take(record)
    last = first + hits

    def sums(values: Float64s) -> Float64s:
        until = np.concatenate(([0.0], np.cumsum(values)))
        total: Float64s = until.take(last) - until.take(first)
        return total

    below_mhz = np.maximum(reference_mhz - clock_mhz, 0.0)
    return OwnSamples(
        record=record,
        count=hits.astype(np.float64),
        clock_mhz=sums(clock_mhz),
        below_mhz=sums(below_mhz),
        below_square=sums(below_mhz**2),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Groups:
    """The groups that occur.

    Attributes:
        number, merged, first: (g,) int64, as `group`, `merged` and `first` of `GroupTotals`.
        place: (n,) int64, the group of each record.
    """

    number: Int64s
    merged: Int64s
    first: Int64s
    place: Int64s

    def sums(self, values: Int64s | Float64s) -> Float64s:
        """(g,) float64: the sum of the values, (n,), of each group's records."""
        return np.bincount(self.place, values, len(self.number)).astype(np.float64)


def put_together(
    columns: Sequence[Int32s | Int8s], figures: RecordFigures
) -> tuple[list[Int32s | Int8s], RecordFigures]:
    """The columns and figures of fewer records: those that agree in all columns are summed.

    A grouping by any of the columns has the same totals. They are in order of their first records.

    Args:
        columns: (n,) int32 or int8 each, at least one; -1 not known.
        figures: What each record adds.
    """
    groups = _distinct(columns[0])
    for column in columns[1:]:
        if np.any(column != column[:1]):
            values = int(column.max()) + 2
            groups = _distinct(groups.place * values + (column + np.int64(1)))
    order, count = np.argsort(groups.first), len(groups.first)
    rank = np.empty(count, np.int64)
    rank[order] = np.arange(count)
    groups = replace(groups, first=groups.first[order], place=rank.take(groups.place))
    which = groups.place.take(figures.compute)

    def sums(values: Float64s) -> Float64s:
        return np.bincount(which, values, count).astype(np.float64)

    return [column[groups.first] for column in columns], RecordFigures(
        duration_ns=np.rint(groups.sums(figures.duration_ns)).astype(np.int64),
        samples=groups.sums(figures.samples).astype(np.int64),
        compute=np.arange(count),
        cycles=sums(figures.cycles),
        covered_ns=sums(figures.covered_ns),
        lost=None if figures.lost is None else sums(figures.lost),
        shared_ns=sums(figures.shared_ns),
        own=None if figures.own is None else figures.own.summed(which, count),
        reference_mhz=figures.reference_mhz,
        count=np.bincount(groups.place, minlength=count),
    )


def group_totals(
    column: Int32s | Int8s, figures: RecordFigures, kind: Int8s | Int32s | None = None
) -> GroupTotals:
    """The figures of each group of records, of at most `MOST_GROUPS` with a number of their own.

    Where there are more, those with the least time are put together, so that sums stay whole.

    Args:
        column: (n,) int32 or int8, the number of each record's group; -1 not known.
        figures: What each record adds.
        kind: (n,) int8, by which, as told by their first records, groups are put together; None
            puts all into one.
    """
    groups = _distinct(column)
    if len(groups.number) > MOST_GROUPS + 1:
        groups = _bounded(groups, groups.sums(figures.duration_ns), kind)
    clock = _clock_figures(figures, groups.place, len(groups.number))
    time_ns = np.rint(groups.sums(figures.duration_ns)).astype(np.int64)
    order = np.argsort(-time_ns, kind="stable")
    return GroupTotals(
        group=groups.number[order],
        merged=groups.merged[order],
        first=groups.first[order],
        count=np.bincount(groups.place, figures.count, len(order))[order].astype(np.int64),
        time_ns=time_ns[order],
        samples=groups.sums(figures.samples).astype(np.int64)[order],
        line_mhz=clock.line_mhz[order],
        line_lost_ns=clock.line_lost_ns[order],
        mean_mhz=clock.mean_mhz[order],
        lost_ns=clock.lost_ns[order],
        half_ns=clock.half_ns[order],
    )


def _distinct(column: Int32s | Int8s | Int64s) -> _Groups:
    """The groups that occur, by their numbers.

    Counts where a sort would do too: groups are small numbers and records are millions.
    """
    shifted = column.astype(np.int64) + 1  # from -1 on
    if int(shifted.max(initial=0)) > _COUNTED_RANGE * len(shifted) + _SMALL_RANGE:
        shifted, first, place = np.unique(shifted, return_index=True, return_inverse=True)
        none = np.zeros(len(first), np.int64)
        return _Groups(number=shifted - 1, merged=none, first=first, place=place)
    present = np.flatnonzero(np.bincount(shifted))
    size = int(present[-1]) + 1 if len(present) else 0
    place, first = np.zeros(size, np.int64), np.zeros(size, np.int64)
    place[present] = np.arange(len(present))
    first[shifted[::-1]] = np.arange(len(shifted))[::-1]
    return _Groups(
        number=present - 1,
        merged=np.zeros(len(present), np.int64),
        first=first[present],
        place=place[shifted],
    )


def _bounded(groups: _Groups, time_ns: Float64s, kind: Int8s | Int32s | None) -> _Groups:
    """The groups with the most time, that of what is not known, and the others by their kinds."""
    known = np.flatnonzero(groups.number >= 0)
    known = known[np.argsort(-time_ns[known], kind="stable")]
    small = np.sort(known[MOST_GROUPS:])
    kept = np.setdiff1d(np.arange(len(groups.number)), small, assume_unique=True)
    its_kind = np.zeros(len(small), np.int8) if kind is None else kind[groups.first[small]]
    kinds, which = np.unique(its_kind, return_inverse=True)
    first = np.full(len(kinds), len(groups.place))
    np.minimum.at(first, which, groups.first[small])
    place = np.empty(len(groups.number), np.int64)
    place[kept], place[small] = np.arange(len(kept)), len(kept) + which
    return _Groups(
        number=np.append(groups.number[kept], np.full(len(kinds), OTHER)),
        merged=np.append(groups.merged[kept], np.bincount(which, minlength=len(kinds))),
        first=np.append(groups.first[kept], first),
        place=place[groups.place],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _ClockFigures:
    """Clock and loss of each group, as of `GroupTotals`."""

    line_mhz: Float64s
    line_lost_ns: Float64s
    mean_mhz: Float64s
    lost_ns: Float64s
    half_ns: Float64s


def _clock_figures(figures: RecordFigures, place: Int64s, count: int) -> _ClockFigures:
    """Mean clock and loss of each group; NaN where it is no compute or not covered."""
    which = place.take(figures.compute)

    def sums(values: Float64s) -> Float64s:
        return np.bincount(which, values, count).astype(np.float64)

    def per(values: Float64s, each: Float64s) -> Float64s:
        quotient: Float64s = np.full(count, np.nan)
        return np.divide(values, each, out=quotient, where=each > 0)

    covered, unknown = sums(figures.covered_ns), np.full(count, np.nan)
    line_mhz, mean_mhz, own = per(sums(figures.cycles), covered), unknown, unknown
    its = None if figures.own is None else figures.own.summed(which, count)
    if its is not None:
        own = np.where((its.count >= MIN_OWN_SAMPLES) & (covered > 0), its.count, 0.0)
        mean_mhz = per(its.clock_mhz, own)
    if its is None or figures.lost is None or figures.reference_mhz is None:
        return _ClockFigures(
            line_mhz=line_mhz,
            line_lost_ns=unknown,
            mean_mhz=mean_mhz,
            lost_ns=unknown,
            half_ns=unknown,
        )
    lost, shared_ns = sums(figures.lost), sums(figures.shared_ns)
    below_mhz = per(its.below_mhz, own)
    spread = np.maximum(per(its.below_square, own) - below_mhz**2, 0.0)
    error_mhz = Z_95 * np.sqrt(spread / np.maximum(own - 1.0, 1.0))
    off_mhz = np.abs(below_mhz - per(lost, shared_ns))
    half_mhz = error_mhz + np.where(off_mhz > error_mhz, off_mhz, 0.0)
    per_mhz = shared_ns / figures.reference_mhz
    return _ClockFigures(
        line_mhz=line_mhz,
        line_lost_ns=np.where(covered > 0, lost / figures.reference_mhz, np.nan),
        mean_mhz=mean_mhz,
        lost_ns=below_mhz * per_mhz,
        half_ns=half_mhz * per_mhz,
    )


# Kernels of one normalised name taken together: count, time, clock and loss.


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyTotals:
    """Figures of each family that occurs on a device, (f,) each, longest first.

    Attributes:
        family: (f,) int64, index into `Timeline.families`; `OTHER` for several of one class.
        merged: (f,) int64, how many families `OTHER` holds; 0 for others.
        kernel_class: (f,) int8.
        count, time_ns, samples, mean_mhz, lost_ns, half_ns: As of `GroupTotals`.
    """

    family: Int64s
    merged: Int64s
    kernel_class: Int8s
    count: Int64s
    time_ns: Int64s
    samples: Int64s
    mean_mhz: Float64s
    lost_ns: Float64s
    half_ns: Float64s


def family_totals(
    family: Int32s | Int8s, kernel_class: Int32s | Int8s, figures: RecordFigures
) -> FamilyTotals:
    """The figures of each family, by the family and the class of each record: (n,) each."""
    totals = group_totals(family, figures, kernel_class)
    return FamilyTotals(
        family=totals.group,
        merged=totals.merged,
        kernel_class=kernel_class[totals.first].astype(np.int8),
        count=totals.count,
        time_ns=totals.time_ns,
        samples=totals.samples,
        mean_mhz=totals.mean_mhz,
        lost_ns=totals.lost_ns,
        half_ns=totals.half_ns,
    )
