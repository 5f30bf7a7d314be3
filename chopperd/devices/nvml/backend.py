"""NVIDIA GPUs through NVML: start, enumeration, reads, end. The only module that imports `pynvml`.

What single calls and numbers mean is in `table` and `codes`.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import ModuleType

from chopperd.clock import Clock, SystemClock
from chopperd.devices.base import BackendOptions, SensorRead
from chopperd.devices.channel import (
    CallsHangError,
    DeviceFaults,
    Patience,
    PatientCalls,
    VendorErrors,
)
from chopperd.devices.energy_check import EnergyCheck
from chopperd.devices.nvml.board import (
    SYSTEM_MEMORY,
    SensorPlan,
    SystemMemory,
    shares_system_memory,
)
from chopperd.devices.nvml.calls import Driver
from chopperd.devices.nvml.codes import device_error, limit_fields
from chopperd.devices.nvml.faults import DeviceTrouble, XidEvents, xid_text
from chopperd.devices.nvml.identity import FixedProperties, text_of, uuid_of
from chopperd.devices.nvml.planning import sensor_reads
from chopperd.devices.nvml.presence import (
    InstanceSensors,
    Presence,
    difference,
    instances,
    present,
    silent_gpu,
)
from chopperd.devices.nvml.probe import SAMPLING_TYPES, Prober, buffered_times_us, spacing_ns
from chopperd.devices.nvml.processes import ProcessList
from chopperd.devices.nvml.sensors import NvmlSensors
from chopperd.devices.read_plan import ReadPlan
from chopperd.errors import BackendUnavailableError, DeviceError, DeviceLostError
from chopperd.model.devices import DeviceReading, FieldProbe, GpuInfo, GpuProcess, ReadScope

logger = logging.getLogger(__name__)

_LIBRARY = "libnvidia-ml.so.1"
#: A GPU that fails to say at first where its power and memory come from is asked so often.
_FIRST_LOOKS = 3
_PATIENCE = Patience(first_s=2.0, later_s=0.5)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seldom:
    """What of a GPU is asked by another thread than the one that reads it."""

    processes: ProcessList
    trouble: DeviceTrouble


class NvmlBackend:
    """Reads the GPUs that NVML lists; holds NVML from construction until `close`.

    GPUs that do not answer at the start, or hang, are listed by their index, without a UUID, and
    are lost: who they are is known after `changed` has told that they answer. Of a card whose MIG
    mode is on the GPU instances are listed after it.
    """

    name = "nvml"
    simulated = False
    #: Made for each GPU; tests take one that was passed.
    energy_check: type[EnergyCheck] = EnergyCheck

    def __init__(
        self, nvml: ModuleType, clock: Clock, system_memory: SystemMemory = SYSTEM_MEMORY
    ) -> None:
        self._nvml = nvml
        self._clock = clock
        self._system_memory = system_memory
        self._faults: dict[str, DeviceFaults] = {}
        self._sensors: dict[str, NvmlSensors] = {}
        self._seldom: dict[str, _Seldom] = {}
        self._losses: dict[str, DeviceError] = {}
        self._split: set[str] = set()
        self._first_calls = PatientCalls("its first calls")
        self.unreachable: tuple[DeviceError, ...] = ()
        self._initialise()
        self._open = True
        self._events = XidEvents(nvml, clock)
        try:
            self.driver = self._driver_version()
            self._limit_fields = limit_fields(self.driver)
            self._devices = self._enumerated()
        except BaseException:
            self.close()
            raise

    def devices(self) -> tuple[GpuInfo, ...]:
        """The GPUs that NVML counted at the start, in its order, each before its instances."""
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
        except DeviceLostError as error:
            self._losses[device.uuid] = error
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

    def processes(self, device: GpuInfo) -> tuple[GpuProcess, ...] | None:
        """The compute processes on a GPU or instance; None where the driver does not say.

        Raises:
            TransientDeviceError: The call failed this time.
            DeviceLostError: The GPU is gone.
        """
        seldom = self._seldom.get(device.uuid)
        return seldom.processes.now() if seldom else None

    def trouble(self, device: GpuInfo) -> str | None:
        """What NVML knows to be wrong with a GPU, for people; None if nothing is. Never raises."""
        return "; ".join(self._troubles(device)) or None

    def changed(self) -> str | None:
        """What came or went since the start, for people; None if nothing did. Never raises.

        Not while the first calls on a GPU hang, in which the same calls here would hang as well.
        """
        if self._first_calls.hang:
            return None
        now = present(self._nvml)
        return None if now is None else difference(self._presence(), now)

    def close(self) -> None:
        """Let go of NVML, once all calls have returned; a second call does nothing."""
        if not self._open:
            return
        self._open = False
        self._first_calls.wait()
        self._events.close()
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
            if device.uuid
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
        if not any(device.uuid for device in devices):
            reason = f"no GPU answers: {self.unreachable[0]}" if count else "there is no GPU"
            raise BackendUnavailableError(reason)
        return devices

    def _identified(self, count: int) -> Iterator[GpuInfo]:
        """Each GPU with its instances; one that doesn't answer leaves the others' indices alone."""
        for index in range(count):
            try:
                yield from self._first_calls.answer(partial(self._listed, index), _PATIENCE)
            except (self._nvml.NVMLError, CallsHangError) as error:
                self._skip(error, index)
                yield silent_gpu(index, count)

    def _skip(self, error: Exception, index: int) -> None:
        failure = self._classify(error, "enumeration", index)
        failure.__cause__ = error
        logger.warning("%s; the other GPUs are read without it", failure)
        self.unreachable += (failure,)

    def _listed(self, index: int) -> tuple[GpuInfo, ...]:
        handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
        return tuple(self._described(handle, index, uuid_of(self._nvml, handle)))

    def _described(self, handle: object, index: int, uuid: str) -> Iterator[GpuInfo]:
        """A GPU, then its instances, whose memory is then not told of the card as well."""
        properties = FixedProperties(self._nvml, handle)
        info = properties.gpu_info(index, uuid)
        system_memory = self._system_memory_of(info)
        if info.memory_size_bytes is None and system_memory is not None:
            info = replace(info, memory_size_bytes=system_memory.total_bytes())
        parts = []
        if properties.mig():
            self._split.add(uuid)
            parts = list(instances(self._nvml, handle, info))
        yield self._first_seen(handle, replace(info, memory_size_bytes=None) if parts else info)
        self._events.watch(handle, uuid)
        for part_handle, part in parts:
            yield self._first_seen(part_handle, part)

    def _first_seen(self, handle: object, info: GpuInfo) -> GpuInfo:
        """A GPU or instance after its first look."""
        self._faults[info.uuid] = self._new_faults(info)
        sensors = self._watch(handle, info)
        _look_first(sensors)
        return replace(info, power_source=sensors.power_source, memory_source=sensors.memory_source)

    def _watch(self, handle: object, info: GpuInfo) -> NvmlSensors:
        # Not those of the thread that reads the GPU, whose look they would spoil.
        faults = self._new_faults(info)
        self._seldom[info.uuid] = _Seldom(
            processes=ProcessList(self._nvml, handle, faults),
            trouble=DeviceTrouble(self._nvml, handle, faults),
        )
        sensors = self._new_sensors(handle, info)
        self._sensors[info.uuid] = sensors
        self._losses.pop(info.uuid, None)
        return sensors

    def _new_sensors(self, handle: object, info: GpuInfo) -> NvmlSensors:
        faults = self._faults[info.uuid]
        if info.parent is not None:
            return InstanceSensors(self._nvml, handle, info, faults)
        is_split = info.uuid in self._split
        plan = SensorPlan(
            limit_fields=self._limit_fields,
            mig=is_split,
            has_memory=not is_split or info.memory_size_bytes is not None,
            memory_size_bytes=info.memory_size_bytes,
            system_memory=self._system_memory_of(info),
        )
        return NvmlSensors(self._nvml, handle, plan, faults, self.energy_check(info.gpu))

    def _system_memory_of(self, info: GpuInfo) -> SystemMemory | None:
        """The system's memory, where that is what a GPU has."""
        return self._system_memory if shares_system_memory(info.name) else None

    def _found_again(self, device: GpuInfo) -> NvmlSensors:
        return self._watch(self._handle(device), device)

    def _driver_of(self, device: GpuInfo) -> Driver:
        """The driver's calls for a GPU, apart from those that read it."""
        return Driver(self._nvml, self._handle(device))

    def _handle(self, device: GpuInfo) -> object:
        silence = self._silence(device)
        if silence is not None:
            raise _as_loss(silence) from silence
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

    def _silence(self, device: GpuInfo) -> DeviceError | None:
        """Why a GPU could not be identified at the start; None if it was."""
        if device.uuid:
            return None
        return next((e for e in self.unreachable if e.device_index == device.index), None)

    def _troubles(self, device: GpuInfo) -> Iterator[str]:
        loss = self._losses.get(device.uuid) or self._silence(device)
        if loss is not None:
            yield str(loss).removeprefix(f"GPU {device.index}: ")
        xid = self._events.newest(device.uuid, is_lost=loss is not None)
        if xid is not None:
            yield xid_text(xid)
        seldom = self._seldom.get(device.uuid)
        if seldom is not None and device.parent is None:
            yield from seldom.trouble.lines()

    def _presence(self) -> Presence:
        """What was there at the start."""
        cards = {info.gpu: info for info in self._devices if info.uuid and info.parent is None}
        return Presence(
            cards={info.uuid: info.index for info in cards.values()},
            split=frozenset(self._split),
            instances={info.uuid: cards[info.parent].uuid for info in self._devices if info.parent},
            silent=frozenset(info.index for info in self._devices if not info.uuid),
        )

    def _new_faults(self, info: GpuInfo) -> DeviceFaults:
        return DeviceFaults(info.index, self._vendor_errors(), self._clock)

    def _lost(self, error: Exception, index: int) -> DeviceError:
        """Any failure to find a GPU again leaves it lost, whatever the code."""
        return _as_loss(self._classify(error, "nvmlDeviceGetHandleByUUID", index))

    def _vendor_errors(self) -> VendorErrors:
        return VendorErrors(base=self._nvml.NVMLError, classify=self._classify)

    @staticmethod
    def _classify(error: Exception, operation: str, index: int) -> DeviceError:
        code = getattr(error, "value", None)
        return device_error(code, str(error), operation=operation, device_index=index)


def _as_loss(failure: DeviceError) -> DeviceLostError:
    """A failure that leaves a GPU lost, whatever its code."""
    return DeviceLostError(
        str(failure),
        operation=failure.operation,
        device_index=failure.device_index,
        vendor_code=failure.vendor_code,
    )


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
