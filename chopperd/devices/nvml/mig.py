"""The GPU instances (MIG) that a card is split into: who they are, and the memory of each.

Clock, power, energy and temperature are the card's, and are read there, once.
"""

import logging
from collections.abc import Iterator
from types import ModuleType

from chopperd.devices import plausible
from chopperd.devices.channel import DeviceFaults, Gauge
from chopperd.devices.nvml import calls as nvml_calls
from chopperd.devices.nvml.identity import FixedProperties, uuid_of
from chopperd.errors import DeviceLostError
from chopperd.model.devices import DeviceReading, GpuInfo, ReadScope

logger = logging.getLogger(__name__)


def instances(
    nvml: ModuleType, card_handle: object, card: GpuInfo
) -> Iterator[tuple[object, GpuInfo]]:
    """Handle and identity of each GPU instance of a card, by its id there ("0.1": card, id).

    An instance that is divided further is listed once, with the UUID of its first part: the parts
    share its memory. One that this process may not see is left out, as the driver leaves it out.

    Source: nvmlDeviceGetMigDeviceHandleByIndex, nvmlDeviceGetGpuInstanceId.
    """
    known: set[int] = set()
    for handle in _handles(nvml, card_handle):
        try:
            instance = nvml.nvmlDeviceGetGpuInstanceId(handle)
            uuid = uuid_of(nvml, handle)
        except nvml.NVMLError as error:
            logger.warning("GPU %s: a GPU instance does not say who it is: %s", card.gpu, error)
            continue
        if instance not in known:
            known.add(instance)
            yield handle, FixedProperties(nvml, handle).instance_info(card, instance, uuid)


def _handles(nvml: ModuleType, card_handle: object) -> Iterator[object]:
    """The driver's handles of a card's MIG devices; its numbers for them have gaps."""
    try:
        most = nvml.nvmlDeviceGetMaxMigDeviceCount(card_handle)
    except nvml.NVMLError:
        return
    for index in range(most):
        try:
            yield nvml.nvmlDeviceGetMigDeviceHandleByIndex(card_handle, index)
        except nvml.NVMLError:  # most often "not found": there is none of this number
            continue


class InstanceSensors:
    """Reads the memory of one GPU instance; used by one thread at a time.

    Attributes:
        power_source: None: an instance has no power of its own.
    """

    power_source = None

    def __init__(
        self, nvml: ModuleType, handle: object, info: GpuInfo, faults: DeviceFaults
    ) -> None:
        self._info = info
        self._faults = faults
        size_bytes = info.memory_size_bytes
        bounds = plausible.Bounds(0, size_bytes) if size_bytes else plausible.MEMORY_BYTES
        self._memory = Gauge(
            faults, "memory_used_bytes", bounds, *nvml_calls.memory_used_bytes(nvml, handle)
        )
        self._has_answered = False

    @property
    def memory_source(self) -> str | None:
        """Which memory call answers: "v2" or "v1"; None until one has."""
        return self._memory.source

    def read(self, scope: ReadScope) -> DeviceReading:
        """One look: the memory in use where everything is wanted, else nothing.

        Raises:
            TransientDeviceError: The call failed.
            DeviceLostError: The instance is gone, by itself or with its card.
        """
        if scope is not ReadScope.FULL:
            return DeviceReading()
        self._faults.begin_look()
        used_bytes = self._memory.value()
        if used_bytes is not None:
            self._has_answered = True
        elif self._faults.transient is not None:
            raise self._faults.transient
        elif self._has_answered and not self._memory.answers:
            raise DeviceLostError(
                f"GPU instance {self._info.gpu} ({self._info.uuid}) is gone",
                operation="nvmlDeviceGetMemoryInfo",
                device_index=self._info.index,
            )
        return DeviceReading(memory_used_bytes=used_bytes)
