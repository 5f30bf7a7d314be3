"""Back end "nvml": NVIDIA GPUs through NVML. The only module that imports `pynvml`.

What single calls and numbers mean is in `table` and `codes`.
"""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from types import ModuleType

from msgspec.structs import replace

from chopperd.clock import Clock, SystemClock
from chopperd.devices.base import BackendOptions, SensorRead
from chopperd.devices.channel import EnergyCheck, settle
from chopperd.devices.faults import (
    CallsHangError,
    DeviceFaults,
    FieldProber,
    TimedCalls,
    Timeouts,
    VendorErrors,
    as_kind,
    counts_by_gpu,
    not_listed,
)
from chopperd.devices.nvml.calls import Driver
from chopperd.devices.nvml.codes import device_error, limit_fields
from chopperd.devices.nvml.health import DeviceHealth, XidEvents, xid_text
from chopperd.devices.nvml.identity import (
    FixedProperties,
    Presence,
    SystemMemory,
    difference,
    instances,
    present,
    shares_system_memory,
    silent_gpu,
    text_of,
    uuid_of,
)
from chopperd.devices.nvml.probe import (
    SAMPLING_TYPES,
    board_probes,
    buffered_times_us,
    memory_probes,
    sensor_reads,
    spacing_ns,
)
from chopperd.devices.nvml.sensors import BoardTraits, InstanceSensors, NvmlSensors
from chopperd.devices.read_plan import ReadPlan
from chopperd.errors import BackendUnavailableError, DeviceError, DeviceLostError
from chopperd.model.devices import DeviceReading, FieldProbe, GpuInfo, GpuProcess, ReadScope

logger = logging.getLogger(__name__)

_LIBRARY = "libnvidia-ml.so.1"
_TIMEOUTS = Timeouts(first_s=2.0, later_s=0.5)


def open_backend(_options: BackendOptions) -> "NvmlBackend":
    """Open the back end for this machine's NVIDIA GPUs.

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


@dataclass(slots=True, kw_only=True)
class _Gpu:
    """State of a GPU or GPU instance while the back end is open."""

    info: GpuInfo  # without the sources of power and memory
    faults: DeviceFaults  # of the thread that reads it
    health: DeviceHealth  # for another thread, with faults of its own
    sensors: NvmlSensors | None  # None while it is lost
    loss: DeviceError | None = None


class NvmlBackend:
    """Reads the GPUs that NVML lists; holds NVML from construction until `close`.

    GPUs that do not answer at the start, or hang, are listed by their index, without a UUID, and
    are lost; `changed` reports when they answer. A card in MIG mode is followed by its GPU
    instances.
    """

    name = "nvml"
    simulated = False
    #: Made for each GPU; tests use one that has passed.
    energy_check: type[EnergyCheck] = EnergyCheck

    def __init__(
        self, nvml: ModuleType, clock: Clock, system_memory: SystemMemory | None = None
    ) -> None:
        self._nvml = nvml
        self._clock = clock
        self._system_memory = system_memory or SystemMemory()
        self._gpus: dict[str, _Gpu] = {}
        self._split: set[str] = set()
        self._first_calls = TimedCalls("its first calls")
        self._unreachable: list[DeviceError] = []
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
        """Return the GPUs that NVML counted at the start, in order, each before its instances."""
        return self._devices

    def read(self, device: GpuInfo, scope: ReadScope) -> DeviceReading:
        """Read a GPU's sensors once; a lost GPU is first searched for again by its UUID.

        A loss is stored until the GPU is found again.
        """
        gpu = self._gpus.get(device.uuid)
        if gpu is None or gpu.sensors is None:
            gpu = self._add(self._handle(device), device)
        assert gpu.sensors is not None
        try:
            return gpu.sensors.read(scope)
        except DeviceLostError as error:
            gpu.loss, gpu.sensors = error, None
            raise

    def sensor_reads(self, device: GpuInfo) -> Mapping[str, SensorRead]:
        """Return functions that read a sensor of a GPU each, on any thread; none if it is gone."""
        return sensor_reads(self._nvml, device)

    def read_plan(self, device: GpuInfo, scope: ReadScope) -> ReadPlan | None:
        """Return the plan of a read; None where `read` must be called. Makes no driver call.

        Only for the thread that reads the GPU, as plan and reads share buffers.
        """
        gpu = self._gpus.get(device.uuid)
        return None if gpu is None or gpu.sensors is None else gpu.sensors.read_plan(scope)

    def probe(self, device: GpuInfo, calls_count: int = 100) -> tuple[FieldProbe, ...]:
        """Make each call for a GPU and return what it answers and how long it takes; slow."""
        driver = Driver(self._nvml, self._handle(device))
        prober = FieldProber(faults=self._gpus[device.uuid].faults, calls_count=calls_count)
        board = () if device.parent else board_probes(driver, prober, self._limit_fields)
        return (*board, *memory_probes(driver, prober, self._system_memory_of(device)))

    def buffered_period_ns(self, device: GpuInfo, field: str) -> int | None:
        """Return the period, in ns, of a field's samples that the driver stores; None if none.

        Never raises. Source: time stamps of nvmlDeviceGetSamples.
        """
        if field not in SAMPLING_TYPES:
            return None
        try:
            driver = Driver(self._nvml, self._handle(device))
            return spacing_ns(buffered_times_us(driver, SAMPLING_TYPES[field]))
        except (DeviceError, self._nvml.NVMLError):
            return None

    def processes(self, device: GpuInfo) -> tuple[GpuProcess, ...] | None:
        """List the compute processes on a GPU or instance; None if the driver reports none."""
        gpu = self._gpus.get(device.uuid)
        return gpu.health.processes() if gpu else None

    def trouble(self, device: GpuInfo) -> str | None:
        """Return known faults of a GPU in one line of text; None if none. Never raises."""
        return "; ".join(self._problems(device)) or None

    def changed(self) -> str | None:
        """Return which GPUs or instances appeared or disappeared; None if none. Never raises.

        None while the first calls for a GPU hang, as the same calls would hang here.
        """
        if self._first_calls.hang:
            return None
        now = present(self._nvml)
        return None if now is None else difference(self._presence(), now)

    def close(self) -> None:
        """Shut NVML down once all calls have returned; a second call does nothing."""
        if not self._open:
            return
        self._open = False
        self._first_calls.wait()
        self._events.close()
        try:
            self._nvml.nvmlShutdown()
        except self._nvml.NVMLError as error:
            logger.warning("nvmlShutdown failed: %s", error)

    def implausible_total(self) -> dict[tuple[str, str], int]:
        """Return the number of implausible values dropped, by GPU label and field."""
        gpus = tuple(self._gpus.values())
        return counts_by_gpu((gpu.info.gpu, gpu.faults.implausible_total) for gpu in gpus)

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
            reason = f"no GPU answers: {self._unreachable[0]}" if count else "there is no GPU"
            raise BackendUnavailableError(reason)
        return devices

    def _identified(self, count: int) -> Iterator[GpuInfo]:
        """Yield each GPU with its instances; one that does not answer, by its index alone."""
        for index in range(count):
            try:
                yield from self._first_calls.answer(partial(self._listed, index), _TIMEOUTS)
            except (self._nvml.NVMLError, CallsHangError) as error:
                failure = self._classify(error, "enumeration", index)
                failure.__cause__ = error
                logger.warning("%s; the other GPUs are read without it", failure)
                self._unreachable.append(failure)
                yield silent_gpu(index, count)

    def _listed(self, index: int) -> tuple[GpuInfo, ...]:
        handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
        return tuple(self._described(handle, index, uuid_of(self._nvml, handle)))

    def _described(self, handle: object, index: int, uuid: str) -> Iterator[GpuInfo]:
        """Add and yield a GPU, then its instances; a GPU with instances is given no memory."""
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
        """Add a GPU or instance, read it, and return it with its power and memory sources."""
        sensors = self._add(handle, info).sensors
        assert sensors is not None
        settle(sensors)
        return replace(info, power_source=sensors.power_source, memory_source=sensors.memory_source)

    def _add(self, handle: object, info: GpuInfo) -> _Gpu:
        """Create and store the state of a GPU or instance, at the start or after a loss."""
        known = self._gpus.get(info.uuid)
        faults = known.faults if known else self._new_faults(info)
        gpu = self._gpus[info.uuid] = _Gpu(
            info=info,
            faults=faults,
            health=DeviceHealth(self._nvml, handle, self._new_faults(info)),
            sensors=self._new_sensors(handle, info, faults),
        )
        return gpu

    def _new_sensors(self, handle: object, info: GpuInfo, faults: DeviceFaults) -> NvmlSensors:
        if info.parent is not None:
            return InstanceSensors(self._nvml, handle, info, faults)
        is_split = info.uuid in self._split
        traits = BoardTraits(
            limit_fields=self._limit_fields,
            mig=is_split,
            has_memory=not is_split or info.memory_size_bytes is not None,
            memory_size_bytes=info.memory_size_bytes,
            system_memory=self._system_memory_of(info),
        )
        return NvmlSensors(self._nvml, handle, traits, faults, self.energy_check(info.gpu))

    def _system_memory_of(self, info: GpuInfo) -> SystemMemory | None:
        """Return the system's memory if the GPU uses it; else None."""
        return self._system_memory if shares_system_memory(info.name) else None

    def _handle(self, device: GpuInfo) -> object:
        silence = self._silence(device)
        if silence is not None:
            raise as_kind(silence, DeviceLostError) from silence
        if device.uuid not in self._gpus:
            raise not_listed(device, "nvmlDeviceGetHandleByUUID")
        try:
            handle: object = self._nvml.nvmlDeviceGetHandleByUUID(device.uuid)
        except self._nvml.NVMLError as error:
            # Whatever the code, a GPU that is not found again stays lost.
            failure = self._classify(error, "nvmlDeviceGetHandleByUUID", device.index)
            raise as_kind(failure, DeviceLostError) from error
        return handle

    def _silence(self, device: GpuInfo) -> DeviceError | None:
        """Return why a GPU could not be identified at the start; None if it was."""
        if device.uuid:
            return None
        return next((e for e in self._unreachable if e.device_index == device.index), None)

    def _problems(self, device: GpuInfo) -> Iterator[str]:
        gpu = self._gpus.get(device.uuid)
        loss = gpu.loss if gpu else self._silence(device)
        if loss is not None:
            yield str(loss).removeprefix(f"GPU {device.index}: ")
        xid = self._events.newest(device.uuid, is_lost=loss is not None)
        if xid is not None:
            yield xid_text(xid)
        if gpu is not None and device.parent is None:
            yield from gpu.health.problems()

    def _presence(self) -> Presence:
        """Return the GPUs and instances found at the start."""
        cards = {info.gpu: info for info in self._devices if info.uuid and info.parent is None}
        return Presence(
            cards={info.uuid: info.index for info in cards.values()},
            split=frozenset(self._split),
            instances={info.uuid: cards[info.parent].uuid for info in self._devices if info.parent},
            silent=frozenset(info.index for info in self._devices if not info.uuid),
        )

    def _new_faults(self, info: GpuInfo) -> DeviceFaults:
        errors = VendorErrors(base=self._nvml.NVMLError, classify=self._classify)
        return DeviceFaults(info.index, errors, self._clock)

    @staticmethod
    def _classify(error: Exception, operation: str, index: int) -> DeviceError:
        code = getattr(error, "value", None)
        return device_error(code, str(error), operation=operation, device_index=index)
