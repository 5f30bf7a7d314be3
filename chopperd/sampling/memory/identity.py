"""Matches GPUs over time: which slot and label a GPU has after drivers and processes restart."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import count

from chopperd.model.devices import GpuInfo


def place_of(info: GpuInfo, gpus: Sequence[GpuInfo]) -> int | None:
    """Position of the same GPU: same UUID, or same index and name if there is no UUID."""
    for place, gpu in enumerate(gpus):
        same = gpu.uuid == info.uuid if info.uuid else gpu.index == info.index
        if same and gpu.name == info.name and bool(gpu.parent) == bool(info.parent):
            return place
    return None


def merged_gpus(
    earlier: Sequence[GpuInfo], present: Sequence[GpuInfo], most: int | None = None
) -> tuple[GpuInfo, ...]:
    """GPUs known before in their places with their labels, then new ones while room lasts.

    A GPU that went away keeps its place and its label; a new one that the driver gives the index
    of another gets the first free number, so that no label ever names two GPUs. A GPU without a
    UUID is the one that was at its PCI address or index, and the other way round. A partition that
    was made where another was has its place.

    Args:
        earlier: GPUs in their places.
        present: What the driver lists now; partitions after the card that they are of.
        most: Room for so many; None: no end.
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
    """For each GPU present its place among those known before; None for a new one.

    Args:
        present: What the driver lists now.
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
    """Whether a GPU takes the place of one that is not listed by its UUID any more."""
    if info.parent is not None or gpu.parent is not None:
        own, other = _part(info, present), _part(gpu, earlier)
        return own is not None and own == other
    if info.uuid and gpu.uuid:
        return False
    if info.pci_bus_id and gpu.pci_bus_id:
        return info.pci_bus_id == gpu.pci_bus_id
    return info.index == gpu.index


def _part(info: GpuInfo, gpus: Sequence[GpuInfo]) -> tuple[str, str] | None:
    """Which part of which card a partition is: the card's UUID, and its number there."""
    card = next((gpu for gpu in gpus if gpu.gpu == info.parent), None)
    return None if card is None or info.parent is None else (card.uuid, _number(info))


def _number(partition: GpuInfo) -> str:
    return partition.gpu.rpartition(".")[2]


def _known_again(before: GpuInfo, now: GpuInfo, labels: dict[str, str]) -> GpuInfo:
    """What is known of a GPU that was known before: what it says now, if it says who it is."""
    if before.uuid and not now.uuid:
        return before
    return replace(_under(now, labels), gpu=before.gpu)


def _under(info: GpuInfo, labels: dict[str, str]) -> GpuInfo:
    """A partition named after the label that its card has here; a whole GPU as it is."""
    if info.parent is None:
        return info
    parent = labels.get(info.parent, info.parent)
    return replace(info, gpu=f"{parent}.{_number(info)}", parent=parent)


def _labelled(info: GpuInfo, taken: Iterable[str]) -> GpuInfo:
    """The GPU with a label that is not taken: its own, or else the first free number."""
    if info.gpu not in taken:
        return info
    prefix = f"{info.parent}." if info.parent else ""
    free = (label for number in count() if (label := f"{prefix}{number}") not in taken)
    return replace(info, gpu=next(free))
