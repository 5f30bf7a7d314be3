"""Single NVML sensors read back to back, with calls and buffers of their own.

What is read when a GPU is sampled is in `sensors`; here a read is one driver call for one number,
so that its update period can be seen.
"""

import struct
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Final

from chopperd.devices.base import SensorRead
from chopperd.devices.nvml import table
from chopperd.devices.nvml.codes import POWER_INSTANT_FIELD
from chopperd.devices.nvml.fields import number_of
from chopperd.model.devices import GpuInfo
from chopperd.units import joules_from_millijoules, watts_from_milliwatts

_SCOPE_BY_SOURCE: Final[Mapping[str, int]] = {
    table.POWER_INSTANT: table.GPU_SCOPE,
    table.POWER_MODULE: table.MODULE_SCOPE,
}
#: nvmlFieldValue_t, 40 bytes: id, scope and times are skipped; type, return code, the union.
_FIELD: Final = struct.Struct("<24xIIQ")


def sensor_reads(nvml: ModuleType, device: GpuInfo) -> Mapping[str, SensorRead]:
    """How to read a GPU's clock, power, energy and activity; nothing where it can't be found.

    A partition has no sensors of its own.

    Source: nvmlDeviceGetClockInfo (MHz), field 186 or nvmlDeviceGetPowerUsage (mW), whichever
    samples hold, nvmlDeviceGetTotalEnergyConsumption (mJ), nvmlDeviceGetUtilizationRates (%).
    """
    if device.parent is not None:
        return {}
    try:
        handle = nvml.nvmlDeviceGetHandleByUUID(device.uuid)
    except nvml.NVMLError:
        return {}
    reads: dict[str, Callable[[], float | None]] = {
        "sm_clock_mhz": lambda: float(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
        "power_w": _power_read(nvml, handle, device.power_source),
        "energy_j": lambda: joules_from_millijoules(
            nvml.nvmlDeviceGetTotalEnergyConsumption(handle)
        ),
        "activity_ratio": lambda: float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu) / 100,
    }
    return {name: _failing_softly(nvml, read) for name, read in reads.items()}


def _power_read(nvml: ModuleType, handle: object, source: str | None) -> SensorRead:
    """Reads the power that samples hold: the same field, from the same scope."""
    scope = _SCOPE_BY_SOURCE.get(source or "")
    if scope is None:
        return lambda: watts_from_milliwatts(nvml.nvmlDeviceGetPowerUsage(handle))
    request = (nvml.c_nvmlFieldValue_t * 1)()

    def read() -> float | None:
        request[0].fieldId, request[0].scopeId = POWER_INSTANT_FIELD, scope
        if nvml.nvmlLib.nvmlDeviceGetFieldValues(handle, 1, request):
            return None
        value_type, code, raw = _FIELD.unpack(request)
        power_mw = None if code else number_of(value_type, raw)
        return None if power_mw is None else watts_from_milliwatts(power_mw)

    return read


def _failing_softly(nvml: ModuleType, read: SensorRead) -> SensorRead:
    """The read, giving None for what the driver does not answer."""

    def softly() -> float | None:
        try:
            return read()
        except (nvml.NVMLError, AttributeError):  # AttributeError: a driver without the call
            return None

    return softly
