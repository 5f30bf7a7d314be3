"""Cards of the driver `amdgpu`: fixed properties, metrics and files of single fields."""

import errno
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from ctypes import Array, c_char, create_string_buffer
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from chopperd import plausible
from chopperd.devices.amd.block import MetricsLayout, MetricsSource, TornBlock
from chopperd.devices.amd.identity import (
    TWO_DIE_DEVICES,
    KfdNode,
    kfd_nodes,
    number_in,
    partition_info,
    text_in,
    uuid_of,
)
from chopperd.devices.amd.kernel.layouts import layout_of
from chopperd.devices.amd.planning import PlannableCall
from chopperd.devices.amd.sensors import ExtraField, GpuTraits
from chopperd.devices.amd.table import POWER_AVERAGE, POWER_INSTANT
from chopperd.devices.read_plan import Buffer, CallShape, NumberKind, PlannedCall
from chopperd.model.devices import GpuInfo, Vendor
from chopperd.plausible import Bounds
from chopperd.units import HZ_PER_MHZ, MICROWATTS_PER_WATT, MILLIDEGREES_PER_DEGREE

_CARD: Final = re.compile(r"card\d+")
_DRIVER: Final = "amdgpu"
_PCI_ADDRESS: Final = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
#: A level of pp_dpm_sclk: "1: 2100Mhz *".
_LEVEL: Final = re.compile(r"^\s*\w+:\s*(\d+)\s*Mhz", re.IGNORECASE | re.MULTILINE)
#: Names by PCI device id, for boards that do not report one. Source: pci.ids.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A card that the driver `amdgpu` runs."""

    folder: Path  # its folder in sysfs, by PCI address, as card numbers change with a reset
    pci_bus_id: str  # its PCI address, as the kernel writes it
    device_id: int | None  # its PCI device id; None if not reported
    unique_id: int | None  # the chip's own id; None where it has none
    #: Its nodes in the compute driver: one, or one for each partition, or none.
    nodes: tuple[KfdNode, ...]

    @property
    def metrics(self) -> Path:
        """Path of the file with its block of metrics."""
        return self.folder / "gpu_metrics"

    def hwmon(self) -> Path | None:
        """Find the folder of its sensors, whose number changes with a reset; None if none."""
        return next(iter(sorted((self.folder / "hwmon").glob("hwmon*"))), None)


def cards(sysfs: Path) -> tuple[Card, ...]:
    """List the cards of the driver `amdgpu` under the root of sysfs, in order of PCI address."""
    nodes = kfd_nodes(sysfs)
    found = {card.pci_bus_id: card for card in _found(sysfs, nodes)}
    return tuple(found[address] for address in sorted(found))


def gpu_infos(card: Card, index: int) -> tuple[GpuInfo, ...]:
    """Read a card's identity as GPU number `index`, followed by its partitions if several."""
    size_bytes = number_in(card.folder / "mem_info_vram_total") or None
    if size_bytes is not None and size_bytes not in plausible.MEMORY_BYTES:
        size_bytes = None
    whole = GpuInfo(
        gpu=str(index),
        index=index,
        uuid=uuid_of(card.unique_id) or card.pci_bus_id,
        name=_name(card),
        vendor=Vendor.AMD,
        pci_bus_id=card.pci_bus_id,
        kfd_node=card.nodes[0].node if len(card.nodes) == 1 else None,
        memory_size_bytes=size_bytes,
        memory_source="kernel" if size_bytes else None,
        sm_clock_max_mhz=_highest_mhz(card.folder / "pp_dpm_sclk"),
        mem_clock_max_mhz=_highest_mhz(card.folder / "pp_dpm_mclk"),
    )
    hwmon = card.hwmon()
    whole = whole if hwmon is None else _with_limits(whole, hwmon)
    parts = card.nodes if len(card.nodes) > 1 else ()
    infos = (partition_info(whole, each.partition, card.unique_id, each.node) for each in parts)
    return (whole, *infos)


def driver_version(sysfs: Path) -> str | None:
    """Return the driver's version if it was installed separately; else the kernel's."""
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
        # Partitions are devices of another driver, without sensors.
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


def _name(card: Card) -> str:
    """Return the name that the board reports, else that of its PCI device id."""
    named = text_in(card.folder / "product_name")
    if named is not None:
        return named
    if card.device_id is None:
        return "AMD GPU"
    return _NAME_BY_DEVICE.get(card.device_id, f"AMD GPU {card.device_id:#06x}")


def _highest_mhz(levels: Path) -> float | None:
    """Read the highest of a clock's levels, MHz; a user may have lowered it."""
    found = [int(mhz) for mhz in _LEVEL.findall(text_in(levels) or "")]
    return max(found) if found and max(found) in plausible.CLOCK_MHZ else None


def _with_limits(info: GpuInfo, hwmon: Path) -> GpuInfo:
    """Return `info` with power limits and slowdown, shutdown and memory temperature thresholds."""

    def power_w(name: str) -> float | None:
        return _fixed(hwmon / name, MICROWATTS_PER_WATT, plausible.POWER_W)

    def threshold_c(label: str, kind: str) -> float | None:
        sensor = _labelled(hwmon, label)
        path = hwmon / f"{sensor}_{kind}"
        return _fixed(path, MILLIDEGREES_PER_DEGREE, plausible.THRESHOLD_C) if sensor else None

    return replace(
        info,
        power_limit_w=power_w("power1_cap"),
        power_limit_default_w=power_w("power1_cap_default"),
        temperature_slowdown_c=threshold_c("junction", "crit"),
        temperature_shutdown_c=threshold_c("junction", "emergency"),
        temperature_memory_max_c=threshold_c("mem", "crit"),
    )


def _labelled(hwmon: Path, label: str) -> str | None:
    """Return the name ("temp2") of the temperature sensor with a label; None if none."""
    for path in hwmon.glob("temp*_label"):
        if text_in(path) == label:
            return path.name.removesuffix("_label")
    return None


def _fixed(path: Path, per_unit: int, bounds: Bounds) -> float | None:
    """Read a number from a file, in its field's unit; None if it is missing or implausible."""
    number = number_in(path)
    value = None if number is None else number / per_unit
    return value if value is not None and value in bounds else None


# Files with one number each: those of hwmon, and others.

#: More than a file with one number contains.
_NUMBER_BYTES: Final = 31
#: Name of the driver's unit, by how many of it make one of the field's unit.
_UNITS: Final[Mapping[int, str]] = {
    1: "bytes",
    100: "%",
    HZ_PER_MHZ: "Hz",
    MICROWATTS_PER_WATT: "uW",
    MILLIDEGREES_PER_DEGREE: "0.001 C",
}


class NumberFile:
    """Reads a file of one whole number, such as those of hwmon; open from the first read on."""

    _fd = -1

    def __init__(self, path: Path) -> None:
        self.path = path
        self._buffer: Array[c_char] = create_string_buffer(_NUMBER_BYTES + 1)

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    def read(self) -> int:
        """Read the number; raises OSError if the file can't be read or holds no whole number."""
        text = os.pread(self._opened(), _NUMBER_BYTES, 0)
        try:
            return int(text)
        except ValueError:
            raise OSError(errno.EIO, "it holds no number", self.path.name) from None

    def planned_call(self) -> PlannedCall:
        """Return the read as a call of a read plan; opens the file."""
        return PlannedCall(
            operation=self.path.name,
            shape=CallShape.TEXT,
            handle=self._opened(),
            buffer=self._buffer,
            argument=_NUMBER_BYTES,
        )

    def _opened(self) -> int:
        if self._fd < 0:
            self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        return self._fd


def traits(card: Card, info: GpuInfo) -> GpuTraits:
    """Return what is known of a GPU before its first read, with calls for its other files."""
    hwmon = card.hwmon()
    size_bytes = info.memory_size_bytes
    memory = Bounds(0, size_bytes) if size_bytes else plausible.MEMORY_BYTES
    used = _number_call(card.folder / "mem_info_vram_used", 1)
    busy = _number_call(card.folder / "gpu_busy_percent", 100)
    extra = [ExtraField(name="memory_used_bytes", bounds=memory, calls=(used,))]
    fallbacks = [ExtraField(name="activity_ratio", bounds=plausible.RATIO, calls=(busy,))]
    if hwmon is not None:
        limit = _number_call(hwmon / "power1_cap", MICROWATTS_PER_WATT)
        extra.append(ExtraField(name="power_limit_w", bounds=plausible.POWER_W, calls=(limit,)))
        fallbacks += _hwmon_fallbacks(hwmon)
    return GpuTraits(
        label=info.gpu,
        gives_card_power=card.device_id in TWO_DIE_DEVICES,
        fallbacks=tuple(fallbacks),
        extra=tuple(extra),
        hotspot_limit_c=info.temperature_slowdown_c,
    )


def _hwmon_fallbacks(hwmon: Path) -> Iterator[ExtraField]:
    """Yield fields with calls for files of hwmon (Hz, uW, 0.001 C). Source: amdgpu_pm.c."""
    hotspot = _labelled(hwmon, "junction") or _labelled(hwmon, "edge") or "temp1"
    power = ("power1_input", POWER_INSTANT), ("power1_average", POWER_AVERAGE)
    for name, bounds, per_unit, files in (
        ("sm_clock_mhz", plausible.CLOCK_MHZ, HZ_PER_MHZ, [("freq1_input", None)]),
        ("mem_clock_mhz", plausible.CLOCK_MHZ, HZ_PER_MHZ, [("freq2_input", None)]),
        ("power_w", plausible.POWER_W, MICROWATTS_PER_WATT, power),
        (
            "temperature_c",
            plausible.MEMORY_TEMPERATURE_C,
            MILLIDEGREES_PER_DEGREE,
            [(f"{hotspot}_input", None)],
        ),
    ):
        calls = (_number_call(hwmon / file, per_unit, source) for file, source in files)
        yield ExtraField(name=name, bounds=bounds, calls=tuple(calls))


def _number_call(path: Path, per_unit: int, source: str | None = None) -> PlannableCall:
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
        unit=_UNITS[per_unit],
    )


# The file `gpu_metrics`.

_OPERATION: Final = "gpu_metrics"
#: The largest size of a file in sysfs.
_PAGE_BYTES: Final = 4096


class ShortReadError(OSError, TornBlock):
    """The file of the block has another length than before: the block is torn."""


class FileSource:
    """Fetches the block from the file `gpu_metrics` into a reused buffer.

    The file stays open: a device that disappears and comes back has another file of the same name.

    Raises:
        OSError: It can't be read.
        UnknownMetricsError: Its version is not known.
    """

    operation = _OPERATION
    _fd = -1

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            first = os.pread(self._fd, _PAGE_BYTES, 0)
            self.layout = layout_of(first)
        except BaseException:
            self.close()
            raise
        self._size_bytes = len(first)
        self.buffer: Buffer = create_string_buffer(first, len(first))

    def __del__(self) -> None:
        self.close()

    def fetch(self) -> None:
        """Read the file into `buffer`; raises OSError, or ShortReadError for another length."""
        count = os.preadv(self._fd, [self.buffer], 0)
        if count != self._size_bytes:
            raise ShortReadError(f"{_OPERATION}: {count} bytes, not {self._size_bytes}")

    def planned_call(self) -> PlannedCall | None:
        """Return `fetch` as a call of a read plan."""
        return PlannedCall(
            operation=_OPERATION,
            shape=CallShape.FILE,
            handle=self._fd,
            buffer=self.buffer,
            argument=self._size_bytes,
        )

    def close(self) -> None:
        """Close the file; plans that read it must not be used any more."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class NoMetricsSource(MetricsSource):
    """An empty block, for a GPU without one; `reason` says why it has none."""

    operation = _OPERATION
    layout = MetricsLayout(version="none", size_bytes=4, slots={})

    def __init__(self, reason: str) -> None:
        self.reason = reason
        self.buffer: Buffer = create_string_buffer(4)
