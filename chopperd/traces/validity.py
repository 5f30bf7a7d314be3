"""Which rows can't be right by their times: those that would stretch the axis by decades.

Source: github.com/pytorch/kineto issue 109: under load the profiler writes device records with
start 0 and length 0, and Kineto sets times before its base to 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from chopperd.model.arrays import Bools, Int64s
from chopperd.units import NS_PER_S

_LEAST_MARGIN_NS: Final = NS_PER_S


@dataclass(frozen=True, slots=True)
class Stretch:
    """The time that a trace covers, `[start_ns, end_ns)`."""

    start_ns: int
    end_ns: int


def capture(tables: Sequence[tuple[Int64s, Int64s]]) -> Stretch | None:
    """First start and last end of the rows whose times are beyond doubt; None without any.

    Args:
        tables: Starts and ends, (n,) int64 each, on the file's own axis.
    """
    sure = [(start[ok], end[ok]) for start, end in tables if (ok := ~_doubtful(start, end)).any()]
    if not sure:
        return None
    return Stretch(
        min(int(start.min()) for start, _ in sure), max(int(end.max()) for _, end in sure)
    )


def believable(start_ns: Int64s, end_ns: Int64s, within: Stretch | None) -> Bools:
    """Which rows to keep, (n,) bool: all but those with no start or no length far outside.

    A start of 0 alone is no fault: a trace may begin there. Far is farther than the capture is
    long, and than one second.
    """
    if within is None:
        return np.ones(len(start_ns), dtype=np.bool_)
    margin_ns = max(within.end_ns - within.start_ns, _LEAST_MARGIN_NS)
    early = start_ns < within.start_ns - margin_ns
    late = start_ns > within.end_ns + margin_ns
    return ~(_doubtful(start_ns, end_ns) & (early | late))


def _doubtful(start_ns: Int64s, end_ns: Int64s) -> Bools:
    doubtful: Bools = (start_ns == 0) | (start_ns == end_ns)
    return doubtful
