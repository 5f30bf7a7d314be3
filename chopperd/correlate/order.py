"""Where times lie among other times that rise: a search that knows when to turn itself round."""

from typing import Literal

import numpy as np

from chopperd.model.arrays import Float64s, Int64s


def places(
    values: Int64s | Float64s, points: Int64s | Float64s, side: Literal["left", "right"]
) -> Int64s:
    """What `np.searchsorted(values, points, side)` gives, sooner for many points that rise.

    Then the few values are sought among the points instead, and each count is repeated up to the
    next: kernels come by millions, samples by hundreds of thousands.

    Args:
        values: (m,) rising.
        points: (n,) in any order.
        side: As in numpy: "left" counts the values below each point, "right" those up to it.
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
    """The places of both ends of spans; ends are only sought where a value lies before them.

    Args:
        values: (m,) rising.
        start: (n,) best rising.
        end: (n,) none below its start; best such that most spans hold no value.
        side: As in `places`.
    """
    first = places(values, start, side)
    if not len(values):
        return first, first
    following = values.take(np.minimum(first, len(values) - 1))
    passed = np.flatnonzero(following < end if side == "left" else following <= end)
    last = first.copy()
    last[passed] = np.searchsorted(values, end.take(passed), side)
    return first, last
