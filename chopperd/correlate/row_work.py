"""What a step's own records and other steps' did: the two partitions of device time."""

from collections.abc import Mapping

import numpy as np

from chopperd.correlate import intervals
from chopperd.correlate.intervals import length_ns, places, places_of_spans, union
from chopperd.correlate.losses import Windows
from chopperd.correlate.waterfall import lengths_ns
from chopperd.model.arrays import Float64s, Int64s
from chopperd.model.timeline import DeviceTimeline, Marker, Phase


def launched_ns(timeline: DeviceTimeline) -> Int64s:
    """(w,) int64: for each window's step, the union of its own records, wherever they ran."""
    linked = timeline.step >= 0
    step = timeline.step[linked].astype(np.int64)
    wanted = _steps(timeline)
    lengths = _union_lengths_ns(
        step, timeline.start_ns[linked], timeline.end_ns[linked], int(wanted.max(initial=-1)) + 1
    )
    return lengths[wanted]


def _steps(timeline: DeviceTimeline) -> Int64s:
    return np.array([window.step for window in timeline.windows], np.int64)


def _union_lengths_ns(group: Int64s, start_ns: Int64s, end_ns: Int64s, count: int) -> Int64s:
    """(count,) int64: the length of the union of each group's intervals.

    The groups are laid one behind the other, so that no interval reaches into the next group's;
    what an interval adds to the union is what lies beyond all before it.

    Args:
        group: (n,) int64, not negative; those of `count` and more are left out of the result.
        start_ns: (n,) int64, rising.
        end_ns: (n,) int64.
        count: How many groups.
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
    """(w,) int64: in each window, the union of other steps' and unlinked records."""
    step = _steps(timeline)
    starts = np.array([window.start_ns for window in timeline.windows], np.int64)
    ends = np.array([window.end_ns for window in timeline.windows], np.int64)
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
    return intervals.length_before_ns(foreign, ends) - intervals.length_before_ns(foreign, starts)


def marker_busy_ns(timeline: DeviceTimeline, marker: Marker) -> int:
    """The union of the records that were launched inside one marker."""
    own = (
        (timeline.call_thread >= 0)
        & (timeline.call_start_ns >= marker.start_ns)
        & (timeline.call_start_ns < marker.end_ns)
    )
    return length_ns(union(timeline.start_ns[own], timeline.end_ns[own]))


# How long each row's device was busy with records that a phase of the step launched.


def phase_busy_ns(timeline: DeviceTimeline, windows: Windows) -> Mapping[Phase, Int64s]:
    """Busy time of each phase that occurs on the device, in each window: (r,) int64 ns.

    A phase's time is a union over streams, like busy time. Phases may run at once (communication of
    the backward beside the optimizer), so that they may sum to more than busy time. `UNKNOWN` is
    the time of records whose phase is not told: it may be of any.

    Args:
        timeline: The device.
        windows: The rows.
    """
    found = {}
    for phase in Phase:
        mine = timeline.phase == phase
        if mine.any():
            mask = intervals.union(timeline.start_ns[mine], timeline.end_ns[mine])
            found[phase] = lengths_ns(mask, windows.start_ns, windows.end_ns)
    return found


# Sums over a device's records for each row: its own step's records, and last, all of the file's.
#
# The work of a step is by launch: whatever it launched counts for it, wherever that ran.


class RowSums:
    """Sums of what is known of some records of a device, (r,) a row and in all.

    Rows are the steps of the device's windows, then all the records, of steps without a window too.

    Args:
        timeline: The device.
        records: (n,) int64, indices of the records that count.
    """

    def __init__(self, timeline: DeviceTimeline, records: Int64s) -> None:
        row = _row_of_steps(timeline)[timeline.step[records]]
        # Neighbours are mostly of one row: numbers are added up run by run of them.
        self._first = np.flatnonzero(np.diff(row, prepend=-2))
        self._length = np.diff(self._first, append=len(row))
        self._place = row[self._first] + 1  # 0: of no row
        self._place_count = len(timeline.windows) + 1

    def of(self, values: Int64s | Float64s) -> Float64s:
        """(r,) float64: the sum of the values, (n,), of each row's records."""
        of_runs = np.add.reduceat(values, self._first)
        of_rows = np.bincount(self._place, of_runs, self._place_count)[1:]
        return np.append(of_rows, values.sum()).astype(np.float64, copy=False)

    def whole(self, values: Int64s) -> Int64s:
        """(r,) int64: the same of whole values."""
        return np.rint(self.of(values)).astype(np.int64)

    def apart(self, key: Int64s, key_count: int, values: Int64s | None = None) -> Int64s:
        """(r, key_count) int64: the sum of each row's records, apart by key.

        Args:
            key: (n,) int64, 0 to `key_count` - 1.
            key_count: How many keys there are.
            values: (n,) int64, what to add up; None counts the records.
        """
        flat = np.repeat(self._place * key_count, self._length) + key
        sums = np.bincount(flat, values, self._place_count * key_count)
        sums = sums.reshape(self._place_count, key_count)
        return np.rint(np.concatenate((sums[1:], [sums.sum(axis=0)]))).astype(np.int64)


def _row_of_steps(timeline: DeviceTimeline) -> Int64s:
    """(s + 1,) int64: the row of each step that has one, -1 for others; the last is of step -1."""
    steps = np.array([window.step for window in timeline.windows], np.int64)
    last = max(int(steps.max(initial=-1)), int(timeline.step.max(initial=-1)))
    row = np.full(last + 2, -1, np.int64)
    row[steps] = np.arange(len(steps))
    return row
