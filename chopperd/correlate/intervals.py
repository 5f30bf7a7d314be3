"""Sets of time as disjoint sorted half-open intervals: the primitives that every figure rests on.

All functions take and return int64 ns and are vectorised, O(n log n) or better. What an interval
means (busy, communication, idle) is not known here. Intervals in a set may touch: touching pieces
are one set of time, and only `union` joins them.
"""

from typing import Final, Literal

import numpy as np

from chopperd.model.arrays import Bools, Float64s, Int64s
from chopperd.model.timeline import Intervals

# Searching many times among rising ones, or, where that is faster, the other way round.


def places(
    values: Int64s | Float64s, points: Int64s | Float64s, side: Literal["left", "right"]
) -> Int64s:
    """Return `np.searchsorted(values, points, side)`, computed faster for many rising points.

    For these the few values are sought among the points instead, and each count is repeated up to
    the next: kernels come by millions, samples by hundreds of thousands.

    `values`: (m,) rising. `points`: (n,) in any order. `side`: as in numpy: "left" counts the
    values below each point, "right" those up to it.
    """
    if len(points) < len(values) or np.any(points[1:] < points[:-1]):
        return np.searchsorted(values, points, side)
    first = np.searchsorted(points, values, "left" if side == "right" else "right")
    counts = np.diff(first, prepend=0, append=len(points))
    return np.repeat(np.arange(len(values) + 1), counts)


def places_of_spans(
    values: Int64s | Float64s,
    start: Int64s | Float64s,
    end: Int64s | Float64s,
    side: Literal["left", "right"],
) -> tuple[Int64s, Int64s]:
    """Return the places of spans' starts and of their ends among `values`, (n,) each.

    An end is searched only where a value lies between it and its start.

    `values`: (m,) rising. `start`: (n,) best rising. `end`: (n,) none below its start; best such
    that most spans hold no value. `side`: as in `places`.
    """
    first = places(values, start, side)
    if not len(values):
        return first, first
    following = values.take(np.minimum(first, len(values) - 1))
    passed = np.flatnonzero(following < end if side == "left" else following <= end)
    last = first.copy()
    last[passed] = np.searchsorted(values, end.take(passed), side)
    return first, last


EMPTY: Final = Intervals(start_ns=np.empty(0, np.int64), end_ns=np.empty(0, np.int64))


def union(start_ns: Int64s, end_ns: Int64s) -> Intervals:
    """The time that lies in at least one of the given intervals, in as few pieces as possible.

    `start_ns`: (n,), in any order. `end_ns`: (n,); intervals with `end_ns <= start_ns` are empty
    and count for nothing.
    """
    real = end_ns > start_ns
    if not real.all():
        start_ns, end_ns = start_ns[real], end_ns[real]
    if len(start_ns) == 0:
        return EMPTY
    if np.any(start_ns[1:] < start_ns[:-1]):
        order = np.argsort(start_ns, kind="stable")
        start_ns, end_ns = start_ns[order], end_ns[order]
    reach_ns = np.maximum.accumulate(end_ns)
    opens = np.flatnonzero(start_ns[1:] > reach_ns[:-1]) + 1
    return Intervals(
        start_ns=start_ns[np.concatenate(([0], opens))],
        end_ns=reach_ns[np.concatenate((opens - 1, [len(reach_ns) - 1]))],
    )


def intersection(a: Intervals, b: Intervals) -> Intervals:
    """The time that lies in both sets, cut wherever either set is cut."""
    if not len(a) or not len(b):
        return EMPTY
    for one, other in ((a, b), (b, a)):
        if len(one) == 1:
            return clip(other, int(one.start_ns[0]), int(one.end_ns[0]))
    first = places(b.end_ns, a.start_ns, "right")
    last = places(b.start_ns, a.end_ns, "left")
    count = last - first
    in_a = np.repeat(np.arange(len(a)), count)
    nth = np.arange(len(in_a)) - np.repeat(np.cumsum(count) - count, count)
    in_b = first.take(in_a) + nth
    return Intervals(
        start_ns=np.maximum(a.start_ns.take(in_a), b.start_ns.take(in_b)),
        end_ns=np.minimum(a.end_ns.take(in_a), b.end_ns.take(in_b)),
    )


def difference(a: Intervals, b: Intervals) -> Intervals:
    """The time that lies in `a` and not in `b`; cuts of `a` stay."""
    if not len(a) or not len(b):
        return a
    start_ns = np.concatenate((a.start_ns[:1], b.end_ns))
    end_ns = np.concatenate((b.start_ns, a.end_ns[-1:]))
    outside_b = end_ns > start_ns
    return intersection(a, Intervals(start_ns=start_ns[outside_b], end_ns=end_ns[outside_b]))


def length_ns(a: Intervals) -> int:
    """The total time in the set, in ns."""
    return int((a.end_ns - a.start_ns).sum())


def clip(a: Intervals, start_ns: int, end_ns: int) -> Intervals:
    """The part of the set inside `[start_ns, end_ns)`; nothing if that is empty."""
    if end_ns <= start_ns:
        return EMPTY
    first = int(np.searchsorted(a.end_ns, start_ns, side="right"))
    last = int(np.searchsorted(a.start_ns, end_ns, side="left"))
    return Intervals(
        start_ns=np.maximum(a.start_ns[first:last], start_ns),
        end_ns=np.minimum(a.end_ns[first:last], end_ns),
    )


def contains(a: Intervals, points_ns: Int64s) -> Bools:
    """Whether each point lies in the set: (n,) bool for (n,) int64 in any order."""
    if len(a) == 0:
        return np.zeros(len(points_ns), np.bool_)
    at = np.searchsorted(a.start_ns, points_ns, side="right") - 1
    return (at >= 0) & (points_ns < a.end_ns.take(at))


def split_at(a: Intervals, cuts_ns: Int64s) -> Intervals:
    """Cut the set at every one of `cuts_ns` that lies inside an interval; its time stays the same.

    `cuts_ns`: (n,) in any order; repeated cuts and cuts elsewhere change nothing.
    """
    if len(a) == 0 or len(cuts_ns) == 0:
        return a
    cuts_ns = np.unique(cuts_ns)
    at = np.searchsorted(a.start_ns, cuts_ns, side="right") - 1
    inner_ns = cuts_ns[(at >= 0) & (a.start_ns[at] < cuts_ns) & (cuts_ns < a.end_ns[at])]
    return Intervals(
        start_ns=np.sort(np.concatenate((a.start_ns, inner_ns)), kind="stable"),
        end_ns=np.sort(np.concatenate((a.end_ns, inner_ns)), kind="stable"),
    )


def length_before_ns(a: Intervals, points_ns: Int64s) -> Int64s:
    """The time of the set that lies before each point: (n,) int64 for (n,) int64 in any order."""
    return _before_ns(a, points_ns, np.searchsorted(a.start_ns, points_ns, side="right"))


def lengths_ns(a: Intervals, start_ns: Int64s, end_ns: Int64s) -> Int64s:
    """The time of the set inside each span [start, end), (n,) int64; fastest if starts rise."""
    first, last = places_of_spans(a.start_ns, start_ns, end_ns, "right")
    within_ns = _before_ns(a, end_ns, last)
    within_ns -= _before_ns(a, start_ns, first)
    return within_ns


def _before_ns(a: Intervals, points_ns: Int64s, begun: Int64s) -> Int64s:
    """The time of the set before each point, given how many of its intervals begin up to there."""
    whole_ns = np.zeros(len(a) + 1, np.int64)
    np.cumsum(a.end_ns - a.start_ns, out=whole_ns[1:])
    if not len(a):
        return whole_ns.take(begun)
    ends_ns = np.concatenate((a.start_ns[:1], a.end_ns))  # nothing is left of what has not begun
    left_ns = ends_ns.take(begun)
    left_ns -= points_ns
    np.maximum(left_ns, 0, out=left_ns)
    left_ns[begun == 0] = 0
    return whole_ns.take(begun) - left_ns
