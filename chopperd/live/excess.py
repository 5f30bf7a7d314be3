"""Live loss of a GPU against its peers: which one is slower than others of its model now."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import median
from typing import Final

import numpy as np

from chopperd.live.integrals import LiveIntegrals
from chopperd.model.devices import GpuInfo
from chopperd.sampling.memory.layout import Records
from chopperd.units import NS_PER_S

#: GPUs are compared by means over windows of this length: momentary clocks of equal GPUs differ.
WINDOW_NS: Final = 10 * NS_PER_S
#: A GPU that was busy for less of a window has no mean to compare.
_LEAST_BUSY_S: Final = 1.0
#: With fewer GPUs of a model the median is meaningless.
_LEAST_PEERS: Final = 4
#: Smaller shares are rounding errors of sums over weeks (1e-16 of 1e6 windows).
_LEAST_RATIO: Final = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class BusyClock:
    """The busy clock of one GPU over one window.

    Attributes:
        model: Name of the GPU's model; only GPUs of one model are compared.
        sampled_s: Time with known clock.
        busy_s: Busy part of that time.
        mean_hz: Mean SM clock over the busy part, in Hz.
    """

    model: str
    sampled_s: float
    busy_s: float
    mean_hz: float


class BusyClocks:
    """Computes the busy clock of one GPU per window, by the rules of the live integrals."""

    def __init__(self, info: GpuInfo) -> None:
        self._model = info.name
        self._integrals = LiveIntegrals(info)
        self._pending: list[Records] = []

    def add(self, records: Records) -> None:
        """Store new records until their window ends."""
        if len(records):
            self._pending.append(records)

    def close_window(self, end_mono_ns: int, period_ns: int) -> BusyClock | None:
        """End the window at a time and return its busy clock; later records wait for the next.

        None if the GPU was busy with a known clock for less than 1 s.
        """
        if not self._pending:
            return None
        records = np.concatenate(self._pending)
        inside = records["t_mono_ns"] < end_mono_ns
        self._pending = [records[~inside]]
        before = self._integrals.totals()
        self._integrals.add(records[inside], period_ns)
        after = self._integrals.totals()
        busy_s = (after.busy_sampled_s or 0.0) - (before.busy_sampled_s or 0.0)
        cycles = (after.busy_sm_cycles or 0.0) - (before.busy_sm_cycles or 0.0)
        if busy_s < _LEAST_BUSY_S:
            return None
        sampled_s = (after.sampled_s or 0.0) - (before.sampled_s or 0.0)
        return BusyClock(
            model=self._model, sampled_s=sampled_s, busy_s=busy_s, mean_hz=cycles / busy_s
        )


def window_excess_s(
    clocks: Sequence[BusyClock | None], compute_ratios: Sequence[float | None] = ()
) -> tuple[float | None, ...]:
    """Compute each GPU's loss in a window against the median clock of its model, in s.

    `max(0, 1 - mean / median) * busy time`, times the share of compute where it is known. The
    median includes the GPU itself. It is an upper bound, as peers that wait for a slow GPU do so at
    high clocks. None for a GPU that was not busy, and where fewer than four of its model were.

    Args:
        clocks: Busy clock of each GPU; None if it was not busy.
        compute_ratios: The share of compute in each GPU's busy time; None where not known.

    Source: design, "excess", live.
    """
    busy = [(index, clock) for index, clock in enumerate(clocks) if clock is not None]
    busy.sort(key=lambda item: item[1].model)
    excess_s: list[float | None] = [None] * len(clocks)
    for _, group in groupby(busy, key=lambda item: item[1].model):
        peers = list(group)
        if len(peers) >= _LEAST_PEERS:
            for index, lost_s in _against_median(peers):
                ratio = compute_ratios[index] if index < len(compute_ratios) else None
                excess_s[index] = lost_s if ratio is None else lost_s * ratio
    return tuple(excess_s)


def _against_median(peers: Sequence[tuple[int, BusyClock]]) -> Iterable[tuple[int, float]]:
    peers_hz = median(clock.mean_hz for _, clock in peers)
    for index, clock in peers:
        slower = 1.0 - clock.mean_hz / peers_hz if peers_hz else 0.0
        yield index, slower * clock.busy_s if slower > _LEAST_RATIO else 0.0
