"""What a step's own records and other steps' did: the two partitions of device time."""

import numpy as np

from chopperd.correlate import intervals
from chopperd.correlate.intervals import length_ns, union
from chopperd.model.arrays import Int64s
from chopperd.model.timeline import DeviceTimeline, Marker


def launched_ns(timeline: DeviceTimeline) -> Int64s:
    """(w,) int64: for each window's step, the union of its own records, wherever they ran."""
    order = np.argsort(timeline.step, kind="stable")
    steps = timeline.step[order]
    total = np.zeros(len(timeline.windows), np.int64)
    for w, window in enumerate(timeline.windows):
        first, last = np.searchsorted(steps, [window.step, window.step + 1])
        own = order[first:last]
        total[w] = length_ns(union(timeline.start_ns[own], timeline.end_ns[own]))
    return total


def foreign_ns(timeline: DeviceTimeline) -> Int64s:
    """(w,) int64: in each window, the union of other steps' and unlinked records."""
    reach_ns = np.maximum.accumulate(timeline.end_ns)
    total = np.zeros(len(timeline.windows), np.int64)
    for w, window in enumerate(timeline.windows):
        first = int(np.searchsorted(reach_ns, window.start_ns, "right"))
        last = int(np.searchsorted(timeline.start_ns, window.end_ns, "left"))
        other = first + np.flatnonzero(timeline.step[first:last] != window.step)
        foreign = union(timeline.start_ns[other], timeline.end_ns[other])
        total[w] = length_ns(intervals.clip(foreign, window.start_ns, window.end_ns))
    return total


def marker_busy_ns(timeline: DeviceTimeline, marker: Marker) -> int:
    """The union of the records that were launched inside one marker."""
    own = (
        (timeline.call_thread >= 0)
        & (timeline.call_start_ns >= marker.start_ns)
        & (timeline.call_start_ns < marker.end_ns)
    )
    return length_ns(union(timeline.start_ns[own], timeline.end_ns[own]))
