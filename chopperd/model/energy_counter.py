"""Follows a driver's cumulative counter of energy over whatever is not energy."""

from typing import Final, TypeAlias

from chopperd.model.counters import most_energy_j
from chopperd.units import NS_PER_S

#: A counter that goes on elsewhere for so long has moved there.
MOVED_NS: Final = NS_PER_S // 2

#: When it was read, and what it said, J.
_Reading: TypeAlias = tuple[int, float]


class EnergyCounter:
    """Sums a driver's cumulative energy counter over dips, jumps and restarts.

    A reading that can't follow on the last good one, as it is lower or impossibly high, adds
    nothing. If the counter goes on from there for half a second, it has restarted and counts from
    there on; if it comes back before, that was a dip or a torn number. What is not known is never
    added: the energy between the last good reading and a restart is left out.

    `native/integrals.c` does the same.
    """

    def __init__(self) -> None:
        self._good: _Reading | None = None
        self._other: tuple[_Reading, _Reading] | None = None

    @property
    def is_in_doubt(self) -> bool:
        """Whether the last reading was not believed yet."""
        return self._other is not None

    def increment_j(self, energy_j: float, t_mono_ns: int) -> float:
        """What a reading adds, >= 0; the first adds 0.

        Args:
            energy_j: The counter.
            t_mono_ns: When it was read; not before the reading before.
        """
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
