"""How long the SM clock of a GPU dwells where: sampled time by tenths of the highest clock."""

from collections.abc import Mapping
from math import inf
from typing import Final

import numpy as np

from chopperd.model.arrays import Float64s, Int64s
from chopperd.model.devices import GpuInfo
from chopperd.sampling.integrals import GapRule
from chopperd.sampling.memory.layout import Records
from chopperd.units import NS_PER_S

#: Buckets up to the highest clock; one more holds what lies above it.
TENTHS: Final = 10


class ClockResidency:
    """Sampled time of one GPU in each clock bucket, since it was made.

    A sample stands for the halves of the intervals beside it, so the buckets sum to the sampled
    time of the live integrals, which leave out the same gaps. Bucket k of 1 to 10 holds clocks
    above (k - 1) tenths of the highest SM clock and up to k tenths, the last one those above it.

    Args:
        info: The GPU; without a highest clock there are no buckets.
    """

    def __init__(self, info: GpuInfo) -> None:
        top_mhz = info.sm_clock_max_mhz
        tenths = np.arange(1, TENTHS + 1) / TENTHS
        self._edges_mhz: Float64s = np.append(tenths * (top_mhz or 0.0), inf)
        self._has_edges = top_mhz is not None
        self._dwelt_s: Float64s = np.zeros(TENTHS + 1)
        self._gaps = GapRule()
        self._last_ns: Int64s = np.zeros(0, np.int64)
        self._last_mhz: Float64s = np.zeros(0)

    def add(self, records: Records, period_ns: int) -> None:
        """Go on over new records.

        Args:
            records: (n,) of `RECORD`, rising in time, later than those before.
            period_ns: The period that the loop keeps.
        """
        if not self._has_edges or not len(records):
            return
        t_ns = np.concatenate([self._last_ns, records["t_mono_ns"]])
        clock_mhz = np.concatenate([self._last_mhz, records["sm_clock_mhz"]])
        self._last_ns, self._last_mhz = t_ns[-1:].copy(), clock_mhz[-1:].copy()
        spacing_ns = np.diff(t_ns)
        covered = self._gaps.are_covered(spacing_ns, period_ns)
        covered &= ~np.isnan(clock_mhz[:-1]) & ~np.isnan(clock_mhz[1:])
        half_s = spacing_ns[covered] / (2 * NS_PER_S)
        buckets = np.searchsorted(self._edges_mhz, clock_mhz)
        for ends in (buckets[:-1], buckets[1:]):
            self._dwelt_s += np.bincount(ends[covered], half_s, minlength=TENTHS + 1)

    def seconds(self) -> Mapping[float, float]:
        """Time in s by the upper edge of each bucket in MHz, rising.

        Empty without buckets, and while no clock was known for any time.
        """
        if not self._dwelt_s.any():
            return {}
        return dict(zip(self._edges_mhz.tolist(), self._dwelt_s.tolist(), strict=True))
