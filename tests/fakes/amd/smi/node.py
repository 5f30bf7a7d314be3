"""A node of invented GPUs behind the fake libamd_smi.so."""

import ctypes
import pickle
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tests.fakes.amd.cards import Card, mi300x
from tests.fakes.amd.motion import Segment, boot_ns
from tests.fakes.amd.smi.bindings import Binding, binding
from tests.fakes.amd.smi.gpu import (
    CRITICAL,
    EDGE,
    EMERGENCY,
    GFX_CLOCK,
    HOTSPOT,
    MEM_CLOCK,
    METRICS,
    MIB,
    MOST_PROCESSES,
    RESOLUTION_UJ,
    VENDOR_ID,
    VIOLATION_STATUS_TAKES_US,
    VRAM,
    EnergyAnswer,
    Partition,
    SmiGpu,
)
from tests.fakes.amd.smi.scenario import MAX_GPUS, SYSTEM, Answers, map_layout, new_layout
from tests.fakes.amd.sysfs.tables import VERSIONS, table

#: Nodes 0 and 1 of the kernel's topology are the processors.
FIRST_GPU_NODE = 2
MS_NS = 10**6


class SmiNode:
    """A scenario file and the GPUs in it; the fake library sees every change at once.

    Attributes:
        path: What `FAKE_AMDSMI_SCENARIO` must name.
        binding: Whose structures the library fills in.
        gpus: The processors, in the library's order.
        system: How calls fail that concern no GPU.
    """

    def __init__(self, path: Path, cards: Sequence[Card] = (), *, of: Binding) -> None:
        self.path, self.binding = path, of
        self._layout = new_layout(path)
        self._partitions: list[tuple[Card, Partition]] = []
        self.gpus: tuple[SmiGpu, ...] = ()
        self.system = Answers(self._layout.gpus[SYSTEM])
        version = of.structure("amdsmi_version_t")
        self.system.answers("amdsmi_get_lib_version", version)
        self.has_version(*of.library_version)
        for card in cards or (mi300x(),):
            self.add(card)

    @classmethod
    def attached(cls, path: Path, of: str) -> "SmiNode":
        """A node that another process has invented, to change it from here."""
        node = cls.__new__(cls)
        node.path, node.binding = path, binding(of)
        node._layout = map_layout(path)
        node.system = Answers(node._layout.gpus[SYSTEM])
        node._partitions = pickle.loads(_beside(path).read_bytes())
        node.gpus = tuple(
            SmiGpu(layout, node.binding, card, partition, lambda: node.now_ns)
            for layout, (card, partition) in zip(node._layout.gpus, node._partitions, strict=False)
        )
        return node

    # ---- the node -------------------------------------------------------------------------

    def has_version(self, *numbers: int) -> None:
        """The library's version: year, major, minor, release until ROCm 6.4, then without year."""
        version = self.system.block(
            "amdsmi_get_lib_version", self.binding.structure("amdsmi_version_t")
        )
        for (name, *_), number in zip(version._fields_, numbers, strict=False):
            setattr(version, name, number)

    @property
    def now_ns(self) -> int:
        """The time by which everything moves (CLOCK_BOOTTIME), also when it stands still."""
        return int(self._layout.frozen_ns) or boot_ns()

    def freeze(self, at_ns: int) -> None:
        """Stop the clock at this instant, so that values can be worked out by hand."""
        self._layout.frozen_ns = at_ns

    @property
    def most_at_once(self) -> int:
        """How many calls were in the library at once, in any process; 1: they were serialised."""
        return int(self._layout.most_at_once)

    def forgets(self) -> None:
        """Nothing was called yet."""
        self._layout.most_at_once = self._layout.unanswered = 0
        for gpu in self._layout.gpus:
            ctypes.memset(ctypes.addressof(gpu) + type(gpu).called.offset, 0, type(gpu).called.size)

    @property
    def unanswered(self) -> int:
        """How often something was called that is not invented here ("not supported")."""
        return int(self._layout.unanswered)

    def takes(self, delay_us: int, *calls: str) -> None:
        """The calls (all, if none is named) take so long on every GPU."""
        for gpu in self.gpus:
            gpu.takes(delay_us, *calls)

    def plays(self, *segments: Segment, repeats: bool = False) -> None:
        """On all GPUs from now on; their counters go on."""
        for gpu in self.gpus:
            gpu.plays(*segments, repeats=repeats)

    # ---- GPUs -----------------------------------------------------------------------------

    def add(self, card: Card, partition: Partition | None = None) -> SmiGpu:
        """One more processor; the library lists it after its next initialisation too."""
        place = int(self._layout.gpu_count)
        assert place < MAX_GPUS - 1
        if partition is None:
            partition, card = (
                Partition(),
                card if card.pci[0:3] not in self._taken() else card.at(place),
            )
        layout = self._layout.gpus[place]
        gpu = SmiGpu(layout, self.binding, card, partition, lambda: self.now_ns)
        layout.socket = self._socket(card)
        self._partitions.append((card, partition))
        _identity(gpu, place)
        _memory(gpu)
        if gpu.knows_the_card:
            _card(gpu)
        elif partition.says_ones:
            gpu.says_all_ones(METRICS, "amdsmi_gpu_metrics_t")
            gpu.says_all_ones("amdsmi_get_power_info", "amdsmi_power_info_t")
        self.gpus += (gpu,)
        self._layout.gpu_count = place + 1
        _beside(self.path).write_bytes(pickle.dumps(self._partitions))
        return gpu

    def add_partitions(
        self, card: Card, count: int, *, compute: str, memory: str = "NPS1", in_uuid: bool = False,
        says_ones: bool = False,
    ) -> tuple[SmiGpu, ...]:  # fmt: skip
        """A card as several processors, which differ in the function of their PCI address."""
        parts = [
            Partition(
                place=place,
                count=count,
                compute=compute,
                memory=memory,
                in_uuid=in_uuid,
                says_ones=says_ones,
            )
            for place in range(count)
        ]
        return tuple(self.add(replace(card, partitions=count), part) for part in parts)

    def has_gpus(self, count: int) -> None:
        """The library sees only the first `count` from now on (or all again)."""
        self._layout.gpu_count = count

    def _taken(self) -> set[tuple[int, ...]]:
        return {card.pci[0:3] for card, _ in self._partitions}

    def _socket(self, card: Card) -> int:
        known = list(dict.fromkeys(card.pci[0:3] for card, _ in self._partitions))
        if card.pci[0:3] in known:
            return known.index(card.pci[0:3])
        self._layout.socket_count = len(known) + 1
        return len(known)


def _beside(path: Path) -> Path:
    return path.with_suffix(".cards")


def _identity(gpu: SmiGpu, place: int) -> None:
    card, partition = gpu.card, gpu.partition
    domain, bus, device, function = card.pci
    function = partition.place if partition.count > 1 else function
    bdf = domain << 16 | bus << 8 | device << 3 | function
    gpu.layout.bdf = bdf
    gpu.tells("amdsmi_get_gpu_device_bdf", 8, bdf)
    gpu.tells("amdsmi_get_gpu_bdf_id", 8, domain << 32 | bdf & 0xFFFF)
    gpu.tells("amdsmi_get_processor_type", 4, 1)
    gpu.tells("amdsmi_get_gpu_id", 2, card.device_id)
    gpu.tells("amdsmi_get_gpu_revision", 2, card.revision_id)
    gpu.tells("amdsmi_get_gpu_virtualization_mode", 4, 3 if card.guest else 1)
    uuid = card.uuid(partition.place) if partition.in_uuid else card.uuid()
    gpu.writes("amdsmi_get_gpu_device_uuid", uuid)
    gpu.writes("amdsmi_get_processor_info", str(place))
    gpu.says("amdsmi_get_gpu_asic_info", "amdsmi_asic_info_t", {
        "market_name": card.name.encode(), "vendor_id": VENDOR_ID,
        "vendor_name": b"Advanced Micro Devices Inc. [AMD/ATI]", "device_id": card.device_id,
        "rev_id": card.revision_id, "asic_serial": f"0x{card.unique_id:016X}".encode(),
        "oam_id": place, "num_of_compute_units": card.cu_count // partition.count,
        "target_graphics_version": graphics_version(card.gfx_version),
    })  # fmt: skip
    gpu.says("amdsmi_get_gpu_board_info", "amdsmi_board_info_t", {
        "product_name": card.name.encode(), "manufacturer_name": b"AMD",
        "product_serial": f"{card.unique_id:016x}".encode(),
    })  # fmt: skip
    gpu.says("amdsmi_get_gpu_kfd_info", "amdsmi_kfd_info_t", {
        "kfd_id": 40000 + place, "node_id": FIRST_GPU_NODE + place,
        "current_partition_id": partition.place,
    })  # fmt: skip
    gpu.says("amdsmi_get_gpu_enumeration_info", "amdsmi_enumeration_info_t", {
        "drm_render": 128 + place, "drm_card": place, "hsa_id": FIRST_GPU_NODE + place,
        "hip_id": place, "hip_uuid": f"GPU-{card.unique_id:016x}".encode(),
    })  # fmt: skip
    gpu.says("amdsmi_get_gpu_driver_info", "amdsmi_driver_info_t", {
        "driver_name": b"amdgpu", "driver_version": b"6.12.12", "driver_date": b"2025/01/01",
    })  # fmt: skip


def graphics_version(gfx_version: int) -> int:
    """As the library writes it: 90402 (gfx942) is 0x942, 110000 (gfx1100) is 0x1100."""
    major, minor, step = gfx_version // 10000, gfx_version // 100 % 100, gfx_version % 100
    return int(f"{major}{minor:x}{step:x}", 16)


def _memory(gpu: SmiGpu) -> None:
    """The whole card's, in each of its partitions."""
    total = gpu.card.vram_bytes
    gpu.says("amdsmi_get_gpu_vram_info", "amdsmi_vram_info_t", {
        "vram_type": 4, "vram_size": total // MIB, "vram_bit_width": 8192,
    })  # fmt: skip
    gpu.says("amdsmi_get_gpu_vram_usage", "amdsmi_vram_usage_t", {"vram_total": total // MIB})
    gpu.tells("amdsmi_get_gpu_memory_total", 8, total)
    gpu.tells("amdsmi_get_gpu_memory_usage", 8, 0)
    one = gpu.binding.structure("amdsmi_proc_info_t")
    gpu.answers(
        "amdsmi_get_gpu_process_list", one * MOST_PROCESSES, item_bytes=ctypes.sizeof(one),
    )  # type: ignore[type-var]  # fmt: skip
    gpu.uses(288 * MIB)
    gpu.runs()


def _card(gpu: SmiGpu) -> None:
    """What only the processor answers that speaks for the card."""
    card = gpu.card
    gpu.writes("amdsmi_get_gpu_compute_partition", gpu.partition.compute)
    gpu.writes("amdsmi_get_gpu_memory_partition", gpu.partition.memory)
    if not card.guest:
        _metrics(gpu)
    gpu.says("amdsmi_get_power_info", "amdsmi_power_info_t", {
        "current_socket_power": 0xFFFF, "average_socket_power": 0xFFFF, "gfx_voltage": 0xFFFF,
        "soc_voltage": 0xFFFF, "mem_voltage": 0xFFFF, "power_limit": card.limit_w * 10**6,
    })  # fmt: skip
    for key, highest in ((GFX_CLOCK, card.clock_max_mhz), (MEM_CLOCK, card.mem_clock_mhz)):
        fields = {"clk": highest, "min_clk": 132, "max_clk": highest}
        gpu.says("amdsmi_get_clock_info", "amdsmi_clk_info_t", fields, key)
    gpu.says("amdsmi_get_gpu_activity", "amdsmi_engine_usage_t", {"mm_activity": 0xFFFF})
    _temperatures(gpu)
    _errors(gpu)
    gpu.says("amdsmi_get_xgmi_info", "amdsmi_xgmi_info_t", {"xgmi_lanes": 16})
    gpu.plays(Segment(), origin_ns=0)


def _metrics(gpu: SmiGpu) -> None:
    card = gpu.card
    gpu.says_all_ones(METRICS, "amdsmi_gpu_metrics_t")
    major, minor = card.metrics_version
    size = ctypes.sizeof(table((major, minor))) if (major, minor) in VERSIONS else 0
    header = {"structure_size": size, "format_revision": major, "content_revision": minor}
    gpu.says("amdsmi_get_gpu_metrics_header_info", "amd_metrics_table_header_t", header)
    for name, value in header.items():
        setattr(getattr(gpu.metrics, "common_header"), name, value)  # noqa: B009
    gpu.answer(METRICS).refresh_ns = MS_NS
    if card.energy != "absent":
        energy = gpu.answers("amdsmi_get_energy_count", EnergyAnswer)
        energy.resolution = RESOLUTION_UJ
    if card.limit_w:
        gpu.says("amdsmi_get_power_cap_info", "amdsmi_power_cap_info_t", {
            "power_cap": card.limit_w * 10**6, "default_power_cap": card.limit_default_w * 10**6,
            "max_power_cap": card.limit_default_w * 10**6,
        })  # fmt: skip
    if card.residencies:
        gpu.says_all_ones("amdsmi_get_violation_status", "amdsmi_violation_status_t")
        gpu.takes(VIOLATION_STATUS_TAKES_US, "amdsmi_get_violation_status")


def _temperatures(gpu: SmiGpu) -> None:
    card = gpu.card
    sensors = [(HOTSPOT, card.critical_c), (VRAM, card.memory_critical_c)]
    for sensor, critical_c in sensors + ([(EDGE, card.critical_c - 5)] if card.has_edge else []):
        for metric, value in ((0, 0), (CRITICAL, critical_c), (EMERGENCY, critical_c + 5)):
            key = sensor | metric << 32
            gpu.tells("amdsmi_get_temp_metric", 8, value, key)


def _errors(gpu: SmiGpu) -> None:
    gpu.says("amdsmi_get_gpu_total_ecc_count", "amdsmi_error_count_t", {})
    for block in range(14):
        gpu.says("amdsmi_get_gpu_ecc_count", "amdsmi_error_count_t", {}, 1 << block)
    gpu.tells("amdsmi_get_gpu_ecc_enabled", 8, 0x3FFF)
    gpu.says("amdsmi_get_gpu_ras_feature_info", "amdsmi_ras_feature_t", {"ras_eeprom_version": 1})
