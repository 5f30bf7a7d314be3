"""Back end "amdsmi": AMD GPUs through AMD SMI.

Not verified on hardware: the library is as its headers and sources describe it.
"""

from collections.abc import Iterable, Iterator
from ctypes import addressof, c_uint32, create_string_buffer, sizeof
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from chopperd.clock import Clock, SystemClock
from chopperd.devices.amd.backend import AmdBackend, AmdGpu
from chopperd.devices.amd.block import MetricsSource
from chopperd.devices.amd.identity import kfd_nodes, partition_info, uuid_of
from chopperd.devices.amd.kernel.cards import cards as kernel_cards
from chopperd.devices.amd.sensors import ExtraField, GpuTraits
from chopperd.devices.amd.smi import calls
from chopperd.devices.amd.smi.library import (
    METRICS_CALL,
    NOT_SUPPORTED,
    OUT_OF_RESOURCES,
    SPARE_BYTES,
    Library,
    SmiError,
    device_error,
    open_library,
)
from chopperd.devices.amd.smi.processors import Processor, cards, driver_version, handles, processor
from chopperd.devices.base import BackendOptions
from chopperd.devices.faults import CallsHangError, TimedCalls, Timeouts, VendorErrors
from chopperd.errors import BackendUnavailableError, DeviceError, DeviceLostError
from chopperd.model.devices import GpuInfo, GpuProcess, Vendor


@dataclass(frozen=True, slots=True, kw_only=True)
class Paths:
    """Paths of sysfs and of the kernel compute driver's device file."""

    sysfs: Path = Path("/sys")
    kfd: Path = Path("/dev/kfd")


PATHS: Final = Paths()
#: How long the first calls for all GPUs together may take: some twenty for each.
TIMEOUTS: Final = Timeouts(first_s=6.0, later_s=6.0)


def open_backend(_options: BackendOptions) -> "AmdSmiBackend":
    """Open the back end for this machine's AMD GPUs.

    Raises:
        BackendUnavailableError: No binding, no library that fits it, no driver, or no GPU.
    """
    return AmdSmiBackend(open_library(), SystemClock())


class AmdSmiBackend(AmdBackend[Processor]):
    """Reads the GPUs that AMD SMI lists, in its order; owns the library until `close`.

    One call is made at a time, for any GPU: if the first calls for all GPUs hang, no GPU can be
    read, and the back end is unavailable. The library then stays open.
    """

    name = "amdsmi"
    vendor_error = SmiError
    metrics_call = METRICS_CALL

    def __init__(
        self, library: Library, clock: Clock, paths: Paths = PATHS, timeouts: Timeouts = TIMEOUTS
    ) -> None:
        super().__init__(clock)
        self._library = library
        self._paths = paths
        self._layout = calls.layout_of(library)
        first_calls = TimedCalls("its first calls")
        try:
            self._devices = first_calls.answer(self._enumerated, timeouts)
            self._count = len(first_calls.answer(partial(handles, library), timeouts))
        except CallsHangError as error:
            raise BackendUnavailableError(f"AMD SMI hangs: {error}") from error
        except BaseException:
            self.close()
            raise
        self._at_start = self._present()

    def processes(self, device: GpuInfo) -> tuple[GpuProcess, ...] | None:
        """List the processes on a GPU, including its partitions; None if not reported."""
        gpu = self._gpus.get(device.uuid)
        if gpu is None:
            return None
        listed = partial(_processes, self._library, gpu.card.handle)
        return gpu.other_faults.processes(_PROCESSES, listed)

    def shortfall(self) -> str | None:
        """Return which GPUs give no block of metrics, as text; None if all give one."""
        silent = [
            gpu.info.gpu
            for gpu in self._all()
            if gpu.sensors is None or gpu.sensors.block.header is None
        ]
        return f"no metrics of GPU {', '.join(silent)}" if silent else None

    def close(self) -> None:
        """Close the library; a second call does nothing."""
        super().close()
        self._library.close()

    def _changes(self) -> list[str]:
        """Return changes in the kernel's list and in the library's, which may not be updated."""
        try:
            count = len(handles(self._library)) if self._open else self._count
        except SmiError:
            return []
        lines = super()._changes() if self._open else []
        if count != self._count:
            lines.append(f"AMD SMI lists {count} processors, not {self._count} as before")
        return lines

    def _present(self) -> frozenset[str]:
        sysfs = self._paths.sysfs
        names = {card.pci_bus_id for card in kernel_cards(sysfs)}
        names |= {f"{node.pci_bus_id} partition {node.partition}" for node in kfd_nodes(sysfs)}
        return frozenset(names)

    def _enumerated(self) -> tuple[GpuInfo, ...]:
        """List the GPUs and read each once; store the driver's version."""
        try:
            found = handles(self._library)
            nodes = kfd_nodes(self._paths.sysfs)
            listed = cards(tuple(processor(self._library, handle, nodes) for handle in found))
        except SmiError as error:
            raise BackendUnavailableError(f"AMD SMI lists no GPUs: {error}") from error
        if not listed:
            raise BackendUnavailableError(self._no_devices())
        self.driver = driver_version(self._library, found)
        calls.check_size(self._library, listed[0][0].handle, self._layout)
        return tuple(
            info for index, parts in enumerate(listed) for info in self._listed(index, parts)
        )

    def _no_devices(self) -> str:
        if self._paths.kfd.exists():
            return (
                f"AMD SMI lists no devices though the driver is present ({self._paths.kfd}): "
                "are /dev/dri/renderD* there, and readable for this user (group render)?"
            )
        return "there is no AMD GPU"

    def _listed(self, index: int, parts: tuple[Processor, ...]) -> Iterator[GpuInfo]:
        """Add a GPU and yield its identity, then those of its partitions if it has several."""
        whole, is_split = parts[0], len(parts) > 1
        info = GpuInfo(
            gpu=str(index),
            index=index,
            uuid=uuid_of(whole.unique_id) or whole.pci_bus_id,
            name=whole.name,
            vendor=Vendor.AMD,
            pci_bus_id=whole.pci_bus_id,
            kfd_node=None if is_split else whole.kfd_node,
        )
        fixed = calls.values_of(calls.fields_of(self._library, whole.handle, calls.FIXED))
        info = replace(info, **fixed)
        yield self._add(info, whole, self._vendor_errors(whole))
        for part in parts if is_split else ():
            yield partition_info(info, part.partition, part.unique_id, part.kfd_node)

    def _new_source(self, gpu: AmdGpu[Processor]) -> MetricsSource:
        return calls.SmiSource(self._library, gpu.card.handle, self._layout)

    def _traits(self, gpu: AmdGpu[Processor]) -> GpuTraits:
        fields = partial(calls.fields_of, self._library, gpu.card.handle)
        return GpuTraits(
            label=gpu.info.gpu,
            gives_card_power=gpu.card.is_die,
            fallbacks=fields(calls.FALLBACKS),
            extra=fields(calls.EXTRA, gpu.info.memory_size_bytes),
            hotspot_limit_c=gpu.info.temperature_slowdown_c,
        )

    def _fixed(self, gpu: AmdGpu[Processor]) -> tuple[ExtraField, ...]:
        return calls.fields_of(self._library, gpu.card.handle, calls.FIXED)

    def _problems(self, gpu: AmdGpu[Processor]) -> Iterable[str]:
        return _problems(self._library, gpu.card.handle)

    def _vendor_errors(self, found: Processor) -> VendorErrors:
        """Return how to classify a GPU's errors: any is a loss once the PCI device is gone."""
        folder = self._paths.sysfs / "bus/pci/devices" / found.pci_bus_id
        was_there = folder.exists()

        def classify(error: Exception, operation: str, index: int) -> DeviceError:
            code = error.code if isinstance(error, SmiError) else -1
            if was_there and not folder.exists():
                return DeviceLostError(
                    f"GPU {index}: {found.pci_bus_id} is gone",
                    operation=METRICS_CALL,
                    device_index=index,
                )
            return device_error(code, str(error), operation=operation, device_index=index)

        return VendorErrors(base=SmiError, classify=classify)


# Calls that are made rarely, by another thread than the one that reads the GPU.

_PROCESSES: Final = "amdsmi_get_gpu_process_list"
_MOST_PROCESSES: Final = 256


def _processes(library: Library, handle: int) -> Iterator[GpuProcess]:
    """Yield the compute processes of a GPU, 256 at most; raises SmiError.

    Source: amdsmi_get_gpu_process_list: pid, of the initial pid namespace where the library sees
    that, and bytes of device memory.
    """
    row_type = library.binding.structure("amdsmi_proc_info_t")
    if row_type is None:
        raise SmiError(NOT_SUPPORTED, "this version of AMD SMI has no amdsmi_proc_info_t")
    out = create_string_buffer(_MOST_PROCESSES * sizeof(row_type) + SPARE_BYTES)
    count = c_uint32(_MOST_PROCESSES)
    try:
        library.call(_PROCESSES, handle, addressof(count), addressof(out))
    except SmiError as error:
        if error.code != OUT_OF_RESOURCES:  # more processes than fit: return those that do
            raise
    for index in range(min(count.value, _MOST_PROCESSES)):
        row = row_type.from_buffer(out, index * sizeof(row_type))
        yield GpuProcess(
            pid=int(getattr(row, "pid", 0)), memory_used_bytes=int(getattr(row, "mem", 0))
        )


def _problems(library: Library, handle: int) -> Iterator[str]:
    """Yield a text for each fault of a GPU that AMD SMI reports; never raises `SmiError`.

    Source: amdsmi_get_gpu_total_ecc_count, amdsmi_get_gpu_bad_page_info.
    """
    out = library.filled("amdsmi_get_gpu_total_ecc_count", handle, "amdsmi_error_count_t")
    count = 0 if out is None else int(getattr(out.fields, "uncorrectable_count", 0))
    if 0 < count < 1 << 63:
        yield f"{count} uncorrectable memory errors since the driver loaded"
    pages_count = c_uint32(0)
    try:
        library.call("amdsmi_get_gpu_bad_page_info", handle, addressof(pages_count), None)
    except SmiError:
        return
    if pages_count.value:
        yield f"{pages_count.value} bad memory pages"
