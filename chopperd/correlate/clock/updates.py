"""When a sensor looked: reads that repeat a value it holds, set apart from looks of their own.

A sensor that updates each 100 ms and is read each 10 ms gives ten reads a look. Taken as ten
samples they are too certain, and most of them are labelled by what ran long after the look.
"""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from chopperd.correlate.clock.sensor_period import RESOLVED_SPACINGS, contradicts, period_in_samples
from chopperd.model.arrays import Float64s, Int64s

#: A look that is thought to have shown no change is left out this close before the next change.
_DISTINCT: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Looks:
    """A sensor's updates as reads show them.

    Attributes:
        row: (k,) int64, the first read of each, rising.
        t_ns: (k,) int64, the middle of when it can have been; strictly rising.
        period_ns: Time between two updates; None if not known.
    """

    row: Int64s
    t_ns: Int64s
    period_ns: int | None


def looks(t_ns: Int64s, value: Float64s, period_ns: int) -> Looks:
    """The updates behind reads of a sensor that takes a new value once a period.

    A new value was taken after the read before, and at most one period ago: half-way between. So
    was one that is read more than a period after the read before, whatever it shows. While the
    value stands still the sensor is taken to look on at its period.

    Args:
        t_ns: (n,) int64, times of reads, strictly rising.
        value: (n,) float64, no NaN.
        period_ns: Time between two updates, > 0.
    """
    if not len(t_ns):
        return Looks(row=np.empty(0, np.int64), t_ns=t_ns, period_ns=period_ns)
    gap_ns = np.diff(t_ns, prepend=t_ns[0] - period_ns)
    is_new = (np.diff(value, prepend=np.nan) != 0) | (gap_ns >= period_ns)
    first = np.flatnonzero(is_new)
    taken_ns = t_ns[first] - np.minimum(gap_ns[first], period_ns) // 2
    run = np.cumsum(is_new) - 1
    turn = (t_ns - taken_ns[run]) // period_ns
    begins = is_new | (np.diff(turn, prepend=0) > 0)
    row = np.flatnonzero(begins)
    looked_ns = taken_ns[run[row]] + turn[row] * period_ns
    next_ns = np.append(taken_ns[1:], np.iinfo(np.int64).max)[run[row]]
    kept = is_new[row] | (next_ns - looked_ns >= _DISTINCT * period_ns)
    return Looks(row=row[kept], t_ns=looked_ns[kept], period_ns=period_ns)


def clock_looks(t_ns: Int64s, clock_mhz: Float64s, known_ns: int | None) -> Looks:
    """The looks behind reads of a clock; each read is one where nothing is known of the sensor.

    A period may be the job's beat, of a clock with one level for each phase, also one that a probe
    found: a look moved to where it must have been would change sides at a border then. So each look
    is as of the first read that shows it, at most a third of a period late, where reads are dense
    enough for that; only where they are not it is moved.

    Args:
        t_ns: (n,) int64, times of reads, strictly rising.
        clock_mhz: (n,) float64, no NaN.
        known_ns: The update period as found on the device; None if it was not. The samples may
            show that it can't be.
    """
    if known_ns and not contradicts(t_ns, clock_mhz, known_ns):
        seen = looks(t_ns, clock_mhz, known_ns)
        if known_ns < RESOLVED_SPACINGS * float(np.median(np.diff(t_ns))):
            return seen
        return replace(seen, t_ns=t_ns[seen.row])
    betrayed = period_in_samples(t_ns, clock_mhz)
    if betrayed is None:
        return Looks(row=np.arange(len(t_ns)), t_ns=t_ns, period_ns=None)
    seen = looks(t_ns, clock_mhz, betrayed.period_ns)
    return replace(seen, t_ns=t_ns[seen.row])
