"""Collectives of each row by process group: how many, how long, how many bytes, how fast.

Sizes and factors are those of NCCL's own tests, so that figures can be set beside theirs.

Source: `doc/PERFORMANCE.md` of NVIDIA/nccl-tests.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from chopperd.correlate.row_sums import RowSums
from chopperd.correlate.waterfall import is_class
from chopperd.model.arrays import Int64s
from chopperd.model.classes import COMM_CLASSES
from chopperd.model.timeline import DeviceTimeline
from chopperd.model.trace import Collective

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


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveTotals:
    """Sums over the communication kernels of each row, (r, k) int64: a column for each of `kinds`.

    Attributes:
        kinds: A name, a process group with its description, size and ranks; nothing else is set.
            Only those that occur; `OTHER_COLLECTIVES` for those with the least time of very many.
        count: Kernels.
        time_ns: Their durations; no union.
        sized_count, sized_time_ns, moved_bytes: Of those whose size is known.
    """

    kinds: tuple[Collective, ...]
    count: Int64s
    time_ns: Int64s
    sized_count: Int64s
    sized_time_ns: Int64s
    moved_bytes: Int64s


def collective_totals(
    timeline: DeviceTimeline, collectives: tuple[Collective, ...]
) -> CollectiveTotals:
    """What each row's communication kernels carried, by collective and process group.

    Args:
        timeline: The device.
        collectives: What its `collective` column indexes.
    """
    comm = np.flatnonzero(is_class(timeline.kernel_class, COMM_CLASSES))
    number_of: dict[Collective, int] = {}
    every = (*collectives, UNKNOWN_COLLECTIVE)
    numbers = [number_of.setdefault(_kind(each), len(number_of)) for each in every]
    number = np.array(numbers, np.int64)[timeline.collective[comm]]
    size = np.array([_known(collective_bytes(each)) for each in every])[timeline.collective[comm]]
    duration_ns = (timeline.end_ns - timeline.start_ns)[comm]
    kinds, kind = _bounded(tuple(number_of), number, duration_ns)
    sized = np.flatnonzero(size >= 0)
    sums, sized_sums = RowSums(timeline, comm), RowSums(timeline, comm[sized])
    count = len(kinds)
    return CollectiveTotals(
        kinds=kinds,
        count=sums.apart(kind, count),
        time_ns=sums.apart(kind, count, duration_ns),
        sized_count=sized_sums.apart(kind[sized], count),
        sized_time_ns=sized_sums.apart(kind[sized], count, duration_ns[sized]),
        moved_bytes=sized_sums.apart(kind[sized], count, size[sized]),
    )


def _bounded(
    kinds: tuple[Collective, ...], number: Int64s, duration_ns: Int64s
) -> tuple[tuple[Collective, ...], Int64s]:
    """The kinds that occur, of at most `MOST_KINDS` with the most time, and the place of each.

    Every row has a figure of each kind: anyone can make a trace of thousands of both.
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


def _known(size_bytes: int | None) -> int:
    return -1 if size_bytes is None else size_bytes


def collective_bytes(collective: Collective) -> int | None:
    """The size that bandwidths are of; None if unknown.

    The larger of what goes into a rank and what comes out: the array of an all-reduce or broadcast,
    all that an all-gather puts together, all that a reduce-scatter takes apart. No elements at
    all are no size: a collective of nothing runs no kernel, so the trace does not say it.

    Source: nccl-tests, where "S is the size in bytes of the total array", and the counts that
        torch's process groups record (`inNelems`, `outNelems`), both of one rank.
    """
    element_bytes = _DTYPE_BYTES.get(collective.dtype or "")
    elements = max(collective.in_elements or 0, collective.out_elements or 0)
    return elements * element_bytes if elements > 0 and element_bytes else None


def bus_factor(name: str, group_size: int | None) -> float | None:
    """What makes an algorithm's bandwidth that of one rank's links; None if unknown.

    None too for a group of one, which uses no link, and for unevenly split all-to-alls, of which
    the share that stays on the rank is not known.

    Args:
        name: In one spelling ("allreduce").
        group_size: Ranks of its process group; None if not known.

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
