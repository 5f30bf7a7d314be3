"""Which GPUs and GPU instances (MIG) the driver lists, and what has come or gone since."""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Final

from chopperd.devices.channel import DeviceFaults
from chopperd.devices.nvml.board import SensorPlan
from chopperd.devices.nvml.codes import Outcome, outcome_of
from chopperd.devices.nvml.identity import FixedProperties, uuid_of
from chopperd.devices.nvml.sensors import NvmlSensors
from chopperd.errors import DeviceLostError
from chopperd.model.devices import DeviceReading, GpuInfo, ReadScope, Vendor

# The GPU instances (MIG) that a card is split into: who they are, and the memory of each.
#
# Clock, power, energy and temperature are the card's, and are read there, once.

logger = logging.getLogger(__name__)


def instances(
    nvml: ModuleType, card_handle: object, card: GpuInfo, *, whole: bool = False
) -> Iterator[tuple[object, GpuInfo]]:
    """Handle and identity of each GPU instance of a card, by its id there ("0.1": card, id).

    An instance that is divided further is listed once, with the UUID of its first part: the parts
    share its memory. One that this process may not see is left out, as the driver leaves it out.

    Args:
        nvml: The binding.
        card_handle: The card's.
        card: Who it is.
        whole: Raise the vendor's error where a call fails that may yet succeed; else what it was
            about is left out.

    Source: nvmlDeviceGetMigDeviceHandleByIndex, nvmlDeviceGetGpuInstanceId.
    """
    known: set[int] = set()
    for handle in _handles(nvml, card_handle, whole=whole):
        try:
            instance = nvml.nvmlDeviceGetGpuInstanceId(handle)
            uuid = uuid_of(nvml, handle)
        except nvml.NVMLError as error:
            if whole and not _is_refused(error):
                raise
            logger.warning("GPU %s: a GPU instance does not say who it is: %s", card.gpu, error)
            continue
        if instance not in known:
            known.add(instance)
            yield handle, FixedProperties(nvml, handle).instance_info(card, instance, uuid)


def _handles(nvml: ModuleType, card_handle: object, *, whole: bool) -> Iterator[object]:
    """The driver's handles of a card's MIG devices; its numbers for them have gaps."""
    try:
        most = nvml.nvmlDeviceGetMaxMigDeviceCount(card_handle)
    except nvml.NVMLError as error:
        if whole and not _is_refused(error):
            raise
        return
    for index in range(most):
        try:
            yield nvml.nvmlDeviceGetMigDeviceHandleByIndex(card_handle, index)
        except nvml.NVMLError as error:  # most often "not found": there is none of this number
            if whole and not _is_refused(error):
                raise


def _is_refused(error: Exception) -> bool:
    """Whether a call would fail so again."""
    return outcome_of(getattr(error, "value", 0)) is Outcome.UNSUPPORTED


class InstanceSensors(NvmlSensors):
    """Reads the memory of one GPU instance, and sees when it is gone; by one thread at a time."""

    def __init__(
        self, nvml: ModuleType, handle: object, info: GpuInfo, faults: DeviceFaults
    ) -> None:
        plan = SensorPlan(
            limit_fields={},
            mig=True,
            memory_size_bytes=info.memory_size_bytes,
            has_board=False,
        )
        super().__init__(nvml, handle, plan, faults)
        self._info = info
        self._has_answered = False

    def read(self, scope: ReadScope) -> DeviceReading:
        """One look: its memory where everything is wanted, else nothing.

        Raises:
            TransientDeviceError: The call failed.
            DeviceLostError: The instance is gone, by itself or with its card.
        """
        reading = super().read(scope)
        if reading.memory_used_bytes is not None:
            self._has_answered = True
        elif self._has_answered and self.lacks_memory:
            raise DeviceLostError(
                f"GPU instance {self._info.gpu} ({self._info.uuid}) is gone",
                operation="nvmlDeviceGetMemoryInfo",
                device_index=self._info.index,
            )
        return reading


# Which GPUs and GPU instances the driver lists now, and what came or went since another look.

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
