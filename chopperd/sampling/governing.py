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

from chopperd.model.devices import DEEP_SLEEP_MHZ, MOST_DIES
from chopperd.sampling.memory.layout import NO_DIE, Records
from chopperd.units import NS_PER_S

WINDOW_NS: Final = 2 * NS_PER_S


class GoverningDie:
    """Finds it for each record that is about to be written.

    Sums of whole MHz are kept over the records of the last 2 s. They follow the ring, so that it
    does not matter who wrote a record, and are exact: whoever else follows it finds the same.
    """

    def __init__(self) -> None:
        self._first = self._next = 0
        self._sums_mhz = [0] * MOST_DIES
        self._counts = [0] * MOST_DIES

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
        sums_mhz, counts = self._sums_mhz, self._counts
        means_mhz = [(sums_mhz[die] + clocks_mhz[die]) / (counts[die] + 1) for die in running]
        return float(clocks_mhz[running[means_mhz.index(min(means_mhz))]])

    def _follow(self, ring: Records, written: int, after_ns: int) -> None:
        """Bring the sums to the records that are held and later than a time."""
        capacity, times_ns = len(ring), ring["t_mono_ns"]
        # Others have written, or what was counted may have been overwritten.
        if not written - 1 <= self._next <= written or written - self._first > capacity:
            self._begin(ring, written, after_ns)
            return
        if self._next < written:
            self._count(ring, self._next, 1)
            self._next = written
        while self._first < written and (
            times_ns[self._first % capacity] <= after_ns or written - self._first >= capacity
        ):
            self._count(ring, self._first, -1)
            self._first += 1

    def _begin(self, ring: Records, written: int, after_ns: int) -> None:
        """Begin anew with what is there."""
        capacity, times_ns = len(ring), ring["t_mono_ns"]
        held = range(max(0, written - capacity + 1), written)
        skipped_count = bisect_right(held, after_ns, key=lambda number: times_ns[number % capacity])
        counted = np.array(held[skipped_count:], np.int64) % capacity
        clocks_mhz = ring["die_clocks_mhz"][counted].astype(np.int64)
        ran = (clocks_mhz > DEEP_SLEEP_MHZ) & (clocks_mhz != NO_DIE)
        self._sums_mhz = (clocks_mhz * ran).sum(axis=0).tolist()
        self._counts = ran.sum(axis=0).tolist()
        self._first, self._next = written - len(counted), written

    def _count(self, ring: Records, number: int, sign: int) -> None:
        """Add a record to the sums, or take it out again."""
        for die, mhz in enumerate(ring["die_clocks_mhz"][number % len(ring)].tolist()):
            if DEEP_SLEEP_MHZ < mhz < NO_DIE:
                self._sums_mhz[die] += sign * mhz
                self._counts[die] += sign
