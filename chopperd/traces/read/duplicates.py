"""Find duplicate rows, and device records that overlap on their stream.

A profiler's buffer that is flushed twice, or a file put together from pieces that overlap, reports
the same work twice. A record that lasts far past later ones of its stream is cut. Works on sorted
tables.
"""

from typing import Final, TypeVar

import numpy as np
from msgspec.structs import replace

from chopperd.model.arrays import Bools, Int64s, Ints, rows_of
from chopperd.model.trace import DeviceRecords, DeviceSpans, FlowEnds, HostSpans, RuntimeCalls
from chopperd.units import NS_PER_MS, NS_PER_US

_FEW_STREAMS: Final = 1 << 15
_FAR_NS: Final = NS_PER_MS
_OVERLAP_NS: Final = 5 * NS_PER_US
"""More than kernels that the program lets start early overlap: at most 3.7 us in a real trace."""
_SEVERAL: Final = 3
_MOST_CUT_RATIO: Final = 0.25

TableT = TypeVar("TableT", DeviceRecords, RuntimeCalls, HostSpans, DeviceSpans, FlowEnds)


def without_copies(table: TableT) -> tuple[TableT, int]:
    """Remove duplicate rows (the first in the file stays); return the table and their number.

    A copy equals another row in every column. The kernels of a graph launch differ in their times;
    where times are whole microseconds, several rows of no length may be equal and all real: they
    are copies only if they have an id of their own.
    """
    if isinstance(table, FlowEnds):
        start_ns = end_ns = table.t_ns
    else:
        start_ns, end_ns = table.start_ns, table.end_ns
    first = np.flatnonzero(start_ns[1:] == start_ns[:-1])
    rows = with_next(first[end_ns[first + 1] == end_ns[first]], len(start_ns))
    rows = rows[(start_ns[rows] < end_ns[rows]) | _identified(table, rows)]
    if len(rows) == 0:
        return table, 0
    copies = rows[_repeats([getattr(table, name)[rows] for name in table.__struct_fields__])]
    if len(copies) == 0:
        return table, 0
    keep = np.ones(len(table), np.bool_)
    keep[copies] = False
    return rows_of(table, keep), len(copies)


def with_next(rows: Int64s, count: int) -> Int64s:
    """Return `rows`, none of which is the last, and the row after each, ascending."""
    if not len(rows):
        return rows
    marked = np.zeros(count, np.bool_)
    marked[rows] = marked[rows + 1] = True
    return np.flatnonzero(marked)


def overrun_count(records: DeviceRecords) -> int:
    """Count the records that end after the next one of their stream has started.

    Kernels that the program lets start early and parallel branches of a graph do so rightly.

    Source: CUDA's programmatic dependent launch; of 12 real traces with a device only the B200's
    has such records (74 of 929, by up to 3.7 us), those rounded to microseconds have none.
    """
    order = _by_stream(records)
    device, stream = records.device[order], records.stream[order]
    same = (device[1:] == device[:-1]) & (stream[1:] == stream[:-1])
    early = records.start_ns[order][1:] < records.end_ns[order][:-1]
    return int(np.count_nonzero(same & early))


def without_far_overruns(records: DeviceRecords) -> tuple[DeviceRecords, int]:
    """Cut records that last far past later launches of their stream; return all, and how many.

    A stream runs one launch at a time, so such a record's end was stamped late. Far is by more than
    a ms, or past the start of several and further than programs let kernels overlap. If that is
    more than a quarter of a stream's records, the stream runs launches concurrently, and none is
    cut. Sorted tables stay so.
    """
    order = _by_stream(records)
    start_ns, end_ns = records.start_ns[order], records.end_ns[order]
    stream = _changes(records.device[order]) | _changes(records.stream[order])
    early = np.flatnonzero(~stream[1:] & (start_ns[1:] < end_ns[:-1]))
    if not len(early):
        return records, 0
    launch = records.correlation[order]
    other = np.append(np.flatnonzero(stream | _changes(launch) | (launch <= 0)), len(order))
    begins = np.append(np.flatnonzero(stream), len(order))
    after = other[np.searchsorted(other, early, "right")]
    own = np.searchsorted(begins, early, "right")
    until = begins[own]
    past_ns = end_ns[early] - start_ns[np.minimum(after, len(order) - 1)]
    several = np.minimum(after + _SEVERAL - 1, len(order) - 1)
    is_past = (after + _SEVERAL - 1 < until) & (end_ns[early] > start_ns[several])
    far = (after < until) & ((past_ns > _FAR_NS) | (is_past & (past_ns > _OVERLAP_NS)))
    far &= end_ns[early] - past_ns > start_ns[early]
    count, most = np.bincount(own[far], minlength=len(begins)), np.diff(begins, prepend=0)
    far &= (count <= np.maximum(most * _MOST_CUT_RATIO, 1))[own]
    if not far.any():
        return records, 0
    cut_ns = records.end_ns.copy()
    cut_ns[order[early[far]]] = start_ns[after[far]]
    order = np.lexsort((cut_ns, records.start_ns))
    return rows_of(replace(records, end_ns=cut_ns), order), int(np.count_nonzero(far))


def _changes(column: Ints) -> Bools:
    """Mark each value unlike the previous one, and the first: (n,) bool."""
    changes = np.ones(len(column), np.bool_)
    changes[1:] = column[1:] != column[:-1]
    return changes


def _by_stream(records: DeviceRecords) -> Int64s:
    """Return the indices of the records stream by stream, within each by time."""
    if not len(records):
        return np.zeros(0, np.int64)
    low, high = int(records.stream.min()), int(records.stream.max())
    if high - low < _FEW_STREAMS and (records.device == records.device[0]).all():
        # Numbers of 16 bits are sorted by counting, without comparing.
        return np.argsort((records.stream - low).astype(np.int16), kind="stable")
    return np.lexsort((records.stream, records.device))


def _identified(table: TableT, rows: Int64s) -> Bools:
    """Return which rows have an id of their own: (m,) bool; records share that of their launch."""
    if isinstance(table, RuntimeCalls):
        return table.correlation[rows] > 0
    if isinstance(table, HostSpans):
        return table.external_id[rows] > 0
    if isinstance(table, FlowEnds):
        return table.flow[rows] >= 0
    return np.zeros(len(rows), np.bool_)


def _repeats(columns: list[Ints]) -> Bools:
    """Return which rows are equal, in all columns, to one before them: (n,) bool."""
    order = np.lexsort(columns)
    equal = np.ones(len(order) - 1, np.bool_)
    for column in columns:
        equal &= column[order][1:] == column[order][:-1]
    repeats = np.zeros(len(order), np.bool_)
    repeats[order[1:][equal]] = True
    return repeats
