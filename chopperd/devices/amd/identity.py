"""Identity of AMD GPUs: the kernel's compute nodes, names that all tools share, partitions.

The order of GPUs differs between tools (AMD SMI, HIP, the kernel's cards); a PCI address, a
partition's number and the chip's own id do not.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from chopperd.model.devices import GpuInfo, Vendor

#: Where the kernel lists the nodes of its compute driver (KFD), CPUs included, under the root of
#: sysfs.
TOPOLOGY: Final = Path("class/kfd/kfd/topology/nodes")
_UUID_PREFIX: Final = "GPU-"
#: PCI devices with two dies, each of which is a GPU; the first reports the power of both.
TWO_DIE_DEVICES: Final = frozenset({0x7408, 0x740C})


def text_in(path: Path) -> str | None:
    """Return a file's text without surrounding spaces; None if it can't be read or is empty."""
    try:
        return path.read_text(errors="replace").strip() or None
    except OSError:
        return None


def number_in(path: Path, base: int = 10) -> int | None:
    """Return the whole number in a file; None if it can't be read or has none."""
    try:
        return int(text_in(path) or "", base)
    except ValueError:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class KfdNode:
    """A GPU, or a partition of one, as the kernel's compute driver (KFD) lists it."""

    #: Its index among the nodes that can be read here, CPUs counted: HSA's node id in every process
    #: that may open the same devices.
    node: int
    pci_bus_id: str  # PCI address of its card ("0000:c1:00.0")
    partition: int = 0  # its number on the card; 0 on a whole card
    unique_id: int | None = None  # the chip's own id; None where it has none
    #: Its id in other files of the compute driver; None where it may not be read.
    gpu_id: int | None = None
    kernel_node: int | None = None  # its number in the kernel's list, for every reader


def kfd_nodes(sysfs: Path) -> tuple[KfdNode, ...]:
    """List the GPUs and partitions of KFD, sorted by node; empty where there is no KFD.

    Nodes whose properties may not be read (hidden from this container by a device cgroup) are left
    out and not counted, as in HSA's own library.

    Partitions of a card share its PCI address, and have their number in bits 28 to 31 of the
    location or, in some releases, in its lowest bits. Source: drivers/gpu/drm/amd/amdkfd/
    kfd_topology.c of Linux.
    """
    try:
        folders = list((sysfs / TOPOLOGY).iterdir())
    except OSError:
        return ()
    numbered = sorted((int(each.name), each) for each in folders if each.name.isdecimal())
    read = ((number, folder, _properties(folder)) for number, folder in numbered)
    readable = [each for each in read if each[2]]
    nodes = [
        _node(index, number, folder, values)
        for index, (number, folder, values) in enumerate(readable)
        if values.get("simd_count")
    ]
    shared = Counter((_card(node), node.unique_id) for node in nodes)
    return tuple(
        _as_partition(node) if shared[(_card(node), node.unique_id)] > 1 else node for node in nodes
    )


def uuid_of(unique_id: int | None, partition: int | None = None) -> str:
    """Return a GPU's permanent id as HIP and rocminfo write it, with the partition's number.

    AMD SMI's own UUIDs change between releases. Returns "" where the chip has no id.
    """
    if not unique_id:
        return ""
    return f"{_UUID_PREFIX}{unique_id:016x}" + ("" if partition is None else f".{partition}")


def pci_bus_id(domain: int, bus: int, device: int, function: int) -> str:
    """Format a PCI address as the kernel writes it ("0000:c1:00.0")."""
    return f"{domain:04x}:{bus:02x}:{device:02x}.{function:x}"


def partition_info(
    whole: GpuInfo, partition: int, unique_id: int | None, kfd_node: int | None
) -> GpuInfo:
    """Return a partition's identity; its GPU reports clock, power and memory of all of them."""
    return GpuInfo(
        gpu=f"{whole.gpu}.{partition}",
        index=whole.index,
        uuid=uuid_of(unique_id, partition) or f"{whole.pci_bus_id}.{partition}",
        name=whole.name,
        vendor=Vendor.AMD,
        pci_bus_id=whole.pci_bus_id,
        parent=whole.gpu,
        sm_clock_max_mhz=whole.sm_clock_max_mhz,
        kfd_node=kfd_node,
    )


def difference(before: Collection[str], now: Collection[str]) -> list[str]:
    """Return a text for each name that disappeared, then for each that appeared."""
    gone = [f"{name} is gone" for name in sorted(set(before) - set(now))]
    return gone + [f"{name} has come" for name in sorted(set(now) - set(before))]


def _card(node: KfdNode) -> str:
    """Return the PCI address without its function."""
    return node.pci_bus_id.partition(".")[0]


def _as_partition(node: KfdNode) -> KfdNode:
    """Return the partition that a node is, with its number (from location or PCI function)."""
    function = int(node.pci_bus_id[-1], 16)
    return replace(node, pci_bus_id=f"{_card(node)}.0", partition=node.partition or function)


def _properties(folder: Path) -> Mapping[str, int]:
    """Return the numbers of a node's file `properties` by name; empty if it can't be read."""
    lines = (text_in(folder / "properties") or "").splitlines()
    return {name: int(value) for name, _, value in (line.partition(" ") for line in lines)}


def _node(index: int, number: int, folder: Path, values: Mapping[str, int]) -> KfdNode:
    """Make a `KfdNode` (`index`: among readable nodes; `number`: in the kernel's list)."""
    location = values.get("location_id", 0)
    return KfdNode(
        node=index,
        pci_bus_id=pci_bus_id(
            values.get("domain", 0), location >> 8 & 0xFF, location >> 3 & 0x1F, location & 7
        ),
        partition=location >> 28 & 0xF,
        unique_id=values.get("unique_id") or None,
        gpu_id=number_in(folder / "gpu_id"),
        kernel_node=number,
    )
