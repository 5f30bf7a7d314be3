"""By how much a driver's cumulative counter can have risen: what is more is no measurement.

A counter that a driver answers with 0 for some reads, or with garbage for one, rises by all that
it ever counted when it is itself again. Sums that never fall would keep that for good.
"""

from typing import Final, TypeVar

from chopperd.model.arrays import Float64s
from chopperd.units import NS_PER_S

#: More than any module draws: one of two GPUs and a processor is built for 2.7 kW.
_MOST_W: Final = 10_000.0
#: A limit is in force for no longer than the time passes; two clocks need not agree.
_MOST_LIMITED_RATIO: Final = 2.0
#: A counter may show so much of what was before a read only after it.
_LATE_NS: Final = NS_PER_S

Span = TypeVar("Span", float, Float64s)


def most_energy_j(apart_ns: Span) -> Span:
    """The highest rise of an energy counter between reads so far apart, J."""
    return (apart_ns + _LATE_NS) * (_MOST_W / NS_PER_S)


def most_limited_ns(apart_ns: Span) -> Span:
    """The highest rise of a counter of time under a limit between reads so far apart, ns."""
    return apart_ns * _MOST_LIMITED_RATIO + _LATE_NS
