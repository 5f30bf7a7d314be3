"""What each GPU loses per second, from the totals of two looks at a node."""

from collections.abc import Sequence
from dataclasses import dataclass

from chopperd.model.live import GpuLive, LiveTotals, NodeSnapshot
from chopperd.units import NS_PER_S

_WINDOW_NS = 10 * NS_PER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRates:
    """Losses of one GPU as shares of sampled time, 0..1; None is unknown.

    Attributes:
        lost_ratio: Live ceiling loss.
        excess_ratio: Live loss against its peers.
    """

    lost_ratio: float | None = None
    excess_ratio: float | None = None


def window(history: Sequence[NodeSnapshot]) -> tuple[NodeSnapshot, ...]:
    """The snapshots that rates are made from: those of the last 10 s and the last one before.

    Args:
        history: At least one, oldest first.
    """
    begin_ns = history[-1].taken_mono_ns - _WINDOW_NS
    first = sum(snapshot.taken_mono_ns <= begin_ns for snapshot in history[:-1])
    return tuple(history[max(first - 1, 0) :])


def live_rates(history: Sequence[NodeSnapshot]) -> dict[str, LiveRates]:
    """The rates over a history, by GPU label; unknown where a total is, or fell meanwhile.

    Args:
        history: At least one snapshot, oldest first.
    """
    before = {gpu.info.gpu: gpu for gpu in history[0].gpus}
    return {
        gpu.info.gpu: _rates(before[gpu.info.gpu], gpu) if gpu.info.gpu in before else LiveRates()
        for gpu in history[-1].gpus
    }


def lost_s(totals: LiveTotals | None) -> float | None:
    """The live ceiling loss of all causes; None if it was never known."""
    return sum(totals.lost_s.values()) if totals is not None and totals.lost_s else None


def _rates(before: GpuLive, now: GpuLive) -> LiveRates:
    sampled_s = _growth(_sampled_s(before), _sampled_s(now))
    if not sampled_s:
        return LiveRates()
    return LiveRates(
        lost_ratio=_share(_growth(lost_s(before.totals), lost_s(now.totals)), sampled_s),
        excess_ratio=_share(_growth(before.excess_s, now.excess_s), sampled_s),
    )


def _sampled_s(gpu: GpuLive) -> float | None:
    return gpu.totals.sampled_s if gpu.totals is not None else None


def _growth(before: float | None, now: float | None) -> float | None:
    """How much a total grew; None if unknown, or begun anew meanwhile."""
    if before is None or now is None or now < before:
        return None
    return now - before


def _share(part_s: float | None, whole_s: float) -> float | None:
    return None if part_s is None else part_s / whole_s
