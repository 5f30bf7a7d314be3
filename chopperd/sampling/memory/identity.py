"""Matches GPUs over time, so that slot and label survive restarts of drivers and processes."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import count

from chopperd.model.devices import GpuInfo


def place_of(info: GpuInfo, gpus: Sequence[GpuInfo]) -> int | None:
    """Find the place of the same GPU: same UUID, or same index and name if there is no UUID.

    None if it is not among `gpus`.
    """
    for place, gpu in enumerate(gpus):
        same = gpu.uuid == info.uuid if info.uuid else gpu.index == info.index
        if same and gpu.name == info.name and bool(gpu.parent) == bool(info.parent):
            return place
    return None


def merged_gpus(
    earlier: Sequence[GpuInfo], present: Sequence[GpuInfo], most: int | None = None
) -> tuple[GpuInfo, ...]:
    """List known GPUs in their places with their labels, then new ones while room lasts.

    A GPU that went away keeps its place and its label; a new one that the driver gives the index of
    another gets the first free number, so that no label ever names two GPUs. Where either side has
    no UUID, GPUs at the same PCI address or index are the same. A new partition takes the place of
    the one it replaces.

    Args:
        earlier: GPUs in their places.
        present: GPUs that the driver lists now; partitions after their card.
        most: Highest number of GPUs; None: no limit.
    """
    merged = list(earlier)
    places = places_of(present, earlier)
    labels: dict[str, str] = {}
    for info, place in zip(present, places, strict=True):
        if place is not None:
            merged[place] = _known_again(earlier[place], info, labels)
        elif most is None or len(merged) < most:
            merged.append(_labelled(_under(info, labels), {gpu.gpu for gpu in merged}))
        else:
            continue
        if info.parent is None:
            labels[info.gpu] = merged[-1 if place is None else place].gpu
    return tuple(merged)


def places_of(present: Sequence[GpuInfo], earlier: Sequence[GpuInfo]) -> list[int | None]:
    """Find each present GPU's place among those known before; None for a new one.

    Args:
        present: GPUs that the driver lists now.
        earlier: GPUs in their places.
    """
    places = [place_of(info, earlier) for info in present]
    taken = {place for place in places if place is not None}
    for number, info in enumerate(present):
        if places[number] is None:
            free = (place for place in range(len(earlier)) if place not in taken)
            place = next((p for p in free if _may_be(info, earlier[p], present, earlier)), None)
            if place is not None:
                places[number] = place
                taken.add(place)
    return places


def _may_be(
    info: GpuInfo, gpu: GpuInfo, present: Sequence[GpuInfo], earlier: Sequence[GpuInfo]
) -> bool:
    """Whether a GPU may be a known one that is not listed by its UUID any more."""
    if info.parent is not None or gpu.parent is not None:
        own, other = _part(info, present), _part(gpu, earlier)
        return own is not None and own == other
    if info.uuid and gpu.uuid:
        return False
    if info.pci_bus_id and gpu.pci_bus_id:
        return info.pci_bus_id == gpu.pci_bus_id
    return info.index == gpu.index


def _part(info: GpuInfo, gpus: Sequence[GpuInfo]) -> tuple[str, str] | None:
    """Return a partition's card UUID and number on that card; None where no card is known."""
    card = next((gpu for gpu in gpus if gpu.gpu == info.parent), None)
    return None if card is None or info.parent is None else (card.uuid, _number(info))


def _number(partition: GpuInfo) -> str:
    return partition.gpu.rpartition(".")[2]


def _known_again(before: GpuInfo, now: GpuInfo, labels: dict[str, str]) -> GpuInfo:
    """Update a known GPU with what the driver reports now, unless that lacks its UUID."""
    if before.uuid and not now.uuid:
        return before
    return replace(_under(now, labels), gpu=before.gpu)


def _under(info: GpuInfo, labels: dict[str, str]) -> GpuInfo:
    """Return a partition named after its card's label here; a whole GPU unchanged."""
    if info.parent is None:
        return info
    parent = labels.get(info.parent, info.parent)
    return replace(info, gpu=f"{parent}.{_number(info)}", parent=parent)


def _labelled(info: GpuInfo, taken: Iterable[str]) -> GpuInfo:
    """Return the GPU with a free label: its own, or else the first free number."""
    if info.gpu not in taken:
        return info
    prefix = f"{info.parent}." if info.parent else ""
    free = (label for number in count() if (label := f"{prefix}{number}") not in taken)
    return replace(info, gpu=next(free))
