"""Find who held a device: for every ns of its idle time and exposed communication one holder.

The launch of the record that comes next decides: before that call what is open on its thread then,
inside the call what is open around it, after it no thread of the host.

Source: DESIGN.md section 2, "Who held it".
"""

from collections.abc import Iterator
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopperd.correlate import intervals, waterfall
from chopperd.model.arrays import Bools, Float64s, Int8s, Int32s, Int64s, Timed, joined, rows_of
from chopperd.model.kinds import COMPUTE_CLASSES
from chopperd.model.timeline import (
    DeviceTimeline,
    Holder,
    HostActivity,
    HostStacks,
    Intervals,
    NoHolder,
)
from chopperd.units import NS_PER_US

#: The rows of the waterfall that have holders; a row's index is its code here.
HELD_ROWS: Final = ("exposed_comm", *waterfall.IDLE_ROWS)
#: So long after the launch call has returned a record may still be just on its way.
LONGEST_LATENCY_NS: Final = 50 * NS_PER_US

_READ: Final = -1
"""In place of a holder: that of the stack."""
_IN_CALL, _LATE_HOST, _HOST_WAITS, _ALL_FLAGS = 1, 2, 4, 8
"""Bits of what else is known of a piece, and how many values they have."""
_AT_ONCE: Final = 1 << 15
_MOST_DENSE: Final = 1 << 17


class HeldTotals(Struct, frozen=True, kw_only=True):
    """Times of holders by window and row of the waterfall, (k,) each, by window, row and holder.

    The times of a window and row sum to the waterfall's.
    """

    window: Int64s  # index of the window; the last is the whole file
    row: Int64s  # index into `HELD_ROWS`
    holder: Int64s  # index into `holders`
    time_ns: Int64s
    in_call_ns: Int64s  # of it inside the launch call
    late_host_ns: Int64s  # of exposed communication: the next compute kernel is not launched yet
    host_waits_ns: Int64s  # the same, while the thread that will is in a synchronise call
    count: Int64s  # separate stretches of the holder's name that begin here
    holders: tuple[Holder, ...]


class _Parts(Timed, frozen=True, kw_only=True):
    """Parts of pieces, (m,) each."""

    piece: Int64s  # index of the piece
    edge: Int64s  # that of the last instant up to the start, of those to cut at


class _Pieces(Timed, frozen=True, kw_only=True):
    """Pieces of a device's time, (n,) each."""

    row: Int8s  # index into `HELD_ROWS`
    thread: Int32s  # that of the launch call; -1 without
    call_ns: Int64s  # of those in a call its begin: their stack is that of then
    holder: Int32s  # the holder; `_READ` where it takes a stack
    flags: Int8s  # bits of what else is known

    def of(self, rows: Int64s | Bools | slice) -> "_Pieces":
        return rows_of(self, rows)

    def cut(self, parts: _Parts) -> "_Pieces":
        """Return the parts as pieces."""
        return replace(self.of(parts.piece), start_ns=parts.start_ns, end_ns=parts.end_ns)


def held_totals(
    device: DeviceTimeline,
    stacks: HostStacks,
    activity: tuple[HostActivity, ...],
    masks: waterfall.BusyMasks,
    idle: waterfall.IdleSplit,
    windows: waterfall.Windows,
) -> HeldTotals:
    """Add up who held a device, by window and row of the waterfall.

    `windows`: those of its steps, disjoint and in order, and last that of the whole file.
    """
    pieces = joined([*_idle(device, idle), *_communicating(device, masks, activity)])
    order = np.argsort(pieces.start_ns, kind="stable")
    pieces = pieces.of(order[(pieces.end_ns > pieces.start_ns)[order]])
    pieces = _cut_at(pieces, np.concatenate((windows.start_ns[:-1], windows.end_ns[:-1])))
    sums = _Sums(stacks.holders, windows)
    for begin in range(0, len(pieces), _AT_ONCE):  # in parts that need little memory
        some = pieces.of(slice(begin, begin + _AT_ONCE))
        sums.add(some, *_read(some, stacks))
    return sums.totals()


def _idle(device: DeviceTimeline, idle: waterfall.IdleSplit) -> Iterator[_Pieces]:
    """Yield the pieces of idle time; only those after a launch have a holder."""
    before = Intervals(start_ns=idle.gaps.start_ns, end_ns=idle.call_ns)
    thread = device.call_thread[idle.record]
    for name in ("idle_allocator", "idle_data", "idle_sync", "idle_launch_prep"):
        found = intervals.intersection(idle.rows[name], before)
        gap = np.searchsorted(before.start_ns, found.start_ns, "right") - 1
        yield _pieces(found.start_ns, found.end_ns, name, thread=thread[gap])
    linked = thread >= 0
    call_ns, end_ns = idle.call_ns[linked], idle.gaps.end_ns[linked]
    record, thread = idle.record[linked], thread[linked]
    back_ns = np.clip(device.call_end_ns[record], call_ns, end_ns)
    late = device.start_ns[record] - back_ns > LONGEST_LATENCY_NS
    after = np.where(late, np.int32(NoHolder.DEVICE_WAITS), np.int32(NoHolder.LATENCY))
    begin_ns = device.call_start_ns[record]
    yield _pieces(call_ns, back_ns, "idle_launch_call", thread=thread, in_call_ns=begin_ns)
    yield _pieces(back_ns, end_ns, "idle_launch_call", after)
    for name, holder in (("idle_other", NoHolder.NO_LAUNCH), ("unknown", NoHolder.NO_RECORD)):
        mask = idle.rows[name]
        yield _pieces(mask.start_ns, mask.end_ns, name, holder)


def _communicating(
    device: DeviceTimeline, masks: waterfall.BusyMasks, activity: tuple[HostActivity, ...]
) -> Iterator[_Pieces]:
    """Yield the pieces of exposed communication, by the launch of the next compute record."""
    compute = np.flatnonzero(waterfall.is_class(device.kernel_class, COMPUTE_CLASSES))
    start_ns, threads = device.start_ns[compute], device.call_thread[compute]
    empty = device.end_ns[compute] <= start_ns
    exposed = intervals.split_at(masks.exposed_comm, start_ns[empty])
    then = waterfall.following(start_ns, threads, exposed.start_ns)
    thread = np.append(threads, np.int32(-1))[then]
    start_ns, end_ns, linked = exposed.start_ns, exposed.end_ns, thread >= 0
    unlinked = np.where(then == len(compute), NoHolder.THE_COLLECTIVE, NoHolder.NO_LAUNCH)
    yield _pieces(start_ns[~linked], end_ns[~linked], "exposed_comm", unlinked[~linked])
    start_ns, end_ns, record = start_ns[linked], end_ns[linked], compute[then[linked]]
    begin_ns = device.call_start_ns[record]
    call_ns = np.clip(begin_ns, start_ns, end_ns)
    back_ns = np.clip(device.call_end_ns[record], call_ns, end_ns)
    thread = thread[linked]
    yield _pieces(back_ns, end_ns, "exposed_comm", NoHolder.THE_COLLECTIVE)
    before = _pieces(start_ns, call_ns, "exposed_comm", thread=thread)
    in_call = _pieces(call_ns, back_ns, "exposed_comm", thread=thread, in_call_ns=begin_ns)
    yield _with_waits(joined([before, in_call]), activity)


def _with_waits(pieces: _Pieces, activity: tuple[HostActivity, ...]) -> _Pieces:
    """Mark where the host is late, and where it waits in a synchronise call instead."""
    parts = [pieces.of(slice(0, 0))]
    for thread in np.unique(pieces.thread).tolist():
        sync = activity[thread].sync
        mine = pieces.of(pieces.thread == thread)
        mine = _cut_at(mine, np.concatenate((sync.start_ns, sync.end_ns)))
        waits = intervals.contains(sync, mine.start_ns)
        flag = np.where(waits, np.int8(_HOST_WAITS), np.int8(_LATE_HOST))
        parts.append(replace(mine, flags=mine.flags | flag))
    return joined(parts)


def _pieces(
    start_ns: Int64s,
    end_ns: Int64s,
    row: str,
    holder: Int32s | Int64s | int = _READ,
    *,
    thread: Int32s | int = -1,
    in_call_ns: Int64s | None = None,
) -> _Pieces:
    """Return pieces of a row; those in a call have its begin, at which their stack is read."""
    count = len(start_ns)
    return _Pieces(
        start_ns=start_ns,
        end_ns=end_ns,
        row=np.full(count, HELD_ROWS.index(row), np.int8),
        thread=np.full(count, thread, np.int32),
        call_ns=start_ns if in_call_ns is None else in_call_ns,
        holder=np.full(count, holder, np.int32),
        flags=np.full(count, 0 if in_call_ns is None else _IN_CALL, np.int8),
    )


def _cut_at(pieces: _Pieces, cuts_ns: Int64s) -> _Pieces:
    """Cut pieces at every one of the instants that lies inside them."""
    cuts_ns = np.unique(cuts_ns)
    first = np.searchsorted(cuts_ns, pieces.start_ns, "right") - 1
    last = np.searchsorted(cuts_ns, pieces.end_ns, "left") - 1
    if np.array_equal(first, last):
        return pieces
    return pieces.cut(_parts(pieces, first, last, cuts_ns))


def _parts(pieces: _Pieces, first: Int64s, last: Int64s, at_ns: Int64s) -> _Parts:
    """Cut pieces at instants.

    `first` and `last` are the indices of each one's last instant up to its start and before its
    end, -1 none; the instants rise in each piece.
    """
    count = last - first + 1
    piece = np.repeat(np.arange(len(count)), count)
    edge = np.arange(len(piece)) + np.repeat(last + 1 - np.cumsum(count), count)
    start_ns, end_ns = np.repeat(pieces.start_ns, count), np.repeat(pieces.end_ns, count)
    ends = np.flatnonzero(piece[1:] == piece[:-1])
    start_ns[ends + 1] = end_ns[ends] = at_ns[edge[ends + 1]]
    return _Parts(piece=piece, edge=edge, start_ns=start_ns, end_ns=end_ns)


def _read(pieces: _Pieces, stacks: HostStacks) -> tuple[_Parts, Int32s]:
    """Cut pieces wherever a stack changes; return the parts in order of time, and their holders."""
    parts = _on_stack(pieces, stacks)
    holder = pieces.holder[parts.piece]
    asks = np.flatnonzero(holder == _READ)
    edge = parts.edge[asks]
    holder[asks] = stacks.holder[edge]
    is_bare = np.zeros(len(holder), np.bool_)
    is_bare[asks] = ~stacks.is_open[edge]
    if not is_bare.any():
        return parts, holder
    found, its_holder = _elsewhere(pieces, rows_of(parts, is_bare), holder[is_bare], stacks)
    both = joined([rows_of(parts, ~is_bare), found])
    order = np.argsort(both.start_ns, kind="stable")
    return rows_of(both, order), np.append(holder[~is_bare], its_holder)[order]


def _elsewhere(
    pieces: _Pieces, bare: _Parts, holder: Int32s, stacks: HostStacks
) -> tuple[_Parts, Int32s]:
    """Cut parts in which nothing is open at the launches of their processes, and read on there.

    Returns the parts, and their holders: those named on the thread of the latest launch, else the
    ones given.
    """
    whole = pieces.cut(bare)
    process = stacks.process[whole.thread]
    first, last = _spanned(whole, stacks.launch_ns, stacks.first_launch, process)
    after = _parts(whole, first, last, stacks.launch_ns)
    thread = stacks.launch_thread[after.edge]
    other = after.edge >= stacks.first_launch[process[after.piece]]
    other &= thread != whole.thread[after.piece]
    thread = np.where(other, thread, np.int32(-1))
    parts = _on_stack(replace(whole.cut(after), thread=thread), stacks)
    there, origin = stacks.holder[parts.edge], after.piece[parts.piece]
    named = np.array([each.kind != "none" for each in stacks.holders])
    takes = other[parts.piece] & named[there]
    return replace(parts, piece=bare.piece[origin]), np.where(takes, there, holder[origin])


def _on_stack(pieces: _Pieces, stacks: HostStacks) -> _Parts:
    """Cut pieces at the edges of their threads; those of none stay whole."""
    first, last = _spanned(pieces, stacks.at_ns, stacks.first, pieces.thread)
    return _parts(pieces, first, last, stacks.at_ns)


def _spanned(pieces: _Pieces, at_ns: Int64s, first: Int64s, group: Int32s) -> tuple[Int64s, Int64s]:
    """Return the last of a group's instants up to the begin and before the end of each piece.

    (n,) int64 indices each: that in front of its first where there is none; 0 without a group.
    Pieces in a call have both at its begin.

    Args:
        pieces: The pieces.
        at_ns: (m,) int64, rising within each group.
        first: (groups + 1,) int64, where each group's instants begin.
        group: (n,) int32; -1 none.
    """
    moves = (pieces.flags & _IN_CALL) == 0
    from_ns = np.where(moves, pieces.start_ns, pieces.call_ns)
    upto_ns = np.where(moves, pieces.end_ns - 1, pieces.call_ns)
    found = np.zeros((2, len(pieces)), np.int64)
    for number in np.flatnonzero(np.bincount(group + 1)[1:]).tolist():
        rows, begin = np.flatnonzero(group == number), first[number]
        its_ns = at_ns[begin : first[number + 1]]
        for column, moment_ns in zip(found, (from_ns, upto_ns), strict=True):
            column[rows] = begin - 1 + np.searchsorted(its_ns, moment_ns[rows], "right")
    return found[0], found[1]


class _Sums:
    """Adds up pieces, which come in order of time, by window, row and holder."""

    def __init__(self, holders: tuple[Holder, ...], windows: waterfall.Windows) -> None:
        names: dict[str, int] = {}
        self._holders = holders
        self._name = np.array(
            [names.setdefault(each.name, len(names)) for each in holders], np.int64
        )
        self._windows = windows
        self._steps = len(windows) - 1
        self._keys: list[Int64s] = []
        self._sums: list[Float64s] = []
        self._last = (-1, -1, -1)  # end and name of the part before, window of the piece before

    def add(self, pieces: _Pieces, parts: _Parts, holder: Int32s) -> None:
        """Add pieces, in parts, that follow those added before; one at least."""
        window = np.searchsorted(self._windows.start_ns[:-1], pieces.start_ns, "right") - 1
        window[pieces.start_ns >= np.append(self._windows.end_ns[:-1], 0)[window]] = -1
        key = ((window + 1) * len(HELD_ROWS) + pieces.row) * _ALL_FLAGS + pieces.flags
        key = key[parts.piece] * len(self._holders) + holder
        name = self._name[holder]
        last_end_ns, last_name, last_window = self._last
        begins = np.empty(len(parts), np.bool_)
        begins[0] = parts.start_ns[0] != last_end_ns or name[0] != last_name
        begins[1:] = (parts.start_ns[1:] != parts.end_ns[:-1]) | (name[1:] != name[:-1])
        enters = begins.copy()
        moved = np.flatnonzero(np.diff(window, prepend=last_window))
        enters[np.searchsorted(parts.piece, moved)] = True
        self._last = int(parts.end_ns[-1]), int(name[-1]), int(window[-1])
        keys, number = _numbered(key)
        length = parts.end_ns - parts.start_ns
        counts = (np.bincount(number[which], minlength=len(keys)) for which in (enters, begins))
        sums = np.array([np.bincount(number, length), *counts])
        there = np.flatnonzero(sums[0])
        self._keys.append(keys[there])
        self._sums.append(sums[:, there])

    def totals(self) -> HeldTotals:
        """Return the sums, those of the whole file last."""
        key = np.concatenate([np.zeros(0, np.int64), *self._keys])
        time_ns, enters, begins = np.concatenate([np.zeros((3, 0)), *self._sums], axis=1)
        count = len(self._holders)
        flags = key // count % _ALL_FLAGS
        key = key // count // _ALL_FLAGS * count + key % count
        flagged = [time_ns * ((flags & bit) > 0) for bit in (_IN_CALL, _LATE_HOST, _HOST_WAITS)]
        width = len(HELD_ROWS) * count
        inside = key >= width
        of_file = key % width + self._steps * width
        columns = [np.append(column[inside], column) for column in (time_ns, *flagged)]
        columns.append(np.append(enters[inside], begins))
        keys, number = np.unique(np.append(key[inside] - width, of_file), return_inverse=True)
        sums = [np.bincount(number, column, len(keys)).astype(np.int64) for column in columns]
        return HeldTotals(
            window=keys // width,
            row=keys % width // count,
            holder=keys % count,
            time_ns=sums[0],
            in_call_ns=sums[1],
            late_host_ns=sums[2],
            host_waits_ns=sums[3],
            count=sums[4],
            holders=self._holders,
        )


def _numbered(keys: Int64s) -> tuple[Int64s, Int64s]:
    """Return keys, ascending, all the given ones among them, and the number of each given one."""
    low, wide = int(keys.min()), int(np.ptp(keys)) + 1
    if wide > _MOST_DENSE:
        return np.unique(keys, return_inverse=True)
    return np.arange(low, low + wide), keys - low
