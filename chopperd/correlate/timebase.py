"""One time axis: sample times (MONOTONIC) to Unix time, and how steady the wall clock was."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from chopperd.model.arrays import Float64s, Int64s
from chopperd.model.samples import TimeTriple

#: A steady rate of the wall clock against MONOTONIC is told from a step from so many intervals on.
_RATE_INTERVALS: Final = 3


def unix_from_mono(t_mono_ns: Int64s, triples: Sequence[TimeTriple]) -> Int64s:
    """Unix times of MONOTONIC times, (n,) int64 ns.

    The offset between both clocks is linear between neighbouring triples; before the first and
    after the last it is that of the nearest. Only the small change of the offset passes through a
    float, so that no ns is lost.

    Args:
        t_mono_ns: (n,) int64, in any order.
        triples: At least one, rising in `mono_ns`.

    Raises:
        ValueError: There is no triple.
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
    """Size of the largest step of REALTIME within `[start, end)`, in ns; None if not known.

    A step is the change of (unix - mono) between neighbouring triples beyond the steady rate at
    which REALTIME ran against MONOTONIC (the median over all triples; zero where fewer than
    three intervals tell). None: no interval between triples touches the window.
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
    steps_ns = _steps_ns(np.diff(mono_ns), np.diff(offset_ns))
    return round(float(np.abs(steps_ns[inside]).max()))


def _steps_ns(spacing_ns: Int64s, change_ns: Int64s) -> Float64s:
    """What each change of offset holds beyond the steady rate, (n,) float64."""
    rate = np.median(change_ns / spacing_ns) if len(spacing_ns) >= _RATE_INTERVALS else 0.0
    return np.asarray(change_ns - rate * spacing_ns, dtype=np.float64)


def _columns(triples: Sequence[TimeTriple]) -> tuple[Int64s, Int64s]:
    """MONOTONIC times and offsets to Unix time, both (n,) int64."""
    mono_ns = np.array([triple.mono_ns for triple in triples], dtype=np.int64)
    unix_ns = np.array([triple.unix_ns for triple in triples], dtype=np.int64)
    return mono_ns, unix_ns - mono_ns
