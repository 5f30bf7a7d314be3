"""Lists AMD SMI's processors, and identifies the GPU or partition that each is."""

from collections.abc import Sequence
from ctypes import addressof, c_uint32, c_void_p
from dataclasses import dataclass, replace
from struct import Struct
from typing import Final

from chopperd.devices.amd.identity import TWO_DIE_DEVICES, KfdNode, pci_bus_id
from chopperd.devices.amd.smi.library import Library, OutBuffer

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
