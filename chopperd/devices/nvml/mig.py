"""The GPU instances (MIG) that a card is split into: who they are, and the memory of each.

Clock, power, energy and temperature are the card's, and are read there, once.
"""

import logging
from collections.abc import Iterator
from types import ModuleType

from chopperd.devices.channel import DeviceFaults
from chopperd.devices.nvml.board import SensorPlan
from chopperd.devices.nvml.codes import Outcome, outcome_of
from chopperd.devices.nvml.identity import FixedProperties, uuid_of
from chopperd.devices.nvml.sensors import NvmlSensors
from chopperd.errors import DeviceLostError
from chopperd.model.devices import DeviceReading, GpuInfo, ReadScope

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
