"""A fake `/sys` with AMD GPUs: `class/drm`, `class/kfd`, `bus/pci`, `module/amdgpu`."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from tests.fakes.amd.cards import Card, mi300x
from tests.fakes.amd.motion import Segment, boot_ns
from tests.fakes.amd.sysfs import files
from tests.fakes.amd.sysfs.attributes import ALL_ATTRIBUTES, AttributeTable
from tests.fakes.amd.sysfs.card import SysfsCard

MODES = "SPX, DPX, QPX, CPX"
PROCESSORS = 2
FIRST_RENDER = 128


@dataclass(frozen=True, slots=True)
class Node:
    """A GPU, or a partition of one, as the kernel's compute driver lists it.

    Attributes:
        card: What it is (a part of).
        render: The number of its render device.
        partition: Which of the card's it is.
    """

    card: Card
    render: int
    partition: int


class SysfsTree:
    """A tree and the GPUs in it.

    Attributes:
        root: What stands for `/sys`.
        gpus: Those with metrics of their own: one a card (two on a MI250X), without the further
            partitions.
    """

    def __init__(
        self, root: Path, cards: Sequence[Card] = (), *, with_display: bool = False
    ) -> None:
        """A node.

        Args:
            root: An empty folder.
            cards: Its GPUs; a MI300X if none is named.
            with_display: Whether `card0` is a server's own display, of another vendor.
        """
        self.root = root
        self.gpus: tuple[SysfsCard, ...] = ()
        self._nodes: list[Node] = []
        self._devices, self._frozen_ns, self._platform = 0, 0, 0
        files.write(root / "module" / "amdgpu" / "version", "6.12.12\n")
        (root / "bus" / "pci" / "drivers" / "amdgpu").mkdir(parents=True)
        for number in range(PROCESSORS):
            self._write_processor(number)
        if with_display:
            self._add_display()
        for card in cards or (mi300x(),):
            self.add(card)

    # ---- time -----------------------------------------------------------------------------

    @property
    def now_ns(self) -> int:
        """The time by which everything moves (CLOCK_BOOTTIME), also when it stands still."""
        return self._frozen_ns or boot_ns()

    def freeze(self, at_ns: int) -> None:
        """Everything is as at this instant; 0: the clock runs again."""
        self._frozen_ns = at_ns
        self.advance()

    def advance(self) -> None:
        """Write what moves as it is now."""
        for gpu in self.gpus:
            gpu.write()

    def plays(self, *segments: Segment, repeats: bool = False) -> None:
        """On all GPUs from now on; their counters go on."""
        for gpu in self.gpus:
            gpu.plays(*segments, repeats=repeats)

    @contextmanager
    def advancing(self, period_s: float = 0.005) -> Iterator[None]:
        """The tree advances by itself meanwhile."""
        stop = threading.Event()

        def go_on() -> None:
            while not stop.wait(period_s):
                self.advance()

        writer = threading.Thread(target=go_on, name="fake-sysfs")
        writer.start()
        try:
            yield
        finally:
            stop.set()
            writer.join()

    # ---- GPUs -----------------------------------------------------------------------------

    def add(
        self, card: Card, *, compute: str = "SPX", memory: str = "NPS1", partitions: int = 1,
        attributes: AttributeTable = ALL_ATTRIBUTES,
    ) -> SysfsCard:  # fmt: skip
        """One more card; those after the first partition have devices without metrics."""
        taken = {node.card.pci for node in self._nodes}
        card = card.at(len(taken)) if card.pci in taken else card
        card = replace(card, partitions=partitions)
        number = self._devices
        folder = self.root / "devices" / "pci0000:00" / card.bdf
        gpu = SysfsCard(folder, card, number, lambda: self.now_ns, attributes)
        if card.die_count > 1:
            files.write(folder / "current_compute_partition", f"{compute}\n")
            files.write(folder / "available_compute_partition", f"{MODES}\n")
            files.write(folder / "current_memory_partition", f"{memory}\n")
        files.link(self.root / "bus" / "pci" / "devices" / card.bdf, folder)
        files.link(folder / "driver", self.root / "bus" / "pci" / "drivers" / "amdgpu")
        files.link(self.root / "bus" / "pci" / "drivers" / "amdgpu" / card.bdf, folder)
        self._add_device(folder)
        self._add_node(Node(card, FIRST_RENDER + number, 0))
        for partition in range(1, partitions):
            self._add_partition(card, partition)
        self.gpus += (gpu,)
        return gpu

    def _add_partition(self, card: Card, partition: int) -> None:
        folder = self.root / "devices" / "platform" / f"amdgpu_xcp_{self._platform}"
        self._platform += 1
        files.write(folder / "uevent", "DRIVER=amdgpu_xcp\nMODALIAS=platform:amdgpu_xcp\n")
        render = FIRST_RENDER + self._devices
        self._add_device(folder)
        self._add_node(Node(card, render, partition))

    def _add_device(self, folder: Path) -> None:
        """`cardN` and `renderDN` of a device."""
        number, self._devices = self._devices, self._devices + 1
        for name, minor in ((f"card{number}", number), (f"renderD{FIRST_RENDER + number}",
                                                        FIRST_RENDER + number)):  # fmt: skip
            files.write(folder / "drm" / name / "dev", f"226:{minor}\n")
            files.link(folder / "drm" / name / "device", folder)
            files.link(self.root / "class" / "drm" / name, folder / "drm" / name)

    def _add_display(self) -> None:
        folder = self.root / "devices" / "pci0000:00" / "0000:02:00.0"
        files.write(folder / "vendor", "0x1a03\n")
        files.write(folder / "device", "0x2000\n")
        files.write(folder / "uevent", "DRIVER=ast\nPCI_SLOT_NAME=0000:02:00.0\n")
        connector = folder / "drm" / "card0" / "card0-VGA-1"
        self._add_device(folder)
        files.write(connector / "status", "disconnected\n")
        files.link(self.root / "class" / "drm" / connector.name, connector)

    # ---- the topology of the compute driver -----------------------------------------------

    def _topology(self, number: int) -> Path:
        return self.root / "class" / "kfd" / "kfd" / "topology" / "nodes" / str(number)

    def _write_processor(self, number: int) -> None:
        folder = self._topology(number)
        files.write(folder / "gpu_id", "0\n")
        files.write(folder / "name", "\n")
        files.write(folder / "properties", "cpu_cores_count 96\nsimd_count 0\nlocation_id 0\n")

    def _add_node(self, node: Node) -> None:
        """The next in the topology.

        Source: amdgpu's `kfd_topology.c`: `location_id` is bus << 8 | device << 3 | function, with
        the partition's number from bit 28 on where there are several; `simd_count` is 4 a unit.
        """
        domain, bus, device, function = node.card.pci
        place = len(self._nodes)
        self._nodes.append(node)
        location = bus << 8 | device << 3 | function
        if node.card.partitions > 1:
            location |= node.partition << 28
        properties = {
            "cpu_cores_count": 0, "simd_count": 4 * node.card.cu_count // node.card.partitions,
            "num_xcc": node.card.dies_each, "gfx_target_version": node.card.gfx_version,
            "vendor_id": 0x1002, "device_id": node.card.device_id, "location_id": location,
            "domain": domain, "drm_render_minor": node.render,
            "max_engine_clk_fcompute": node.card.clock_max_mhz,
            "unique_id": node.card.unique_id,
        }  # fmt: skip
        folder = self._topology(PROCESSORS + place)
        files.write(folder / "gpu_id", f"{40000 + place}\n")
        files.write(folder / "name", "ip discovery\n")
        text = "".join(f"{name} {value}\n" for name, value in properties.items())
        files.write(folder / "properties", text)
        size_bytes = node.card.vram_bytes // node.card.partitions
        files.write(
            folder / "mem_banks" / "0" / "properties",
            f"heap_type 1\nsize_in_bytes {size_bytes}\nflags 0\nwidth 8192\n",
        )

    def node_folder(self, place: int) -> Path:
        """The topology's folder of a GPU or partition, in the order in which they were added."""
        return self._topology(PROCESSORS + place)

    # ---- faults ---------------------------------------------------------------------------

    def removes(self, gpu: SysfsCard) -> None:
        """A GPU is gone: its device and what links to it (the topology keeps it)."""
        for device in (gpu.folder / "drm").iterdir():
            (self.root / "class" / "drm" / device.name).unlink()
        (self.root / "bus" / "pci" / "devices" / gpu.card.bdf).unlink()
        (self.root / "bus" / "pci" / "drivers" / "amdgpu" / gpu.card.bdf).unlink()
        gpu.goes()
        gpu.folder.rename(gpu.folder.with_name(f"gone-{gpu.card.bdf}"))
        self.gpus = tuple(other for other in self.gpus if other is not gpu)
