"""The cards that the kernel's driver `amdgpu` runs, and what about each stands still."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from chopperd.devices.amd.identity import KfdNode, kfd_nodes, uuid_of
from chopperd.devices.amd.kernel.files import NumberFile, number_in, text_in
from chopperd.devices.amd.planning import PlannableCall
from chopperd.devices.amd.sensors import Beside, GpuTraits
from chopperd.devices.channel import Call
from chopperd.devices.read_plan import NumberKind
from chopperd.model import plausible
from chopperd.model.devices import GpuInfo, Vendor
from chopperd.model.plausible import Bounds
from chopperd.units import HZ_PER_MHZ, MICROWATTS_PER_WATT, MILLIDEGREES_PER_DEGREE

_CARD: Final = re.compile(r"card\d+")
_DRIVER: Final = "amdgpu"
_PCI_ADDRESS: Final = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
#: A level of pp_dpm_sclk: "1: 2100Mhz *".
_LEVEL: Final = re.compile(r"^\s*\w+:\s*(\d+)\s*Mhz", re.IGNORECASE | re.MULTILINE)
#: Products whose board does not say its name, by PCI device id. Source: pci.ids.
_NAME_BY_DEVICE: Final[Mapping[int, str]] = {
    0x738C: "AMD Instinct MI100",
    0x7408: "AMD Instinct MI250X",
    0x740C: "AMD Instinct MI250X/MI250",
    0x740F: "AMD Instinct MI210",
    0x74A0: "AMD Instinct MI300A",
    0x74A1: "AMD Instinct MI300X",
    0x74A2: "AMD Instinct MI308X",
    0x74A5: "AMD Instinct MI325X",
    0x74B5: "AMD Instinct MI300X VF",
    0x75A0: "AMD Instinct MI350X",
    0x75A3: "AMD Instinct MI355X",
}
#: Cards with two dies, each of which is a GPU; the first gives the power of both.
TWO_DIE_DEVICES: Final = frozenset({0x7408, 0x740C})


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A card.

    Attributes:
        folder: Its folder of files, by PCI address: card numbers are given anew after a reset.
        pci_bus_id: As the kernel writes it.
        device_id: Its PCI device id; None where it is not told.
        unique_id: The chip's own id; None where it has none.
        nodes: What the compute driver lists of it: one, or one for each partition; none where it
            lists nothing.
    """

    folder: Path
    pci_bus_id: str
    device_id: int | None
    unique_id: int | None
    nodes: tuple[KfdNode, ...]

    @property
    def metrics(self) -> Path:
        """The file that holds its block of metrics."""
        return self.folder / "gpu_metrics"

    def hwmon(self) -> Path | None:
        """The folder of its sensors, whose number changes with a reset; None if it has none."""
        return next(iter(sorted((self.folder / "hwmon").glob("hwmon*"))), None)


def cards(sysfs: Path) -> tuple[Card, ...]:
    """The cards of the driver, by PCI address.

    Args:
        sysfs: The root of sysfs.
    """
    nodes = kfd_nodes(sysfs)
    found = {card.pci_bus_id: card for card in _found(sysfs, nodes)}
    return tuple(found[address] for address in sorted(found))


def gpu_infos(card: Card, index: int) -> tuple[GpuInfo, ...]:
    """The GPU that a card is, with its partitions after it where it has several.

    Partitions have the clock, power and memory of their card, which tells them.

    Args:
        card: The card.
        index: Its place among the cards.
    """
    label = str(index)
    whole = GpuInfo(
        gpu=label,
        index=index,
        uuid=uuid_of(card.unique_id) or card.pci_bus_id,
        name=_name(card),
        vendor=Vendor.AMD,
        pci_bus_id=card.pci_bus_id,
        kfd_node=card.nodes[0].node if len(card.nodes) == 1 else None,
        memory_size_bytes=_size_bytes(card),
        sm_clock_max_mhz=_highest_mhz(card.folder / "pp_dpm_sclk"),
        mem_clock_max_mhz=_highest_mhz(card.folder / "pp_dpm_mclk"),
    )
    whole = _with_limits(whole, card.hwmon())
    if len(card.nodes) < 2:
        return (whole,)
    return (whole, *(_partition(whole, card, node) for node in card.nodes))


def driver_version(sysfs: Path) -> str | None:
    """The version of the driver where it is not the kernel's own; else the kernel's."""
    return text_in(sysfs / "module" / _DRIVER / "version") or text_in(
        Path("/proc/sys/kernel/osrelease")
    )


def _found(sysfs: Path, nodes: Sequence[KfdNode]) -> Iterator[Card]:
    try:
        links = list((sysfs / "class" / "drm").iterdir())
    except OSError:
        return
    for link in links:
        if not _CARD.fullmatch(link.name):
            continue
        folder = (link / "device").resolve()
        # Partitions are devices of a driver of their own, without any sensor.
        if (folder / "driver").resolve().name != _DRIVER:
            continue
        address = folder.name
        if not _PCI_ADDRESS.fullmatch(address):
            continue
        yield Card(
            folder=folder,
            pci_bus_id=address,
            device_id=number_in(folder / "device", 16),
            unique_id=number_in(folder / "unique_id", 16) or None,
            nodes=tuple(node for node in nodes if node.pci_bus_id == address),
        )


def _size_bytes(card: Card) -> int | None:
    size_bytes = number_in(card.folder / "mem_info_vram_total")
    return size_bytes if size_bytes and size_bytes in plausible.MEMORY_BYTES else None


def _partition(whole: GpuInfo, card: Card, node: KfdNode) -> GpuInfo:
    return GpuInfo(
        gpu=f"{whole.gpu}.{node.partition}",
        index=whole.index,
        uuid=uuid_of(card.unique_id, node.partition) or f"{card.pci_bus_id}.{node.partition}",
        name=whole.name,
        vendor=Vendor.AMD,
        pci_bus_id=whole.pci_bus_id,
        parent=whole.gpu,
        sm_clock_max_mhz=whole.sm_clock_max_mhz,
        kfd_node=node.node,
    )


def _name(card: Card) -> str:
    """The board's own name, else that of its PCI device id."""
    named = text_in(card.folder / "product_name")
    if named is not None:
        return named
    if card.device_id is None:
        return "AMD GPU"
    return _NAME_BY_DEVICE.get(card.device_id, f"AMD GPU {card.device_id:#06x}")


def _highest_mhz(levels: Path) -> float | None:
    """The highest of a clock's levels; one that a user lowered hides what it was."""
    found = [int(mhz) for mhz in _LEVEL.findall(text_in(levels) or "")]
    return _known(max(found, default=None), plausible.CLOCK_MHZ)


def _with_limits(info: GpuInfo, hwmon: Path | None) -> GpuInfo:
    """The power limits and the temperatures at which the hardware slows and shuts down added."""
    if hwmon is None:
        return info
    hotspot, memory = (labelled(hwmon, label) for label in ("junction", "mem"))
    cap, default_cap = hwmon / "power1_cap", hwmon / "power1_cap_default"
    return replace(
        info,
        power_limit_w=scaled(cap, MICROWATTS_PER_WATT, plausible.POWER_W),
        power_limit_default_w=scaled(default_cap, MICROWATTS_PER_WATT, plausible.POWER_W),
        temperature_slowdown_c=_threshold_c(hwmon, hotspot, "crit"),
        temperature_shutdown_c=_threshold_c(hwmon, hotspot, "emergency"),
        temperature_memory_max_c=_threshold_c(hwmon, memory, "crit"),
    )


def labelled(hwmon: Path, label: str) -> str | None:
    """The name of the temperature sensor with a label ("temp2"); None if there is none."""
    for path in hwmon.glob("temp*_label"):
        if text_in(path) == label:
            return path.name.removesuffix("_label")
    return None


def scaled(path: Path, per_unit: int, bounds: Bounds) -> float | None:
    """A number in a file, in the field's unit; None where there is none that can be believed."""
    number = number_in(path)
    return None if number is None else _known(number / per_unit, bounds)


def _threshold_c(hwmon: Path, sensor: str | None, kind: str) -> float | None:
    if sensor is None:
        return None
    return scaled(hwmon / f"{sensor}_{kind}", MILLIDEGREES_PER_DEGREE, plausible.THRESHOLD_C)


def _known(value: float | None, bounds: Bounds) -> float | None:
    return value if value is not None and value in bounds else None


# The files that tell of a card what its block of metrics may not: hwmon's and others.

_UW: Final = MICROWATTS_PER_WATT


def traits(card: Card, info: GpuInfo) -> GpuTraits:
    """What is known of a GPU before its first look: the files beside its block."""
    hwmon = card.hwmon()
    size_bytes = info.memory_size_bytes
    memory = Bounds(0, size_bytes) if size_bytes else plausible.MEMORY_BYTES
    beside = [_beside("memory_used_bytes", memory, card.folder / "mem_info_vram_used", 1)]
    stand_ins = []
    if hwmon is not None:
        beside.append(_beside("power_limit_w", plausible.POWER_W, hwmon / "power1_cap", _UW))
        stand_ins = [*_hwmon_stand_ins(hwmon)]
    stand_ins.append(
        _beside("activity_ratio", plausible.RATIO, card.folder / "gpu_busy_percent", 100)
    )
    return GpuTraits(
        label=info.gpu,
        gives_card_power=card.device_id in TWO_DIE_DEVICES,
        stand_ins=tuple(stand_ins),
        beside=tuple(beside),
        hotspot_limit_c=info.temperature_slowdown_c,
    )


def _hwmon_stand_ins(hwmon: Path) -> list[Beside]:
    """Ways by hwmon's files, in Hz, uW, 0.001 C. Source: amdgpu_pm.c."""
    hotspot = labelled(hwmon, "junction") or labelled(hwmon, "edge") or "temp1"
    power = [
        _number_call(hwmon / "power1_input", _UW, "instant"),
        _number_call(hwmon / "power1_average", _UW, "average"),
    ]
    return [
        _beside("sm_clock_mhz", plausible.CLOCK_MHZ, hwmon / "freq1_input", HZ_PER_MHZ),
        _beside("mem_clock_mhz", plausible.CLOCK_MHZ, hwmon / "freq2_input", HZ_PER_MHZ),
        Beside(name="power_w", bounds=plausible.POWER_W, calls=tuple(power)),
        _beside(
            "temperature_c",
            plausible.MEMORY_TEMPERATURE_C,
            hwmon / f"{hotspot}_input",
            MILLIDEGREES_PER_DEGREE,
        ),
    ]


def _beside(name: str, bounds: Bounds, path: Path, per_unit: int) -> Beside:
    return Beside(name=name, bounds=bounds, calls=(_number_call(path, per_unit, None),))


def _number_call(path: Path, per_unit: int, source: str | None) -> Call:
    file = NumberFile(path)
    read: Callable[[], float] = file.read if per_unit == 1 else lambda: file.read() / per_unit
    return PlannableCall(
        operation=path.name,
        read=read,
        source=source,
        plan=file.planned_call,
        offset=0,
        kind=NumberKind.DECIMAL,
        scale=1 / per_unit,
    )
