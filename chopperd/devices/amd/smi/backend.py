"""AMD GPUs through AMD SMI: start, enumeration, reads, end.

Not verified on hardware: what is said here of the library is what its headers and sources say.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from chopperd.clock import Clock, SystemClock
from chopperd.devices.amd.identity import kfd_nodes
from chopperd.devices.amd.planning import sensor_reads
from chopperd.devices.amd.probe import Asker, told_by_card
from chopperd.devices.amd.sensors import AmdSensors, GpuTraits
from chopperd.devices.amd.smi import calls
from chopperd.devices.amd.smi.calls import ProcessList, troubles
from chopperd.devices.amd.smi.codes import device_error
from chopperd.devices.amd.smi.library import Library, SmiError, open_library
from chopperd.devices.amd.smi.metrics import Prober, SmiSource, check_size, layout_of
from chopperd.devices.amd.smi.processors import (
    Card,
    Presence,
    Processor,
    cards,
    driver_version,
    handles,
    present,
    processor,
    uuid,
)
from chopperd.devices.base import BackendOptions, SensorRead
from chopperd.devices.channel import (
    CallsHangError,
    DeviceFaults,
    Patience,
    PatientCalls,
    VendorErrors,
)
from chopperd.devices.read_plan import ReadPlan
from chopperd.errors import BackendUnavailableError, DeviceError, DeviceLostError
from chopperd.model.devices import (
    DeviceReading,
    FieldProbe,
    GpuInfo,
    GpuProcess,
    ReadScope,
    Vendor,
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where the kernel shows what AMD SMI does not tell.

    Attributes:
        sysfs: The root of sysfs.
        kfd: The device file of the kernel's compute driver.
    """

    sysfs: Path = Path("/sys")
    kfd: Path = Path("/dev/kfd")


PLACES: Final = Places()
#: A GPU that fails to say at first where its power comes from is asked so often.
_FIRST_LOOKS: Final = 3
#: How long the first calls for all GPUs together are waited for: some twenty for each.
PATIENCE: Final = Patience(first_s=6.0, later_s=6.0)


def open_backend(_options: BackendOptions) -> "AmdSmiBackend":
    """The back end for this machine's AMD GPUs.

    Raises:
        BackendUnavailableError: No binding, no library that fits it, no driver, or no GPU.
    """
    return AmdSmiBackend(open_library(), SystemClock())


@dataclass(slots=True, kw_only=True)
class _Gpu:
    """A GPU and how it is read.

    Attributes:
        info: Who it is; without where its power comes from.
        processor: Speaks for it.
        faults: Of the thread that reads it.
        processes: Of the thread that watches it.
        sensors: None after it was lost.
        loss: Why it is, then.
    """

    info: GpuInfo
    processor: Processor
    faults: DeviceFaults
    processes: ProcessList
    sensors: AmdSensors | None = None
    loss: DeviceError | None = None

    @property
    def gives_metrics(self) -> bool:
        """Whether its block has ever come."""
        return self.sensors is not None and self.sensors.block.header is not None


class AmdSmiBackend:
    """Reads the GPUs that AMD SMI lists; holds the library from construction until `close`.

    Of a card that is split its partitions are listed after it: they have its clock, power and
    memory in common, which it tells.

    One call is made at a time, whichever GPU it is for. So first calls that hang leave no GPU to be
    read: they make the back end unavailable, and the library stays as it is.

    Args:
        library: Started; ended by `close`.
        clock: Tells the time.
        places: Where the kernel's files are.
        patience: How long the first calls for all GPUs together are waited for.
    """

    name = "amdsmi"
    simulated = False

    def __init__(
        self,
        library: Library,
        clock: Clock,
        places: Places = PLACES,
        patience: Patience = PATIENCE,
    ) -> None:
        self._library = library
        self._clock = clock
        self._places = places
        self._gpus: dict[str, _Gpu] = {}
        self._layout = layout_of(library)
        self._open = True
        first_calls = PatientCalls("its first calls")
        try:
            self._devices = first_calls.answer(self._enumerated, patience)
            self._presence = first_calls.answer(self._present, patience)
        except CallsHangError as error:
            raise BackendUnavailableError(f"AMD SMI hangs: {error}") from error
        except BaseException:
            self.close()
            raise

    def devices(self) -> tuple[GpuInfo, ...]:
        """The GPUs at the start, in the library's order, each before its partitions."""
        return self._devices

    def read(self, device: GpuInfo, scope: ReadScope) -> DeviceReading:
        """One look at a GPU; a partition tells nothing that its card does not.

        Raises:
            TransientDeviceError: This look failed; the next may succeed.
            DeviceLostError: The GPU is gone, or never was one of ours.
        """
        if device.parent is not None and self._open and device in self._devices:
            return DeviceReading()
        gpu = self._gpu(device)
        try:
            reading = self._sensors(gpu).read(scope)
        except DeviceLostError as error:
            gpu.loss, gpu.sensors = error, None
            raise
        gpu.loss = None
        return reading

    def read_plan(self, device: GpuInfo, scope: ReadScope) -> ReadPlan | None:
        """How to read a GPU without this object; None where `read` must.

        By the thread that reads the GPU: plan and reads share buffers.
        """
        gpu = self._gpus.get(device.uuid) if self._open else None
        if gpu is None or gpu.sensors is None or device.parent is not None:
            return None
        return gpu.sensors.read_plan(scope)

    def sensor_reads(self, device: GpuInfo) -> Mapping[str, SensorRead]:
        """How to read single sensors of a GPU back to back, for any thread."""
        gpu = self._gpus.get(device.uuid)
        source = None if gpu is None or device.parent else self._source(gpu)
        return {} if source is None else sensor_reads(source, device.power_source, SmiError)

    def probe(self, device: GpuInfo, calls_count: int = 100) -> tuple[FieldProbe, ...]:
        """What each call for a GPU gives now, made up to `calls_count` times; takes long.

        Raises:
            DeviceLostError: The GPU is gone, or never was one of ours.
        """
        if device.parent is not None and device in self._devices:
            return (told_by_card(device.parent),)
        gpu = self._gpu(device)
        source = self._source(gpu)
        prober = Prober(
            library=self._library,
            handle=gpu.processor.handle,
            source=source,
            asker=Asker(faults=gpu.faults, clock=self._clock, calls_count=calls_count),
        )
        return tuple(prober.all())

    def buffered_period_ns(self, device: GpuInfo, field: str) -> int | None:
        """None: AMD SMI keeps no samples of its own."""
        del device, field
        return None

    def processes(self, device: GpuInfo) -> tuple[GpuProcess, ...] | None:
        """The processes on a GPU, those of all its partitions; None where that is not told.

        Raises:
            TransientDeviceError: The call failed this time.
            DeviceLostError: The GPU is gone.
        """
        gpu = self._gpus.get(device.uuid)
        return None if gpu is None or device.parent else gpu.processes.now()

    def trouble(self, device: GpuInfo) -> str | None:
        """What is known to be wrong with a GPU, for people; None if nothing is. Never raises."""
        gpu = self._gpus.get(device.uuid)
        if gpu is None or device.parent is not None:
            return None
        loss = [] if gpu.loss is None else [str(gpu.loss).removeprefix(f"GPU {device.index}: ")]
        known = troubles(self._library, gpu.processor.handle) if self._open else ()
        return "; ".join((*loss, *known)) or None

    def changed(self) -> str | None:
        """What came or went since the start, for people; None if nothing did. Never raises.

        The library lists what there was when it started, so that the kernel is asked as well.
        """
        try:
            now = self._present() if self._open else None
        except SmiError:
            return None
        return None if now is None else self._presence.difference(now)

    def shortfall(self) -> str | None:
        """Which GPUs give no metrics, so that only what other calls tell is known of them."""
        silent = [gpu.info.gpu for gpu in self._gpus.values() if not gpu.gives_metrics]
        return f"no metrics of GPU {', '.join(silent)}" if silent else None

    def close(self) -> None:
        """Let go of the library; a second call does nothing."""
        if self._open:
            self._open = False
            self._library.close()

    @property
    def driver(self) -> str | None:
        """The version of the kernel's driver and of the library."""
        return self._driver

    def failed_total(self) -> dict[tuple[str, str], int]:
        """Failed calls since the start, by GPU label and operation."""
        return self._by_gpu(lambda faults: faults.failed_total)

    def implausible_total(self) -> dict[tuple[str, str], int]:
        """Values dropped as absurd since the start, by GPU label and field."""
        return self._by_gpu(lambda faults: faults.implausible_total)

    def _by_gpu(self, counts: Callable[[DeviceFaults], Counter[str]]) -> dict[tuple[str, str], int]:
        """Counts of all GPUs; copied first, since their threads go on counting."""
        return {
            (gpu.info.gpu, what): count
            for gpu in self._gpus.values()
            for what, count in dict(counts(gpu.faults)).items()
        }

    def _enumerated(self) -> tuple[GpuInfo, ...]:
        """Everything that is asked of the library at first."""
        try:
            found = handles(self._library)
            nodes = kfd_nodes(self._places.sysfs)
            listed = cards(tuple(processor(self._library, handle, nodes) for handle in found))
        except SmiError as error:
            raise BackendUnavailableError(f"AMD SMI lists no GPUs: {error}") from error
        if not listed:
            raise BackendUnavailableError(self._no_devices())
        self._driver = driver_version(self._library, found)
        return tuple(
            info for place, card in enumerate(listed) for info in self._listed(place, card)
        )

    def _no_devices(self) -> str:
        if self._places.kfd.exists():
            return (
                f"AMD SMI lists no devices though the driver is present ({self._places.kfd}): "
                "are /dev/dri/renderD* there, and readable for this user (group render)?"
            )
        return "there is no AMD GPU"

    def _listed(self, index: int, card: Card) -> Iterator[GpuInfo]:
        """A GPU, then its partitions."""
        whole = card.whole
        if index == 0:
            check_size(self._library, whole.handle, self._layout)
        info = GpuInfo(
            gpu=str(index),
            index=index,
            uuid=self._own_uuid(whole),
            name=whole.name,
            vendor=Vendor.AMD,
            pci_bus_id=whole.pci_bus_id,
            kfd_node=None if card.partitions else whole.kfd_node,
        )
        info = replace(info, **calls.fixed(self._library, whole.handle))  # type: ignore[arg-type]
        yield self._first_seen(info, whole)
        for part in card.partitions:
            yield GpuInfo(
                gpu=f"{index}.{part.partition}",
                index=index,
                uuid=uuid(part, is_partition=True),
                name=info.name,
                vendor=Vendor.AMD,
                pci_bus_id=info.pci_bus_id,
                parent=info.gpu,
                sm_clock_max_mhz=info.sm_clock_max_mhz,
                kfd_node=part.kfd_node,
            )

    def _own_uuid(self, whole: Processor) -> str:
        """A GPU's name for ever; its address where another one has the same id."""
        known = uuid(whole)
        return whole.pci_bus_id if known in self._gpus else known

    def _first_seen(self, info: GpuInfo, found: Processor) -> GpuInfo:
        """A GPU after its first look."""
        faults = self._new_faults(info, found)
        gpu = self._gpus[info.uuid] = _Gpu(
            info=info,
            processor=found,
            faults=faults,
            processes=ProcessList(self._library, found.handle, self._new_faults(info, found)),
        )
        try:
            sensors = self._sensors(gpu)
            for _ in range(_FIRST_LOOKS):
                sensors.read(ReadScope.FULL)
                if sensors.is_settled:
                    break
        except DeviceError as error:
            logger.warning("first look failed: %s", error)
            if isinstance(error, DeviceLostError):
                gpu.loss, gpu.sensors = error, None
        source = gpu.sensors.power_source if gpu.sensors else None
        return replace(info, power_source=source)

    def _gpu(self, device: GpuInfo) -> _Gpu:
        gpu = self._gpus.get(device.uuid) if self._open else None
        if gpu is None:
            raise _lost(f"GPU {device.gpu} ({device.uuid}) is not one of AMD SMI's", device.index)
        return gpu

    def _sensors(self, gpu: _Gpu) -> AmdSensors:
        """What reads a GPU; made anew after it was lost, since all may have begun anew."""
        if gpu.sensors is None:
            handle, info = gpu.processor.handle, gpu.info
            traits = GpuTraits(
                label=info.gpu,
                gives_card_power=gpu.processor.is_die,
                stand_ins=calls.stand_ins(self._library, handle),
                beside=calls.beside(self._library, handle, info.memory_size_bytes),
                hotspot_limit_c=info.temperature_slowdown_c,
            )
            gpu.sensors = AmdSensors(self._source(gpu), traits, gpu.faults)
        return gpu.sensors

    def _source(self, gpu: _Gpu) -> SmiSource:
        """A GPU's block, with a buffer of its own."""
        return SmiSource(self._library, gpu.processor.handle, self._layout)

    def _present(self) -> Presence:
        return present(self._library, self._places.sysfs)

    def _new_faults(self, info: GpuInfo, found: Processor) -> DeviceFaults:
        """Faults of a GPU; one whose PCI device the kernel has no more is lost, whatever failed."""
        folder = self._places.sysfs / "bus/pci/devices" / found.pci_bus_id
        was_there = folder.exists()

        def classify(error: Exception, operation: str, index: int) -> DeviceError:
            code = error.code if isinstance(error, SmiError) else -1
            if was_there and not folder.exists():
                return _lost(f"GPU {index}: {found.pci_bus_id} is gone", index)
            return device_error(code, str(error), operation=operation, device_index=index)

        return DeviceFaults(info.index, VendorErrors(base=SmiError, classify=classify), self._clock)


def _lost(text: str, index: int) -> DeviceLostError:
    return DeviceLostError(text, operation="amdsmi_get_gpu_metrics_info", device_index=index)
