"""Find the span that a moment of a thread lies in: the innermost of the chosen ones.

Spans of one thread usually nest, but need not: an annotation may end inside an operator, a child a
moment after its parent. A span is *around* a moment when it has begun and not yet ended; the
*innermost* is the last to begin, of those that begin together the shortest.
"""

from typing import Final, Protocol

import numpy as np
from msgspec import Struct

from chopperd.model.arrays import Int32s, Int64s
from chopperd.model.trace import RuntimeCalls

#: Times of all threads are put on one axis if int64 is wide enough; else their ranks are.
_AXIS_LIMIT: Final = 2**62
_MOST_INT16: Final = 2**15 - 1
#: Visiting an edge of a span costs about as much as placing so many moments between edges.
_EDGE_COST: Final = 2


class Moments(Struct, frozen=True, kw_only=True):
    """Moments on host threads."""

    thread: Int32s  # (n,), index into `Trace.threads`; -1 unknown, which no span is around
    at_ns: Int64s  # (n,); meaningless where the thread is unknown

    def __len__(self) -> int:
        return len(self.at_ns)

    def of(self, rows: Int64s) -> "Moments":
        """Return the moments at some indices."""
        return Moments(thread=self.thread[rows], at_ns=self.at_ns[rows])


def beginnings(calls: RuntimeCalls, call: Int64s) -> Moments:
    """Return when, and on which thread, the calls at some indices began; thread -1 for index -1."""
    thread = np.append(calls.thread, np.int32(-1))[call]
    return Moments(thread=thread, at_ns=np.append(calls.start_ns, 0)[call])


class _Spans(Protocol):
    """Stretches of time on host threads, sorted by (start_ns, -end_ns)."""

    @property
    def thread(self) -> Int32s: ...
    @property
    def start_ns(self) -> Int64s: ...
    @property
    def end_ns(self) -> Int64s: ...


class Nesting:
    """Finds the innermost chosen span around a moment; `chosen`: (m,) int64 ascending indices."""

    def __init__(self, spans: _Spans, chosen: Int64s) -> None:
        self._spans = spans
        self._rows = chosen[by_thread(spans.thread[chosen])]
        thread = spans.thread[self._rows]
        start_ns, end_ns = spans.start_ns[self._rows], spans.end_ns[self._rows]
        self._axis = Axis(start_ns, end_ns, thread)
        self._start = self._axis.position(thread, start_ns)
        self._ends = _Maxima(self._axis.position(thread, end_ns))

    def innermost(self, moments: Moments) -> Int64s:
        """Return the index of the innermost chosen span around each moment: (n,) int64; -1 none."""
        if not len(self._rows):
            return np.full(len(moments), -1, np.int64)
        position = self._axis.position(moments.thread, moments.at_ns)
        if 2 * len(self._rows) * _EDGE_COST < len(moments):
            # Nothing changes between two edges of spans, which are fewer than the moments.
            edges = np.sort(np.concatenate((self._start, self._ends.values)))
            at = np.searchsorted(edges, position, "right") - 1
            found = np.append(self._innermost_at(edges), -1).take(at)
        else:
            found = self._innermost_at(position)
        found[np.flatnonzero(moments.thread < 0)] = -1
        return found

    def outermost(self, moments: Moments, inside: Int64s | None = None) -> Int64s:
        """Return the index of the outermost chosen span around each moment: (n,) int64; -1 none.

        The outermost is the first to begin, of those that begin together the longest. With
        `inside`, (n,) indices of spans of the moments' threads, it comes after that span in the
        table; -1 for all.
        """
        if not len(self._rows):
            return np.full(len(moments), -1, np.int64)
        position = self._axis.position(moments.thread, moments.at_ns)
        since = np.zeros(len(moments), np.int64)
        if inside is not None:
            keys = self._key(self._spans.thread[self._rows], self._rows)  # rising
            since = np.searchsorted(keys, self._key(moments.thread, inside), "right")
            since[inside < 0] = 0
        found = self._ends.first_above(since, position)
        found[found >= np.searchsorted(self._start, position, "right")] = -1
        return self._spans_at(found)

    def _key(self, thread: Int32s, row: Int64s) -> Int64s:
        return thread.astype(np.int64) * len(self._spans.start_ns) + row

    def starting(self, moments: Moments) -> Int64s:
        """Return the outermost chosen span that starts at each moment: (n,) int64; -1 none."""
        if not len(self._rows):
            return np.full(len(moments), -1, np.int64)
        position = self._axis.position(moments.thread, moments.at_ns)
        at = np.minimum(np.searchsorted(self._start, position, "left"), len(self._rows) - 1)
        row = self._rows[at]
        met = self._spans.start_ns[row] == moments.at_ns
        met &= self._spans.thread[row] == moments.thread
        return np.where(met, row, -1)

    def parents(self) -> Int64s:
        """Return for each chosen span the innermost other around its start: (m,) int64; -1 none."""
        if not len(self._rows):
            return np.zeros(0, np.int64)
        before = np.arange(len(self._rows)) - 1
        found = self._spans_at(self._ends.last_above(before, self._start))
        return found[np.argsort(self._rows)]

    def _innermost_at(self, position: Int64s) -> Int64s:
        begun = np.searchsorted(self._start, position, "right") - 1
        return self._spans_at(self._ends.last_above(begun, position))

    def _spans_at(self, rows: Int64s) -> Int64s:
        return np.where(rows < 0, -1, self._rows[rows])


def by_thread(thread: Int32s) -> Int64s:
    """Return indices sorted by thread, in the given order within each: (n,) int64."""
    if int(thread.max(initial=0)) <= _MOST_INT16:
        thread = thread.astype(np.int16)  # sorted by counting, without comparing
    return np.argsort(thread, kind="stable")


class Axis:
    """One axis for all threads: a thread's moments come after all those of the one before."""

    def __init__(self, start_ns: Int64s, end_ns: Int64s, thread: Int32s) -> None:
        self._ranks: Int64s | None = None
        self._first, self._last = 0, 0
        if not len(start_ns):
            return
        self._first, self._last = int(start_ns.min()), int(end_ns.max())
        if (self._last - self._first + 2) * (int(thread.max()) + 2) >= _AXIS_LIMIT:
            self._ranks = np.unique(np.concatenate((start_ns, end_ns)))
            self._first, self._last = 0, len(self._ranks)

    def position(self, thread: Int32s, at_ns: Int64s) -> Int64s:
        """Return each moment's position, (n,) int64; times cut to [first start - 1, last end]."""
        if self._ranks is not None:
            at_ns = np.searchsorted(self._ranks, at_ns, "right") - 1
        within = np.clip(at_ns, self._first - 1, self._last) - self._first
        return within + thread.astype(np.int64) * (self._last - self._first + 2)


class _Maxima:
    """Values, (m,) int64, with maxima of blocks of 2, 4, 8, ...: fast to search backwards."""

    def __init__(self, values: Int64s) -> None:
        self._levels = [values]
        while len(self._levels[-1]) > 1:
            below = self._levels[-1]
            if len(below) % 2:
                below = np.append(below, np.iinfo(np.int64).min)
            self._levels.append(np.maximum(below[0::2], below[1::2]))

    @property
    def values(self) -> Int64s:
        """The values as given: (m,) int64."""
        return self._levels[0]

    def last_above(self, upto: Int64s, bound: Int64s) -> Int64s:
        """Return each query's last index <= `upto` with a value > `bound`: (n,) int64; -1 none."""
        found = np.full(len(upto), -1, np.int64)
        query = np.flatnonzero(upto >= 0)
        block = upto[query]
        for level, maxima in enumerate(self._levels):
            holds = maxima[block] > bound[query]
            found[query[holds]] = self._descend(level, block[holds], bound[query[holds]])
            # On to the block of twice the size that ends with this one, or before it.
            further = ~holds & (block > 0)
            query, block = query[further], (block[further] - 1) // 2
        return found

    def first_above(self, since: Int64s, bound: Int64s) -> Int64s:
        """Return each query's first index >= `since` with a value > `bound`: (n,); -1 none."""
        found = np.full(len(since), -1, np.int64)
        query = np.flatnonzero(since < len(self.values))
        block = since[query]
        for level, maxima in enumerate(self._levels):
            holds = maxima[block] > bound[query]
            found[query[holds]] = self._descend_first(level, block[holds], bound[query[holds]])
            # On to the block of twice the size that begins with this one, or after it.
            query, block = query[~holds], (block[~holds] + 1) // 2
            further = block < (len(maxima) + 1) // 2
            query, block = query[further], block[further]
        return found

    def _descend_first(self, level: int, block: Int64s, bound: Int64s) -> Int64s:
        """Return the first index in each block with a value above the bound; each has one."""
        for maxima in reversed(self._levels[:level]):
            block = 2 * block
            block += maxima[block] <= bound
        return block

    def _descend(self, level: int, block: Int64s, bound: Int64s) -> Int64s:
        """Return the last index in each block with a value above the bound; each block has one."""
        for maxima in reversed(self._levels[:level]):
            block = 2 * block + 1
            right = np.minimum(block, len(maxima) - 1)
            block -= (block >= len(maxima)) | (maxima[right] <= bound)
        return block
