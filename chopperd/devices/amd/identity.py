"""Which AMD GPU is which: the kernel's compute nodes, names that all tools share, what a job sees.

Orders differ from tool to tool (AMD SMI, HIP, the kernel's cards); a PCI address, a partition's
number and the chip's own id do not.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

#: Where the kernel lists the nodes of its compute driver, CPUs among them, below the root of sysfs.
TOPOLOGY: Final = Path("class/kfd/kfd/topology/nodes")
_UUID_PREFIX: Final = "GPU-"


@dataclass(frozen=True, slots=True, kw_only=True)
class KfdNode:
    """A GPU, or a partition of one, as the kernel's compute driver (KFD) lists it.

    Attributes:
        node: Its number among the nodes that can be read here, CPUs counted: what HSA calls a node
            id in every process that may open the same devices.
        pci_bus_id: Of its card ("0000:c1:00.0").
        partition: Its number on the card; 0 on one that is whole.
        unique_id: The chip's own id; None where it has none.
        render_minor: Of its device file /dev/dri/renderD*.
        gpu_id: What the compute driver calls it in other files; None where it may not be read.
        kernel_node: Its number in the kernel's list, whoever looks.
    """

    node: int
    pci_bus_id: str
    partition: int = 0
    unique_id: int | None = None
    render_minor: int | None = None
    gpu_id: int | None = None
    kernel_node: int | None = None


def kfd_nodes(sysfs: Path) -> tuple[KfdNode, ...]:
    """The GPUs that KFD lists, by node; empty where there is no KFD.

    Nodes whose properties may not be read (a device cgroup keeps them from this container) are left
    out and not counted, as HSA's own library does not count them.

    Args:
        sysfs: The root of sysfs.

    Partitions of a card share its PCI address, and number themselves in bits 28 to 31 of it, or,
    in some releases, in its lowest. Source: drivers/gpu/drm/amd/amdkfd/kfd_topology.c of Linux.
    """
    try:
        folders = list((sysfs / TOPOLOGY).iterdir())
    except OSError:
        return ()
    numbered = sorted((int(each.name), each) for each in folders if each.name.isdecimal())
    read = ((number, folder, _properties(folder)) for number, folder in numbered)
    readable = [each for each in read if each[2]]
    nodes = [
        _node(place, number, folder, values)
        for place, (number, folder, values) in enumerate(readable)
        if values.get("simd_count")
    ]
    shared = Counter((_card(node), node.unique_id) for node in nodes)
    return tuple(
        _partition(node) if shared[(_card(node), node.unique_id)] > 1 else node for node in nodes
    )


def uuid_of(unique_id: int | None, partition: int | None = None) -> str:
    """A GPU's name for ever: as HIP and rocminfo write it, with a partition's number behind.

    AMD SMI's own UUIDs are made otherwise from release to release. Empty where the chip has no id.
    """
    if not unique_id:
        return ""
    return f"{_UUID_PREFIX}{unique_id:016x}" + ("" if partition is None else f".{partition}")


def pci_bus_id(domain: int, bus: int, device: int, function: int) -> str:
    """A PCI address as the kernel writes it."""
    return f"{domain:04x}:{bus:02x}:{device:02x}.{function:x}"


def visible_nodes(nodes: Sequence[KfdNode], environ: Mapping[str, str]) -> tuple[KfdNode, ...]:
    """The GPUs that a HIP process sees, in the order in which it numbers them.

    `ROCR_VISIBLE_DEVICES` chooses from KFD's order by number or UUID; from what is left
    `HIP_VISIBLE_DEVICES`, or `CUDA_VISIBLE_DEVICES` where that is not set, chooses by number. Each
    list ends at the first entry that names nothing.

    Args:
        nodes: All GPUs, by node.
        environ: The process's variables.

    Source: "GPU isolation techniques" of ROCm's documentation; not seen on hardware.
    """
    seen = _chosen(nodes, environ.get("ROCR_VISIBLE_DEVICES"))
    by_hip = environ.get("HIP_VISIBLE_DEVICES") or environ.get("CUDA_VISIBLE_DEVICES")
    return _chosen(seen, by_hip or None)


def _card(node: KfdNode) -> str:
    """The PCI address without its function."""
    return node.pci_bus_id.partition(".")[0]


def _partition(node: KfdNode) -> KfdNode:
    """A node of a card that has several: its number is in one place or the other."""
    function = int(node.pci_bus_id[-1], 16)
    return replace(node, pci_bus_id=f"{_card(node)}.0", partition=node.partition or function)


def _chosen(nodes: Sequence[KfdNode], wanted: str | None) -> tuple[KfdNode, ...]:
    if wanted is None:
        return tuple(nodes)
    return tuple(_until_none(nodes, wanted.split(",")))


def _until_none(nodes: Sequence[KfdNode], words: Sequence[str]) -> Iterator[KfdNode]:
    taken: set[int] = set()
    for word in words:
        node = _named(nodes, word.strip())
        if node is None or node.node in taken:
            return
        taken.add(node.node)
        yield node


def _named(nodes: Sequence[KfdNode], word: str) -> KfdNode | None:
    if word.isdecimal():
        return nodes[int(word)] if int(word) < len(nodes) else None
    by_uuid = (node for node in nodes if node.unique_id and uuid_of(node.unique_id) == word)
    return next(by_uuid, None)


def _properties(folder: Path) -> Mapping[str, int]:
    """The numbers of a node by name; none where they can't be read."""
    try:
        lines = (folder / "properties").read_text().splitlines()
    except OSError:
        return {}
    return {name: int(value) for name, _, value in (line.partition(" ") for line in lines)}


def _node(place: int, number: int, folder: Path, values: Mapping[str, int]) -> KfdNode:
    """The GPU of a node, which is at that place among those that can be read."""
    location = values.get("location_id", 0)
    return KfdNode(
        node=place,
        pci_bus_id=pci_bus_id(
            values.get("domain", 0), location >> 8 & 0xFF, location >> 3 & 0x1F, location & 7
        ),
        partition=location >> 28 & 0xF,
        unique_id=values.get("unique_id") or None,
        render_minor=values.get("drm_render_minor") or None,
        gpu_id=_gpu_id(folder / "gpu_id"),
        kernel_node=number,
    )


def _gpu_id(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
