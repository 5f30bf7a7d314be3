"""Whether a trace's launches and its device records drift apart: their clocks may differ.

On ROCm Kineto has kernels in CLOCK_MONOTONIC, moved by one offset that is taken at the end, and
runtime calls in the processor's own counter. Only a kernel that found its device idle tells how
long a launch takes; behind a queue it started late for reasons of its own. Of those the quickest
in each stretch of time form a line, and its slope is the drift.

Source: RocprofActivityApi::getTimeOffset of Kineto, which says that times will skew.
"""

from typing import Final

import numpy as np

from chopperd.model.arrays import Bools, Int64s
from chopperd.model.timeline import ClockDrift
from chopperd.units import NS_PER_US

#: Stretches of equal many launches, and how far down in each the quickest are looked for.
_STRETCHES: Final = 12
_QUICK: Final = 0.1
#: Fewer launches onto an idle device tell nothing.
_FEWEST: Final = 10 * _STRETCHES
#: A device that did nothing for so long was not kept busy by a queue.
_IDLE_NS: Final = 10 * NS_PER_US
#: Student's t of 99 % for a slope through as many points as there are stretches.
_T_99: Final = 3.169


def clock_drift(start_ns: Int64s, end_ns: Int64s, called_ns: Int64s) -> ClockDrift | None:
    """The drift between a device's records and their launches; None where nothing tells.

    Args:
        start_ns: (n,) int64, all records of the device, sorted.
        end_ns: (n,) int64, their ends.
        called_ns: (n,) int64, when the launch of each began; -1 where it is not known.
    """
    chosen = np.flatnonzero(_found_idle(start_ns, end_ns) & (called_ns >= 0))
    if len(chosen) < _FEWEST:
        return None
    t_ns = start_ns[chosen] - start_ns[chosen[0]]
    late_ns = (start_ns - called_ns)[chosen]
    points = [_quick(part, late_ns) for part in np.array_split(np.arange(len(chosen)), _STRETCHES)]
    x, y = t_ns[points].astype(np.float64), late_ns[points].astype(np.float64)
    x -= x.mean()
    spread = float(x @ x)  # not 0: found idle, they lie apart
    slope = float(x @ y) / spread
    left = y - y.mean() - slope * x
    half = _T_99 * float(np.sqrt((left @ left) / (_STRETCHES - 2) / spread))
    return ClockDrift(
        ratio=slope,
        low_ratio=slope - half,
        high_ratio=slope + half,
        span_ns=int(t_ns[-1]),
        launch_count=len(chosen),
    )


def _found_idle(start_ns: Int64s, end_ns: Int64s) -> Bools:
    """Which records began after their device had been idle: (n,) bool; the first did not."""
    idle = np.zeros(len(start_ns), np.bool_)
    np.greater(start_ns[1:] - np.maximum.accumulate(end_ns)[:-1], _IDLE_NS, out=idle[1:])
    return idle


def _quick(part: Int64s, late_ns: Int64s) -> int:
    """The row of `part` at the quantile of its launches' lengths that counts as quick."""
    nth = int(_QUICK * len(part))
    return int(part[np.argpartition(late_ns[part], nth)[nth]])
