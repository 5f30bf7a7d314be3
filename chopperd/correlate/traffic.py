"""Compute what each row's copies and collectives moved, and how communication met compute."""

from collections.abc import Mapping
from functools import partial
from typing import Final

import numpy as np
from msgspec import Struct

from chopperd.correlate.contention import ContentionTotals, contention
from chopperd.correlate.groups import SumsOf
from chopperd.correlate.intervals import places_of_spans
from chopperd.correlate.waterfall import COPY_DIRECTIONS, RowSums, copy_ways, is_class
from chopperd.model.arrays import Bools, Float64s, Int64s
from chopperd.model.kinds import COMM_CLASSES, COMPUTE_CLASSES, COPY_CLASSES, KernelClass
from chopperd.model.timeline import DeviceTimeline, Intervals
from chopperd.model.trace import Collective


class TransferTotals(Struct, frozen=True, kw_only=True):
    """Sums over the transfers of each row, (r, k) int64: a column for each kind of transfer."""

    kinds: tuple[Collective, ...]  # of collectives; () for copies, which have `COPY_DIRECTIONS`
    count: Int64s
    time_ns: Int64s  # sum of durations, not a union
    #: Of those whose size is known:
    sized_count: Int64s
    sized_time_ns: Int64s
    moved_bytes: Int64s

    @classmethod
    def of(
        cls,
        timeline: DeviceTimeline,
        records: Int64s,
        kind: Int64s,
        size_bytes: Int64s,
        kinds: tuple[Collective, ...] | None = None,
    ) -> "TransferTotals":
        """Sum some records, given the kind and the size (-1 unknown) of each: (n,) int64.

        Without `kinds` they are copies.
        """
        count = len(COPY_DIRECTIONS) if kinds is None else len(kinds)
        sized = np.flatnonzero(size_bytes >= 0)
        duration_ns = (timeline.end_ns - timeline.start_ns)[records]
        sums, sized_sums = RowSums(timeline, records), RowSums(timeline, records[sized])
        return cls(
            kinds=kinds or (),
            count=sums.apart(kind, count),
            time_ns=sums.apart(kind, count, duration_ns),
            sized_count=sized_sums.apart(kind[sized], count),
            sized_time_ns=sized_sums.apart(kind[sized], count, duration_ns[sized]),
            moved_bytes=sized_sums.apart(kind[sized], count, size_bytes[sized]),
        )


def copy_totals(timeline: DeviceTimeline) -> TransferTotals:
    """Sum each row's copies and fills by direction."""
    copies = np.flatnonzero(is_class(timeline.kernel_class, COPY_CLASSES))
    way = copy_ways(timeline.kernel_class[copies], timeline.copy_direction[copies])
    return TransferTotals.of(timeline, copies, way.astype(np.int64), timeline.copied_bytes[copies])


# Collectives of each row by process group: how many, how long, how many bytes, how fast.
#
# Sizes and factors are those of NCCL's own tests, so that figures can be compared with theirs.
#
# Source: `doc/PERFORMANCE.md` of NVIDIA/nccl-tests.

#: Bytes of an element by c10's name of its type; Float4 packs two numbers into one.
_DTYPE_BYTES: Final = {
    **dict.fromkeys(("Byte", "Char", "Bool", "QInt8", "QUInt8"), 1),
    **dict.fromkeys(("Float8_e5m2", "Float8_e4m3fn", "Float8_e5m2fnuz", "Float8_e4m3fnuz"), 1),
    **dict.fromkeys(("Float8_e8m0fnu", "Float4_e2m1fn_x2"), 1),
    **dict.fromkeys(("Short", "UInt16", "Half", "BFloat16"), 2),
    **dict.fromkeys(("Int", "UInt32", "QInt32", "Float", "ComplexHalf"), 4),
    **dict.fromkeys(("Long", "UInt64", "Double", "ComplexFloat"), 8),
    "ComplexDouble": 16,
}
_SHARED: Final = frozenset({"allgather", "reducescatter", "alltoall", "gather", "scatter"})
_ONE_WAY: Final = frozenset({"broadcast", "reduce", "send", "recv", "sendrecv"})
UNKNOWN_COLLECTIVE: Final = Collective(name="unknown")
#: Kinds of a device, a line each; those with the least time are one beyond that.
MOST_KINDS: Final = 64
OTHER_COLLECTIVES: Final = Collective(name="other")


def collective_totals(
    timeline: DeviceTimeline, collectives: tuple[Collective, ...]
) -> TransferTotals:
    """Sum each row's communication kernels by collective and process group.

    A kind has a name, a process group with its description, size and ranks. Only kinds that occur
    have a column; `OTHER_COLLECTIVES` has those with the least time of very many.
    """
    comm = np.flatnonzero(is_class(timeline.kernel_class, COMM_CLASSES))
    number_of: dict[Collective, int] = {}
    every = (*collectives, UNKNOWN_COLLECTIVE)
    numbers = [number_of.setdefault(_kind(each), len(number_of)) for each in every]
    number = np.array(numbers, np.int64)[timeline.collective[comm]]
    sizes = [collective_bytes(each) for each in every]
    size = np.array([-1 if each is None else each for each in sizes])[timeline.collective[comm]]
    duration_ns = (timeline.end_ns - timeline.start_ns)[comm]
    kinds, kind = _bounded(tuple(number_of), number, duration_ns)
    return TransferTotals.of(timeline, comm, kind, size, kinds)


def _bounded(
    kinds: tuple[Collective, ...], number: Int64s, duration_ns: Int64s
) -> tuple[tuple[Collective, ...], Int64s]:
    """Return the kinds that occur, at most `MOST_KINDS` with the most time, and each record's.

    The rest become `OTHER_COLLECTIVES`: every row has a figure of each kind.
    """
    time_ns = np.bincount(number, duration_ns, len(kinds))
    there = np.flatnonzero(np.bincount(number, minlength=len(kinds)))
    own = np.sort(there[np.argsort(-time_ns[there], kind="stable")][:MOST_KINDS])
    place = np.full(len(kinds), len(own))
    place[own] = np.arange(len(own))
    others = (OTHER_COLLECTIVES,) if len(own) < len(there) else ()
    return (*(kinds[one] for one in own.tolist()), *others), place[number]


def _kind(collective: Collective) -> Collective:
    return Collective(
        name=collective.name,
        group=collective.group,
        group_description=collective.group_description,
        group_size=collective.group_size,
        ranks=collective.ranks,
    )


def collective_bytes(collective: Collective) -> int | None:
    """Return the size in bytes by which a collective's bandwidth is computed; None if unknown.

    The larger of what goes into a rank and what comes out: the array of an all-reduce or broadcast,
    all that an all-gather puts together, or a reduce-scatter takes apart. Zero elements mean an
    unknown size: a collective of nothing runs no kernel.

    Source: nccl-tests, where "S is the size in bytes of the total array", and torch's counts
    (`inNelems`, `outNelems`), both of one rank.
    """
    element_bytes = _DTYPE_BYTES.get(collective.dtype or "")
    elements = max(collective.in_elements or 0, collective.out_elements or 0)
    return elements * element_bytes if elements > 0 and element_bytes else None


def bus_factor(name: str, group_size: int | None) -> float | None:
    """Return the ratio of the bandwidth of a rank's links to the algorithm's; None if unknown.

    None too for a group of one, which uses no link, and for unevenly split all-to-alls. `name`: in
    one spelling ("allreduce").

    Source: nccl-tests: 2 (n - 1) / n, (n - 1) / n, or 1 for collectives with one root and for
    messages from rank to rank. They are of rings and trees, not of reductions in switches.
    """
    if group_size is not None and group_size < 2:
        return None
    if name in _ONE_WAY:
        return 1.0
    if group_size is None:
        return None
    share = (group_size - 1) / group_size
    if name == "allreduce":
        return 2 * share
    return share if name in _SHARED else None


# Chopper's own launch, prep and call overheads and its overlap ratio, for comparison with ours.
#
# Its compute kernels are those that are neither communication nor FSDP's copies for it, and have a
# launch in the file. Its copies and fills are in neither.
#
# Source: UnaryLab/chopper at 7957a6e: `common/trace_metrics.py` (`derive_prep_overhead`,
# `derive_call_overhead`, `compute_overlap_cdf`), `plots/launch_overhead.py` (first kernels),
# `profile/merge.py` (kernels). The text of its paper was not at hand.

_PACKS = frozenset({KernelClass.COMM_PACK})


class ChopperTotals(Struct, frozen=True, kw_only=True):
    """Sums over compute kernels of each row or group, (r,) int64; `overlap_ratio` NaN unknown.

    The whole file is the sum of its steps, as gaps between steps are none of Chopper's; a file
    without steps is taken as one.
    """

    #: The kernels and their durations.
    kernel_count: Int64s
    kernel_ns: Int64s
    #: Of all but the first kernels of steps.
    launch_ns: Int64s
    prep_ns: Int64s
    call_ns: Int64s
    #: Of the first kernels of steps.
    first_launch_ns: Int64s
    first_call_ns: Int64s
    #: Of the kernels' time, what communication covers, added up kernel by kernel and cut at each
    #: compute kernel's length.
    overlap_ratio: Float64s


class ChopperKernels(Struct, frozen=True, kw_only=True):
    """The compute kernels of a device as Chopper counts them, to be summed by row or group.

    Launch overhead is the gap since the compute kernel that started before, in the same step;
    prep the part of it before the launch call began, call the part from there on. Of a step's
    first compute kernel: launch since the step's first kernel of any kind, call since its launch
    call began, uncut. Chopper sums by operation and takes medians; here all are summed.
    """

    kernels: Int64s  # indices of records, by step, then by start
    first: Int64s  # which of these are the first of their step
    parts_ns: Mapping[str, Int64s]  # figures of each kernel
    opening_ns: Mapping[str, Int64s]  # figures of the first ones
    overlap_ns: Int64s  # with communication

    @classmethod
    def of(cls, timeline: DeviceTimeline) -> "ChopperKernels":
        """Find the kernels of a device, and the figures of each."""
        group = np.zeros(len(timeline), np.int64)
        if timeline.windows:
            group = timeline.step.astype(np.int64)
        counts = (timeline.call_thread >= 0) & (group >= 0)
        counts &= is_class(timeline.kernel_class, COMPUTE_CLASSES - _PACKS)
        kernels = np.flatnonzero(counts)
        kernels = kernels[np.argsort(group[kernels], kind="stable")]
        first = np.flatnonzero(_opens(group[kernels]))
        return cls(
            kernels=kernels,
            first=first,
            parts_ns=_parts_ns(timeline, kernels, first),
            opening_ns=_opening_ns(timeline, group, kernels[first]),
            overlap_ns=_comm_overlap_ns(timeline, kernels),
        )

    def totals(self, sums_of: SumsOf) -> ChopperTotals:
        """Sum by what `sums_of` groups records by."""
        rows, openers = sums_of(self.kernels), sums_of(self.kernels[self.first])
        sums = {name: rows.whole(each) for name, each in self.parts_ns.items()}
        sums |= {name: openers.whole(each) for name, each in self.opening_ns.items()}
        overlap_ns, time_ns = rows.of(self.overlap_ns), sums["kernel_ns"]
        unknown = np.full(len(overlap_ns), np.nan)
        ratio = np.divide(overlap_ns, time_ns, out=unknown, where=time_ns > 0)
        return ChopperTotals(overlap_ratio=ratio, **sums)


def _parts_ns(timeline: DeviceTimeline, kernels: Int64s, first: Int64s) -> dict[str, Int64s]:
    """Compute the figures of each kernel, by group and start, (n,) int64 by their names."""
    start, end = timeline.start_ns[kernels], timeline.end_ns[kernels]
    call = np.minimum(timeline.call_start_ns[kernels], start)  # by the device's clock a us early
    before = np.concatenate((end[:1], end[:-1]))
    launch, prep = np.maximum(start - before, 0), np.maximum(call - before, 0)
    launch[first] = prep[first] = 0
    return {
        "kernel_count": np.ones(len(kernels), np.int64),
        "kernel_ns": end - start,
        "launch_ns": launch,
        "prep_ns": prep,
        "call_ns": np.minimum(start - call, launch),
    }


def _opening_ns(timeline: DeviceTimeline, group: Int64s, kernels: Int64s) -> dict[str, Int64s]:
    """Compute the launch and call overheads of groups' first kernels, (n,) int64 ns by name."""
    start = timeline.start_ns[kernels]
    return {
        "first_launch_ns": start - _begins(timeline, group)[group[kernels]],
        "first_call_ns": np.maximum(start - timeline.call_start_ns[kernels], 0),
    }


def _opens(group: Int64s) -> Bools:
    """Whether each is the first of its group, where groups follow one another: (n,) bool."""
    opens: Bools = np.diff(group, prepend=-1) != 0
    return opens


def _begins(timeline: DeviceTimeline, group: Int64s) -> Int64s:
    """Return when each group's first kernel of any kind starts, ns: (g,) int64."""
    own = np.flatnonzero((group >= 0) & ~is_class(timeline.kernel_class, COPY_CLASSES))
    begins = np.zeros(int(group.max(initial=-1)) + 1, np.int64)
    first = own[np.flatnonzero(_opens(group[own]))][::-1]  # of several runs of a group the first
    begins[group[first]] = timeline.start_ns[first]
    return begins


def _comm_overlap_ns(timeline: DeviceTimeline, kernels: Int64s) -> Int64s:
    """Sum each kernel's overlaps with communication kernels, cut at its length, ns: (n,) int64.

    Two communication kernels at once count twice, as Chopper adds them up one by one.
    """
    comm = np.flatnonzero(is_class(timeline.kernel_class, COMM_CLASSES | _PACKS))
    start, end = timeline.start_ns[kernels], timeline.end_ns[kernels]
    if not len(comm) or not len(kernels):
        return np.zeros(len(kernels), np.int64)
    began, ended = timeline.start_ns[comm], np.sort(timeline.end_ns[comm])
    base = int(timeline.start_ns[0])
    start, end = start - base, end - base
    run_ns = _since(began - base, start, end) - _since(ended - base, start, end)
    overlap_ns: Int64s = np.minimum(run_ns, end - start)
    return overlap_ns


def _since(events_ns: Int64s, start_ns: Int64s, end_ns: Int64s) -> Int64s:
    """Compute how much the summed time since all past events grows over each span: (n,) int64."""
    sums_ns = np.concatenate((np.zeros(1, np.int64), np.cumsum(events_ns)))
    first, last = places_of_spans(events_ns, start_ns, end_ns, "left")
    since_ns: Int64s = last * end_ns - sums_ns.take(last)
    since_ns -= first * start_ns
    since_ns += sums_ns.take(first)
    return since_ns


class Traffic(Struct, frozen=True, kw_only=True):
    """Copies, collectives and Chopper's figures of each row, and contention over the whole file.

    `contention`, by family, is None where nothing communicates.
    """

    copies: TransferTotals
    collectives: TransferTotals
    chopper: ChopperTotals
    kernels: ChopperKernels  # what `chopper` sums, for other groups
    contention: ContentionTotals | None


def traffic_of(
    timeline: DeviceTimeline, comm: Intervals, collectives: tuple[Collective, ...]
) -> Traffic:
    """Compute the traffic of one device."""
    kernels = ChopperKernels.of(timeline)
    return Traffic(
        copies=copy_totals(timeline),
        collectives=collective_totals(timeline, collectives),
        chopper=kernels.totals(partial(RowSums, timeline)),
        kernels=kernels,
        contention=contention(timeline, comm),
    )
