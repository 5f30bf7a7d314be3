"""Where causes are in force by the driver's counters: at which samples, and over which borders."""

from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np

from chopperd.model.arrays import Bools, Float64s
from chopperd.model.kinds import Cause

MIN_COUNTER_SHARE: Final = 0.05
#: A counter that rises by more of a piece is updated more seldom than it is read: of a piece next
#: to that one it tells nothing.
_MOST_OF_PIECE: Final = 1.5
#: Shares that differ by less are the same.
_LEAST: Final = 1e-9


def named_by_counters(
    risen_ns: Float64s, length_ns: Float64s, causes: Iterable[Cause]
) -> dict[Cause, Bools]:
    """At which samples each cause was in force: (n,) bool; empty where no counter rose.

    A cause that counts is in force at the samples where it counted on both sides, more than any
    other cause and more than no cause did. At the first and the last sample one side decides.

    Args:
        risen_ns: (m, causes) float64, what the counters rose by between n = m + 1 samples.
        length_ns: (m,) float64.
        causes: Those with a counter.
    """
    if not risen_ns.any():
        return {}
    nothing = np.maximum(length_ns - risen_ns.sum(axis=1), 0.0)
    ratio = np.column_stack((risen_ns, nothing)) / length_ns[:, np.newaxis]
    both_sides = np.minimum(np.vstack((ratio[:1], ratio)), np.vstack((ratio, ratio[-1:])))
    most = both_sides.max(axis=1)
    at_most = (most > 0) & (most * (1.0 - _LEAST) <= both_sides.T)
    return {cause: at_most[cause] for cause in causes}


def counts_at_border(
    ratio: Float64s, is_read: Mapping[Cause, Bools], named: Mapping[Cause, list[Bools]]
) -> Bools:
    """Pieces with a counted cause at one end alone, whose counter counts in the next: (m,) bool.

    There the counter is right however little it rose: reason bits would give the cause half of a
    piece of which it had less than 5 %, and never take half of one of which it had all but that.

    Args:
        ratio: (m, causes) float64, what the counters rose by over the pieces' lengths.
        is_read: Whether each cause's counter tells of a piece.
        named: Of each cause with a counter the left and the right ends at which it is in force.

    By itself this made biases of up to 2.8 points in a cause's share where limits change each 0.3 s
    at 10 Hz.
    """
    found = np.zeros(len(ratio), bool)
    for cause, (left, right) in named.items():
        of_cause = ratio[:, cause]
        counts = (of_cause >= MIN_COUNTER_SHARE) & (of_cause <= _MOST_OF_PIECE)
        next_to = np.append(False, counts[:-1]) | np.append(counts[1:], False)
        found |= (left ^ right) & next_to & is_read[cause]
    return found
