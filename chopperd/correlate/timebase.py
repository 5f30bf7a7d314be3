"""Time axes: samples to Unix time, steps of the wall clock, drift between calls and records."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from chopperd.model.arrays import Bools, Int64s
from chopperd.model.timeline import ClockDrift
from chopperd.units import NS_PER_US, TimeTriple

# One time axis: sample times (MONOTONIC) to Unix time, and how steady the wall clock was.

#: A steady rate of the wall clock against MONOTONIC is distinguished from a step from so many
#: intervals on.
_RATE_INTERVALS: Final = 3


def unix_from_mono(t_mono_ns: Int64s, triples: Sequence[TimeTriple]) -> Int64s:
    """Convert MONOTONIC times to Unix times, (n,) int64 ns.

    The offset between both clocks is linear between neighbouring triples (rising), before the first
    and after the last that of the nearest. Only its small change passes through a float.

    Raises: ValueError: There is no triple.
    """
    if not triples:
        raise ValueError("no clock triple ties MONOTONIC to Unix time")
    mono_ns, offset_ns = _columns(triples)
    change_ns = np.interp(t_mono_ns - mono_ns[0], mono_ns - mono_ns[0], offset_ns - offset_ns[0])
    unix_ns: Int64s = t_mono_ns + offset_ns[0] + np.rint(change_ns).astype(np.int64)
    return unix_ns


def realtime_step_ns(
    triples: Sequence[TimeTriple], start_unix_ns: int, end_unix_ns: int
) -> int | None:
    """Get the size of the largest step of REALTIME within `[start, end)`, in ns; None if not known.

    A step is the change of (unix - mono) between neighbouring triples beyond the steady rate (the
    median over all triples; zero where fewer than three intervals are known). None: no interval
    between triples touches the window.
    """
    if len(triples) < 2:
        return None
    mono_ns, offset_ns = _columns(triples)
    unix_ns = mono_ns + offset_ns
    first_ns = np.minimum(unix_ns[:-1], unix_ns[1:])
    last_ns = np.maximum(unix_ns[:-1], unix_ns[1:])
    inside = (first_ns < end_unix_ns) & (last_ns >= start_unix_ns)
    if not inside.any():
        return None
    spacing_ns, change_ns = np.diff(mono_ns), np.diff(offset_ns)
    rate = np.median(change_ns / spacing_ns) if len(spacing_ns) >= _RATE_INTERVALS else 0.0
    return round(float(np.abs(change_ns - rate * spacing_ns)[inside].max()))


def _columns(triples: Sequence[TimeTriple]) -> tuple[Int64s, Int64s]:
    """Return the triples' MONOTONIC times and offsets to Unix time, ns, both (n,) int64."""
    mono_ns = np.array([triple.mono_ns for triple in triples], dtype=np.int64)
    unix_ns = np.array([triple.unix_ns for triple in triples], dtype=np.int64)
    return mono_ns, unix_ns - mono_ns


# Whether a trace's launches and its device records drift apart: their clocks may differ.
#
# On ROCm Kineto has kernels in CLOCK_MONOTONIC, moved by one offset that is taken at the end, and
# runtime calls in the processor's own counter. Only a kernel that found its device idle shows how
# long a launch takes; behind a queue it started late for reasons of its own. Of those the quickest
# in each stretch of time form a line, and its slope is the drift.
#
# Source: RocprofActivityApi::getTimeOffset of Kineto, which warns that times will skew.

#: Stretches of equal many launches, and how far down in each the quickest are searched.
_STRETCHES: Final = 12
_QUICK: Final = 0.1
#: Fewer launches onto an idle device are not enough.
_FEWEST: Final = 10 * _STRETCHES
#: A device that did nothing for so long had no queue.
_IDLE_NS: Final = 10 * NS_PER_US
#: Student's t of 99 % for a slope through as many points as there are stretches.
_T_99: Final = 3.169


def clock_drift(start_ns: Int64s, end_ns: Int64s, called_ns: Int64s) -> ClockDrift | None:
    """Measure the drift between a device's records and their launches; None if not measurable.

    `start_ns`: (n,), all records of the device, sorted. `called_ns`: (n,), when the launch of each
    began; -1 where it is not known.
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
    """Whether each record began on a device idle for over `_IDLE_NS`: (n,) bool; not the first."""
    idle = np.zeros(len(start_ns), np.bool_)
    np.greater(start_ns[1:] - np.maximum.accumulate(end_ns)[:-1], _IDLE_NS, out=idle[1:])
    return idle


def _quick(part: Int64s, late_ns: Int64s) -> int:
    """Return the row of `part` at the `_QUICK` quantile of the time from launch to start."""
    nth = int(_QUICK * len(part))
    return int(part[np.argpartition(late_ns[part], nth)[nth]])
