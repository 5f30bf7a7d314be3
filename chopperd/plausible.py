"""Bounds of plausible readings, and of plausible rises of cumulative counters."""

from collections.abc import Mapping
from typing import Final, TypeAlias, TypeVar

from msgspec import Struct

from chopperd.model.arrays import Float64s
from chopperd.units import NS_PER_S

# Bounds outside of which a reading counts as "not reported": drivers and sample files alike.


class Bounds(Struct, frozen=True):
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
# A GPU of 1 kW uses this in 3,000 years; 64 bits of ones, in mJ or in 2^-16 J, are more.
ENERGY_J: Final = Bounds(0, 1e14)
MEMORY_BYTES: Final = Bounds(0, 1 << 50)
RATIO: Final = Bounds(0, 1)
# Counters are stored in int64 and float64 columns; all-ones is a common "not available".
LIMITED_NS: Final = Bounds(0, (1 << 63) - 1)
# A bit set, in which every pattern but all ones has a meaning.
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
#: The bounds of the numbers of a `GpuInfo`.
INFO_BOUNDS: Final[Mapping[str, Bounds]] = {
    "sm_clock_max_mhz": CLOCK_MHZ,
    "sm_clock_limit_mhz": CLOCK_MHZ,
    "mem_clock_max_mhz": CLOCK_MHZ,
    "power_limit_w": POWER_W,
    "power_limit_default_w": POWER_W,
    "memory_size_bytes": MEMORY_BYTES,
}


# The highest possible rise of a driver's cumulative counter: a higher one is no measurement.
#
# A counter that a driver answers with 0 for some reads, or with garbage for one, rises by all that
# it ever counted when it is right again. Sums that never fall would include that for good.

#: More than any module draws: one of two GPUs and a processor is built for 2.7 kW.
_MOST_W: Final = 10_000.0
#: A limit is in force for no longer than the time passes; two clocks need not agree.
_MOST_LIMITED_RATIO: Final = 2.0
#: Consumption up to this long before a read may show in the counter only after it.
_LATE_NS: Final = NS_PER_S

Span = TypeVar("Span", float, Float64s)


def most_energy_j(apart_ns: Span) -> Span:
    """Return the highest plausible rise in J of an energy counter over `apart_ns`."""
    return (apart_ns + _LATE_NS) * (_MOST_W / NS_PER_S)


def most_limited_ns(apart_ns: Span) -> Span:
    """Return the highest plausible rise in ns of a time-under-limit counter over `apart_ns`."""
    return apart_ns * _MOST_LIMITED_RATIO + _LATE_NS


#: A counter that counts on from another value for this long has restarted there.
MOVED_NS: Final = NS_PER_S // 2

#: Time of a reading, ns, and the counter's value, J.
_Reading: TypeAlias = tuple[int, float]


class EnergyCounter:
    """Turns a driver's cumulative energy counter into increments, despite dips, jumps and restarts.

    A reading that can't follow on the last good one, as it is lower or impossibly high, adds
    nothing. If the counter goes on from there for half a second, it has restarted; if it comes back
    before, that was a dip or a torn number. What is not known, as the energy before a restart, is
    never added.
    """

    def __init__(self) -> None:
        self._good: _Reading | None = None
        self._other: tuple[_Reading, _Reading] | None = None

    @property
    def is_in_doubt(self) -> bool:
        """Whether the last reading can't follow on the last good one, and is not counted yet."""
        return self._other is not None

    def increment_j(self, energy_j: float, t_mono_ns: int) -> float:
        """Record a reading, in order of time; return the energy in J that it adds, >= 0."""
        reading = t_mono_ns, energy_j
        if self._good is None or _follows(self._good, reading):
            return self._believe(reading, self._good or reading)
        if self._other is None or not _follows(self._other[1], reading):
            self._other = reading, reading
            return 0.0
        first = self._other[0]
        if t_mono_ns - first[0] >= MOVED_NS:
            return self._believe(reading, first)
        self._other = first, reading
        return 0.0

    def _believe(self, reading: _Reading, since: _Reading) -> float:
        self._good, self._other = reading, None
        return reading[1] - since[1]


def _follows(before: _Reading, after: _Reading) -> bool:
    passed_ns, rise_j = after[0] - before[0], after[1] - before[1]
    return 0 <= rise_j <= most_energy_j(float(passed_ns))
