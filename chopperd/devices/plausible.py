"""Bounds outside of which a driver's value is absurd and counts as "not reported"."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Bounds:
    """A closed range of believable values, in the unit of the field it is named for."""

    low: float
    high: float

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high


# A powered GPU that answers has a clock and draws power: 0 is a gap in the driver, not a value.
CLOCK_MHZ: Final = Bounds(1, 10_000)
POWER_W: Final = Bounds(0.001, 100_000)
TEMPERATURE_C: Final = Bounds(-50, 200)
# A sensor that a GPU lacks reads 0, which memory under power is not.
MEMORY_TEMPERATURE_C: Final = Bounds(1, 200)
THRESHOLD_C: Final = Bounds(1, 200)
ENERGY_J: Final = Bounds(0, 1e15)
MEMORY_BYTES: Final = Bounds(0, 1 << 50)
RATIO: Final = Bounds(0, 1)
# Counters are kept in int64 and float64 columns; all-ones is a common "not available".
LIMITED_NS: Final = Bounds(0, (1 << 63) - 1)
# Not a number: every pattern means something.
BITS: Final = Bounds(0, (1 << 64) - 1)
