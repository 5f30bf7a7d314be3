"""NVIDIA GPUs through NVML: start, enumeration, reads, end. The only module that imports `pynvml`.

What single calls and numbers mean is in `calls` and `codes`.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from types import ModuleType

from chopperd.clock import Clock, SystemClock
from chopperd.devices.base import BackendOptions, SensorRead
from chopperd.devices.channel import DeviceFaults, VendorErrors
from chopperd.devices.nvml.board import SensorPlan
from chopperd.devices.nvml.buffered import SAMPLING_TYPES, buffered_times_us, spacing_ns
from chopperd.devices.nvml.codes import device_error, limit_fields
from chopperd.devices.nvml.direct import Driver
from chopperd.devices.nvml.identity import FixedProperties, text_of
from chopperd.devices.nvml.probe import Prober
from chopperd.devices.nvml.sensor_reads import sensor_reads
from chopperd.devices.nvml.sensors import NvmlSensors
from chopperd.devices.nvml.system_memory import (
    SYSTEM_MEMORY,
    SystemMemory,
    shares_system_memory,
)
from chopperd.devices.read_plan import ReadPlan
from chopperd.errors import BackendUnavailableError, DeviceError, DeviceLostError
from chopperd.model.devices import DeviceReading, FieldProbe, GpuInfo, ReadScope

logger = logging.getLogger(__name__)

_LIBRARY = "libnvidia-ml.so.1"
#: A GPU that fails to say at first where its power and memory come from is asked so often.
_FIRST_LOOKS = 3


def open_backend(_options: BackendOptions) -> "NvmlBackend":
    """The back end for this machine's NVIDIA GPUs.

    Raises:
        BackendUnavailableError: No binding, no driver library, no driver, or no GPU.
    """
    try:
        import pynvml  # noqa: PLC0415 - most machines that import chopperd have no NVIDIA binding
    except ImportError as error:
        raise BackendUnavailableError(
            "the NVML binding is not installed: pip install 'chopperd[nvidia]'"
        ) from error
    return NvmlBackend(pynvml, SystemClock())


class NvmlBackend:
    """Reads the GPUs that NVML lists; holds NVML from construction until `close`.

    GPUs that do not answer at the start keep their index free and are listed in `unreachable`.
    """

    name = "nvml"
    simulated = False

    def __init__(
        self, nvml: ModuleType, clock: Clock, system_memory: SystemMemory = SYSTEM_MEMORY
    ) -> None:
        self._nvml = nvml
        self._clock = clock
        self._system_memory = system_memory
        self._faults: dict[str, DeviceFaults] = {}
        self._sensors: dict[str, NvmlSensors] = {}
        self.unreachable: tuple[DeviceError, ...] = ()
        self._initialise()
        self._open = True
        try:
            self.driver = self._driver_version()
            self._limit_fields = limit_fields(self.driver)
            self._devices = self._enumerated()
        except BaseException:
            self.close()
            raise

    def devices(self) -> tuple[GpuInfo, ...]:
        """The GPUs that answered at the start, in NVML's order."""
        return self._devices

    def read(self, device: GpuInfo, scope: ReadScope) -> DeviceReading:
        """One look at a GPU; a lost one is looked up again by its UUID.

        Raises:
            TransientDeviceError: This look failed; the next may succeed.
            DeviceLostError: The GPU is gone, or never was one of ours.
        """
        sensors = self._sensors.get(device.uuid)
        if sensors is None:
            sensors = self._found_again(device)
        try:
            return sensors.read(scope)
        except DeviceLostError:
            self._sensors.pop(device.uuid, None)
            raise

    def sensor_reads(self, device: GpuInfo) -> Mapping[str, SensorRead]:
        """How to read single sensors of a GPU back to back, for any thread."""
        return sensor_reads(self._nvml, device)

    def read_plan(self, device: GpuInfo, scope: ReadScope) -> ReadPlan | None:
        """How to read a GPU without this object; None where `read` must: something is to be found.

        Never asks the driver. By the thread that reads the GPU: plan and reads share buffers.
        """
        sensors = self._sensors.get(device.uuid)
        return None if sensors is None else sensors.read_plan(scope)

    def probe(self, device: GpuInfo, calls_count: int = 100) -> tuple[FieldProbe, ...]:
        """What each call for a GPU answers now, made up to `calls_count` times; takes long.

        Raises:
            DeviceLostError: The GPU is gone, or never was one of ours.
        """
        driver = self._driver_of(device)
        prober = Prober(driver, self._faults[device.uuid], self._clock, calls_count)
        board = () if device.parent else prober.board(self._limit_fields)
        return (*board, *prober.memory(self._system_memory_of(device)))

    def buffered_period_ns(self, device: GpuInfo, field: str) -> int | None:
        """How far apart the samples are that the driver itself keeps of a field; None if none.

        Never raises. Source: time stamps of nvmlDeviceGetSamples.
        """
        if field not in SAMPLING_TYPES:
            return None
        try:
            return spacing_ns(buffered_times_us(self._driver_of(device), SAMPLING_TYPES[field]))
        except (DeviceError, self._nvml.NVMLError):
            return None

    def close(self) -> None:
        """Let go of NVML; a second call does nothing."""
        if not self._open:
            return
        self._open = False
        try:
            self._nvml.nvmlShutdown()
        except self._nvml.NVMLError as error:
            logger.warning("nvmlShutdown failed: %s", error)

    def failed_total(self) -> dict[tuple[str, str], int]:
        """Failed calls since the start, by GPU label and operation."""
        return self._by_gpu(lambda faults: faults.failed_total)

    def implausible_total(self) -> dict[tuple[str, str], int]:
        """Values dropped as absurd since the start, by GPU label and field."""
        return self._by_gpu(lambda faults: faults.implausible_total)

    def _by_gpu(self, counts: Callable[[DeviceFaults], Counter[str]]) -> dict[tuple[str, str], int]:
        """Counts of all GPUs; copied first, since their threads go on counting."""
        return {
            (device.gpu, what): count
            for device in self._devices
            for what, count in dict(counts(self._faults[device.uuid])).items()
        }

    def _initialise(self) -> None:
        try:
            self._nvml.nvmlInit()
        except self._nvml.NVMLError as error:
            if error.value == self._nvml.NVML_ERROR_LIBRARY_NOT_FOUND:
                reason = f"{_LIBRARY} not found: no NVIDIA driver here, or not in this container"
            else:
                reason = f"NVML does not start: {error} (NVML code {error.value})"
            raise BackendUnavailableError(reason) from error

    def _driver_version(self) -> str | None:
        try:
            return text_of(self._nvml.nvmlSystemGetDriverVersion)
        except self._nvml.NVMLError as error:
            logger.warning("the driver's version is not known: %s", error)
            return None

    def _enumerated(self) -> tuple[GpuInfo, ...]:
        try:
            count = self._nvml.nvmlDeviceGetCount()
        except self._nvml.NVMLError as error:
            raise BackendUnavailableError(f"NVML lists no GPUs: {error}") from error
        devices = tuple(self._identified(count))
        if not devices:
            reason = f"no GPU answers: {self.unreachable[0]}" if count else "there is no GPU"
            raise BackendUnavailableError(reason)
        return devices

    def _identified(self, count: int) -> Iterator[GpuInfo]:
        """Each GPU that answers; one that doesn't leaves the others and their indices alone."""
        for index in range(count):
            try:
                handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
                uuid = self._uuid(handle)
            except self._nvml.NVMLError as error:
                self._skip(error, index)
                continue
            yield self._described(handle, index, uuid)

    def _uuid(self, handle: object) -> str:
        return text_of(lambda: self._nvml.nvmlDeviceGetUUID(handle))

    def _skip(self, error: Exception, index: int) -> None:
        failure = self._classify(error, "enumeration", index)
        failure.__cause__ = error
        logger.warning("%s; the other GPUs are read without it", failure)
        self.unreachable += (failure,)

    def _described(self, handle: object, index: int, uuid: str) -> GpuInfo:
        info = FixedProperties(self._nvml, handle).gpu_info(index, uuid)
        self._faults[uuid] = DeviceFaults(index, self._vendor_errors(), self._clock)
        system_memory = self._system_memory_of(info)
        if info.memory_size_bytes is None and system_memory is not None:
            info = replace(info, memory_size_bytes=system_memory.total_bytes())
        sensors = self._watch(handle, info)
        _look_first(sensors)
        return replace(info, power_source=sensors.power_source, memory_source=sensors.memory_source)

    def _watch(self, handle: object, info: GpuInfo) -> NvmlSensors:
        plan = SensorPlan(
            limit_fields=self._limit_fields,
            mig=FixedProperties(self._nvml, handle).mig(),
            memory_size_bytes=info.memory_size_bytes,
            system_memory=self._system_memory_of(info),
        )
        sensors = NvmlSensors(self._nvml, handle, plan, self._faults[info.uuid])
        self._sensors[info.uuid] = sensors
        return sensors

    def _system_memory_of(self, info: GpuInfo) -> SystemMemory | None:
        """The system's memory, where that is what a GPU has."""
        return self._system_memory if shares_system_memory(info.name) else None

    def _found_again(self, device: GpuInfo) -> NvmlSensors:
        return self._watch(self._handle(device), device)

    def _driver_of(self, device: GpuInfo) -> Driver:
        """The driver's calls for a GPU, apart from those that read it."""
        return Driver(self._nvml, self._handle(device))

    def _handle(self, device: GpuInfo) -> object:
        if device.uuid not in self._faults:
            raise DeviceLostError(
                f"GPU {device.gpu} ({device.uuid}) is not one of this driver's",
                operation="nvmlDeviceGetHandleByUUID",
                device_index=device.index,
            )
        try:
            handle: object = self._nvml.nvmlDeviceGetHandleByUUID(device.uuid)
        except self._nvml.NVMLError as error:
            raise self._lost(error, device.index) from error
        return handle

    def _lost(self, error: Exception, index: int) -> DeviceError:
        """Any failure to find a GPU again leaves it lost, whatever the code."""
        failure = self._classify(error, "nvmlDeviceGetHandleByUUID", index)
        return DeviceLostError(
            str(failure),
            operation=failure.operation,
            device_index=index,
            vendor_code=failure.vendor_code,
        )

    def _vendor_errors(self) -> VendorErrors:
        return VendorErrors(base=self._nvml.NVMLError, classify=self._classify)

    @staticmethod
    def _classify(error: Exception, operation: str, index: int) -> DeviceError:
        code = getattr(error, "value", -1)
        return device_error(code, str(error), operation=operation, device_index=index)


def _look_first(sensors: NvmlSensors) -> None:
    """Find out where power and memory come from, despite a bad first answer."""
    for _ in range(_FIRST_LOOKS):
        try:
            sensors.read(ReadScope.FULL)
        except DeviceLostError as error:
            logger.warning("first look failed: %s", error)
            return
        except DeviceError as error:
            logger.warning("first look failed: %s", error)
        if sensors.is_settled:
            return
