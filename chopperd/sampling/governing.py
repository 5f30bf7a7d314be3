"""Which die of a GPU governs its clock, as far as the past tells.

Of the dies that run now it is the one with the lowest mean over the last 2 s in which it ran: the
lowest clock of each moment would be below any die's, as each trembles for itself. Reports, which
know what came after, look at both sides (`correlate.governing`). `native/dies.c` does the same.
"""

from bisect import bisect_right
from collections.abc import Sequence
from math import nan
from typing import Final

import numpy as np

from chopperd.model.arrays import Int64s
from chopperd.model.devices import MOST_DIES
from chopperd.sampling.layout import NO_DIE, Records
from chopperd.units import NS_PER_S

WINDOW_NS: Final = 2 * NS_PER_S
#: A die whose clock is not above this sleeps, as AMD's own tools take it.
DEEP_SLEEP_MHZ: Final = 140


class GoverningDie:
    """Finds it for each record that is about to be written.

    Sums of whole MHz are kept over the records of the last 2 s. They follow the ring, so that it
    does not matter who wrote a record, and are exact: whoever else follows it finds the same.
    """

    def __init__(self) -> None:
        self._first = self._next = 0
        self._sums_mhz: Int64s = np.zeros(MOST_DIES, np.int64)
        self._counts: Int64s = np.zeros(MOST_DIES, np.int64)

    def clock_mhz(
        self, ring: Records, written: int, clocks_mhz: Sequence[int], t_mono_ns: int
    ) -> float:
        """The clock of the governing die at a record that is about to be written.

        Where no die runs it is the lowest clock that is not switched off; NaN if there is none.

        Args:
            ring: (capacity,) all of the ring; the slot of the new record counts no more.
            written: Records before this one since the ring was made.
            clocks_mhz: (MOST_DIES,) of this record; `NO_DIE` where there is none.
            t_mono_ns: Its time.

        Source: DESIGN.md section 2, "Several dies".
        """
        self._follow(ring, written, t_mono_ns - WINDOW_NS)
        running = [die for die, mhz in enumerate(clocks_mhz) if DEEP_SLEEP_MHZ < mhz < NO_DIE]
        if not running:
            present = [mhz for mhz in clocks_mhz if 0 < mhz < NO_DIE]
            return float(min(present, default=nan))
        sums_mhz, counts = self._sums_mhz.tolist(), self._counts.tolist()
        governing = min(
            running, key=lambda die: (sums_mhz[die] + clocks_mhz[die]) / (counts[die] + 1)
        )
        return float(clocks_mhz[governing])

    def _follow(self, ring: Records, written: int, after_ns: int) -> None:
        """Bring the sums to the records that are held and later than a time."""
        capacity, times_ns = len(ring), ring["t_mono_ns"]
        # What was counted may have been overwritten: begin again with what is there.
        if written < self._next or written - self._first > capacity:
            self._sums_mhz[:] = self._counts[:] = 0
            self._first = self._next = max(0, written - capacity)
        numbers = range(self._first, written)
        first = self._first + bisect_right(numbers, after_ns, key=lambda n: times_ns[n % capacity])
        first = max(first, written - capacity + 1)
        self._count(ring, self._next, written, 1)
        self._count(ring, self._first, first, -1)
        self._first, self._next = first, written

    def _count(self, ring: Records, first: int, end: int, sign: int) -> None:
        """Add records to the sums, or take them out again."""
        if first < end:
            clocks_mhz = ring["die_clocks_mhz"][np.arange(first, end) % len(ring)].astype(np.int64)
            ran = (clocks_mhz > DEEP_SLEEP_MHZ) & (clocks_mhz != NO_DIE)
            self._sums_mhz += sign * (clocks_mhz * ran).sum(axis=0)
            self._counts += sign * ran.sum(axis=0)
