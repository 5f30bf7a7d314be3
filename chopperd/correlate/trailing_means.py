"""The mean clocks of the last minute, in order, so that their median costs next to nothing."""

from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class _Mean:
    """The mean clock over a window, and the busy time by which it is newer than the last one."""

    end_ns: int
    mhz: float
    busy_s: float


class TrailingMeans:
    """Means over windows that ended not too long ago."""

    def __init__(self) -> None:
        self._means: deque[_Mean] = deque()
        self._ordered_mhz: list[float] = []

    def add(self, end_ns: int, mhz: float, busy_s: float) -> None:
        """Take a mean that is newer than those before.

        Args:
            end_ns: End of its window.
            mhz: The mean.
            busy_s: Busy time by which it is newer.
        """
        self._means.append(_Mean(end_ns, mhz, busy_s))
        insort(self._ordered_mhz, mhz)

    def drop_before(self, oldest_ns: float) -> None:
        """Forget the means that ended before a time."""
        while self._means and self._means[0].end_ns < oldest_ns:
            gone_mhz = self._means.popleft().mhz
            del self._ordered_mhz[bisect_left(self._ordered_mhz, gone_mhz)]

    def shift(self, by_ns: int) -> None:
        """Take them for later by a time that is not to count."""
        self._means = deque(
            _Mean(each.end_ns + by_ns, each.mhz, each.busy_s) for each in self._means
        )

    def clear(self) -> None:
        """Forget them all."""
        self._means.clear()
        self._ordered_mhz.clear()

    def median_mhz(self) -> float:
        """Their median; 0 of none."""
        ordered = self._ordered_mhz
        if not ordered:
            return 0.0
        return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2

    def busy_s(self) -> float:
        """Busy time that they stand for."""
        return sum(each.busy_s for each in self._means)

    def deviation_mhz(self) -> float:
        """Their standard deviation; there must be some."""
        return float(np.std(self._ordered_mhz))
