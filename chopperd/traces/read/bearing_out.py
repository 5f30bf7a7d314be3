"""Which rows of absurd times are right after all, as rows that were written otherwise agree.

Damage hits single rows, or one table of a file. Where a call on the host and a record of a device,
or two calls one in the other, tell of the same late time, that time was.
"""

from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np

from chopperd.model.arrays import Bools, Int32s, Int64s
from chopperd.units import NS_PER_S

Times: TypeAlias = tuple[Int64s, Int64s]
"""Starts and ends of a table's rows, (n,) int64 each, on the file's own axis."""

LONGEST_WAIT_NS: Final = 86_400 * NS_PER_S
"""No row that lasts longer than a day is right, or bears out others: no job waits so long."""

_NEAR_NS: Final = 60 * NS_PER_S
_FARTHEST_NS: Final = 2**62


def lengths_ok(start_ns: Int64s, end_ns: Int64s) -> Bools:
    """Which rows have a length, and one that a wait may have: (n,) bool."""
    length_ns = end_ns.astype(np.float64) - start_ns  # in int64 it might overflow
    ok: Bools = (length_ns > 0) & (length_ns <= LONGEST_WAIT_NS)
    return ok


def told(at_ns: Int64s, tables: Sequence[Times]) -> Bools:
    """Which instants a row of the tables lies around, to the minute: (n,) bool.

    Args:
        at_ns: (n,) int64.
        tables: The rows to ask.
    """
    if not len(at_ns):
        return np.zeros(0, np.bool_)
    start_ns, end_ns = _sound(tables)
    if not len(start_ns):
        return np.zeros(len(at_ns), np.bool_)
    order = np.argsort(start_ns)
    reach_ns = np.maximum.accumulate(end_ns[order])
    at_ns = _within_axis(at_ns)
    begun = np.searchsorted(start_ns[order], at_ns + _NEAR_NS, "right")
    around: Bools = (begun > 0) & (reach_ns[begun - 1] >= at_ns - _NEAR_NS)
    return around


def ending(at_ns: Int64s, tables: Sequence[Times]) -> Int64s:
    """How many different rows of the tables end at each instant, to the minute: (n,) int64."""
    if not len(at_ns):
        return np.zeros(0, np.int64)
    at_ns = _within_axis(at_ns)
    start_ns, end_ns = _sound(tables)
    late = end_ns >= at_ns.min() - _NEAR_NS
    start_ns, end_ns = start_ns[late], end_ns[late]
    order = np.lexsort((start_ns, end_ns))
    start_ns, end_ns = start_ns[order], end_ns[order]
    once = np.ones(len(order), np.bool_)
    once[1:] = (start_ns[1:] != start_ns[:-1]) | (end_ns[1:] != end_ns[:-1])
    end_ns = end_ns[once]
    upto = np.searchsorted(end_ns, at_ns + _NEAR_NS, "right")
    return upto - np.searchsorted(end_ns, at_ns - _NEAR_NS, "left")


def last_of_stream(device: Int32s | Int64s, stream: Int64s, start_ns: Int64s) -> Bools:
    """Which device records nothing follows on their stream: (n,) bool."""
    order = np.lexsort((start_ns, stream, device))
    device, stream, start_ns = device[order], stream[order], start_ns[order]
    ends = np.ones(len(order), np.bool_)
    ends[:-1] = (device[1:] != device[:-1]) | (stream[1:] != stream[:-1])
    latest = np.flatnonzero(ends)
    of_stream = np.concatenate(([0], np.cumsum(ends)))[: len(order)]
    last = np.empty(len(order), np.bool_)
    last[order] = start_ns == start_ns[latest[of_stream]]
    return last


def _sound(tables: Sequence[Times]) -> Times:
    """The rows that may bear out others."""
    kept = [(start[ok], end[ok]) for start, end in tables if (ok := lengths_ok(start, end)).any()]
    if not kept:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    return np.concatenate([start for start, _ in kept]), np.concatenate([end for _, end in kept])


def _within_axis(at_ns: Int64s) -> Int64s:
    return np.clip(at_ns, -_FARTHEST_NS, _FARTHEST_NS)
