"""What a device did at every ns of its time: busy, communicating, copying, or idle and why.

The masks of one device are disjoint where the waterfall needs them to be; windows are cut out of
them by cumulative length, so that the rows of a window sum to its length exactly.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from chopperd.correlate import intervals
from chopperd.model.arrays import Bools, Int8s, Int32s, Int64s
from chopperd.model.kinds import (
    COMM_CLASSES,
    COMPUTE_CLASSES,
    COPY_CLASSES,
    KERNEL_CLASSES,
    CopyDirection,
    KernelClass,
)
from chopperd.model.timeline import DeviceTimeline, HostActivity, Intervals

COPY_DIRECTIONS: Final = (
    CopyDirection.H2D,
    CopyDirection.D2H,
    CopyDirection.D2D,
    CopyDirection.MEMSET,
)
IDLE_ROWS: Final = (
    "unknown",
    "idle_launch_call",
    "idle_allocator",
    "idle_data",
    "idle_sync",
    "idle_launch_prep",
    "idle_other",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BusyMasks:
    """Unions of a device's records over all streams.

    Attributes:
        busy: Kernels, copies and fills.
        compute, comm, copy: Unions of their classes; they may overlap one another.
        exposed_comm: Communication and no compute.
        exposed_copy: Copies and neither compute nor communication.
        exposed_copy_by: The same by direction; overlapping directions go to the first of h2d,
            d2h, d2d, memset.
        overlap: Compute and communication at once.
    """

    busy: Intervals
    compute: Intervals
    comm: Intervals
    copy: Intervals
    exposed_comm: Intervals
    exposed_copy: Intervals
    exposed_copy_by: dict[CopyDirection, Intervals]
    overlap: Intervals


def is_class(kernel_class: Int8s, wanted: frozenset[KernelClass]) -> Bools:
    """(n,) bool: whether each record's class is one of `wanted`."""
    is_wanted = np.array([each in wanted for each in KERNEL_CLASSES])
    member: Bools = is_wanted.take(kernel_class)
    return member


def busy_masks(timeline: DeviceTimeline) -> BusyMasks:
    """The busy masks of one device.

    Source: DESIGN.md section 2, "Busy" and the waterfall's order of rows.
    """
    compute = _union_of(timeline, is_class(timeline.kernel_class, COMPUTE_CLASSES))
    comm = _union_of(timeline, is_class(timeline.kernel_class, COMM_CLASSES))
    running = _merge(compute, comm)
    copies = np.flatnonzero(is_class(timeline.kernel_class, COPY_CLASSES))
    way = copy_ways(timeline.kernel_class[copies], timeline.copy_direction[copies])
    covered = running
    by_direction: dict[CopyDirection, Intervals] = {}
    for direction in COPY_DIRECTIONS:
        mask = _union_of(timeline, copies[way == direction])
        by_direction[direction] = intervals.difference(mask, covered)
        covered = _merge(covered, mask)
    copy = _union_of(timeline, copies)
    return BusyMasks(
        busy=covered,
        compute=compute,
        comm=comm,
        copy=copy,
        exposed_comm=intervals.difference(comm, compute),
        exposed_copy=intervals.difference(copy, running),
        exposed_copy_by=by_direction,
        overlap=intervals.intersection(compute, comm),
    )


def copy_ways(kernel_class: Int8s, direction: Int8s) -> Int8s:
    """Direction of each copy and fill: (n,) int8; fills `MEMSET`, copies of unknown direction D2D.

    Args:
        kernel_class: (n,) int8, of copies and fills.
        direction: (n,) int8, `CopyDirection` as told.
    """
    unknown = (direction == CopyDirection.NONE) & (kernel_class == KernelClass.MEMCPY)
    direction = np.where(unknown, np.int8(CopyDirection.D2D), direction)
    is_fill = kernel_class == KernelClass.MEMSET
    filled: Int8s = np.where(is_fill, np.int8(CopyDirection.MEMSET), direction)
    return filled


def _union_of(timeline: DeviceTimeline, wanted: Bools | Int64s) -> Intervals:
    return intervals.union(timeline.start_ns[wanted], timeline.end_ns[wanted])


def _merge(a: Intervals, b: Intervals) -> Intervals:
    """The union of two unions."""
    if not len(a) or not len(b):
        return a if len(a) else b
    return intervals.union(
        np.concatenate((a.start_ns, b.start_ns)), np.concatenate((a.end_ns, b.end_ns))
    )


def idle_masks(
    timeline: DeviceTimeline, busy: Intervals, activity: tuple[HostActivity, ...]
) -> dict[str, Intervals]:
    """The idle time between a device's records, by why it was idle (`IDLE_ROWS`), disjoint.

    An idle ns belongs to the record that starts first after it: before that record's runtime
    call began, to what the thread of that call did then; from the call on, to the call itself.

    Args:
        timeline: The device.
        busy: Its busy union.
        activity: Of each host thread.

    Source: DESIGN.md section 2, "The waterfall".
    """
    idle = intervals.difference(_traced(timeline), busy)
    unknown = intervals.intersection(idle, timeline.unrecorded)
    rest = intervals.difference(idle, timeline.unrecorded)
    # Records of no length end no idle time, but own what lies before them.
    empty = timeline.end_ns <= timeline.start_ns
    rest = intervals.split_at(rest, timeline.start_ns[empty])
    following = np.searchsorted(timeline.start_ns, rest.start_ns, "right")
    thread = timeline.call_thread[following]
    linked = thread >= 0
    call_ns = np.clip(timeline.call_start_ns[following], rest.start_ns, rest.end_ns)
    before_call = Intervals(
        start_ns=rest.start_ns[linked], end_ns=np.where(linked, call_ns, rest.end_ns)[linked]
    )
    rows = _by_activity(before_call, thread[linked], activity)
    rows["unknown"] = unknown
    rows["idle_launch_call"] = intervals.union(call_ns[linked], rest.end_ns[linked])
    rows["idle_other"] = intervals.union(rest.start_ns[~linked], rest.end_ns[~linked])
    return {name: rows[name] for name in IDLE_ROWS}


def _traced(timeline: DeviceTimeline) -> Intervals:
    """From the first start to the last end of all records, those of no length included."""
    if not len(timeline):
        return intervals.EMPTY
    return intervals.union(timeline.start_ns[:1], timeline.end_ns.max(keepdims=True))


def _by_activity(
    waiting: Intervals, thread: Int32s, activity: tuple[HostActivity, ...]
) -> dict[str, Intervals]:
    """Time before launch calls, split by what the launching thread did: disjoint, in order."""
    parts: dict[str, list[Intervals]] = {
        name: [] for name in ("idle_allocator", "idle_data", "idle_sync", "idle_launch_prep")
    }
    for number in np.unique(thread):
        mine = thread == number
        left = intervals.union(waiting.start_ns[mine], waiting.end_ns[mine])
        host = activity[number]
        for name, mask in (
            ("idle_allocator", host.allocator),
            ("idle_data", host.data),
            ("idle_sync", host.sync),
        ):
            parts[name].append(intervals.intersection(left, mask))
            left = intervals.difference(left, mask)
        parts["idle_launch_prep"].append(left)
    return {name: _merge_all(pieces) for name, pieces in parts.items()}


def _merge_all(sets: list[Intervals]) -> Intervals:
    if not sets:
        return intervals.EMPTY
    return intervals.union(
        np.concatenate([one.start_ns for one in sets]),
        np.concatenate([one.end_ns for one in sets]),
    )


def lengths_ns(mask: Intervals, start_ns: Int64s, end_ns: Int64s) -> Int64s:
    """(w,) int64: the time of the mask inside each window [start, end)."""
    return intervals.lengths_within_ns(mask, start_ns, end_ns)
