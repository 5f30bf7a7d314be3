"""The stretch of device time that belongs to each step."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import numpy as np

from chopperd.model.arrays import Bools, Int32s, Int64s
from chopperd.model.timeline import DeviceWindow

_NEVER_NS: Final = np.iinfo(np.int64).max


def device_windows(
    *,
    step: Int32s,
    start_ns: Int64s,
    end_ns: Int64s,
    compute: Bools,
    on_main_stream: Bools,
    cycle: Sequence[int] = (),
) -> tuple[DeviceWindow, ...]:
    """One window a step with records on the device, abutting, in step order.

    A window starts at the step's cut: the start of its first own compute kernel on the main
    stream, else on any stream, else of its first own record; no earlier than the cut before it.
    The last one of a profiler cycle ends at the step's last own record, or at the next cut.

    Args:
        step: (n,) int32, the step that launched each record; -1 none.
        start_ns: (n,) int64, rising.
        end_ns: (n,) int64.
        compute: (n,) bool, records that compute.
        on_main_stream: (n,) bool.
        cycle: Of each step the profiler's cycle; none if there is one.
    """
    if not np.any(step >= 0):
        return ()
    count = int(step.max()) + 1
    cut_ns = _first_start_ns(step, start_ns, compute & on_main_stream, count)
    for rows in (compute, np.ones(len(step), np.bool_)):
        other_ns = _first_start_ns(step, start_ns, rows, count)
        cut_ns = np.where(cut_ns == _NEVER_NS, other_ns, cut_ns)
    present = np.flatnonzero(cut_ns != _NEVER_NS)
    cut_ns = np.maximum.accumulate(cut_ns[present])
    cycles = [cycle[which] if cycle else 0 for which in present.tolist()]
    tails = [*(a != b for a, b in pairwise(cycles)), True]
    next_ns = [*cut_ns[1:].tolist(), _NEVER_NS]
    return tuple(
        DeviceWindow(
            step=which,
            start_ns=cut,
            end_ns=min(after, max(int(end_ns[step == which].max()), cut)) if tail else after,
            tail=tail,
        )
        for which, cut, after, tail in zip(
            present.tolist(), cut_ns.tolist(), next_ns, tails, strict=True
        )
    )


def main_stream(stream: Int64s, duration_ns: Int64s, compute: Bools) -> int:
    """The stream with the most compute time; with none, the one with the most time at all.

    Args:
        stream: (n,) int64, n > 0.
        duration_ns: (n,) int64.
        compute: (n,) bool.
    """
    rows = compute if compute.any() else np.ones(len(stream), np.bool_)
    streams, which = np.unique(stream[rows], return_inverse=True)
    return int(streams[np.argmax(np.bincount(which, weights=duration_ns[rows]))])


def _first_start_ns(step: Int32s, start_ns: Int64s, rows: Bools, count: int) -> Int64s:
    """The first start of each step among the rows; `_NEVER_NS` for steps without any."""
    own = np.flatnonzero(rows & (step >= 0))[::-1]
    first_ns = np.full(count, _NEVER_NS, np.int64)
    first_ns[step[own]] = start_ns[own]  # rows come last to first, and the last write stays
    return first_ns
