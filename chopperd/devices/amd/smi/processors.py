"""The processors that AMD SMI lists: which GPU, or partition of one, each is."""

from collections.abc import Sequence
from ctypes import addressof, c_uint32, c_void_p
from dataclasses import dataclass, replace
from pathlib import Path
from struct import Struct
from typing import Final

from chopperd.devices.amd.identity import KfdNode, kfd_nodes, pci_bus_id, uuid_of
from chopperd.devices.amd.kernel.cards import TWO_DIE_DEVICES
from chopperd.devices.amd.kernel.cards import cards as kernel_cards
from chopperd.devices.amd.smi.library import Library, Room, SmiError

_MOST: Final = 1024
_NUMBER: Final = Struct("<Q")
#: All ones in 32 bits: a node, or a partition, that is not told.
_NOT_TOLD: Final = 0xFFFF_FFFF


@dataclass(frozen=True, slots=True, kw_only=True)
class Processor:
    """One that AMD SMI has a handle of.

    Attributes:
        handle: Good until the library ends.
        pci_bus_id: As the kernel writes it; partitions of a card differ in its function.
        name: Its market name.
        device_id: Of PCI; None where it is not told.
        unique_id: The chip's own id; None where it has none, or does not tell.
        kfd_node: As in `GpuInfo`.
        partition: Its number on its card.
    """

    handle: int
    pci_bus_id: str
    name: str = "AMD GPU"
    device_id: int | None = None
    unique_id: int | None = None
    kfd_node: int | None = None
    partition: int = 0

    @property
    def card(self) -> str:
        """The PCI address of its card, without the function."""
        return self.pci_bus_id.partition(".")[0]

    @property
    def is_die(self) -> bool:
        """Whether it is one of two dies on a card that are GPUs of their own."""
        return self.device_id in TWO_DIE_DEVICES


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A GPU with its partitions; one that is not split has none.

    Attributes:
        whole: The processor that speaks for it.
        partitions: All of it, that one among them; none where there is just one.
    """

    whole: Processor
    partitions: tuple[Processor, ...] = ()


def handles(library: Library) -> tuple[int, ...]:
    """The handles of all GPUs, in the library's order.

    Raises:
        SmiError: It does not list them.
    """
    sockets = _listed(library, "amdsmi_get_socket_handles")
    return tuple(
        handle
        for socket in sockets
        for handle in _listed(library, "amdsmi_get_processor_handles", socket)
    )


def processor(library: Library, handle: int, nodes: Sequence[KfdNode]) -> Processor:
    """The processor behind a handle.

    Args:
        library: Knows it.
        handle: Of the processor.
        nodes: What the kernel lists, for what the library does not tell.

    Raises:
        SmiError: It does not say where it is; all else may be missing.
    """
    found = _named(library, Processor(handle=handle, pci_bus_id=_address(library, handle)))
    return _numbered(library, found, nodes)


def cards(processors: Sequence[Processor]) -> tuple[Card, ...]:
    """The GPUs that processors make up: those of one card and chip are its partitions."""
    grouped: dict[tuple[str, int | None], list[Processor]] = {}
    for each in processors:
        grouped.setdefault((each.card, each.unique_id), []).append(each)
    return tuple(map(_card, grouped.values()))


def _card(parts: Sequence[Processor]) -> Card:
    ordered = tuple(sorted(parts, key=lambda each: each.partition))
    whole = replace(ordered[0], pci_bus_id=f"{ordered[0].card}.{ordered[0].pci_bus_id[-1]}")
    return Card(whole=whole, partitions=ordered if len(ordered) > 1 else ())


def uuid(of: Processor, *, is_partition: bool = False) -> str:
    """Its name for ever, the same that the kernel's files give; its address where it has none."""
    partition = of.partition if is_partition else None
    known = uuid_of(of.unique_id, partition)
    if known:
        return known
    return f"{of.card}.0.{of.partition}" if is_partition else of.pci_bus_id


def _listed(library: Library, call: str, *of: int) -> tuple[int, ...]:
    count = c_uint32(0)
    library.call(call, *of, addressof(count), None)
    found = (c_void_p * min(count.value, _MOST))()
    count = c_uint32(len(found))
    library.call(call, *of, addressof(count), addressof(found))
    return tuple(found[place] or 0 for place in range(min(count.value, len(found))))


def _address(library: Library, handle: int) -> str:
    room = Room()
    library.call("amdsmi_get_gpu_device_bdf", handle, room.address)
    (bits,) = _NUMBER.unpack_from(room.buffer)
    return pci_bus_id(bits >> 16, bits >> 8 & 0xFF, bits >> 3 & 0x1F, bits & 7)


def _named(library: Library, found: Processor) -> Processor:
    """With its name and ids. Source: amdsmi_get_gpu_asic_info."""
    room = Room(library.binding.structure("amdsmi_asic_info_t"))
    if room.fields is None:
        return found
    try:
        library.call("amdsmi_get_gpu_asic_info", found.handle, room.address)
    except SmiError:
        return found
    return replace(
        found,
        name=text_of(room, "market_name") or found.name,
        device_id=int(room.fields.device_id) & 0xFFFF or None,
        unique_id=_hexadecimal(text_of(room, "asic_serial")),
    )


def _numbered(library: Library, found: Processor, nodes: Sequence[KfdNode]) -> Processor:
    """With its node and partition. Source: amdsmi_get_gpu_kfd_info, from ROCm 6.3 on."""
    function = int(found.pci_bus_id[-1], 16)
    room = Room(library.binding.structure("amdsmi_kfd_info_t"))
    if room.fields is None or not _answered(library, found.handle, room):
        by_kernel = (each.node for each in nodes if _is_same(each, found, function))
        return replace(found, kfd_node=next(by_kernel, None), partition=function)
    node, partition = int(room.fields.node_id), int(room.fields.current_partition_id)
    # The library has the kernel's number, HSA that among what may be opened.
    by_number = {each.kernel_node: each.node for each in nodes}
    return replace(
        found,
        kfd_node=None if node == _NOT_TOLD else by_number.get(node, None if nodes else node),
        partition=function if partition == _NOT_TOLD else partition,
    )


def _answered(library: Library, handle: int, room: Room) -> bool:
    try:
        library.call("amdsmi_get_gpu_kfd_info", handle, room.address)
    except SmiError:
        return False
    return True


def _is_same(node: KfdNode, found: Processor, function: int) -> bool:
    if node.pci_bus_id == found.pci_bus_id:
        return node.partition == 0
    return node.pci_bus_id.startswith(f"{found.card}.") and node.partition == function


def text_of(room: Room, name: str) -> str:
    """A text in a structure that was answered; empty where there is none."""
    raw = getattr(room.fields, name, b"")
    return bytes(raw).partition(b"\0")[0].decode(errors="replace").strip()


def _hexadecimal(text: str) -> int | None:
    try:
        return int(text, 16) or None
    except ValueError:
        return None


def driver_version(library: Library, of: Sequence[int]) -> str | None:
    """The version of the kernel's driver, from the first processor that tells it."""
    room = Room(library.binding.structure("amdsmi_driver_info_t"))
    for handle in of if room.fields is not None else ():
        try:
            library.call("amdsmi_get_gpu_driver_info", handle, room.address)
        except SmiError:
            continue
        return text_of(room, "driver_version") or None
    return None


# Which GPUs and partitions are there, by the library and by the kernel.


@dataclass(frozen=True, slots=True, kw_only=True)
class Presence:
    """What is there at one time.

    Attributes:
        processors_count: What the library lists.
        names: PCI addresses of the kernel's cards, and of its compute nodes with their partition.
    """

    processors_count: int
    names: frozenset[str]

    def difference(self, now: "Presence") -> str | None:
        """What came or went, for people; None if nothing did."""
        parts = [f"{name} is gone" for name in sorted(self.names - now.names)]
        parts += [f"{name} has come" for name in sorted(now.names - self.names)]
        if self.processors_count != now.processors_count:
            parts.append(
                f"AMD SMI lists {now.processors_count} processors, "
                f"not {self.processors_count} as before"
            )
        return "; ".join(parts) or None


def present(library: Library, sysfs: Path) -> Presence:
    """What is there now.

    Raises:
        SmiError: The library does not list its processors.
    """
    names = {card.pci_bus_id for card in kernel_cards(sysfs)}
    names |= {f"{node.pci_bus_id} partition {node.partition}" for node in kfd_nodes(sysfs)}
    return Presence(processors_count=len(handles(library)), names=frozenset(names))
