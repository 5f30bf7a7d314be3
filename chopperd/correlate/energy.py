"""Compute the energy of a stretch of time from a cumulative counter that rises in steps."""

from typing import Final

import numpy as np
from msgspec import Struct

from chopperd.model.arrays import Bools, Float64s, Int64s
from chopperd.model.plausible import EnergyCounter, most_energy_j

MAX_ERROR_RATIO: Final = 0.15
#: From this share of reads that show a new value on, the counter changes as often as it is read.
_MIN_CHANGED_READS: Final = 0.75


class WindowEnergy(Struct, frozen=True, kw_only=True):
    """Energy of each window and its error, J: (w,) float64, NaN where not known.

    NaN outside the counter's changes, and for single steps where the error passes 15 %.
    """

    energy_j: Float64s
    energy_error_j: Float64s


def window_energy(
    t_ns: Int64s,
    counter_j: Float64s,
    start_ns: Int64s,
    end_ns: Int64s,
    *,
    is_sum: Bools,
    period_ns: int | None = None,
) -> WindowEnergy:
    """Compute the energy used in each window [start, end).

    The counter is taken as linear between its change points. An edge at fraction a of a change
    interval of energy E errs by 2a(1 - a)E; the two edges add in quadrature. A step in which the
    counter dipped or restarted is not known; a window of many steps (`is_sum`) continues over it
    (`EnergyCounter`), and errs by the mean power times the time that was not seen.

    `t_ns`: (n,), rising. `counter_j`: (n,) cumulative, NaN where not read. `period_ns`: time
    between two updates of the counter; None if not known.

    Source: DESIGN.md section 2, "Energy".
    """
    unknown = np.full(len(start_ns), np.nan)
    read = np.isfinite(counter_j)
    followed = _followed(t_ns[read], counter_j[read])
    at_ns, value_j = _change_points(followed, period_ns)
    if len(at_ns) < 2:
        return WindowEnergy(energy_j=unknown, energy_error_j=unknown)
    start_j, start_error_j = _edge(at_ns, value_j, start_ns)
    end_j, end_error_j = _edge(at_ns, value_j, end_ns)
    energy_j = end_j - start_j
    doubtful_ns = _doubtful_ns(followed, start_ns, end_ns)
    mean_j_per_ns = (value_j[-1] - value_j[0]) / (at_ns[-1] - at_ns[0])
    error_j = np.hypot(np.hypot(start_error_j, end_error_j), doubtful_ns * mean_j_per_ns)
    known = is_sum | ((error_j <= MAX_ERROR_RATIO * energy_j) & (doubtful_ns == 0))
    return WindowEnergy(
        energy_j=np.where(known, energy_j, np.nan), energy_error_j=np.where(known, error_j, np.nan)
    )


class _Followed(Struct, frozen=True, kw_only=True):
    """The accepted reads of a counter, as energy used so far, which only rises."""

    #: (n,) accepted reads; what was used before each, J.
    t_ns: Int64s
    counter_j: Float64s
    after_doubt: Bools  # (n,) reads before which others were rejected


def _followed(t_ns: Int64s, counter_j: Float64s) -> _Followed:
    """Return the counter's accepted reads, without dips, torn numbers and restarts."""
    rise_j = np.diff(counter_j)
    if np.all((rise_j >= 0) & (rise_j <= most_energy_j(np.diff(t_ns).astype(np.float64)))):
        return _Followed(t_ns=t_ns, counter_j=counter_j, after_doubt=np.zeros(len(t_ns), np.bool_))
    counter, used_j = EnergyCounter(), np.zeros(len(t_ns))
    believed = np.ones(len(t_ns), np.bool_)
    for row, reading in enumerate(zip(counter_j.tolist(), t_ns.tolist(), strict=True)):
        used_j[row] = counter.increment_j(*reading)
        believed[row] = not counter.is_in_doubt
    rows = np.flatnonzero(believed)
    return _Followed(
        t_ns=t_ns[rows],
        counter_j=np.cumsum(used_j)[rows],
        after_doubt=np.diff(rows, prepend=-1) > 1,
    )


def _doubtful_ns(followed: _Followed, start_ns: Int64s, end_ns: Int64s) -> Int64s:
    """Return how many ns of each window lie where reads of the counter were rejected: (w,)."""
    found = np.zeros(len(start_ns), np.int64)
    for row in np.flatnonzero(followed.after_doubt).tolist():
        begin_ns, until_ns = followed.t_ns[row - 1], followed.t_ns[row]
        found += np.maximum(np.minimum(end_ns, until_ns) - np.maximum(start_ns, begin_ns), 0)
    return found


def _change_points(followed: _Followed, period_ns: int | None) -> tuple[Int64s, Float64s]:
    """Estimate when the counter took each new value: (k,) times in ns and (k,) values in J.

    Half-way between the read that shows it and the read before, at most one period ago. With no
    period known, a counter that is new at every read changes more often than it is read (a slow
    loop reads once a second what the driver updates each 20-100 ms): the read's time is taken.
    """
    t_ns, counter_j = followed.t_ns, followed.counter_j
    rise = np.diff(counter_j)
    if not np.any(rise):
        return np.empty(0, np.int64), np.empty(0)
    changed = np.flatnonzero(rise > 0)
    at_ns, apart_ns = t_ns[changed + 1], t_ns[changed + 1] - t_ns[changed]
    if period_ns is not None:
        at_ns = at_ns - np.minimum(apart_ns, period_ns) // 2
    elif len(changed) < _MIN_CHANGED_READS * len(rise):
        at_ns = at_ns - apart_ns // 2
    return at_ns, counter_j[changed + 1]


def _edge(at_ns: Int64s, value_j: Float64s, edge_ns: Int64s) -> tuple[Float64s, Float64s]:
    """Return the counter at each edge and its error, J, (w,) each; NaN outside change points."""
    inside = (edge_ns >= at_ns[0]) & (edge_ns <= at_ns[-1])
    left = np.clip(np.searchsorted(at_ns, edge_ns, "right") - 1, 0, len(at_ns) - 2)
    share = (edge_ns - at_ns[left]) / (at_ns[left + 1] - at_ns[left])
    step_j = value_j[left + 1] - value_j[left]
    return (
        np.where(inside, value_j[left] + share * step_j, np.nan),
        np.where(inside, 2 * share * (1 - share) * step_j, np.nan),
    )
