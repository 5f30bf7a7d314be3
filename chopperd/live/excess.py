"""Live loss of a GPU against its peers: which one is slower than others of its model right now."""

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

#: Means are taken over windows of this length before GPUs are compared: momentary clocks would
#: give equal GPUs an excess.
WINDOW_NS: Final = 10 * NS_PER_S
#: A GPU that was busy for less of a window has no mean to compare.
_LEAST_BUSY_S: Final = 1.0
#: With fewer GPUs of a model the median says nothing.
_LEAST_PEERS: Final = 4
#: A smaller share is what differences of sums over weeks round off (1e-16 of 1e6 windows).
_LEAST_RATIO: Final = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class BusyClock:
    """The busy clock of one GPU over one window.

    Attributes:
        model: GPUs of one model are compared.
        sampled_s: Time with known clock.
        busy_s: The part of it that was busy.
        mean_hz: Mean SM clock over the busy part.
    """

    model: str
    sampled_s: float
    busy_s: float
    mean_hz: float


class BusyClocks:
    """The busy clock of one GPU, window by window, by the rules of the live integrals."""

    def __init__(self, info: GpuInfo) -> None:
        self._model = info.name
        self._integrals = LiveIntegrals(info)
        self._pending: list[Records] = []

    def add(self, records: Records) -> None:
        """Keep new records until their window ends."""
        if len(records):
            self._pending.append(records)

    def close_window(self, end_mono_ns: int, period_ns: int) -> BusyClock | None:
        """The busy clock over what came before a time; None if it was hardly busy, or unknown."""
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
    """What each GPU lost in a window against the median of its model's, itself included, in s.

    `max(0, 1 - mean / median) * busy time`, an upper figure: peers that wait for a slow GPU do so
    at high clocks. Where a recent capture knows the share of compute it is times that. None for a
    GPU that was not busy and for those of a model with fewer than four busy ones.

    Args:
        clocks: Of each GPU.
        compute_ratios: The share of compute in each one's busy time; None where it is not known.

    Source: design, "excess", live.
    """
    busy = [(place, clock) for place, clock in enumerate(clocks) if clock is not None]
    busy.sort(key=lambda item: item[1].model)
    excess_s: list[float | None] = [None] * len(clocks)
    for _, group in groupby(busy, key=lambda item: item[1].model):
        peers = list(group)
        if len(peers) >= _LEAST_PEERS:
            for place, lost_s in _against_median(peers):
                ratio = compute_ratios[place] if place < len(compute_ratios) else None
                excess_s[place] = lost_s if ratio is None else lost_s * ratio
    return tuple(excess_s)


def _against_median(peers: Sequence[tuple[int, BusyClock]]) -> Iterable[tuple[int, float]]:
    peers_hz = median(clock.mean_hz for _, clock in peers)
    for place, clock in peers:
        slower = 1.0 - clock.mean_hz / peers_hz if peers_hz else 0.0
        yield place, slower * clock.busy_s if slower > _LEAST_RATIO else 0.0
