"""Back end "amdsmi": AMD GPUs through AMD SMI.

Not verified on hardware: the library is as its headers and sources describe it.
"""

from collections.abc import Iterable, Iterator, Sequence
from ctypes import addressof, c_uint32, c_void_p, create_string_buffer, sizeof
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from struct import Struct
from typing import Final

from msgspec import structs

from chopperd.clock import Clock, SystemClock
from chopperd.devices.amd.backend import AmdBackend, AmdGpu
from chopperd.devices.amd.block import MetricsSource
from chopperd.devices.amd.identity import (
    TWO_DIE_DEVICES,
    KfdNode,
    kfd_nodes,
    partition_info,
    pci_bus_id,
    uuid_of,
)
from chopperd.devices.amd.kernel.cards import cards as kernel_cards
from chopperd.devices.amd.sensors import ExtraField, GpuTraits
from chopperd.devices.amd.smi import calls
from chopperd.devices.amd.smi.library import (
    METRICS_CALL,
    NOT_SUPPORTED,
    OUT_OF_RESOURCES,
    SPARE_BYTES,
    Library,
    OutBuffer,
    SmiError,
    device_error,
    open_library,
)
from chopperd.devices.base import BackendOptions
from chopperd.devices.faults import CallsHangError, TimedCalls, Timeouts, VendorErrors
from chopperd.errors import BackendUnavailableError, DeviceError, DeviceLostError
from chopperd.model.devices import GpuInfo, GpuProcess, Vendor

_MOST: Final = 1024
_NUMBER: Final = Struct("<Q")
#: All ones in 32 bits: a node or partition that is not reported.
_NOT_REPORTED: Final = 0xFFFF_FFFF


@dataclass(frozen=True, slots=True, kw_only=True)
class Processor:
    """A processor that AMD SMI lists: a GPU, or a partition of one."""

    handle: int  # AMD SMI's handle, valid until the library is closed
    #: PCI address as the kernel writes it; a card's partitions differ in its function.
    pci_bus_id: str
    name: str = "AMD GPU"  # its market name
    device_id: int | None = None  # PCI device id; None if not reported
    unique_id: int | None = None  # the chip's own id; None if it has none, or it is not reported
    kfd_node: int | None = None  # as in `GpuInfo`
    partition: int = 0  # its number on its card

    @property
    def card(self) -> str:
        """PCI address of its card, without the function."""
        return self.pci_bus_id.partition(".")[0]

    @property
    def is_die(self) -> bool:
        """Whether the processor is one of two dies on a card, each of which is a GPU."""
        return self.device_id in TWO_DIE_DEVICES


def handles(library: Library) -> tuple[int, ...]:
    """List the handles of all GPUs, in the library's order; raises SmiError."""
    sockets = _listed(library, "amdsmi_get_socket_handles")
    return tuple(
        handle
        for socket in sockets
        for handle in _listed(library, "amdsmi_get_processor_handles", socket)
    )


def processor(library: Library, handle: int, nodes: Sequence[KfdNode]) -> Processor:
    """Identify the processor that a handle refers to, with the kernel's list for what is missing.

    Raises:
        SmiError: Its PCI address is not reported; everything else may be missing.
    """
    found = _named(library, Processor(handle=handle, pci_bus_id=_address(library, handle)))
    return _numbered(library, found, nodes)


def cards(processors: Sequence[Processor]) -> tuple[tuple[Processor, ...], ...]:
    """Group processors to GPUs: those of the same card and chip are its partitions, in order.

    The first of each group represents the whole GPU.
    """
    grouped: dict[tuple[str, int | None], list[Processor]] = {}
    for each in processors:
        grouped.setdefault((each.card, each.unique_id), []).append(each)
    return tuple(
        tuple(sorted(parts, key=lambda part: part.partition)) for parts in grouped.values()
    )


def _listed(library: Library, call: str, *of: int) -> tuple[int, ...]:
    count = c_uint32(0)
    library.call(call, *of, addressof(count), None)
    found = (c_void_p * min(count.value, _MOST))()
    count = c_uint32(len(found))
    library.call(call, *of, addressof(count), addressof(found))
    return tuple(found[index] or 0 for index in range(min(count.value, len(found))))


def _address(library: Library, handle: int) -> str:
    out = OutBuffer()
    library.call("amdsmi_get_gpu_device_bdf", handle, out.address)
    (bits,) = _NUMBER.unpack_from(out.buffer)
    return pci_bus_id(bits >> 16, bits >> 8 & 0xFF, bits >> 3 & 0x1F, bits & 7)


def _named(library: Library, found: Processor) -> Processor:
    """Return `found` with name and ids, if reported. Source: amdsmi_get_gpu_asic_info."""
    out = library.filled("amdsmi_get_gpu_asic_info", found.handle, "amdsmi_asic_info_t")
    if out is None:
        return found
    return replace(
        found,
        name=_text_of(out, "market_name") or found.name,
        device_id=int(out.fields.device_id) & 0xFFFF or None,
        unique_id=_hexadecimal(_text_of(out, "asic_serial")),
    )


def _numbered(library: Library, found: Processor, nodes: Sequence[KfdNode]) -> Processor:
    """Return `found` with KFD node and partition (amdsmi_get_gpu_kfd_info, from ROCm 6.3 on)."""
    function = int(found.pci_bus_id[-1], 16)
    out = library.filled("amdsmi_get_gpu_kfd_info", found.handle, "amdsmi_kfd_info_t")
    if out is None:
        by_kernel = (each.node for each in nodes if _is_same(each, found, function))
        return replace(found, kfd_node=next(by_kernel, None), partition=function)
    node, partition = int(out.fields.node_id), int(out.fields.current_partition_id)
    # The library gives the kernel's number; HSA counts only nodes that may be opened.
    by_number = {each.kernel_node: each.node for each in nodes}
    return replace(
        found,
        kfd_node=None if node == _NOT_REPORTED else by_number.get(node, None if nodes else node),
        partition=function if partition == _NOT_REPORTED else partition,
    )


def _is_same(node: KfdNode, found: Processor, function: int) -> bool:
    if node.pci_bus_id == found.pci_bus_id:
        return node.partition == 0
    return node.pci_bus_id.startswith(f"{found.card}.") and node.partition == function


def _text_of(out: OutBuffer, name: str) -> str:
    """Return a text member of a filled structure; empty if there is no such member."""
    raw = getattr(out.fields, name, b"")
    return bytes(raw).partition(b"\0")[0].decode(errors="replace").strip()


def _hexadecimal(text: str) -> int | None:
    try:
        return int(text, 16) or None
    except ValueError:
        return None


def driver_version(library: Library, of: Sequence[int]) -> str | None:
    """Return the kernel driver's version, from the first processor that reports one; else None."""
    for handle in of:
        out = library.filled("amdsmi_get_gpu_driver_info", handle, "amdsmi_driver_info_t")
        if out is not None:
            return _text_of(out, "driver_version") or None
    return None


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
        info = structs.replace(info, **fixed)
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
