"""Read what is open when on the threads that launch: the edges at which their stacks change.

What a stack is called is in `holders`; whose is read when is the device's side:
`correlate.holding`.

Source: DESIGN.md section 2, "Who held it".
"""

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Final, TypeAlias

import numpy as np

from chopperd.model.answers import BACKWARD_REGION
from chopperd.model.arrays import Bools, Int32s, Int64s, Ints
from chopperd.model.timeline import NO_HOLDERS, Holder, HostStacks, NoHolder
from chopperd.model.trace import SpanKind, Trace
from chopperd.traces.correlation_ids import processes
from chopperd.traces.kernels.names import folded, is_user_frame, names_matching, used_names
from chopperd.traces.native.scanner import StacksOf, scanner_library
from chopperd.traces.timeline.holders import (
    FRAME_KIND,
    Instants,
    Names,
    Stacks,
    Things,
    holder_numbers,
    next_begun,
    settled,
)
from chopperd.traces.timeline.nesting import Axis, Moments, Nesting, by_thread

_BACKWARD: Final = re.compile(r"^autograd::engine::evaluate_function")
#: Holds the annotation that names the collective.
_COMMS: Final = re.compile(r"^record_param_comms$")
_NCCL: Final = re.compile(r"^nccl:")
_ALWAYS_NS: Final = -(2**62)
#: So many spans, and so many frames, begin in a block of time, which fit into a core's cache.
_BLOCK: Final = 1 << 15
_GIVEN: Final = ("thread", "start_ns", "end_ns", "kind", "text", "user", "backward")
"""Columns of `Things` that the library takes."""


def host_stacks(trace: Trace, launches: Int64s, step_marks: Bools) -> HostStacks:
    """Read the stacks of the threads that make runtime calls.

    Time is gone through in blocks, each with what is open in it: a long trace takes little more
    memory than its edges.

    Args:
        trace: The trace.
        launches: (l,) int64, ascending indices of the calls that launch something on a device.
        step_marks: (names,) bool, which of `Trace.names` mark steps: they hold nothing.
    """
    host = _Host(trace, launches, step_marks)
    names = Names(host.texts)
    blocks = [_block(host, names, *block) for block in _blocks(host)]
    pieces = [[column[:0] for column in blocks[0][1]]]  # a file may have no threads
    pieces += [
        [column[first[thread] : first[thread + 1]] for column in columns]
        for thread in range(len(trace.threads))
        for first, columns in blocks
    ]
    at_ns, holder, is_open = (np.concatenate(each) for each in zip(*pieces, strict=True))
    if not host.in_file:
        holder = np.full(len(holder), NoHolder.NO_SPANS, np.int32)
    process = processes(trace.threads)
    of_launch = process[trace.calls.thread[launches]]
    by_process = np.argsort(of_launch, kind="stable")
    return HostStacks(
        first=np.sum([first for first, _ in blocks], axis=0),
        at_ns=at_ns,
        holder=holder,
        is_open=is_open,
        process=process,
        first_launch=np.searchsorted(
            of_launch[by_process], np.arange(int(process.max(initial=-1)) + 2)
        ),
        launch_ns=trace.calls.start_ns[launches][by_process],
        launch_thread=trace.calls.thread[launches][by_process],
        holders=(*(Holder(name, "none") for name in NO_HOLDERS), *names.holders()),
    )


def _changes(*columns: Ints | Bools) -> Int64s:
    """Return the rows that differ from the one before them: (m,) int64, with the first."""
    changes = np.zeros(len(columns[0]), np.bool_)
    changes[:1] = True
    for column in columns:
        changes[1:] |= column[1:] != column[:-1]
    return np.flatnonzero(changes)


class _Host:
    """Spans and frames that may hold a device: those of threads that launch, but no step marks.

    Attributes:
        threads: How many threads the trace has.
        own: (spans,) bool, which spans.
        texts: The names, folded; the last is "backward".
        in_file: Whether the file has any, also on other threads.
    """

    def __init__(self, trace: Trace, launches: Int64s, step_marks: Bools) -> None:
        spans, frames, calls = trace.spans, trace.frames, trace.calls
        self.spans, self.frames, self.threads = spans, frames, len(trace.threads)
        calling = np.zeros(len(trace.threads) + 1, np.bool_)
        calling[calls.thread] = True
        self.own = (spans.end_ns > spans.start_ns) & ~step_marks[spans.name]
        self.in_file = bool(self.own.any()) or len(frames) > 0
        self.own &= calling[spans.thread]
        texts: dict[str, int] = {}
        self._of_name = _text_codes(trace.names, spans.name[self.own], texts)
        self._of_function = _text_codes(trace.functions, frames.function, texts)
        texts.setdefault(BACKWARD_REGION, len(texts))
        self.texts = tuple(texts)
        self._is_backward = names_matching(self.texts, _BACKWARD)
        self._is_user = np.fromiter(map(is_user_frame, self.texts), np.bool_, len(self.texts))
        self._comms, self._comms_text = self._named_collectives()
        at_ns, thread = calls.start_ns[launches], calls.thread[launches]
        self._launches = Instants(Moments(thread=thread, at_ns=at_ns))

    def _named_collectives(self) -> tuple[Int64s, Int32s]:
        """Return the rows of `record_param_comms`, and the text of the collective in each.

        That is the annotation of it that begins inside.
        """
        is_comms = names_matching(self.texts, _COMMS)
        is_told = names_matching(self.texts, _NCCL)
        spans = self.spans
        if not is_comms.any() or not is_told.any():
            return np.zeros(0, np.int64), np.zeros(0, np.int32)
        text = self._of_name[spans.name]
        rows = np.flatnonzero(self.own & (spans.kind == SpanKind.OP) & is_comms[text])
        told = np.flatnonzero(self.own & (spans.kind == SpanKind.ANNOTATION) & is_told[text])
        begun = Moments(thread=spans.thread[rows], at_ns=spans.start_ns[rows] - 1)
        inner = next_begun(spans, told, begun)
        known = (inner >= 0) & (spans.start_ns[inner] < spans.end_ns[rows])
        return rows[known], text[inner[known]]

    def things(self, rows: Int64s, calls: Int64s) -> "Things":
        """Return spans and frames at ascending indices as what may be open."""
        spans, frames = self.spans, self.frames
        text = self._of_name[spans.name[rows]]
        said = spans.kind[rows]
        if len(self._comms):
            at = np.minimum(np.searchsorted(self._comms, rows), len(self._comms) - 1)
            named = np.flatnonzero(self._comms[at] == rows)
            text[named], said[named] = self._comms_text[at[named]], SpanKind.ANNOTATION
        columns: tuple[Ints, ...] = (
            spans.thread[rows],
            spans.start_ns[rows],
            spans.end_ns[rows],
            spans.kind[rows],
            said,
            text,
        )
        if len(calls):
            kind = np.full(len(calls), FRAME_KIND, np.int8)
            of_frames: tuple[Ints, ...] = (
                frames.thread[calls],
                frames.start_ns[calls],
                frames.end_ns[calls],
                kind,
                kind,
                self._of_function[frames.function[calls]],
            )
            columns = tuple(np.concatenate(pair) for pair in zip(columns, of_frames, strict=True))
            order = np.lexsort((-columns[3], -columns[2], columns[1]))
            columns = tuple(column[order] for column in columns)
        thread, start_ns, end_ns, kind, said, text = columns
        return Things(
            thread=thread,
            start_ns=start_ns,
            end_ns=end_ns,
            kind=kind,
            said=said,
            text=text,
            user=(kind == FRAME_KIND) & self._is_user[text],
            backward=(kind == SpanKind.OP) & self._is_backward[text],
            backward_text=len(self.texts) - 1,
            launches=self._launches,
        )


def _text_codes(names: tuple[str, ...], column: Int32s, texts: dict[str, int]) -> Int32s:
    """Return the number in `texts` of each name once folded, (names + 1,); new ones are added.

    -1 for names that the column does not have.
    """
    codes = np.full(len(names) + 1, -1, np.int32)
    for name in used_names(column, len(names)).tolist():
        codes[name] = texts.setdefault(folded(names[name]), len(texts))
    return codes


def _blocks(host: _Host) -> Iterator[tuple[Things, int, int]]:
    """Yield blocks of time, from and to when each is, and what is open in it or opens next."""
    spans, frames = host.spans, host.frames
    most = max(_BLOCK, host.threads)
    cuts_ns = np.unique(np.concatenate((spans.start_ns[most::most], frames.start_ns[most::most])))
    span_cuts = [0, *np.searchsorted(spans.start_ns, cuts_ns).tolist(), len(spans)]
    frame_cuts = [0, *np.searchsorted(frames.start_ns, cuts_ns).tolist(), len(frames)]
    edges_ns = [_ALWAYS_NS, *cuts_ns.tolist(), np.iinfo(np.int64).max]
    row_blocks = [a + np.flatnonzero(host.own[a:b]) for a, b in pairwise(span_cuts)]
    call_blocks = [
        a + np.flatnonzero(frames.end_ns[a:b] > frames.start_ns[a:b])
        for a, b in pairwise(frame_cuts)
    ]
    following = _opened_after(host, row_blocks, call_blocks)
    open_rows, open_calls = np.zeros(0, np.int64), np.zeros(0, np.int64)
    for begun, called, after, (from_ns, to_ns) in zip(
        row_blocks, call_blocks, following, pairwise(edges_ns), strict=True
    ):
        rows, calls = np.append(open_rows, begun), np.append(open_calls, called)
        yield host.things(np.append(rows, after[0]), np.append(calls, after[1])), from_ns, to_ns
        # What ends just then still has its edge in the next block.
        open_rows = rows[spans.end_ns[rows] >= to_ns]
        open_calls = calls[frames.end_ns[calls] >= to_ns]


def _opened_after(
    host: _Host, row_blocks: list[Int64s], call_blocks: list[Int64s]
) -> list[tuple[Int64s, Int64s]]:
    """Return after each block which first span, operator and frame each thread opens then."""
    spans, frames = host.spans, host.frames
    first, operator, frame = (np.full(host.threads, -1, np.int64) for _ in range(3))
    found = []
    for rows, calls in zip(reversed(row_blocks), reversed(call_blocks), strict=True):
        both = np.unique(np.append(first, operator))
        found.append((both[both >= 0], np.sort(frame[frame >= 0])))
        # Of several values for one thread the last one stays.
        first[spans.thread[rows[::-1]]] = rows[::-1]
        operators = rows[spans.kind[rows] == SpanKind.OP][::-1]
        operator[spans.thread[operators]] = operators
        frame[frames.thread[calls[::-1]]] = calls[::-1]
    return found[::-1]


def _block(
    host: _Host, names: Names, things: Things, from_ns: int, to_ns: int
) -> tuple[Int64s, tuple[Int64s, Int32s, Bools]]:
    """Return the edges of a block of time at which the holder changes, by thread and time.

    Where those of each thread begin, (threads + 1,); then when they are, the holder from then on,
    and whether anything is open, (n,) each.
    """
    walked = walk_natively(things, host.threads, from_ns, to_ns)
    moments, inner, stacks = walked or walk(things, host.threads, from_ns, to_ns)
    number = holder_numbers(things, names, stacks, inner, moments)
    rows = _changes(moments.thread, number, inner >= 0)
    first = np.searchsorted(moments.thread[rows], np.arange(host.threads + 1))
    number += np.int32(len(NO_HOLDERS))
    return first, (moments.at_ns[rows], number[rows], inner[rows] >= 0)


_Walked: TypeAlias = tuple[Moments, Ints, Stacks]
"""Edges, the innermost thing open after each, -1 none, and what is open with each thing."""


def walk(things: Things, threads: int, from_ns: int, to_ns: int) -> _Walked:
    """Find what is open in a block of time on each thread."""
    moments = _edges(things, threads, from_ns, to_ns)
    nesting = Nesting(things, np.arange(len(things)))
    return moments, nesting.innermost(moments), settled(things, nesting.parents())


def walk_natively(things: Things, threads: int, from_ns: int, to_ns: int) -> _Walked | None:
    """Find the same in C; None where that is not compiled, or too much overlaps without nesting."""
    library = scanner_library()
    if library is None:
        return None
    stacks, most = Stacks.of_room(len(things)), 2 * len(things) + threads
    edges: dict[str, Ints] = {
        "edge_thread": np.empty(most, np.int32),
        "edge_ns": np.empty(most, np.int64),
        "edge_inner": np.empty(most, np.int32),
    }
    launches = things.launches.sorted
    given = {name: getattr(things, name) for name in _GIVEN} | {
        "order": by_thread(things.thread),
        "launch_thread": launches.thread,
        "launch_ns": launches.at_ns,
    }
    found = {name: getattr(stacks, name) for name in stacks.__struct_fields__}
    state = StacksOf(
        count=len(things),
        threads=threads,
        from_ns=from_ns,
        to_ns=to_ns,
        backward_text=things.backward_text,
        launches=len(launches),
        **{name: column.ctypes.data for name, column in (given | edges | found).items()},
    )
    if not library.stacks(state):
        return None
    thread, at_ns, inner = (column[: state.edges] for column in edges.values())
    return Moments(thread=thread, at_ns=at_ns), inner, stacks


def _edges(things: Things, threads: int, from_ns: int, to_ns: int) -> Moments:
    """Return when in a block of time anything begins or ends, and on which thread, sorted.

    In the first block each thread has one more, before all time.
    """
    times_ns, thread = (np.concatenate((things.start_ns, things.end_ns)), np.tile(things.thread, 2))
    inside = np.flatnonzero((times_ns >= from_ns) & (times_ns < to_ns))
    times_ns, thread = times_ns[inside], thread[inside]
    position = Axis(times_ns, times_ns, thread).position(thread, times_ns)
    order = np.argsort(position, kind="stable")
    order = order[_changes(position[order])]
    times_ns, thread = times_ns[order], thread[order]
    if from_ns == _ALWAYS_NS:
        begins = np.searchsorted(thread, np.arange(threads))
        times_ns = np.insert(times_ns, begins, _ALWAYS_NS)
        thread = np.insert(thread, begins, np.arange(threads, dtype=np.int32))
    return Moments(thread=thread, at_ns=times_ns)
