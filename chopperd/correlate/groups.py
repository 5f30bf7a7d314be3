"""Device records grouped by a column (family, operation, layer, phase): time, clock and loss.

What each record adds to its group is computed once. Records that agree in every column are added
up first, so that a grouping sums hundreds of rows instead of millions of records.
"""

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from chopperd.correlate.clock.integrals import AtOnce, ClockPieces
from chopperd.correlate.clock.precision import Z_95
from chopperd.correlate.intervals import places_of_spans
from chopperd.correlate.waterfall import Sums, is_class
from chopperd.model.arrays import Float64s, Int8s, Int32s, Int64s, rows_of
from chopperd.model.kinds import COMPUTE_CLASSES, KERNEL_CLASSES
from chopperd.model.timeline import DeviceTimeline

#: Lines of a grouping in a report, besides one for what is not known. The largest of 19 real
#: traces has 79 families, 25 operations and 39 layers.
MOST_GROUPS: Final = 500
#: Lines of a grouping of all steps of a device together.
MOST_OF_STEPS: Final = 4000
#: With fewer samples of its own the clock of a group is not known.
MIN_OWN_SAMPLES: Final = 30
#: The number of a group that holds several, those beyond the ones with the most time.
OTHER: Final = -2
#: Numbers above this many times the number of records, and this many more, are sorted, not counted.
_COUNTED_RANGE: Final = 4
_SMALL_RANGE: Final = 65_536


def _none() -> Int64s:
    return np.empty(0, np.int64)


def _nothing() -> Float64s:
    return np.empty(0)


class RecordFigures(Struct, frozen=True, kw_only=True):
    """Figures of n records of a device, or of n groups of them, that add up over a group.

    Figures of the clock exist for the m records that compute (none without samples), figures of
    samples for the k of these in which a clock sample fell.
    """

    duration_ns: Int64s | Float64s  # (n,)
    samples: Int64s | Float64s  # (n,) clock samples that fell into it
    count: Int64s | None = None  # (n,) records; None: one each
    compute: Int64s = field(default_factory=_none)  # (m,) which records
    covered_ns: Float64s = field(default_factory=_nothing)  # (m,) time covered by samples
    # (m,) integral of the clock over that, MHz ns
    cycles: Float64s = field(default_factory=_nothing)
    # (m,) covered time; of k kernels that run at once, each has 1/k
    shared_ns: Float64s = field(default_factory=_nothing)
    # (m,) integral of max(0, f_ref - f), shared likewise, MHz ns
    lost: Float64s = field(default_factory=_nothing)
    own: Int64s = field(default_factory=_none)  # (k,) which records
    own_count: Int64s | Float64s = field(default_factory=_none)  # (k,) samples
    own_mhz: Float64s = field(default_factory=_nothing)  # (k,) sum of their clocks
    below_mhz: Float64s = field(default_factory=_nothing)  # (k,) sum of max(0, f_ref - f) over them
    below_square: Float64s = field(default_factory=_nothing)  # (k,) sum of its squares
    reference_mhz: float | None = None  # f_ref; None if unknown: then nothing is lost or below

    def summed(self, group: Int64s, count: int) -> "RecordFigures":
        """Sum the figures over each of `count` groups, given each record's group: (n,) int64."""
        sums = {
            name: np.bincount(which, getattr(self, name), count).astype(np.float64, copy=False)
            for which, names in (
                (group, ("duration_ns", "samples")),
                (group.take(self.compute), ("covered_ns", "cycles", "shared_ns", "lost")),
                (group.take(self.own), ("own_count", "own_mhz", "below_mhz", "below_square")),
            )
            for name in names
        }
        every = np.arange(count)
        records = np.bincount(group, self.count, count).astype(np.int64)
        changed: Callable[..., RecordFigures] = replace
        return changed(self, count=records, compute=every, own=every, **sums)


class GroupTotals(Struct, frozen=True, kw_only=True):
    """Figures of each group that occurs on a device, (g,) each, longest first.

    Source: DESIGN.md section 2, "Loss of a class": the line through all compute samples is 5-13
    points off for kernels whose clock follows the kernel.
    """

    group: Int64s  # its number in the column; -1: not known, `OTHER`: several
    merged: Int64s  # how many groups `OTHER` holds; 0 for others
    kind: Int8s | Int32s | Int64s  # of its first record
    count: Int64s
    time_ns: Int64s  # sum of durations, not a union
    samples: Int64s  # clock samples that fell into its records
    #: By samples of its own: mean clock, ceiling loss over covered compute and half of the loss's
    #: 95 % interval. NaN with fewer than `MIN_OWN_SAMPLES`; losses also without a reference.
    mean_mhz: Float64s
    lost_ns: Float64s
    half_ns: Float64s

    def __len__(self) -> int:
        return len(self.group)


def record_figures(
    timeline: DeviceTimeline,
    pieces: ClockPieces | None,
    reference_mhz: float | None,
    sample_t_ns: Int64s,
    sample_mhz: Float64s,
) -> RecordFigures:
    """Compute the time, clock and loss that each record adds to its group.

    `pieces`: the compute clock, cut at the reference; None without samples. `sample_t_ns`: (s,),
    times of the clock samples, rising. `sample_mhz`: (s,), their clocks.
    """
    first, hits = places_of_spans(sample_t_ns, timeline.start_ns, timeline.end_ns, "left")
    hits -= first
    duration_ns = timeline.end_ns - timeline.start_ns
    if pieces is None:
        return RecordFigures(duration_ns=duration_ns, samples=hits)
    compute = np.flatnonzero(is_class(timeline.kernel_class, COMPUTE_CLASSES))
    start, end = timeline.start_ns.take(compute), timeline.end_ns.take(compute)
    spans = pieces.locate_spans(start, end)
    at_once = AtOnce.of(start, end, spans)
    coverage = pieces.coverage()
    covered_ns = coverage.over(spans)
    shared_ns = covered_ns.copy()
    shared_ns[at_once.which] = at_once.shares(coverage)
    lost = np.zeros(len(compute))
    if reference_mhz is not None:
        deficit = pieces.deficit(reference_mhz)
        lost = deficit.over(spans)
        lost[at_once.which] = at_once.shares(deficit)
    own = compute.take(np.flatnonzero(hits.take(compute)))
    first, count = first.take(own), hits.take(own)
    below_mhz = np.maximum((reference_mhz or 0.0) - sample_mhz, 0.0)

    def sums(values: Float64s) -> Float64s:
        until = np.concatenate(([0.0], np.cumsum(values)))
        total: Float64s = until.take(first + count) - until.take(first)
        return total

    return RecordFigures(
        duration_ns=duration_ns,
        samples=hits,
        count=None,
        compute=compute,
        covered_ns=covered_ns,
        cycles=pieces.clock().over(spans),
        shared_ns=shared_ns,
        lost=lost,
        own=own,
        own_count=count,
        own_mhz=sums(sample_mhz),
        below_mhz=sums(below_mhz),
        below_square=sums(below_mhz**2),
        reference_mhz=reference_mhz,
    )


def add_alike(
    columns: Sequence[Int32s | Int8s], figures: RecordFigures
) -> tuple[list[Int32s | Int8s], RecordFigures]:
    """Add up the records that agree in all columns; a grouping by any of them stays the same.

    `columns`: (n,) int32 or int8 each, at least one; -1 not known.

    Returns the columns and figures of the sums, in order of their first records.
    """
    _, first, place = _distinct(columns[0])
    for column in columns[1:]:
        if np.any(column != column[:1]):
            values = int(column.max()) + 2
            _, first, place = _distinct(place * values + (column + np.int64(1)))
    order, count = np.argsort(first), len(first)
    rank = np.empty(count, np.int64)
    rank[order] = np.arange(count)
    return [column[first[order]] for column in columns], figures.summed(rank.take(place), count)


def group_totals(
    column: Int32s | Int8s | Int64s,
    figures: RecordFigures,
    kind: Int8s | Int32s | Int64s | None = None,
    most: int = MOST_GROUPS,
) -> GroupTotals:
    """Compute the figures of each group of records, of at most `most` with their own number.

    Where there are more, those with the least time become one per kind, so that sums stay whole.

    `column`: (n,) integers, the number of each record's group; -1 not known. `kind`: (n,) integers,
    the kind of each record; None: all are of one kind. `most`: how many groups there may be,
    besides that of what is not known.
    """
    kind = np.zeros(len(column), np.int8) if kind is None else kind
    number, first, place = _distinct(column)
    merged = np.zeros(len(number), np.int64)
    if len(number) > most + 1:
        longest = np.argsort(-np.bincount(place, figures.duration_ns), kind="stable")
        small = np.sort(longest[number[longest] >= 0][most:])
        number, merged, first, place = _bounded(number, first, place, small, kind)
    sums = figures.summed(place, len(number))
    mean_mhz, lost_ns, half_ns = _clock(sums)
    time_ns = np.rint(sums.duration_ns).astype(np.int64)
    order = np.argsort(-time_ns, kind="stable")
    return GroupTotals(
        group=number[order],
        merged=merged[order],
        kind=kind[first[order]],
        count=np.bincount(place, figures.count, len(order))[order].astype(np.int64),
        time_ns=time_ns[order],
        samples=sums.samples[order].astype(np.int64),
        mean_mhz=mean_mhz[order],
        lost_ns=lost_ns[order],
        half_ns=half_ns[order],
    )


def step_groups(
    row: Int32s | Int8s,
    steps: int,
    column: Int32s | Int8s,
    figures: RecordFigures,
    kind: Int32s | Int8s | None = None,
) -> tuple[GroupTotals, ...]:
    """Compute the groups of each of `steps` steps, as `group_totals` does for a whole file.

    Of those of all steps together the `MOST_OF_STEPS` longest have their own numbers.

    `row`: (n,), the index of the step that launched each record; -1 none. `steps`: how many steps
    there are. `column`: (n,) int32 or int8, the number of each record's group; -1 not known.
    `kind`: (n,), the kind of each record; None: all are of one kind.
    """
    values, kinds = int(column.max(initial=-1)) + 2, len(KERNEL_CLASSES)
    of_row = row.astype(np.int64)
    number = np.where(of_row < 0, -1, of_row * values + column + 1)
    kind = np.zeros(len(column), np.int8) if kind is None else kind
    found = group_totals(number, figures, of_row * kinds + kind, MOST_OF_STEPS)
    group = np.where(found.group < 0, found.group, found.group % values - 1)
    of_group = found.kind // kinds
    found = replace(found, group=group, kind=found.kind % kinds)
    return tuple(rows_of(found, np.flatnonzero(of_group == step)) for step in range(steps))


def places_in(totals: GroupTotals, column: Int32s | Int8s) -> Int64s:
    """Return each record's index among the groups, (n,) int64; -1 where it is in `OTHER`."""
    own = np.flatnonzero(totals.group >= -1)
    table = np.full(int(column.max(initial=-1)) + 2, -1)
    table[totals.group[own]] = own  # that of -1, not known, is the last
    return table[column]


SumsOf: TypeAlias = Callable[[Int64s], Sums]  # over the records at some indices, (n,) int64


class GroupSums(Sums):
    """Sums over the records at some indices for each of `count` groups, given each record's."""

    def __init__(self, group: Int64s, count: int, records: Int64s) -> None:
        self._group = group[records] + 1  # -1: none
        self._count = count + 1

    def of(self, values: Int64s | Float64s) -> Float64s:
        """Sum the values, (n,), of each group's records: (g,) float64."""
        return np.bincount(self._group, values, self._count)[1:].astype(np.float64, copy=False)


def _distinct(column: Int32s | Int8s | Int64s) -> tuple[Int64s, Int64s, Int64s]:
    """Return the numbers that occur, (g,), the first record of each, and each record's place, (n,).

    A place is the index of a record's number among those that occur. Found by counting instead of
    sorting, as numbers are small and records are millions.
    """
    shifted = column.astype(np.int64) + 1  # from -1 on
    if int(shifted.max(initial=0)) > _COUNTED_RANGE * len(shifted) + _SMALL_RANGE:
        shifted, first, place = np.unique(shifted, return_index=True, return_inverse=True)
        return shifted - 1, first, place
    present = np.flatnonzero(np.bincount(shifted))
    size = int(present[-1]) + 1 if len(present) else 0
    place, first = np.zeros(size, np.int64), np.zeros(size, np.int64)
    place[present] = np.arange(len(present))
    first[shifted[::-1]] = np.arange(len(shifted))[::-1]
    return present - 1, first[present], place[shifted]


def _bounded(
    number: Int64s, first: Int64s, place: Int64s, small: Int64s, kind: Int8s | Int32s | Int64s
) -> tuple[Int64s, Int64s, Int64s, Int64s]:
    """Merge small groups by kind; return numbers, merged counts, first records and places.

    `number`: (g,), the groups' numbers. `first`: (g,), the first record of each group. `place`:
    (n,), index of each record's group. `small`: int64, rising indices of the groups to merge.
    `kind`: (n,) the kind of each record.
    """
    large = np.setdiff1d(np.arange(len(number)), small, assume_unique=True)
    kinds, which = np.unique(kind[first[small]], return_inverse=True)
    first_of_kind = np.full(len(kinds), len(place))
    np.minimum.at(first_of_kind, which, first[small])
    moved = np.empty(len(number), np.int64)
    moved[large], moved[small] = np.arange(len(large)), len(large) + which
    return (
        np.append(number[large], np.full(len(kinds), OTHER)),
        np.append(np.zeros(len(large), np.int64), np.bincount(which, minlength=len(kinds))),
        np.append(first[large], first_of_kind),
        moved[place],
    )


def _clock(sums: RecordFigures) -> tuple[Float64s, Float64s, Float64s]:
    """Compute each group's mean clock, loss and half of its interval, (g,): see `GroupTotals`.

    The loss is the mean deficit of the group's own samples over its covered compute time. Half of
    the interval is 1.96 standard errors, plus the distance of the loss by the line through all
    samples where that is further off than these.
    """
    count = len(sums.duration_ns)

    def per(values: Float64s, each: Float64s) -> Float64s:
        quotient: Float64s = np.full(count, np.nan)
        return np.divide(values, each, out=quotient, where=each > 0)

    own = np.where((sums.own_count >= MIN_OWN_SAMPLES) & (sums.covered_ns > 0), sums.own_count, 0.0)
    mean_mhz = per(sums.own_mhz, own)
    if sums.reference_mhz is None:
        return mean_mhz, np.full(count, np.nan), np.full(count, np.nan)
    below_mhz = per(sums.below_mhz, own)
    spread = np.maximum(per(sums.below_square, own) - below_mhz**2, 0.0)
    error_mhz = Z_95 * np.sqrt(spread / np.maximum(own - 1.0, 1.0))
    off_mhz = np.abs(below_mhz - per(sums.lost, sums.shared_ns))
    half_mhz = error_mhz + np.where(off_mhz > error_mhz, off_mhz, 0.0)
    per_mhz = sums.shared_ns / sums.reference_mhz
    return mean_mhz, below_mhz * per_mhz, half_mhz * per_mhz
