"""Which GPUs and GPU instances the driver lists now, and what came or went since another look."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Final

from chopperd.devices.nvml.identity import FixedProperties, uuid_of
from chopperd.devices.nvml.mig import instances
from chopperd.model.devices import GpuInfo, Vendor

#: A folder a GPU, named by its PCI address, whether or not the GPU answers.
_KERNEL_FOLDER: Final = Path("/proc/driver/nvidia/gpus")


@dataclass(frozen=True, slots=True, kw_only=True)
class Presence:
    """What one look at the driver's lists found.

    Attributes:
        cards: By UUID the index of each GPU that answers.
        split: UUIDs of those whose MIG mode is on.
        instances: By UUID of each GPU instance the UUID of its card.
        unsure: UUIDs of those that do not say this time whether they are split, or into what.
        silent: Indices of GPUs that the driver counts and that do not answer.
    """

    cards: Mapping[str, int] = field(default_factory=dict)
    split: frozenset[str] = frozenset()
    instances: Mapping[str, str] = field(default_factory=dict)
    unsure: frozenset[str] = frozenset()
    silent: frozenset[int] = frozenset()


def present(nvml: ModuleType) -> Presence | None:
    """What is there now; None where the driver does not say at all.

    Source: nvmlDeviceGetCount, nvmlDeviceGetHandleByIndex, nvmlDeviceGetUUID.
    """
    try:
        indices = range(nvml.nvmlDeviceGetCount())
    except nvml.NVMLError:
        return None
    cards, split, parts, unsure, silent = {}, set[str](), {}, set[str](), set[int]()
    for index in indices:
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            uuid = uuid_of(nvml, handle)
        except nvml.NVMLError:
            silent.add(index)
            continue
        cards[uuid] = index
        found = _parts(nvml, handle, index, uuid)
        if found is None:
            unsure.add(uuid)
        elif found.is_split:
            split.add(uuid)
            parts.update(dict.fromkeys(found.uuids, uuid))
    return Presence(
        cards=cards,
        split=frozenset(split),
        instances=parts,
        unsure=frozenset(unsure),
        silent=frozenset(silent),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """Whether a card's MIG mode is on, and the UUIDs of its instances."""

    is_split: bool
    uuids: tuple[str, ...] = ()


def _parts(nvml: ModuleType, handle: object, index: int, uuid: str) -> _Parts | None:
    """What a card is split into; None where the driver does not say this time."""
    is_split = FixedProperties(nvml, handle).mig()
    if not is_split:
        return None if is_split is None else _Parts(is_split=False)
    card = GpuInfo(gpu=str(index), index=index, uuid=uuid, name="", vendor=Vendor.NVIDIA)
    try:
        found = tuple(info.uuid for _, info in instances(nvml, handle, card, whole=True))
    except nvml.NVMLError:
        return None
    return _Parts(is_split=True, uuids=found)


def silent_gpu(index: int, count: int, folder: Path = _KERNEL_FOLDER) -> GpuInfo:
    """A GPU of which the driver counts that it is there, and says nothing else.

    Its PCI address is that of its place among all that the kernel's driver lists, as NVML counts
    GPUs in the order of their addresses; None where the two do not list the same number.

    Args:
        index: The driver's index.
        count: How many GPUs it counts.
        folder: Where the kernel's driver lists them.

    Source: nvml.h on nvmlDeviceGetHandleByIndex_v2, for the order; not seen on hardware.
    """
    addresses = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    return GpuInfo(
        gpu=str(index),
        index=index,
        uuid="",
        name="",
        vendor=Vendor.NVIDIA,
        # NVML writes the domain with 8 digits, the kernel with 4.
        pci_bus_id=f"0000{addresses[index]}".upper() if len(addresses) == count else None,
    )


def difference(then: Presence, now: Presence) -> str | None:
    """What came or went between two looks, for people; None if nothing did.

    A GPU that only does not answer has not gone, nor have its instances; of one that does not say
    this time what it is split into nothing has changed.
    """
    return "; ".join(_changes(then, now)) or None


def _changes(then: Presence, now: Presence) -> Iterator[str]:
    for uuid, index in now.cards.items():
        if uuid not in then.cards:
            yield f"GPU {index} ({uuid}) is there"
        elif uuid not in now.unsure and (uuid in then.split) != (uuid in now.split):
            yield f"MIG mode of GPU {index} is {'on' if uuid in now.split else 'off'}"
    for uuid, index in then.cards.items():
        if uuid not in now.cards and index not in now.silent:
            yield f"GPU {index} ({uuid}) is gone"
    for uuid in now.instances.keys() - then.instances.keys():
        yield f"GPU instance {uuid} is there"
    for uuid in then.instances.keys() - now.instances.keys():
        if then.instances[uuid] in now.cards.keys() - now.unsure:
            yield f"GPU instance {uuid} is gone"
