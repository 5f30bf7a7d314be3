"""What each GPU loses per second to the clock, from the totals of several looks at a node."""

from collections.abc import Iterator, Sequence
from typing import Final

from chopperd.model.live import GpuLive, LiveTotals, NodeSnapshot
from chopperd.units import NS_PER_S

_WINDOW_NS: Final = 10 * NS_PER_S


def window(history: Sequence[NodeSnapshot]) -> tuple[NodeSnapshot, ...]:
    """The snapshots that rates are made from: those of the last 10 s and the last one before.

    Args:
        history: At least one, oldest first.
    """
    begin_ns = history[-1].taken_mono_ns - _WINDOW_NS
    first = sum(snapshot.taken_mono_ns <= begin_ns for snapshot in history[:-1])
    return tuple(history[max(first - 1, 0) :])


def lost_ratios(history: Sequence[NodeSnapshot]) -> dict[str, float | None]:
    """The live ceiling loss over a history as a share of sampled time, by GPU label.

    Each from the first look at which its total is known. None where it is not known now, or fell
    meanwhile, or no time was sampled.

    Args:
        history: At least one snapshot, oldest first.
    """
    looks: dict[str, list[GpuLive]] = {gpu.info.gpu: [] for gpu in history[-1].gpus}
    for snapshot in history:
        for gpu in snapshot.gpus:
            looks.get(gpu.info.gpu, []).append(gpu)
    return {label: _lost_ratio(those) for label, those in looks.items()}


def lost_s(totals: LiveTotals | None) -> float | None:
    """The live ceiling loss of all causes; None if it was never known."""
    return sum(totals.lost_s.values()) if totals is not None and totals.lost_s else None


def _lost_ratio(looks: Sequence[GpuLive]) -> float | None:
    """How much the loss grew over how much the sampled time did."""
    known = [both for gpu in looks for both in _sampled_and_lost_s(gpu)]
    if not known or not list(_sampled_and_lost_s(looks[-1])):
        return None
    (first_sampled_s, first_lost_s), (last_sampled_s, last_lost_s) = known[0], known[-1]
    if last_sampled_s <= first_sampled_s or last_lost_s < first_lost_s:
        return None
    return (last_lost_s - first_lost_s) / (last_sampled_s - first_sampled_s)


def _sampled_and_lost_s(gpu: GpuLive) -> Iterator[tuple[float, float]]:
    """Sampled time and what of it was lost, where both are known."""
    sampled = gpu.totals.sampled_s if gpu.totals is not None else None
    lost = lost_s(gpu.totals)
    if sampled is not None and lost is not None:
        yield sampled, lost
