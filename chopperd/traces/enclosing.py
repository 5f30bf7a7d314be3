"""Which host span a call was made in: the innermost of a few chosen ones on its thread."""

from typing import Final

import numpy as np

from chopperd.model.arrays import Int32s, Int64s
from chopperd.model.trace import HostSpans

#: No sound program nests spans that launch communication deeper; a broken file may.
_MAX_LEVELS: Final = 16


def innermost(spans: HostSpans, chosen: Int64s, thread: Int32s, at_ns: Int64s) -> Int64s:
    """(n,) int64: of the chosen spans, the innermost that holds each instant; -1 none.

    Spans of one thread nest. They are taken level by level, outermost first: within a level they
    don't overlap, so that the last to begin before an instant is the only one that may hold it.

    Args:
        spans: All host spans.
        chosen: (m,) int64, rising indices of the spans to look among.
        thread: (n,) int32, the thread of each instant.
        at_ns: (n,) int64, the instants.
    """
    found = np.full(len(at_ns), -1, np.int64)
    chosen = chosen[spans.end_ns[chosen] > spans.start_ns[chosen]]
    if not len(chosen) or not len(at_ns):
        return found
    chosen = chosen[np.argsort(spans.thread[chosen], kind="stable")]
    # One axis for all threads: a thread's time lies wholly behind that of the thread before.
    first_ns = min(int(spans.start_ns[chosen].min()), int(at_ns.min()))
    length_ns = max(int(spans.end_ns[chosen].max()), int(at_ns.max())) - first_ns + 1
    shift_ns = spans.thread[chosen].astype(np.int64) * length_ns - first_ns
    start_ns, end_ns = spans.start_ns[chosen] + shift_ns, spans.end_ns[chosen] + shift_ns
    instant_ns = at_ns - first_ns + thread.astype(np.int64) * length_ns
    for level in _levels(start_ns, end_ns):
        at = np.searchsorted(start_ns[level], instant_ns, "right") - 1
        holds = (at >= 0) & (instant_ns < end_ns[level][at])
        found[holds] = chosen[level[at[holds]]]
    return found


def _levels(start_ns: Int64s, end_ns: Int64s) -> list[Int64s]:
    """Indices of intervals that nest, by how many others hold them: outermost first.

    Args:
        start_ns: (m,) int64, m > 0, rising; of equal starts the longest first.
        end_ns: (m,) int64, none of no length.
    """
    ended = np.searchsorted(np.sort(end_ns), start_ns, "right")
    depth = np.arange(len(start_ns)) - ended
    count = min(int(depth.max()) + 1, _MAX_LEVELS)
    return [np.flatnonzero(depth == level) for level in range(count)]
