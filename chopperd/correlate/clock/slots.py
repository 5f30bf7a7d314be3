"""Cut the busy samples of one GPU into short slots of time, independent of how they arrive."""

from collections.abc import Sequence
from math import isnan
from typing import Final

import numpy as np
from msgspec import Struct

from chopperd.correlate.causes import bit_shares
from chopperd.model.arrays import Float64s, Int64s, joined, rows_of
from chopperd.model.kinds import CAUSES
from chopperd.units import NS_PER_MS, NS_PER_S

SLOT_NS: Final = 200 * NS_PER_MS
#: A reading of power or temperature (1 Hz) is used for so long where there is no newer one.
HELD_NS: Final = 5 * NS_PER_S


class ClockSamples(Struct, frozen=True, kw_only=True):
    """Samples of one GPU, columns (n,), rising in time."""

    t_ns: Int64s  # times
    #: Busy time that each sample represents; 0 where the GPU was idle or the time before it was
    #: not sampled.
    busy_s: Float64s
    sm_clock_mhz: Float64s  # NaN where not reported
    causes: Int64s  # bit sets of `Cause`
    #: NaN where not reported.
    power_w: Float64s
    temperature_c: Float64s


class ClockSlot(Struct, frozen=True, kw_only=True):
    """The busy samples of one slot."""

    #: Times of its first and last busy sample.
    begin_ns: int
    end_ns: int
    count: int  # its busy samples
    busy_s: float  # busy time that they represent
    clock_mhz: float  # their mean clock, weighted by busy time
    cause_shares: Float64s  # (causes,) how a loss in it splits by cause; sums to 1
    #: Mean of its readings, else the newest one if not too old, else NaN.
    power_w: float
    temperature_c: float


class SlotCutter:
    """Cuts a stream of samples into slots, independent of how the stream is split over calls."""

    def __init__(self) -> None:
        self._pending: list[ClockSamples] = []
        self._power = _Held()
        self._temperature = _Held()

    @property
    def last_ns(self) -> int | None:
        """Time of the newest busy sample that is in no slot yet; None if there is none."""
        return int(self._pending[-1].t_ns[-1]) if self._pending else None

    def add(self, samples: ClockSamples) -> list[ClockSlot]:
        """Add samples; return the slots before that of the last sample, which are now complete.

        Samples that are not busy or have no clock are left out.
        """
        is_used = (samples.busy_s > 0) & np.isfinite(samples.sm_clock_mhz)
        samples = rows_of(samples, is_used)
        if not len(samples.t_ns):
            return []
        pending = joined([*self._pending, samples])
        numbers = pending.t_ns // SLOT_NS
        whole = int(np.searchsorted(numbers, numbers[-1]))
        self._pending = [rows_of(pending, slice(whole, None))]
        return self._cut(rows_of(pending, slice(0, whole)))

    def flush(self) -> list[ClockSlot]:
        """Remove the pending samples and return them as a slot; no later sample may be in it."""
        pending, self._pending = self._pending, []
        return self._cut(joined(pending)) if pending else []

    def _cut(self, samples: ClockSamples) -> list[ClockSlot]:
        if not len(samples.t_ns):
            return []
        starts = np.flatnonzero(np.diff(samples.t_ns // SLOT_NS, prepend=-1))
        sums = _SlotSums(np.repeat(np.arange(len(starts)), np.diff([*starts, len(samples.t_ns)])))
        busy_s = sums.of(samples.busy_s)
        shares = samples.busy_s[:, np.newaxis] * bit_shares(samples.causes)
        cause_shares = np.stack([sums.of(shares[:, each]) for each in CAUSES], axis=1)
        cause_shares /= busy_s[:, np.newaxis]
        clock_mhz = (sums.of(samples.busy_s * samples.sm_clock_mhz) / busy_s).tolist()
        begin_ns = samples.t_ns[starts].tolist()
        end_ns = samples.t_ns[[*(starts[1:] - 1), -1]].tolist()
        counts = np.bincount(sums.slot).tolist()
        power_w = self._power.filled(sums.mean_of(samples.power_w), end_ns)
        temperature_c = self._temperature.filled(sums.mean_of(samples.temperature_c), end_ns)
        return [
            ClockSlot(
                begin_ns=begin_ns[each],
                end_ns=end_ns[each],
                count=counts[each],
                busy_s=float(busy_s[each]),
                clock_mhz=clock_mhz[each],
                cause_shares=cause_shares[each],
                power_w=power_w[each],
                temperature_c=temperature_c[each],
            )
            for each in range(len(starts))
        ]


class _SlotSums(Struct, frozen=True):
    """Sums over slots; `slot` is (n,) int64, the slot of each sample, from 0 on without holes."""

    slot: Int64s

    def of(self, values: Float64s) -> Float64s:
        """Sum (n,) values in each slot, one after the other, so that results are reproducible."""
        return np.bincount(self.slot, values).astype(np.float64)

    def mean_of(self, values: Float64s) -> Float64s:
        """Compute the mean in each slot of the values that are not NaN; NaN without any."""
        is_known = np.isfinite(values)
        counts = self.of(is_known.astype(np.float64))
        mean = self.of(np.where(is_known, values, 0.0)) / np.maximum(counts, 1.0)
        return np.where(counts > 0, mean, np.nan)


class _Held:
    """The newest reading of a sensor that is read less often than once a slot."""

    def __init__(self) -> None:
        self._value = np.nan
        self._since_ns = 0

    def filled(self, values: Float64s, t_ns: Sequence[int]) -> list[float]:
        """Return successive slots' values, NaN filled by the last known while it is new enough.

        The last known value is stored for later calls.
        """
        filled = []
        for value, at_ns in zip(values.tolist(), t_ns, strict=True):
            if not isnan(value):
                self._value, self._since_ns = value, at_ns
            elif at_ns - self._since_ns > HELD_NS:
                self._value = np.nan
            filled.append(self._value)
        return filled
