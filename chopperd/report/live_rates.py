"""What each GPU loses per second, from the totals of two looks at a node."""

from collections.abc import Callable, Iterator, Sequence
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
    """The rates over a history, by GPU label, each from the first look at which its total is known.

    Unknown where a total is not known now, or fell meanwhile, or no time was sampled.

    Args:
        history: At least one snapshot, oldest first.
    """
    looks: dict[str, list[GpuLive]] = {gpu.info.gpu: [] for gpu in history[-1].gpus}
    for snapshot in history:
        for gpu in snapshot.gpus:
            looks.get(gpu.info.gpu, []).append(gpu)
    return {
        label: LiveRates(
            lost_ratio=_share(those, lambda gpu: lost_s(gpu.totals)),
            excess_ratio=_share(those, lambda gpu: gpu.excess_s),
        )
        for label, those in looks.items()
    }


def lost_s(totals: LiveTotals | None) -> float | None:
    """The live ceiling loss of all causes; None if it was never known."""
    return sum(totals.lost_s.values()) if totals is not None and totals.lost_s else None


def _share(looks: Sequence[GpuLive], part_s: Callable[[GpuLive], float | None]) -> float | None:
    """How much a part grew over how much the sampled time did."""
    known = [(sampled, part) for gpu in looks for sampled, part in _both(gpu, part_s)]
    if not known or not list(_both(looks[-1], part_s)):
        return None
    (first_sampled_s, first_part_s), (last_sampled_s, last_part_s) = known[0], known[-1]
    if last_sampled_s <= first_sampled_s or last_part_s < first_part_s:
        return None
    return (last_part_s - first_part_s) / (last_sampled_s - first_sampled_s)


def _both(gpu: GpuLive, part_s: Callable[[GpuLive], float | None]) -> Iterator[tuple[float, float]]:
    """Sampled time and a part of it, in s, where both are known."""
    sampled, part = gpu.totals.sampled_s if gpu.totals is not None else None, part_s(gpu)
    if sampled is not None and part is not None:
        yield sampled, part
