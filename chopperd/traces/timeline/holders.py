"""Read what is open on the threads that launch, and name who would hold a device by it.

By when operators, annotations, Python frames and launches begin and end, without lists of names.
Whose stack is read when is the device's side: `correlate.holding`.

Source: DESIGN.md section 2, "Who held it".
"""

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import numpy as np

from chopperd.correlate.intervals import places
from chopperd.model.answers import BACKWARD_REGION, NOTHING_OPEN, HolderKind
from chopperd.model.arrays import Bools, Int32s, Int64s, Ints
from chopperd.model.timeline import NO_HOLDERS, Holder, HostStacks, NoHolder
from chopperd.model.trace import SpanKind, Trace
from chopperd.traces.correlation_ids import processes
from chopperd.traces.kernels.names import folded, is_user_frame, names_matching, used_names
from chopperd.traces.timeline.nesting import Axis, Moments, Nesting

_BACKWARD: Final = re.compile(r"^autograd::engine::evaluate_function")
#: Holds the annotation that names the collective.
_COMMS: Final = re.compile(r"^record_param_comms$")
_NCCL: Final = re.compile(r"^nccl:")

#: Kind of a thing that may be open besides those of `SpanKind`, and words for all of them.
_FRAME_KIND: Final = len(SpanKind)
_KINDS: Final[tuple[HolderKind, ...]] = ("operator", "annotation", "frame", "frame", "none")
_NONE: Final = len(_KINDS) - 1
_ALWAYS_NS: Final = -(2**62)
#: How deep stacks are followed by what lies in what; deeper ones are searched.
_DEEPEST: Final = 512
#: Up to so many possible numbers are looked up in a table, more are sorted.
_MOST_DENSE: Final = 1 << 22


def host_stacks(trace: Trace, launches: Int64s, step_marks: Bools) -> HostStacks:
    """Read the stacks of the threads that make runtime calls.

    `launches`: (l,), ascending indices of the calls that launch something on a device.
    `step_marks`: (names,), which of `Trace.names` mark steps: they hold nothing.
    """
    things = _Things(trace, step_marks)
    at_ns, thread = _edges(things, len(trace.threads))
    moments = Moments(thread=thread, at_ns=at_ns)
    nesting = Nesting(things, np.arange(len(things)))
    inner, parent = nesting.innermost(moments), nesting.parents()
    del nesting
    number, holders = _holders(things, _quiet(things, trace, launches), parent, inner, moments)
    if not things.in_file:
        number = np.full(len(number), NoHolder.NO_SPANS - len(NO_HOLDERS), np.int32)
    process = processes(trace.threads)
    of_launch = process[trace.calls.thread[launches]]
    order = np.argsort(of_launch, kind="stable")
    return HostStacks(
        first=np.searchsorted(thread, np.arange(len(trace.threads) + 1)),
        at_ns=at_ns,
        holder=number + np.int32(len(NO_HOLDERS)),
        is_open=inner >= 0,
        process=process,
        first_launch=np.searchsorted(of_launch[order], np.arange(int(process.max(initial=-1)) + 2)),
        launch_ns=trace.calls.start_ns[launches][order],
        launch_thread=trace.calls.thread[launches][order],
        holders=(*(Holder(name, "none") for name in NO_HOLDERS), *holders),
    )


class _Things:
    """Operators, annotations, modules and frames that may be open on threads that launch.

    Sorted by (start_ns, -end_ns, -kind), so that what is inside another comes after it.

    `kind`: (m,), `SpanKind`, or `_FRAME_KIND`. `said`: (m,), the same as a report says it: that of
    a collective is its annotation's. `text`: (m,), index into `texts`: the name, folded. `user`:
    (m,), whether it is a frame of the user's. `backward`: (m,), whether it is a node of autograd.
    `texts`: the names; the last is "backward". `in_file`: whether the file has any, also on other
    threads.
    """

    def __init__(self, trace: Trace, step_marks: Bools) -> None:
        spans, frames = trace.spans, trace.frames
        launches = np.zeros(len(trace.threads) + 1, np.bool_)
        launches[trace.calls.thread] = True
        real = (spans.end_ns > spans.start_ns) & ~step_marks[spans.name]
        self.in_file = bool(real.any()) or len(frames) > 0
        own = np.flatnonzero(real & launches[spans.thread])
        called = np.flatnonzero(frames.end_ns > frames.start_ns)
        texts: dict[str, int] = {}
        of_span = _text_codes(trace.names, spans.name[own], texts)
        of_frame = _text_codes(trace.functions, frames.function[called], texts)
        texts.setdefault(BACKWARD_REGION, len(texts))
        self.texts = tuple(texts)
        columns: tuple[Ints, ...] = (
            np.concatenate((spans.thread[own], frames.thread[called])),
            np.concatenate((spans.start_ns[own], frames.start_ns[called])),
            np.concatenate((spans.end_ns[own], frames.end_ns[called])),
            np.concatenate((spans.kind[own], np.full(len(called), _FRAME_KIND, np.int8))),
            np.concatenate((of_span, of_frame)),
        )
        if len(called):
            order = np.lexsort((-columns[3], -columns[2], columns[1]))
            columns = tuple(column[order] for column in columns)
        self.thread, self.start_ns, self.end_ns, self.kind, self.text = columns
        is_op, is_frame = self.kind == SpanKind.OP, self.kind == _FRAME_KIND
        self.backward = is_op & names_matching(self.texts, _BACKWARD)[self.text]
        user = np.fromiter(map(is_user_frame, self.texts), np.bool_, len(self.texts))
        self.user = is_frame & user[self.text]
        self.said = self.kind.copy()
        self._name_collectives(is_op & names_matching(self.texts, _COMMS)[self.text])

    def __len__(self) -> int:
        return len(self.thread)

    def chosen(self, which: Bools) -> Nesting:
        """Return the nesting of the things that are marked."""
        return Nesting(self, np.flatnonzero(which))

    def _name_collectives(self, comms: Bools) -> None:
        """Call `record_param_comms` by the annotation of its collective that begins inside it."""
        told = np.flatnonzero(
            (self.kind == SpanKind.ANNOTATION) & names_matching(self.texts, _NCCL)[self.text]
        )
        rows = np.flatnonzero(comms)
        begun = Moments(thread=self.thread[rows], at_ns=self.start_ns[rows] - 1)
        inner = _next(self, told, begun)
        known = (inner >= 0) & (self.start_ns[inner] < self.end_ns[rows])
        self.text[rows[known]] = self.text[inner[known]]
        self.said[rows[known]] = SpanKind.ANNOTATION


def _text_codes(names: tuple[str, ...], column: Int32s, texts: dict[str, int]) -> Int32s:
    """Return the number in `texts`, where new ones are added, of each name once folded."""
    codes = np.full(len(names) + 1, -1, np.int32)
    for name in used_names(column, len(names)).tolist():
        codes[name] = texts.setdefault(folded(names[name]), len(texts))
    return codes[column]


def _next(things: _Things, rows: Int64s, moments: Moments) -> Int64s:
    """Return which of the things at `rows` begins next after each moment: (n,) int64; -1 none."""
    if not len(rows):
        return np.full(len(moments), -1, np.int64)
    axis = Axis(things.start_ns[rows], things.start_ns[rows], things.thread[rows])
    position = axis.position(things.thread[rows], things.start_ns[rows])
    order = np.argsort(position, kind="stable")
    at = np.searchsorted(position[order], axis.position(moments.thread, moments.at_ns), "right")
    found = rows[order][np.minimum(at, len(rows) - 1)]
    return np.where((at < len(rows)) & (things.thread[found] == moments.thread), found, -1)


def _edges(things: _Things, threads: int) -> tuple[Int64s, Int32s]:
    """Return when anything begins or ends on each thread, sorted; the first is before all time."""
    both_ns = np.concatenate((things.start_ns, things.end_ns))
    axis = Axis(both_ns, both_ns, things.thread)
    position = axis.position(np.tile(things.thread, 2), both_ns)
    order = np.argsort(position, kind="stable")
    position = position[order]
    once = np.flatnonzero(np.diff(position, prepend=-2))
    order = order[once]
    thread = np.tile(things.thread, 2)[order]
    begins = np.searchsorted(thread, np.arange(threads))
    return (
        np.insert(both_ns[order], begins, _ALWAYS_NS),
        np.insert(thread, begins, np.arange(threads, dtype=np.int32)),
    )


def _quiet(things: _Things, trace: Trace, launches: Int64s) -> Bools:
    """Mark the things in which no launch begins, on their own thread: (m,) bool."""
    axis = Axis(things.start_ns, things.end_ns, things.thread)
    calls = trace.calls
    begins = np.sort(axis.position(calls.thread[launches], calls.start_ns[launches]))
    first = places(begins, axis.position(things.thread, things.start_ns), "left")
    last = np.searchsorted(begins, axis.position(things.thread, things.end_ns), "left")
    quiet: Bools = first == last
    return quiet


class _Stacks:
    """What is open while a thing is the innermost one open: indices of things, (m + 1,) each.

    Things mostly nest: all in which the innermost one began is still open, until `whole_until_ns`.
    The last entry, which -1 indexes, is that of nothing.
    """

    def __init__(self, things: _Things, quiet: Bools, parent: Int64s) -> None:
        none = np.full(len(things) + 1, -1, np.int32)
        self._things, self._quiet = things, quiet
        self.named, self.operator, self.frame = none.copy(), none.copy(), none.copy()
        self.annotation, self.outer, self.module = none.copy(), none.copy(), none.copy()
        self.whole = none.copy()
        self.backward = np.zeros(len(none), np.bool_)
        self.whole_until_ns = np.full(len(none), _ALWAYS_NS)
        self.whole_until_ns[-1] = np.iinfo(np.int64).max
        depth = _depths(parent)
        order = np.argsort(depth, kind="stable")
        deepest = min(int(depth.max(initial=0)), _DEEPEST)
        edges = np.searchsorted(depth[order], np.arange(deepest + 2))
        for first, last in pairwise(edges.tolist()):
            rows = order[first:last]
            self._settle(rows, parent[rows])
        frame_or_annotation = np.where(self.frame >= 0, self.frame, self.annotation)
        self.named = np.where(self.operator >= 0, self.operator, frame_or_annotation)

    def _settle(self, rows: Int64s, around: Int64s) -> None:
        """Fill in the things at `rows`, whose stacks are those of `around` and themselves."""
        things = self._things
        kind = things.kind[rows]
        is_annotation = kind == SpanKind.ANNOTATION

        def outermost(column: Int32s, which: Bools) -> Int32s:
            found = column[around]
            return np.where((found < 0) & which, rows, found).astype(np.int32)

        operator = outermost(self.operator, kind == SpanKind.OP)
        frame = np.where(things.user[rows], rows, self.frame[around])
        self.operator[rows] = np.where(is_annotation, -1, operator)
        self.frame[rows] = np.where(is_annotation, -1, frame)
        self.annotation[rows] = np.where(is_annotation, rows, self.annotation[around])
        self.outer[rows] = outermost(self.outer, is_annotation)
        self.module[rows] = outermost(self.module, kind == SpanKind.MODULE)
        self.whole[rows] = outermost(self.whole, self._quiet[rows])
        self.backward[rows] = self.backward[around] | things.backward[rows]
        self.whole_until_ns[rows] = np.minimum(things.end_ns[rows], self.whole_until_ns[around])

    def columns(self, things: _Things) -> list[Int32s]:
        """Return the columns of holders by the innermost thing, (m + 1,): see `_coded`."""
        text = np.append(things.text, np.int32(-1))
        inner_region = np.where(self.backward, np.int32(len(things.texts) - 1), text[self.module])
        return _coded(
            things,
            self.named,
            np.append(np.arange(len(things)), -1),
            self.whole,
            np.where(self.outer >= 0, text[self.outer], inner_region),
        )


def _depths(parent: Int64s) -> Int32s:
    """Return how many things each lies in by its parents, (m,) int32; at most about `_DEEPEST`."""
    depth = np.append(np.minimum(parent, 0) + 1, 0).astype(np.int32)
    above = np.append(parent, -1)
    for _ in range(_DEEPEST.bit_length()):
        if not (above >= 0).any():
            break
        depth += depth[above]
        above = above[above]
    return depth[:-1]


def _coded(
    things: _Things,
    named: Int32s | Int64s,
    inner: Int32s | Int64s,
    whole: Int32s | Int64s,
    region: Int32s,
) -> list[Int32s]:
    """Return the columns of holders as codes: of texts, of kinds; -1 none."""
    text = np.append(things.text, np.int32(-1))
    kind = np.append(things.said, np.int8(_NONE))
    return [text[named], kind[named].astype(np.int32), text[inner], text[whole], region]


def _searched(things: _Things, quiet: Bools, moments: Moments) -> list[Int32s]:
    """Return the same columns at moments at which things overlap without nesting, (n,) each."""
    text = np.append(things.text, np.int32(-1))
    annotations = things.chosen(things.kind == SpanKind.ANNOTATION)
    annotation = annotations.innermost(moments)
    operators = things.chosen(things.kind == SpanKind.OP)
    operator = operators.outermost(moments, annotation)
    frame = things.chosen(things.user).innermost(moments)
    module = things.chosen(things.kind == SpanKind.MODULE).outermost(moments)
    backward = things.chosen(things.backward).innermost(moments) >= 0
    outer = annotations.outermost(moments)
    region = np.where(backward, np.int32(len(things.texts) - 1), text[module])
    return _coded(
        things,
        np.where(operator >= 0, operator, np.maximum(frame, annotation)),
        things.chosen(np.ones(len(things), np.bool_)).innermost(moments),
        things.chosen(quiet).outermost(moments),
        np.where(outer >= 0, text[outer], region),
    )


def _holders(
    things: _Things, quiet: Bools, parent: Int64s, inner: Int64s, moments: Moments
) -> tuple[Int32s, tuple[Holder, ...]]:
    """Name whoever would hold a device at each moment; return their numbers, (n,), and all.

    `quiet`: which of them launch nothing. `parent`: (m,), the innermost thing that each begins in;
    -1 none. `inner`: (n,), the innermost thing open at each moment; -1 none.
    """
    stacks = _Stacks(things, quiet, parent)
    by_thing = stacks.columns(things)
    odd = np.flatnonzero(moments.at_ns >= stacks.whole_until_ns[inner])
    unnamed = stacks.named[inner] < 0
    unnamed[odd] = False
    bare = np.flatnonzero(unnamed)
    at_odd = _searched(things, quiet, moments.of(odd))
    at_bare = [column[inner[bare]] for column in by_thing]
    for columns, rows in ((at_odd, odd), (at_bare, bare)):
        none = np.flatnonzero(columns[0] < 0)
        columns[0][none] = _what_follows(things, moments.of(rows[none]))
    number, holders = _interned(
        [np.concatenate(parts) for parts in zip(by_thing, at_odd, at_bare, strict=True)],
        things.texts,
    )
    of_thing = len(things) + 1
    found = number[:of_thing][inner]
    found[odd] = number[of_thing : of_thing + len(odd)]
    found[bare] = number[of_thing + len(odd) :]
    return found, holders


def _what_follows(things: _Things, moments: Moments) -> Int32s:
    """Return the code of "(nothing open) before X", X being what the thread opens next: (n,)."""
    found = _next(things, np.flatnonzero(things.kind == SpanKind.OP), moments)
    none = np.flatnonzero(found < 0)
    found[none] = _next(things, np.arange(len(things)), moments.of(none))
    text = np.append(things.text, np.int32(-1))[found]
    return np.where(found < 0, np.int32(2 * len(things.texts)), text + np.int32(len(things.texts)))


def _interned(
    columns: Sequence[Int32s], texts: tuple[str, ...]
) -> tuple[Int32s, tuple[Holder, ...]]:
    """Number the distinct rows of columns; return each row's number, and what they mean."""
    number = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        number = _dense(number * (int(column.max(initial=0)) + 2) + (column + 1))
    first = np.zeros(int(number.max(initial=-1)) + 1, np.int64)
    first[number[::-1]] = np.arange(len(number))[::-1]
    table = zip(*(column[first].tolist() for column in columns), strict=True)
    holders = tuple(
        Holder(_said(name, texts), _KINDS[kind], *(texts[n] if n >= 0 else None for n in beside))
        for name, kind, *beside in table
    )
    return number.astype(np.int32), holders


def _dense(keys: Int64s) -> Int64s:
    """Number the distinct keys, which are not negative, from 0 on, in their order: (n,) int64."""
    most = int(keys.max(initial=0)) + 1
    if most > _MOST_DENSE:
        return np.unique(keys, return_inverse=True)[1]
    seen = np.zeros(most, np.bool_)
    seen[keys] = True
    return (np.cumsum(seen) - 1)[keys]


def _said(name: int, texts: tuple[str, ...]) -> str:
    """Return the text of a name's code; "" for none."""
    if name < len(texts):
        return texts[name] if name >= 0 else ""
    following = name - len(texts)
    return f"{NOTHING_OPEN} before {texts[following]}" if following < len(texts) else NOTHING_OPEN
