"""Split a device's time into compute, communication, copies, and idle time by its reason.

The masks of one device are disjoint where the waterfall needs them to be; windows are cut out of
them by cumulative length, so that the rows of a window sum to its length exactly.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Final

import numpy as np
from msgspec import Struct

from chopperd.correlate import intervals
from chopperd.correlate.intervals import length_ns, lengths_ns, places, places_of_spans, union
from chopperd.model import kinds
from chopperd.model.arrays import Bools, Float64s, Int8s, Int32s, Int64s, Timed
from chopperd.model.timeline import DeviceTimeline, HostActivity, Intervals, Marker, Phase

COPY_DIRECTIONS: Final = tuple(way for way in kinds.CopyDirection if way >= 0)
IDLE_ROWS: Final = (
    *("unknown", "idle_launch_call", "idle_allocator", "idle_data"),
    *("idle_sync", "idle_launch_prep", "idle_other"),
)


class Windows(Timed, frozen=True, kw_only=True):
    """Stretches of device time to report on, in any order: (w,) int64 starts and ends."""


class BusyMasks(Struct, frozen=True, kw_only=True):
    """Unions of a device's records over all streams."""

    busy: Intervals  # kernels, copies and fills
    #: Unions of their classes; they may overlap one another.
    compute: Intervals
    comm: Intervals
    copy: Intervals
    exposed_comm: Intervals  # communication and no compute
    exposed_copy: Intervals  # copies and neither compute nor communication
    #: The same by direction; overlapping directions go to the first of h2d, d2h, d2d, memset.
    exposed_copy_by: dict[kinds.CopyDirection, Intervals]
    overlap: Intervals  # compute and communication at once


def step_windows(timeline: DeviceTimeline) -> Windows:
    """Return the windows of a device's steps, in order."""
    return Windows(
        start_ns=np.array([window.start_ns for window in timeline.windows], np.int64),
        end_ns=np.array([window.end_ns for window in timeline.windows], np.int64),
    )


def is_class(kernel_class: Int8s, wanted: frozenset[kinds.KernelClass]) -> Bools:
    """Whether each record's class is one of `wanted`: (n,) bool."""
    member = np.zeros(len(kernel_class), np.bool_)
    for each in wanted:  # faster than a table, of which indices are as large as pointers
        member |= kernel_class == each
    return member


def busy_masks(timeline: DeviceTimeline) -> BusyMasks:
    """Compute the busy masks of one device.

    Source: DESIGN.md section 2, "Busy" and the waterfall's order of rows.
    """
    compute = _union_of(timeline, is_class(timeline.kernel_class, kinds.COMPUTE_CLASSES))
    comm = _union_of(timeline, is_class(timeline.kernel_class, kinds.COMM_CLASSES))
    running = _merge(compute, comm)
    copies = np.flatnonzero(is_class(timeline.kernel_class, kinds.COPY_CLASSES))
    way = copy_ways(timeline.kernel_class[copies], timeline.copy_direction[copies])
    covered = running
    by_direction: dict[kinds.CopyDirection, Intervals] = {}
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
    """Get the direction of each copy and fill: (n,) int8; fills `MEMSET`, unknown copies D2D."""
    unknown = (direction == kinds.CopyDirection.NONE) & (kernel_class == kinds.KernelClass.MEMCPY)
    direction = np.where(unknown, np.int8(kinds.CopyDirection.D2D), direction)
    is_fill = kernel_class == kinds.KernelClass.MEMSET
    return np.where(is_fill, np.int8(kinds.CopyDirection.MEMSET), direction)


def _union_of(timeline: DeviceTimeline, wanted: Bools | Int64s) -> Intervals:
    return intervals.union(timeline.start_ns[wanted], timeline.end_ns[wanted])


def _merge(*sets: Intervals) -> Intervals:
    some = [each for each in sets if len(each)]
    if len(some) < 2:
        return some[0] if some else intervals.EMPTY
    return intervals.union(
        np.concatenate([each.start_ns for each in some]),
        np.concatenate([each.end_ns for each in some]),
    )


class IdleSplit(Struct, frozen=True, kw_only=True):
    """A device's idle time by its reason, and its gaps by the record that comes next."""

    rows: Mapping[str, Intervals]  # `IDLE_ROWS`, disjoint
    gaps: Intervals  # the known idle time, cut where another record comes next
    record: Int64s  # of each gap, index of the record that starts first after any of its ns
    call_ns: Int64s  # where its launch call began in the gap; the gap's end where it is unlinked


def idle_split(
    timeline: DeviceTimeline, busy: Intervals, activity: tuple[HostActivity, ...]
) -> IdleSplit:
    """Split the idle time between a device's records by its reason.

    An idle ns belongs to the record that starts first after it: before that record's runtime call
    began, to what the thread of that call did then; from the call on, to the call itself.

    Source: DESIGN.md section 2, "The waterfall".
    """
    rest, record, unknown = _gaps(timeline, busy)
    thread = timeline.call_thread[record]
    linked = thread >= 0
    call_ns = np.clip(timeline.call_start_ns[record], rest.start_ns, rest.end_ns)
    call_ns = np.where(linked, call_ns, rest.end_ns)
    before_call = Intervals(start_ns=rest.start_ns[linked], end_ns=call_ns[linked])
    rows = _by_activity(before_call, thread[linked], activity)
    rows["unknown"] = unknown
    rows["idle_launch_call"] = intervals.union(call_ns[linked], rest.end_ns[linked])
    rows["idle_other"] = intervals.union(rest.start_ns[~linked], rest.end_ns[~linked])
    in_order = {name: rows[name] for name in IDLE_ROWS}
    return IdleSplit(rows=in_order, gaps=rest, record=record, call_ns=call_ns)


def _gaps(timeline: DeviceTimeline, busy: Intervals) -> tuple[Intervals, Int64s, Intervals]:
    """Return the known idle time between a device's records, whose it is, and the unknown one.

    Disjoint gaps; for each the index of the record that starts first after any of its ns, (n,)
    int64; the idle time in which launches without a record may have run.
    """
    # From first start to last end of all records, also those of no length.
    last_ns = timeline.end_ns.max(keepdims=True) if len(timeline) else timeline.end_ns
    idle = intervals.difference(intervals.union(timeline.start_ns[:1], last_ns), busy)
    unknown = intervals.intersection(idle, timeline.unrecorded)
    gaps = intervals.difference(idle, timeline.unrecorded)
    # Records of no length end no idle time, but own what lies before them.
    empty = timeline.end_ns <= timeline.start_ns
    gaps = intervals.split_at(gaps, timeline.start_ns[empty])
    return gaps, following(timeline.start_ns, timeline.call_thread, gaps.start_ns), unknown


def following(start_ns: Int64s, call_thread: Int32s, at_ns: Int64s) -> Int64s:
    """Return the record that starts first after each instant, (n,) int64.

    Of records that start together (`start_ns` rises) a linked one counts, then the first in the
    table. Where none starts, the result is the number of records.
    """
    found = np.searchsorted(start_ns, at_ns, "right")
    count = len(start_ns)
    rows = np.where(call_thread >= 0, np.arange(count), count)
    linked = np.append(np.minimum.accumulate(rows[::-1])[::-1], count)[found]
    edges_ns = np.append(start_ns, np.iinfo(np.int64).max)
    together = (linked < count) & (edges_ns[linked] == edges_ns[found])
    return np.where(together, linked, found)


def _by_activity(
    waiting: Intervals, thread: Int32s, activity: tuple[HostActivity, ...]
) -> dict[str, Intervals]:
    """Split idle time before launch calls by what the launching thread did; the sets are disjoint.

    Each ns goes to the first of allocator, data and sync that holds it, else to launch prep.
    """
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
    return {name: _merge(*pieces) for name, pieces in parts.items()}


# Busy time by step: of the records that a step launched, and of others inside its window.


def launched_ns(timeline: DeviceTimeline) -> Int64s:
    """Compute each window's step's busy time, ns, (w,): the union of its records, whenever run."""
    linked = timeline.step >= 0
    step = timeline.step[linked].astype(np.int64)
    wanted = np.array([window.step for window in timeline.windows], np.int64)
    lengths = _union_lengths_ns(
        step, timeline.start_ns[linked], timeline.end_ns[linked], int(wanted.max(initial=-1)) + 1
    )
    return lengths[wanted]


def _union_lengths_ns(group: Int64s, start_ns: Int64s, end_ns: Int64s, count: int) -> Int64s:
    """Compute the length of the union of each group's intervals: (count,) int64 ns.

    `start_ns` rises. The groups are laid one behind the other; what an interval adds to the union
    is what lies beyond all before it. Groups of `count` and more are left out.
    """
    if not len(group):
        return np.zeros(count, np.int64)
    order = np.argsort(group, kind="stable")
    group = group[order]
    shift_ns = group * int(end_ns.max() - start_ns[0]) - start_ns[0]
    start_ns, end_ns = start_ns[order] + shift_ns, end_ns[order] + shift_ns
    reach_ns = np.maximum.accumulate(end_ns)
    start_ns[1:] = np.maximum(start_ns[1:], reach_ns[:-1])
    added_ns = np.maximum(end_ns - start_ns, 0)
    return np.bincount(group, added_ns, count)[:count].astype(np.int64)


def foreign_ns(timeline: DeviceTimeline) -> Int64s:
    """Compute busy time in each window of other steps' and unlinked records: a union, ns, (w,)."""
    step = np.array([window.step for window in timeline.windows], np.int64)
    windows = step_windows(timeline)
    starts, ends = windows.start_ns, windows.end_ns
    first = places(ends, timeline.start_ns, "right")
    _, last = places_of_spans(starts, timeline.start_ns, timeline.end_ns, "left")
    count = np.maximum(last - first, 0)
    record = np.repeat(np.arange(len(timeline)), count)
    nth = np.arange(len(record)) - np.repeat(np.cumsum(count) - count, count)
    window = first[record] + nth
    other = timeline.step[record] != step[window]
    record, window = record[other], window[other]
    foreign = union(
        np.maximum(timeline.start_ns[record], starts[window]),
        np.minimum(timeline.end_ns[record], ends[window]),
    )
    return lengths_ns(foreign, starts, ends)


def marker_busy_ns(timeline: DeviceTimeline, marker: Marker) -> int:
    """Compute the busy time of the records that were launched inside one marker: a union, ns."""
    own = (
        (timeline.call_thread >= 0)
        & (timeline.call_start_ns >= marker.start_ns)
        & (timeline.call_start_ns < marker.end_ns)
    )
    return length_ns(union(timeline.start_ns[own], timeline.end_ns[own]))


def phase_busy_ns(timeline: DeviceTimeline, windows: Windows) -> Mapping[Phase, Int64s]:
    """Compute the busy time of each phase on the device in each window, ns: (r,) int64.

    A union over streams, like busy time. Phases may run at once, so that they may sum to more than
    busy time. `UNKNOWN` is the time of records of no known phase: they may be of any.
    """
    found = {}
    for phase in Phase:
        mine = timeline.phase == phase
        if mine.any():
            mask = intervals.union(timeline.start_ns[mine], timeline.end_ns[mine])
            found[phase] = lengths_ns(mask, windows.start_ns, windows.end_ns)
    return found


class Sums(ABC):
    """Sums of values, (n,) each, of some records by row or by group, (r,)."""

    @abstractmethod
    def of(self, values: Int64s | Float64s) -> Float64s:
        """Sum the values of each row's records."""

    def whole(self, values: Int64s) -> Int64s:
        """Sum integers."""
        return np.rint(self.of(values)).astype(np.int64)


class RowSums(Sums):
    """Sums over the records at some indices, (n,), for each row, (r,).

    Rows are the steps of the device's windows, each with the records that it launched, whenever
    they ran; and last all the records, also of steps without a window.
    """

    def __init__(self, timeline: DeviceTimeline, records: Int64s) -> None:
        row = row_of_steps(timeline)[timeline.step[records]]
        # Neighbours are mostly of one row: numbers are added up run by run of them.
        self._first = np.flatnonzero(np.diff(row, prepend=-2))
        self._length = np.diff(self._first, append=len(row))
        self._place = row[self._first] + 1  # 0: of no row
        self._place_count = len(timeline.windows) + 1

    def of(self, values: Int64s | Float64s) -> Float64s:
        """Sum the values, (n,), of each row's records: (r,) float64."""
        of_runs = np.add.reduceat(values, self._first)
        of_rows = np.bincount(self._place, of_runs, self._place_count)[1:]
        return np.append(of_rows, values.sum()).astype(np.float64, copy=False)

    def apart(self, key: Int64s, key_count: int, values: Int64s | None = None) -> Int64s:
        """Sum each row's values, or count its records, by key: (r, key_count) int64."""
        flat = np.repeat(self._place * key_count, self._length) + key
        sums = np.bincount(flat, values, self._place_count * key_count)
        sums = sums.reshape(self._place_count, key_count)
        return np.rint(np.concatenate((sums[1:], [sums.sum(axis=0)]))).astype(np.int64)


def row_of_steps(timeline: DeviceTimeline) -> Int64s:
    """Return each step's row, -1 without one: (s + 1,) int64; the last is that of step -1."""
    steps = np.array([window.step for window in timeline.windows], np.int64)
    last = max(int(steps.max(initial=-1)), int(timeline.step.max(initial=-1)))
    row = np.full(last + 2, -1, np.int64)
    row[steps] = np.arange(len(steps))
    return row
