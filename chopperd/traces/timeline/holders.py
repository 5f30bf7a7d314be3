"""Name who would hold a device by what is open on the thread that launches to it.

No list of names decides it: what counts is when operators, annotations, Python frames and launches
begin and end. `host_stacks` reads them.

Source: DESIGN.md section 2, "Who held it".
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopperd.model.answers import NOTHING_OPEN, HolderKind
from chopperd.model.arrays import Bools, Int8s, Int32s, Int64s, Ints
from chopperd.model.timeline import Holder
from chopperd.model.trace import HostSpans, SpanKind
from chopperd.traces.timeline.nesting import Axis, Moments, Nesting

#: Kind of a thing that may be open besides those of `SpanKind`, and words for all of them.
FRAME_KIND: Final = len(SpanKind)
_KINDS: Final[tuple[HolderKind, ...]] = ("operator", "annotation", "frame", "frame", "none")
_NONE: Final = len(_KINDS) - 1
_ALWAYS_NS: Final = -(2**62)
#: How deep stacks are followed by what lies in what; deeper ones are searched.
_DEEPEST: Final = 512
#: Up to so many possible numbers are looked up in a table, more are sorted.
_MOST_DENSE: Final = 1 << 19


class Instants:
    """Instants on threads, to see which things have any of them inside.

    Attributes:
        sorted: They, by thread and time.
    """

    def __init__(self, moments: Moments) -> None:
        self._axis = Axis(moments.at_ns, moments.at_ns + 1, moments.thread)
        position = self._axis.position(moments.thread, moments.at_ns)
        order = np.argsort(position, kind="stable")
        self._position = position[order]
        self.sorted = moments.of(order)

    def in_any(self, thread: Int32s, start_ns: Int64s, end_ns: Int64s) -> Bools:
        """Mark the things in which an instant lies, on their own thread: (m,) bool."""
        first = np.searchsorted(self._position, self._axis.position(thread, start_ns), "left")
        last = np.searchsorted(self._position, self._axis.position(thread, end_ns), "left")
        inside: Bools = first < last
        return inside


class Things(Struct, frozen=True, kw_only=True):
    """What may be open, (m,) each.

    Sorted by (start_ns, -end_ns, -kind), so that what is inside another comes after it.
    """

    thread: Int32s
    start_ns: Int64s
    end_ns: Int64s
    kind: Int8s  # `SpanKind`, or `FRAME_KIND`
    said: Int8s  # the same as a report says it: that of a collective is its annotation's
    text: Int32s  # index into `_Host.texts`
    user: Bools  # a frame of the user's
    backward: Bools  # a node of autograd
    backward_text: int  # that of the region
    launches: Instants

    def __len__(self) -> int:
        """The number of things."""
        return len(self.thread)

    def open_at(self, moments: Moments) -> "Things":
        """Return the things that are open at any of some moments."""
        rows = np.flatnonzero(Instants(moments).in_any(self.thread, self.start_ns, self.end_ns))
        columns = {name: getattr(self, name) for name in self.__struct_fields__}
        del columns["backward_text"], columns["launches"]
        return replace(self, **{name: column[rows] for name, column in columns.items()})

    def quiet(self) -> Bools:
        """Return which launch nothing."""
        return ~self.launches.in_any(self.thread, self.start_ns, self.end_ns)

    def chosen(self, which: Bools) -> Nesting:
        """Return the nesting of the things that are marked."""
        return Nesting(self, np.flatnonzero(which))


def next_begun(things: "Things | HostSpans", rows: Int64s, moments: Moments) -> Int64s:
    """Return which of the things at `rows` begins next after each moment: (n,) int64; -1 none."""
    if not len(rows) or not len(moments):
        return np.full(len(moments), -1, np.int64)
    axis = Axis(things.start_ns[rows], things.start_ns[rows], things.thread[rows])
    position = axis.position(things.thread[rows], things.start_ns[rows])
    order = np.argsort(position, kind="stable")
    at = np.searchsorted(position[order], axis.position(moments.thread, moments.at_ns), "right")
    found = rows[order][np.minimum(at, len(rows) - 1)]
    return np.where((at < len(rows)) & (things.thread[found] == moments.thread), found, -1)


class Stacks(Struct, frozen=True, kw_only=True):
    """What is open while a thing is the innermost one open, (m + 1,) each; -1 none.

    The last entry, which -1 indexes, is that of nothing.
    """

    named: Int32s  # the thing that is named
    whole: Int32s  # the outermost one that launches nothing
    region: Int32s  # code of the region's text
    # Things mostly nest: all in which it began are still open. When the first of these ends:
    whole_until_ns: Int64s

    @staticmethod
    def of_room(things: int) -> "Stacks":
        """Return columns for so many things, that of nothing known."""
        named, whole, region = (np.full(things + 1, -1, np.int32) for _ in range(3))
        until_ns = np.full(things + 1, _ALWAYS_NS)
        until_ns[-1] = np.iinfo(np.int64).max
        return Stacks(named=named, whole=whole, region=region, whole_until_ns=until_ns)

    def columns(self, things: Things) -> list[Int32s]:
        """Return the columns of holders by the innermost thing, (m + 1,): see `_coded`."""
        inner = np.append(np.arange(len(things)), -1)
        return _coded(things, self.named, inner, self.whole, self.region)


def settled(things: Things, parent: Int64s) -> Stacks:
    """Return what is open with each thing by what it began in; `parent`: (m,) int64, -1 none."""
    stacks, found = Stacks.of_room(len(things)), _Settling(things)
    depth = _depths(parent)
    order = np.argsort(depth, kind="stable")
    deepest = min(int(depth.max(initial=0)), _DEEPEST)
    edges = np.searchsorted(depth[order], np.arange(deepest + 2))
    for first, last in pairwise(edges.tolist()):
        rows = order[first:last]
        around = parent[rows]
        found.settle(rows, around)
        stacks.whole_until_ns[rows] = np.minimum(things.end_ns[rows], stacks.whole_until_ns[around])
    frame_or_annotation = np.where(found.frame >= 0, found.frame, found.annotation)
    return replace(
        stacks,
        named=np.where(found.operator >= 0, found.operator, frame_or_annotation),
        whole=found.whole,
        region=found.region(),
    )


class _Settling:
    """What is open with each thing, (m + 1,): filled in from those without anything around on."""

    def __init__(self, things: Things) -> None:
        none = np.full(len(things) + 1, -1, np.int32)
        self._things, self._quiet = things, things.quiet()
        self.operator, self.frame, self.annotation = none.copy(), none.copy(), none.copy()
        self.outer, self.module, self.whole = none.copy(), none.copy(), none
        self.backward = np.zeros(len(none), np.bool_)

    def settle(self, rows: Int64s, around: Int64s) -> None:
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

    def region(self) -> Int32s:
        """Return the code of each thing's region, (m + 1,)."""
        text = np.append(self._things.text, np.int32(-1))
        inner = np.where(self.backward, np.int32(self._things.backward_text), text[self.module])
        return np.where(self.outer >= 0, text[self.outer], inner)


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
    things: Things,
    named: Int32s | Int64s,
    inner: Int32s | Int64s,
    whole: Int32s | Int64s,
    region: Int32s,
) -> list[Int32s]:
    """Return the columns of holders as codes: of texts, of kinds; -1 none."""
    text = np.append(things.text, np.int32(-1))
    kind = np.append(things.said, np.int8(_NONE))
    return [text[named], kind[named].astype(np.int32), text[inner], text[whole], region]


def _searched(things: Things, moments: Moments) -> list[Int32s]:
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
    region = np.where(backward, np.int32(things.backward_text), text[module])
    return _coded(
        things,
        np.where(operator >= 0, operator, np.maximum(frame, annotation)),
        things.chosen(np.ones(len(things), np.bool_)).innermost(moments),
        things.chosen(things.quiet()).outermost(moments),
        np.where(outer >= 0, text[outer], region),
    )


def holder_numbers(
    things: Things, names: "Names", stacks: Stacks, inner: Ints, moments: Moments
) -> Int32s:
    """Name whoever would hold a device at each moment; return their numbers, (n,).

    Args:
        things: What may be open.
        names: Numbers them.
        stacks: What is open with each of them.
        inner: (n,) indices, the innermost thing open at each moment; -1 none.
        moments: The moments.
    """
    by_thing = stacks.columns(things)
    odd = np.flatnonzero(moments.at_ns >= stacks.whole_until_ns[inner])
    unnamed = stacks.named[inner] < 0
    unnamed[odd] = False
    bare = np.flatnonzero(unnamed)
    at_odd = _searched(things.open_at(moments.of(odd)), moments.of(odd))
    at_bare = [column[inner[bare]] for column in by_thing]
    for columns, rows in ((at_odd, odd), (at_bare, bare)):
        none = np.flatnonzero(columns[0] < 0)
        columns[0][none] = _what_follows(things, moments.of(rows[none]))
    number = names.numbers(
        [np.concatenate(parts) for parts in zip(by_thing, at_odd, at_bare, strict=True)]
    )
    of_thing = len(things) + 1
    found = number[:of_thing][inner]
    found[odd] = number[of_thing : of_thing + len(odd)]
    found[bare] = number[of_thing + len(odd) :]
    return found


def _what_follows(things: Things, moments: Moments) -> Int32s:
    """Return the code of "(nothing open) before X", X being what the thread opens next: (n,)."""
    found = next_begun(things, np.flatnonzero(things.kind == SpanKind.OP), moments)
    none = np.flatnonzero(found < 0)
    if len(none):
        found[none] = next_begun(things, np.arange(len(things)), moments.of(none))
    count = things.backward_text + 1
    text = np.append(things.text, np.int32(-1))[found]
    return np.where(found < 0, np.int32(2 * count), text + np.int32(count))


class Names:
    """Numbers holders, and names them: rows of codes as `_coded` returns them."""

    def __init__(self, texts: tuple[str, ...]) -> None:
        self._texts = texts
        self._known: dict[tuple[int, ...], int] = {}

    def numbers(self, columns: Sequence[Int32s]) -> Int32s:
        """Return the number of each row of columns: (n,) int32."""
        number = np.zeros(len(columns[0]), np.int64)
        for column in columns:
            number = _dense(number * (int(column.max(initial=0)) + 2) + (column + 1))
        first = np.zeros(int(number.max(initial=-1)) + 1, np.int64)
        first[number[::-1]] = np.arange(len(number))[::-1]
        rows = zip(*(column[first].tolist() for column in columns), strict=True)
        known = self._known
        return np.array([known.setdefault(row, len(known)) for row in rows], np.int32)[number]

    def holders(self) -> Iterator[Holder]:
        """Yield the holders, by number."""
        for name, kind, *others in self._known:
            texts = (self._texts[each] if each >= 0 else None for each in others)
            yield Holder(self._said(name), _KINDS[kind], *texts)

    def _said(self, name: int) -> str:
        """Return the text of a name's code; "" for none."""
        count = len(self._texts)
        if name < count:
            return self._texts[name] if name >= 0 else ""
        following = name - count
        return (
            f"{NOTHING_OPEN} before {self._texts[following]}" if following < count else NOTHING_OPEN
        )


def _dense(keys: Int64s) -> Int64s:
    """Number the distinct keys, which are not negative, from 0 on, in their order: (n,) int64."""
    most = int(keys.max(initial=0)) + 1
    if most > _MOST_DENSE:
        return np.unique(keys, return_inverse=True)[1]
    seen = np.zeros(most, np.bool_)
    seen[keys] = True
    return (np.cumsum(seen) - 1)[keys]
