"""Who an NVIDIA GPU is and what about it doesn't change while it is watched."""

from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import TypeVar

from chopperd.devices.nvml.codes import Outcome, outcome_of
from chopperd.model import plausible
from chopperd.model.devices import GpuInfo, Vendor
from chopperd.model.plausible import Bounds
from chopperd.units import watts_from_milliwatts

T = TypeVar("T")
NumberT = TypeVar("NumberT", bound=float)


def text_of(read: Callable[[], str]) -> str:
    """A string from the driver; bytes that are not UTF-8 are replaced, not fatal."""
    try:
        return read()
    except UnicodeDecodeError as error:
        return error.object.decode("utf-8", errors="replace")


def uuid_of(nvml: ModuleType, handle: object) -> str:
    """The UUID of a GPU or GPU instance. Source: nvmlDeviceGetUUID; raises the vendor's error."""
    return text_of(lambda: nvml.nvmlDeviceGetUUID(handle))


class FixedProperties:
    """One GPU's properties, each asked for once; what the driver does not report is None."""

    def __init__(self, nvml: ModuleType, handle: object) -> None:
        self._nvml = nvml
        self._handle = handle

    def gpu_info(self, index: int, uuid: str) -> GpuInfo:
        """The GPU's identity; where its power and memory come from is known after a look."""
        info = GpuInfo(
            gpu=str(index),
            index=index,
            uuid=uuid,
            name=self._read(lambda: text_of(self._name)) or "",
            vendor=Vendor.NVIDIA,
            pci_bus_id=self._read(lambda: text_of(self._pci_bus_id)),
        )
        sm_clock_max_mhz = self._clock_max_mhz(self._nvml.NVML_CLOCK_SM)
        return replace(
            info,
            sm_clock_max_mhz=sm_clock_max_mhz,
            sm_clock_limit_mhz=self._applications_clock_mhz(sm_clock_max_mhz),
            mem_clock_max_mhz=self._clock_max_mhz(self._nvml.NVML_CLOCK_MEM),
            power_limit_w=self._power_w(self._nvml.nvmlDeviceGetEnforcedPowerLimit),
            power_limit_default_w=self._power_w(
                self._nvml.nvmlDeviceGetPowerManagementDefaultLimit
            ),
            memory_size_bytes=self._memory_size_bytes(),
            temperature_slowdown_c=self._threshold_c(
                self._nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
            ),
            temperature_shutdown_c=self._threshold_c(
                self._nvml.NVML_TEMPERATURE_THRESHOLD_SHUTDOWN
            ),
            temperature_memory_max_c=self._threshold_c(
                self._nvml.NVML_TEMPERATURE_THRESHOLD_MEM_MAX
            ),
        )

    def instance_info(self, card: GpuInfo, instance: int, uuid: str) -> GpuInfo:
        """The identity of a GPU instance of a card; only memory is its own.

        Args:
            card: The GPU that it is a part of.
            instance: Its id there.
            uuid: Its UUID.
        """
        return GpuInfo(
            gpu=f"{card.gpu}.{instance}",
            index=card.index,
            uuid=uuid,
            name=self._read(lambda: text_of(self._name)) or "",
            vendor=Vendor.NVIDIA,
            memory_size_bytes=self._memory_size_bytes(),
            parent=card.gpu,
        )

    def mig(self) -> bool | None:
        """Whether MIG mode is on; None where the driver does not say this time.

        Source: nvmlDeviceGetMigMode, current mode.
        """
        try:
            mode: int = self._nvml.nvmlDeviceGetMigMode(self._handle)[0]
        except self._nvml.NVMLError as error:
            return False if outcome_of(error.value) is Outcome.UNSUPPORTED else None
        enabled: int = self._nvml.NVML_DEVICE_MIG_ENABLE
        return mode == enabled

    def _read(self, read: Callable[[], T]) -> T | None:
        try:
            return read()
        except self._nvml.NVMLError:
            return None

    def _number(self, read: Callable[[], NumberT], bounds: Bounds) -> NumberT | None:
        value = self._read(read)
        return value if value is not None and value in bounds else None

    def _name(self) -> str:
        name: str = self._nvml.nvmlDeviceGetName(self._handle)
        return name

    def _pci_bus_id(self) -> str:
        bus_id: str = self._nvml.nvmlDeviceGetPciInfo_v3(self._handle).busId
        return bus_id

    def _clock_max_mhz(self, domain: int) -> float | None:
        """The highest clock. Source: nvmlDeviceGetMaxClockInfo, MHz; P0 may differ by a few."""
        return self._number(
            lambda: float(self._nvml.nvmlDeviceGetMaxClockInfo(self._handle, domain)),
            plausible.CLOCK_MHZ,
        )

    def _applications_clock_mhz(self, max_mhz: float | None) -> float | None:
        """The applications clock, where somebody set it below the highest clock; MHz.

        Left at its default it is no limit: an A100 or V100 boosts to its highest clock with a
        default applications clock 300 MHz below. Hence None also where the default isn't known.
        Source: nvmlDeviceGet[Default]ApplicationsClock, deprecated, not on the newest GPUs.
        """
        domain = self._nvml.NVML_CLOCK_GRAPHICS
        set_mhz = self._number(
            lambda: float(self._nvml.nvmlDeviceGetApplicationsClock(self._handle, domain)),
            plausible.CLOCK_MHZ,
        )
        default_mhz = self._number(
            lambda: float(self._nvml.nvmlDeviceGetDefaultApplicationsClock(self._handle, domain)),
            plausible.CLOCK_MHZ,
        )
        if set_mhz is None or default_mhz is None or max_mhz is None:
            return None
        return set_mhz if set_mhz < max_mhz and set_mhz != default_mhz else None

    def _power_w(self, read_mw: Callable[[object], float]) -> float | None:
        """A power limit in W. Source: the call given, mW."""
        return self._number(lambda: watts_from_milliwatts(read_mw(self._handle)), plausible.POWER_W)

    def _threshold_c(self, threshold: int) -> float | None:
        """A temperature at which the GPU acts. Source: nvmlDeviceGetTemperatureThreshold, C.

        Its successors from Ada on, fields 193-195, count from a limit that is not told, below
        which they are: no temperature can be made of them.
        """
        return self._number(
            lambda: float(self._nvml.nvmlDeviceGetTemperatureThreshold(self._handle, threshold)),
            plausible.THRESHOLD_C,
        )

    def _memory_size_bytes(self) -> int | None:
        """Device memory. Source: `total`, which v1 and v2 of the memory info agree on."""
        nvml, bounds = self._nvml, plausible.MEMORY_BYTES
        size_bytes = self._number(
            lambda: int(
                nvml.nvmlDeviceGetMemoryInfo(self._handle, version=nvml.nvmlMemory_v2).total
            ),
            bounds,
        )
        if size_bytes is not None:
            return size_bytes
        return self._number(lambda: int(nvml.nvmlDeviceGetMemoryInfo(self._handle).total), bounds)
