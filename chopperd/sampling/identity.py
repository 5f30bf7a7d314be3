"""Which GPU is which over time: what a GPU keeps when drivers and processes come and go."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import count

from chopperd.model.devices import GpuInfo


def place_of(info: GpuInfo, gpus: Sequence[GpuInfo]) -> int | None:
    """Where the same GPU stands: same UUID, or same index and name where there is no UUID."""
    for place, gpu in enumerate(gpus):
        same = gpu.uuid == info.uuid if info.uuid else gpu.index == info.index
        if same and gpu.name == info.name:
            return place
    return None


def merged_gpus(
    earlier: Sequence[GpuInfo], present: Sequence[GpuInfo], most: int | None = None
) -> tuple[GpuInfo, ...]:
    """GPUs known before in their places with their labels, then new ones while room lasts.

    A GPU that went away keeps its place and its label; a new one that the driver gives the index
    of another gets the first free number, so that no label ever stands for two GPUs.

    Args:
        earlier: GPUs in their places.
        present: What the driver lists now.
        most: Room for so many; None: no end.
    """
    merged = list(earlier)
    for info in present:
        place = place_of(info, earlier)
        if place is not None:
            merged[place] = replace(info, gpu=earlier[place].gpu)
        elif most is None or len(merged) < most:
            merged.append(_labelled(info, {gpu.gpu for gpu in merged}))
    return tuple(merged)


def _labelled(info: GpuInfo, taken: Iterable[str]) -> GpuInfo:
    """The GPU with a label that is not taken: its own, or else the first free number."""
    if info.gpu not in taken:
        return info
    return replace(info, gpu=next(label for label in map(str, count()) if label not in taken))
