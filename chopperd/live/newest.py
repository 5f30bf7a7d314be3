"""The newest values of one GPU, and for how long each may stand for now."""

from math import isnan
from typing import Final

import numpy as np

from chopperd.model.causes import CAUSES, REPORTED_CAUSES, Cause
from chopperd.model.devices import DeviceReading
from chopperd.model.samples import VALUE_COLUMNS
from chopperd.sampling.memory.layout import Records
from chopperd.units import NS_PER_S

#: A value stands for so many of its periods, and at least for so long.
_FRESH_PERIODS: Final = 3
_FRESH_NS: Final = 3 * NS_PER_S

_NEVER_NS: Final = -(2**62)


class NewestValues:
    """The newest reading of each field of a GPU with its time.

    Args:
        slow_period_ns: Period of the reads that cover all fields.
    """

    def __init__(self, slow_period_ns: int) -> None:
        self._slow_period_ns = slow_period_ns
        self._values: dict[str, tuple[int, float]] = {}
        self._causes: tuple[int, int] = (_NEVER_NS, Cause.UNKNOWN.bit)
        self._limited_ns: tuple[int, dict[Cause, int]] = (_NEVER_NS, {})

    def take(self, records: Records) -> None:
        """Take over what is new in records, (n,) of `RECORD`, rising in time."""
        if not len(records):
            return
        t_ns = records["t_mono_ns"]
        for name in VALUE_COLUMNS:
            known = np.flatnonzero(~np.isnan(records[name]))
            if len(known):
                self._values[name] = int(t_ns[known[-1]]), float(records[name][known[-1]])
        self._causes = int(t_ns[-1]), int(records["causes"][-1])
        counted = np.flatnonzero(~np.isnan(records["limited_ns"]).all(axis=1))
        if len(counted):
            row = records["limited_ns"][counted[-1]].tolist()
            by_cause = zip(CAUSES, row, strict=True)
            limited_ns = {cause: int(ns) for cause, ns in by_cause if not isnan(ns)}
            self._limited_ns = int(t_ns[counted[-1]]), limited_ns

    def reading(self, now_mono_ns: int, period_ns: int) -> DeviceReading:
        """The values that may stand for now; others are None.

        Args:
            now_mono_ns: Now.
            period_ns: The period that the loop keeps.
        """
        fast_ns = now_mono_ns - fresh_ns(period_ns)
        slow_ns = now_mono_ns - fresh_ns(max(period_ns, self._slow_period_ns))

        def value(name: str, since_ns: int = slow_ns) -> float | None:
            at_ns, newest = self._values.get(name, (_NEVER_NS, None))
            return newest if at_ns >= since_ns else None

        used_bytes = value("memory_used_bytes")
        causes_at_ns, bits = self._causes
        limited_at_ns, limited_ns = self._limited_ns
        return DeviceReading(
            sm_clock_mhz=value("sm_clock_mhz", fast_ns),
            mem_clock_mhz=value("mem_clock_mhz"),
            power_w=value("power_w"),
            energy_j=value("energy_j"),
            temperature_c=value("temperature_c"),
            memory_used_bytes=None if used_bytes is None else round(used_bytes),
            activity_ratio=value("activity_ratio"),
            causes=_causes(bits) if causes_at_ns >= fast_ns else None,
            limited_ns=limited_ns if limited_at_ns >= fast_ns else {},
        )


def fresh_ns(period_ns: int) -> int:
    """For how long a value that is read once a period stands for now."""
    return max(_FRESH_PERIODS * period_ns, _FRESH_NS)


def _causes(bits: int) -> frozenset[Cause] | None:
    """The causes of a bit set; None if it says that they could not be read."""
    if bits == Cause.UNKNOWN.bit:
        return None
    return frozenset(cause for cause in REPORTED_CAUSES if bits & cause.bit)
