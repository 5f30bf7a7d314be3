"""How much a driver's cumulative time under a limit can rise."""

from typing import Final

from chopperd.model.arrays import Float64s
from chopperd.units import NS_PER_S

#: A cause may be the sum of so many counters of a driver.
MOST_COUNTERS: Final = 4
#: A counter may show at once what it did not show for so long.
STANDS_NS: Final = NS_PER_S


def most_limited_ns(passed_ns: Float64s) -> Float64s:
    """What the counter of a cause can rise by between two reads so far apart, as an array.

    A rise by more is none: the counter has begun anew, or comes back from a dip.
    `native/integrals.c` does the same.
    """
    return MOST_COUNTERS * passed_ns + STANDS_NS
