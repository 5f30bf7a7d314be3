"""Which die governs, by the text of the rule alone: slow, and without sums that are kept."""

from collections.abc import Sequence
from fractions import Fraction
from math import nan

from chopperd.units import NS_PER_S

ABSENT = 65_535
SLEEPS_MHZ = 140


def governing_mhz(looks: Sequence[tuple[int, Sequence[int]]]) -> float:
    """The clock of the die that governs at the last of some looks: (time, clock of each die)."""
    last_ns, now = looks[-1]
    recent = [clocks for t_ns, clocks in looks if t_ns > last_ns - 2 * NS_PER_S]
    means = []
    for die, mhz in enumerate(now):
        if SLEEPS_MHZ < mhz < ABSENT:
            ran = [clocks[die] for clocks in recent if SLEEPS_MHZ < clocks[die] < ABSENT]
            means.append((Fraction(sum(ran), len(ran)), die))
    if means:
        return float(now[min(means)[1]])
    return float(min((mhz for mhz in now if mhz not in {0, ABSENT}), default=nan))
