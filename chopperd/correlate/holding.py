"""Find who held a device: for every ns of its idle time and exposed communication one holder.

The launch of the record that comes next decides: before that call what is open on its thread then,
inside the call what is open around it, after it no thread of the host.

Source: DESIGN.md section 2, "Who held it".
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

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
_IN_CALL, _LATE_HOST, _HOST_WAITS = 1, 2, 4
"""Bits of what else is known of a piece."""
_AT_ONCE: Final = 1 << 15
_MOST_DENSE: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldTotals:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pieces(Timed):
    """Pieces of a device's time, (n,) each."""

    row: Int8s  # index into `HELD_ROWS`
    thread: Int32s  # that of the launch call; -1 without
    at_ns: Int64s  # when its stack is read; of pieces that move, at every moment of theirs
    moves: Bools
    holder: Int32s  # the holder; `_READ` where it takes a stack
    flags: Int8s  # bits of what else is known

    def of(self, rows: Int64s | Bools | slice) -> "_Pieces":
        return rows_of(self, rows)

    def cut(self, row: Int64s, start_ns: Int64s, end_ns: Int64s) -> "_Pieces":
        """Return parts of pieces: whose they are, and their new starts and ends, (m,) each."""
        found = self.of(row)
        at_ns = np.where(found.moves, start_ns, found.at_ns)
        return replace(found, start_ns=start_ns, end_ns=end_ns, at_ns=at_ns)


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
    pieces = pieces.of(pieces.end_ns > pieces.start_ns)
    pieces = pieces.of(np.argsort(pieces.start_ns, kind="stable"))
    pieces = _cut_at(pieces, np.concatenate((windows.start_ns[:-1], windows.end_ns[:-1])))
    sums = _Sums(stacks.holders, windows)
    for begin in range(0, len(pieces), _AT_ONCE):  # in parts that need little memory
        sums.add(_read(pieces.of(slice(begin, begin + _AT_ONCE)), stacks))
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
        at_ns=start_ns if in_call_ns is None else in_call_ns,
        moves=np.full(count, in_call_ns is None),
        holder=np.full(count, holder, np.int32),
        flags=np.full(count, 0 if in_call_ns is None else _IN_CALL, np.int8),
    )


def _cut_at(pieces: _Pieces, cuts_ns: Int64s) -> _Pieces:
    cuts_ns = np.unique(cuts_ns)
    first = np.searchsorted(cuts_ns, pieces.start_ns, "right")
    last = np.maximum(np.searchsorted(cuts_ns, pieces.end_ns, "left"), first)
    row, cut = _repeated(first, last)
    ends = cut == last[row]
    edges_ns = np.append(cuts_ns, 0)
    start_ns = np.where(cut == first[row], pieces.start_ns[row], edges_ns[cut - 1])
    return pieces.cut(row, start_ns, np.where(ends, pieces.end_ns[row], edges_ns[cut]))


def _repeated(first: Int64s, last: Int64s) -> tuple[Int64s, Int64s]:
    """Return each row as often as it has numbers from first to last, and these: (m,) each."""
    count = last - first + 1
    row = np.repeat(np.arange(len(first)), count)
    return row, np.arange(len(row)) - np.repeat(np.cumsum(count) - count - first, count)


def _read(pieces: _Pieces, stacks: HostStacks) -> _Pieces:
    """Cut pieces wherever a stack changes, and give each its holder; in order of time."""
    known = pieces.holder != _READ
    found, edge = _on_stack(pieces.of(~known), stacks)
    found = replace(found, holder=stacks.holder[edge])
    bare = ~stacks.is_open[edge]
    parts = [pieces.of(known), found.of(~bare)]
    if bare.any():
        lost = _by_launches(found.of(bare), stacks)
        other = lost.thread >= 0
        away, edge = _on_stack(lost.of(other), stacks)
        named = np.array([each.kind != "none" for each in stacks.holders])
        there = stacks.holder[edge]
        holder = np.where(named[there], there, away.holder)
        parts += [lost.of(~other), replace(away, holder=holder)]
    both = joined(parts)
    return both.of(np.argsort(both.start_ns, kind="stable"))


def _on_stack(pieces: _Pieces, stacks: HostStacks) -> tuple[_Pieces, Int64s]:
    """Cut pieces at the edges of their threads; return them, and the edge that each begins at."""
    first = _latest(stacks.at_ns, stacks.first, pieces.thread, pieces.at_ns)
    until_ns = np.where(pieces.moves, pieces.end_ns - 1, pieces.at_ns)
    row, edge = _repeated(first, _latest(stacks.at_ns, stacks.first, pieces.thread, until_ns))
    return _between(pieces, row, edge, stacks.at_ns), edge


def _by_launches(pieces: _Pieces, stacks: HostStacks) -> _Pieces:
    """Cut pieces at launches, and move them to the latest one's thread; -1: none or their own."""
    process = stacks.process[pieces.thread]
    begun = stacks.first_launch[:-1]
    first = _latest(stacks.launch_ns, stacks.first_launch, process, pieces.at_ns)
    until_ns = np.where(pieces.moves, pieces.end_ns - 1, pieces.at_ns)
    row, launch = _repeated(
        first, _latest(stacks.launch_ns, stacks.first_launch, process, until_ns)
    )
    found = _between(pieces, row, launch, stacks.launch_ns)
    thread = np.append(stacks.launch_thread, np.int32(-1))[launch]
    known = (launch >= begun[process[row]]) & (thread != found.thread)
    return replace(found, thread=np.where(known, thread, np.int32(-1)))


def _between(pieces: _Pieces, row: Int64s, edge: Int64s, at_ns: Int64s) -> _Pieces:
    """Return the parts of pieces from edges to the ones after them."""
    whole = pieces.of(row)
    edges_ns = np.append(at_ns, 0)
    opens = np.diff(row, prepend=-1) != 0
    closes = np.diff(row, append=-1) != 0
    start_ns = np.where(opens, whole.start_ns, edges_ns[edge])
    end_ns = np.where(closes, whole.end_ns, edges_ns[edge + 1])
    moment_ns = np.where(whole.moves, start_ns, whole.at_ns)
    return replace(whole, start_ns=start_ns, end_ns=end_ns, at_ns=moment_ns)


def _latest(at_ns: Int64s, first: Int64s, group: Int32s, moment_ns: Int64s) -> Int64s:
    """Return the last of a group's instants up to each moment: (n,) int64 indices.

    That in front of its first where there is none. `at_ns` rises within each group; `first`: where
    each group's begin.
    """
    found = np.empty(len(group), np.int64)
    order = np.argsort(group, kind="stable")
    edges = np.flatnonzero(np.diff(group[order], prepend=-1, append=-1))
    for a, b in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        rows = order[a:b]
        begin, end = first[group[rows[0]]], first[group[rows[0]] + 1]
        found[rows] = begin - 1 + np.searchsorted(at_ns[begin:end], moment_ns[rows], "right")
    return found


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
        self._values: list[Float64s] = []
        self._last = (-1, -1)  # end and name of the piece before

    def add(self, pieces: _Pieces) -> None:
        """Add pieces that follow those added before; one at least."""
        window = np.searchsorted(self._windows.start_ns[:-1], pieces.start_ns, "right") - 1
        ends_ns = np.append(self._windows.end_ns[:-1], 0)
        window[pieces.start_ns >= ends_ns[window]] = -1
        name = self._name[pieces.holder]
        end_ns, before = np.append(self._last[0], pieces.end_ns), np.append(self._last[1], name)
        begins = (pieces.start_ns != end_ns[:-1]) | (name != before[:-1])
        self._last = int(pieces.end_ns[-1]), int(name[-1])
        enters = begins | (np.diff(window, prepend=-2) != 0)
        key = ((window + 1) * len(HELD_ROWS) + pieces.row) * len(self._holders) + pieces.holder
        length = (pieces.end_ns - pieces.start_ns).astype(np.float64)
        flags = (length * ((pieces.flags & bit) > 0) for bit in (_IN_CALL, _LATE_HOST, _HOST_WAITS))
        keys, number = _numbered(key)
        columns = (length, *flags, enters, begins)
        self._keys.append(keys)
        self._values.append(np.array([np.bincount(number, column) for column in columns]))

    def totals(self) -> HeldTotals:
        """Return the sums, those of the whole file last."""
        width = len(HELD_ROWS) * len(self._holders)
        keys = np.concatenate([np.zeros(0, np.int64), *self._keys])
        values = np.concatenate([np.zeros((6, 0)), *self._values], axis=1)
        *steps, enters, begins = values
        inside = keys >= width
        of_file = keys % width + self._steps * width
        keys = np.concatenate((keys[inside] - width, of_file))
        columns = [np.concatenate((column[inside], column)) for column in steps]
        columns.append(np.concatenate((enters[inside], begins)))
        keys, number = np.unique(keys, return_inverse=True)
        sums = [np.bincount(number, column, len(keys)).astype(np.int64) for column in columns]
        return HeldTotals(
            window=keys // width,
            row=keys % width // len(self._holders),
            holder=keys % len(self._holders),
            time_ns=sums[0],
            in_call_ns=sums[1],
            late_host_ns=sums[2],
            host_waits_ns=sums[3],
            count=sums[4],
            holders=self._holders,
        )


def _numbered(keys: Int64s) -> tuple[Int64s, Int64s]:
    """Return the distinct keys, ascending, and the number of each one among them."""
    low, wide = int(keys.min()), int(np.ptp(keys)) + 1
    if wide > _MOST_DENSE:
        return np.unique(keys, return_inverse=True)
    seen = np.zeros(wide, np.bool_)
    seen[keys - low] = True
    return np.flatnonzero(seen) + low, (np.cumsum(seen) - 1)[keys - low]
