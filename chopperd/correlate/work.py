"""What a step's own records and other steps' did: the two partitions of device time."""

import numpy as np

from chopperd.correlate import intervals
from chopperd.correlate.intervals import length_ns, union
from chopperd.correlate.order import places, places_of_spans
from chopperd.model.arrays import Int64s
from chopperd.model.timeline import DeviceTimeline, Marker


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
