"""Copies and fills of each row by direction: how many, how long, how many bytes."""

from dataclasses import dataclass

import numpy as np

from chopperd.correlate.row_sums import RowSums
from chopperd.correlate.waterfall import COPY_DIRECTIONS, copy_ways, is_class
from chopperd.model.arrays import Int64s
from chopperd.model.classes import COPY_CLASSES
from chopperd.model.timeline import DeviceTimeline


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyTotals:
    """Sums over the copies of each row, (r, 4) int64: a column for each of `COPY_DIRECTIONS`.

    Attributes:
        count: Copies.
        time_ns: Their durations; no union.
        sized_count, sized_time_ns, copied_bytes: Of those whose size is known.
    """

    count: Int64s
    time_ns: Int64s
    sized_count: Int64s
    sized_time_ns: Int64s
    copied_bytes: Int64s


def copy_totals(timeline: DeviceTimeline) -> CopyTotals:
    """What each row's copies and fills moved, by direction."""
    copies = np.flatnonzero(is_class(timeline.kernel_class, COPY_CLASSES))
    way = copy_ways(timeline.kernel_class[copies], timeline.copy_direction[copies]).astype(np.int64)
    known = timeline.copied_bytes[copies] >= 0
    sized, sized_way = copies[known], way[known]
    duration_ns = timeline.end_ns - timeline.start_ns
    sums, sized_sums = RowSums(timeline, copies), RowSums(timeline, sized)
    ways = len(COPY_DIRECTIONS)
    return CopyTotals(
        count=sums.apart(way, ways),
        time_ns=sums.apart(way, ways, duration_ns[copies]),
        sized_count=sized_sums.apart(sized_way, ways),
        sized_time_ns=sized_sums.apart(sized_way, ways, duration_ns[sized]),
        copied_bytes=sized_sums.apart(sized_way, ways, timeline.copied_bytes[sized]),
    )
