"""Find rows with impossible times, unless rows of another table confirm them.

Impossible are rows without a start or a length far outside the capture, and single rows that lie or
last far beyond all others. Damage hits single rows, or one table of a file: where a host call and a
device record, or two nested calls, agree on a late time, that time is right.

Source: github.com/pytorch/kineto issue 109: under load the profiler writes device records with
start 0 and length 0, and Kineto sets times before its base to 0.
"""

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias, TypeVar

import numpy as np
from msgspec import Struct
from msgspec.structs import fields, replace

from chopperd.model.arrays import Bools, Int32s, Int64s, Ints, rows_of
from chopperd.model.trace import DeviceRecords, DeviceSpans, FlowEnds, HostSpans, RuntimeCalls
from chopperd.units import NS_PER_MS, NS_PER_S, NS_PER_US

Times: TypeAlias = tuple[Int64s, Int64s]
"""Starts and ends of a table's rows, (n,) int64 each, on the file's own axis."""

LONGEST_WAIT_NS: Final = 86_400 * NS_PER_S
"""A row that lasts longer than a day is wrong and confirms no other: no job waits so long."""

_NEAR_NS: Final = 60 * NS_PER_S
_FARTHEST_NS: Final = 2**62
_LEAST_MARGIN_NS: Final = NS_PER_S

_LONGEST_NS: Final = 600 * NS_PER_S
"""How far from all other rows a row may lie or last: NCCL waits so long before it gives up.

Of 19 real traces none has a row that lasts longer than 5 ms after the last row's start, nor a gap
of 40 ms without a start.
"""

_FEW_RATIO: Final = 0.01
"""Rows up to this share of a table may be far from the others by damage; more are another capture,
or a device's own clock."""


class Stretch(Struct, frozen=True):
    """The time that a trace covers, `[start_ns, end_ns)`."""

    start_ns: int
    end_ns: int


TablesTimes: TypeAlias = tuple[Times, Times, Times, Times]
"""Of device records, runtime calls, host spans, device spans."""
Answered: TypeAlias = Callable[[Int64s], Bools]
"""Of some device records, which nothing follows on their stream, though their launch is known."""


def close_together(tables: Sequence[Times]) -> bool:
    """Whether all rows lie so close together that none is `outlying`, as in most traces."""
    filled = [(start, end) for start, end in tables if len(start)]
    if not filled:
        return True
    first_ns = min(int(start.min()) for start, _ in filled)
    last_ns = max(max(int(start.max()), int(end.max())) for start, end in filled)
    return last_ns - first_ns <= _LONGEST_NS


def outlying(tables: TablesTimes, answered: Answered) -> list[Bools]:
    """Return which rows lie or last beyond what is possible: (n,) bool for each table.

    That is farther from the densest stretch of starts than that is long, and than ten minutes. Only
    a few rows of a table are taken to be damaged; if more start there, as by a device's own clock,
    none. A row may last into rows that stay. Rows that another row confirms stay too: a collective
    that hangs until the job is killed, and what runs after it. `answered` is asked of records that
    last too long.
    """
    sure = [start[~_doubtful(start, end)] for start, end in tables]
    starts = [start for start in sure if len(start)]
    if not starts:
        return [np.zeros(len(start), np.bool_) for start, _ in tables]
    begin = _densest(starts)
    far_ns = max(begin.end_ns - begin.start_ns, _LONGEST_NS)
    first_ns, last_ns = begin.start_ns - far_ns, begin.end_ns + far_ns
    elsewhere = [_few_elsewhere(start, end, first_ns, last_ns) for start, end in tables]
    if any(mask.any() for mask in elsewhere):
        _keep_confirmed(elsewhere, tables, begin)
    # A row may last into another stretch of rows that stay: they show that time went on.
    for (start, end), out in zip(tables, elsewhere, strict=True):
        stays = start[~out & ~_doubtful(start, end)]
        last_ns = max(last_ns, int(stays.max(initial=begin.end_ns)) + far_ns)
    endless = [_endless(start, end, first_ns, last_ns) for start, end in tables]
    if any(mask.any() for mask in endless):
        _keep_awaited(endless, tables, answered)
    return [out | lasts for out, lasts in zip(elsewhere, endless, strict=True)]


def capture(tables: Sequence[Times]) -> Stretch | None:
    """Return the first start and last end of rows with plausible times; None without any."""
    sure = [_sure(start, end) for start, end in tables]
    filled = [(start, end) for start, end in sure if len(start)]
    if not filled:
        return None
    return Stretch(
        min(int(start.min()) for start, _ in filled), max(int(end.max()) for _, end in filled)
    )


def believable(start_ns: Int64s, end_ns: Int64s, within: Stretch | None) -> Bools:
    """Return which rows to keep, (n,) bool: all but those without start or length far outside.

    A start of 0 alone is no fault. Far is farther than the capture is long, and than one second.
    """
    if within is None:
        return np.ones(len(start_ns), dtype=np.bool_)
    margin_ns = max(within.end_ns - within.start_ns, _LEAST_MARGIN_NS)
    early = start_ns < within.start_ns - margin_ns
    far = np.flatnonzero(early | (start_ns > within.end_ns + margin_ns))
    keep = np.ones(len(start_ns), dtype=np.bool_)
    keep[far] = ~_doubtful(start_ns[far], end_ns[far])
    return keep


def inside(start_ns: Int64s, end_ns: Int64s, within: Stretch | None) -> Bools:
    """Return which rows lie no farther from a capture than it is long, and than a second: (n,)."""
    if within is None:
        return np.zeros(len(start_ns), np.bool_)
    margin_ns = max(within.end_ns - within.start_ns, _LEAST_MARGIN_NS)
    return (start_ns >= within.start_ns - margin_ns) & (end_ns <= within.end_ns + margin_ns)


def _sure(start_ns: Int64s, end_ns: Int64s) -> Times:
    doubtful = _doubtful(start_ns, end_ns)
    return (start_ns[~doubtful], end_ns[~doubtful]) if doubtful.any() else (start_ns, end_ns)


def _doubtful(start_ns: Int64s, end_ns: Int64s) -> Bools:
    doubtful: Bools = (start_ns == 0) | (start_ns == end_ns)
    return doubtful


def _few_elsewhere(start_ns: Int64s, end_ns: Int64s, first_ns: int, last_ns: int) -> Bools:
    """Return which rows start outside a stretch, (n,) bool; none if not few of their table."""
    elsewhere = ((start_ns < first_ns) | (start_ns > last_ns)) & ~_doubtful(start_ns, end_ns)
    count = np.count_nonzero(elsewhere)
    few = max(1, int(len(start_ns) * _FEW_RATIO))
    return elsewhere if count <= few and count < len(start_ns) else np.zeros_like(elsewhere)


def _endless(start_ns: Int64s, end_ns: Int64s, first_ns: int, last_ns: int) -> Bools:
    """Return which rows end later than possible though they start where rows may: (n,) bool."""
    early = _doubtful(start_ns, end_ns) & (start_ns < first_ns)
    return (end_ns > last_ns) & (start_ns <= last_ns) & ~early


def _keep_confirmed(elsewhere: list[Bools], tables: TablesTimes, begin: Stretch) -> None:
    """Unmark distant rows whose time both host and device rows have, or which a row reaches."""
    records, calls, spans, _ = tables
    reaching = []
    for start, end in tables:
        begun = (start >= begin.start_ns) & (start <= begin.end_ns)
        reaching.append((start[begun], end[begun]))
    others = ((calls, spans), (records,), (records,), (calls, spans))
    for mask, (start, _), other in zip(elsewhere, tables, others, strict=True):
        rows = np.flatnonzero(mask)
        mask[rows[confirmed(start[rows], (*other, *reaching))]] = False


def _keep_awaited(endless: list[Bools], tables: TablesTimes, answered: Answered) -> None:
    """Unmark rows that last long and end when another row shows that something ended.

    A device record if a host row ends then, or it is `answered`; a host row if another host row or
    a record ends then; a device span if a host row or a record that stays does.
    """
    host = tables[1:3]
    records, calls, spans, device_spans = (
        np.flatnonzero(mask & lengths_ok(start, end))
        for mask, (start, end) in zip(endless, tables, strict=True)
    )
    for mask, (_, end), rows in zip(endless[1:3], host, (calls, spans), strict=True):
        awaited = (ending(end[rows], host) > 1) | (ending(end[rows], tables[:1]) > 0)
        mask[rows[awaited]] = False
    start, end = tables[0]
    stay = records[(ending(end[records], host) > 0) | answered(records)]
    endless[0][stay] = False
    spanned = ending(tables[3][1][device_spans], (*host, (start[stay], end[stay]))) > 0
    endless[3][device_spans[spanned]] = False


def _densest(starts: Sequence[Int64s]) -> Stretch:
    first_ns = min(int(start.min()) for start in starts)
    last_ns = max(int(start.max()) for start in starts)
    if last_ns - first_ns <= _LONGEST_NS:
        return Stretch(first_ns, last_ns)
    times_ns = np.sort(np.concatenate(starts))
    gaps = np.flatnonzero(times_ns[1:] > times_ns[:-1] + _LONGEST_NS)
    edges = np.concatenate(([0], gaps + 1, [len(times_ns)]))
    largest = int(np.argmax(np.diff(edges)))
    return Stretch(int(times_ns[edges[largest]]), int(times_ns[edges[largest + 1] - 1]))


def lengths_ok(start_ns: Int64s, end_ns: Int64s) -> Bools:
    """Return which rows have a length, not longer than a wait may be: (n,) bool."""
    length_ns = end_ns.astype(np.float64) - start_ns  # in int64 it might overflow
    return (length_ns > 0) & (length_ns <= LONGEST_WAIT_NS)


def confirmed(at_ns: Int64s, tables: Sequence[Times]) -> Bools:
    """Return which instants lie within a row of the tables, give or take a minute: (n,) bool."""
    if not len(at_ns):
        return np.zeros(0, np.bool_)
    start_ns, end_ns = _sound(tables)
    if not len(start_ns):
        return np.zeros(len(at_ns), np.bool_)
    order = np.argsort(start_ns)
    reach_ns = np.maximum.accumulate(end_ns[order])
    at_ns = _within_axis(at_ns)
    begun = np.searchsorted(start_ns[order], at_ns + _NEAR_NS, "right")
    return (begun > 0) & (reach_ns[begun - 1] >= at_ns - _NEAR_NS)


def ending(at_ns: Int64s, tables: Sequence[Times]) -> Int64s:
    """Count the different rows that end at each instant, give or take a minute: (n,) int64."""
    if not len(at_ns):
        return np.zeros(0, np.int64)
    at_ns = _within_axis(at_ns)
    start_ns, end_ns = _sound(tables)
    late = end_ns >= at_ns.min() - _NEAR_NS
    start_ns, end_ns = start_ns[late], end_ns[late]
    order = np.lexsort((start_ns, end_ns))
    start_ns, end_ns = start_ns[order], end_ns[order]
    once = np.ones(len(order), np.bool_)
    once[1:] = (start_ns[1:] != start_ns[:-1]) | (end_ns[1:] != end_ns[:-1])
    end_ns = end_ns[once]
    upto = np.searchsorted(end_ns, at_ns + _NEAR_NS, "right")
    return upto - np.searchsorted(end_ns, at_ns - _NEAR_NS, "left")


def last_of_stream(device: Int32s | Int64s, stream: Int64s, start_ns: Int64s) -> Bools:
    """Return which device records start last on their stream: (n,) bool."""
    order = np.lexsort((start_ns, stream, device))
    device, stream, start_ns = device[order], stream[order], start_ns[order]
    ends = np.ones(len(order), np.bool_)
    ends[:-1] = (device[1:] != device[:-1]) | (stream[1:] != stream[:-1])
    latest = np.flatnonzero(ends)
    of_stream = np.concatenate(([0], np.cumsum(ends)))[: len(order)]
    last = np.empty(len(order), np.bool_)
    last[order] = start_ns == start_ns[latest[of_stream]]
    return last


def _sound(tables: Sequence[Times]) -> Times:
    """Return the times of all rows that may confirm others (`lengths_ok`)."""
    sound = [(start[ok], end[ok]) for start, end in tables if (ok := lengths_ok(start, end)).any()]
    if not sound:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    return np.concatenate([start for start, _ in sound]), np.concatenate([end for _, end in sound])


def _within_axis(at_ns: Int64s) -> Int64s:
    return np.clip(at_ns, -_FARTHEST_NS, _FARTHEST_NS)


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
    copies = rows[_repeats([getattr(table, one.name)[rows] for one in fields(table)])]
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
