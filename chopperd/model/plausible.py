"""Bounds outside of which a reading counts as "not reported": drivers and sample files alike."""

from collections.abc import Mapping
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
# A die that is switched off has a clock of 0.
DIE_CLOCK_MHZ: Final = Bounds(0, 10_000)
POWER_W: Final = Bounds(0.001, 100_000)
TEMPERATURE_C: Final = Bounds(-50, 200)
# A sensor that a GPU lacks reads 0, which memory under power is not.
MEMORY_TEMPERATURE_C: Final = Bounds(1, 200)
THRESHOLD_C: Final = Bounds(1, 200)
# What a thousand watts make in 3,000 years; all ones of 64 bits is more, in mJ and in 2^-16 J.
ENERGY_J: Final = Bounds(0, 1e14)
MEMORY_BYTES: Final = Bounds(0, 1 << 50)
RATIO: Final = Bounds(0, 1)
# Counters are kept in int64 and float64 columns; all-ones is a common "not available".
LIMITED_NS: Final = Bounds(0, (1 << 63) - 1)
# Not a number: every pattern means something, but for all ones.
BITS: Final = Bounds(0, (1 << 64) - 2)
# 0 is the kernel's idle process and all ones "not available": neither is a process on a GPU.
PID: Final = Bounds(1, (1 << 32) - 2)

#: The bounds of `VALUE_COLUMNS`, for whoever reads them from a file.
SAMPLE_BOUNDS: Final[Mapping[str, Bounds]] = {
    "sm_clock_mhz": CLOCK_MHZ,
    "mem_clock_mhz": CLOCK_MHZ,
    "power_w": POWER_W,
    "energy_j": ENERGY_J,
    "temperature_c": TEMPERATURE_C,
    "memory_used_bytes": MEMORY_BYTES,
    "activity_ratio": RATIO,
}
#: The same of the numbers of a `GpuInfo`.
INFO_BOUNDS: Final[Mapping[str, Bounds]] = {
    "sm_clock_max_mhz": CLOCK_MHZ,
    "sm_clock_limit_mhz": CLOCK_MHZ,
    "mem_clock_max_mhz": CLOCK_MHZ,
    "power_limit_w": POWER_W,
    "power_limit_default_w": POWER_W,
    "memory_size_bytes": MEMORY_BYTES,
}
