"""AMD GPUs to invent: what their driver calls them and what they can tell; and their metrics.

The names of metrics are those of `amdsmi_gpu_metrics_t`. What a generation reports is as public
sources say (the kernel's amdgpu sources, ROCm's documentation); none was compared with hardware.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from tests.fakes.amd.motion import (
    COUNTS_PER_J,
    NS_PER_S,
    Motion,
    Segment,
    Timeline,
    clock,
    counter,
    level,
)

#: A number, or one for each die, link or sensor.
Values: TypeAlias = Mapping[str, int | tuple[int, ...]]
GIB = 1 << 30
MAX_DIES = 8
ABSENT_16 = 0xFFFF


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A GPU as its driver presents it.

    Attributes:
        name: Its market name.
        device_id, revision_id: Of PCI.
        gfx_version: Of the instruction set, as the kernel writes it (90402 is gfx942).
        vram_bytes: Of memory.
        cu_count: Compute units of all dies.
        die_count: XCDs.
        metrics_version: Of the kernel's `gpu_metrics`.
        power: What `gpu_metrics` says of it: "current", "average", "both", "none".
        limit_w, limit_default_w: The power limit as it is and as it was made; 0: none is told.
        clock_max_mhz, mem_clock_mhz: The highest clock; the memory's.
        energy: Its counter: "runs", "stands" (a constant), "absent", "wrong" (ten times too fast).
        residencies: Whether it counts the time under each limit.
        host_limits: Whether it counts that of each die under the host's limit.
        has_edge: Whether it has a sensor of the edge's temperature.
        critical_c, memory_critical_c: Where it slows down.
        apu: Whether it is part of a processor.
        partitions: As how many GPUs its dies are used; each has its own counters of them.
        guest: Whether this is a virtual machine's: no metrics, energy or limit.
        pci: Domain, bus, device, function.
        unique_id: 16 hexadecimal digits.
    """

    name: str = "AMD Instinct MI300X"
    device_id: int = 0x74A1
    revision_id: int = 0
    gfx_version: int = 90402
    vram_bytes: int = 206_141_652_992
    cu_count: int = 304
    die_count: int = 8
    metrics_version: tuple[int, int] = (1, 8)
    power: str = "current"
    limit_w: int = 750
    limit_default_w: int = 750
    clock_max_mhz: int = 2100
    mem_clock_mhz: int = 1300
    energy: str = "runs"
    residencies: bool = True
    host_limits: bool = True
    has_edge: bool = False
    critical_c: int = 100
    memory_critical_c: int = 105
    apu: bool = False
    partitions: int = 1
    guest: bool = False
    pci: tuple[int, int, int, int] = (0, 0x0C, 0, 0)
    unique_id: int = 0x5B1A_4E60_0000_0000

    def at(self, place: int) -> "Card":
        """The same at another place of the node."""
        domain, bus, device, function = self.pci
        moved = (domain, bus + 0x10 * place, device, function)
        return replace(self, pci=moved, unique_id=self.unique_id + place)

    @property
    def dies_each(self) -> int:
        """How many dies each partition has."""
        return max(self.die_count // self.partitions, 1)

    @property
    def bdf(self) -> str:
        """Its PCI address as the kernel writes it."""
        domain, bus, device, function = self.pci
        return f"{domain:04x}:{bus:02x}:{device:02x}.{function:x}"

    def uuid(self, partition: int = 0xFF) -> str:
        """As amdsmi tells it: the unique id's bytes around the partition (ff: none) and device."""
        top, second = self.unique_id >> 56, self.unique_id >> 48 & 0xFF
        low = self.unique_id & ((1 << 48) - 1)
        first = f"{top:02x}{partition:02x}{self.device_id:04x}"
        return f"{first}-0000-1000-80{second:02x}-{low:012x}"


def mi300x(metrics_version: tuple[int, int] = (1, 8)) -> Card:
    """Eight dies; before v1.6 no residencies, before v1.7 nothing of each die's limits."""
    minor = metrics_version[1]
    return Card(
        metrics_version=metrics_version, residencies=minor >= 6, host_limits=minor >= 7,
    )  # fmt: skip


def mi350x() -> Card:
    """Its driver writes the metrics as attributes (v1.9)."""
    return Card(
        name="AMD Instinct MI350X", device_id=0x75A0, gfx_version=90500,
        vram_bytes=288 * GIB, cu_count=256, metrics_version=(1, 9), limit_w=1000,
        limit_default_w=1000, clock_max_mhz=2200, mem_clock_mhz=1900,
    )  # fmt: skip


_VEGA = Card(
    name="AMD Instinct MI210", device_id=0x740F, revision_id=0x02, gfx_version=90010,
    vram_bytes=64 * GIB, cu_count=104, die_count=1, metrics_version=(1, 3), power="average",
    limit_w=300, limit_default_w=300, clock_max_mhz=1700, mem_clock_mhz=1600,
    residencies=False, host_limits=False, has_edge=True,
)  # fmt: skip


def mi210() -> Card:
    """One die; average power."""
    return _VEGA


def mi250x_pair() -> tuple[Card, Card]:
    """Two GPUs on one card, of which only the first knows power, energy and limit."""
    first = replace(
        _VEGA, name="AMD Instinct MI250X", device_id=0x7408, cu_count=110, limit_w=560,
        limit_default_w=560, pci=(0, 0xC1, 0, 0),
    )  # fmt: skip
    second = replace(
        first, pci=(0, 0xC6, 0, 0), unique_id=first.unique_id + 1, power="none", energy="absent",
        limit_w=0, limit_default_w=0,
    )  # fmt: skip
    return first, second


def mi100() -> Card:
    """Its energy counter stands still."""
    return replace(
        _VEGA, name="AMD Instinct MI100", device_id=0x738C, revision_id=0x01, gfx_version=90008,
        vram_bytes=32 * GIB, cu_count=120, limit_w=290, limit_default_w=290, clock_max_mhz=1502,
        mem_clock_mhz=1200, energy="stands",
    )  # fmt: skip


def radeon_w7900() -> Card:
    """A workstation card: average power in the metrics, and one more sensor in hwmon."""
    return replace(
        _VEGA, name="AMD Radeon PRO W7900", device_id=0x7448, revision_id=0, gfx_version=110000,
        vram_bytes=48 * GIB, cu_count=96, limit_w=241, limit_default_w=241, clock_max_mhz=1760,
        mem_clock_mhz=1124, energy="absent", power="both",
    )  # fmt: skip


def apu(metrics_version: tuple[int, int] = (2, 4)) -> Card:
    """Graphics in a processor, with a little memory of its own."""
    return replace(
        _VEGA, name="AMD Radeon 780M Graphics", device_id=0x15BF, revision_id=0xC1,
        gfx_version=110003, vram_bytes=GIB // 2, cu_count=12, metrics_version=metrics_version,
        limit_w=0, limit_default_w=0, clock_max_mhz=2700, mem_clock_mhz=2800, energy="absent",
        apu=True,
    )  # fmt: skip


def metric_values(card: Card, segment: Segment) -> dict[str, int | tuple[int, ...]]:
    """What the metrics of a card say while a segment lasts, counters and times left out.

    What it does not report is left out too, and stands there as all ones.
    """
    if card.apu:
        return _processor(card, segment)
    values: dict[str, int | tuple[int, ...]] = {
        "temperature_hotspot": segment.temperature_c,
        "temperature_mem": segment.memory_temperature_c,
        "average_gfx_activity": segment.activity_percent,
        "average_umc_activity": segment.memory_activity_percent,
        "current_uclk": _mem_clock(card, segment),
        **{f"{kind}_socket_power": segment.power_w for kind in _power_kinds(card)},
    }
    if card.metrics_version >= (1, 4):
        return values | _many_dies(card, segment)
    gfx_mhz = _clock(segment, 0)
    return values | {
        "temperature_edge": segment.temperature_c - 10, "temperature_vrgfx": 45,
        "average_mm_activity": 0, "average_gfxclk_frequency": gfx_mhz, "current_gfxclk": gfx_mhz,
        "average_uclk_frequency": _mem_clock(card, segment), "average_socclk_frequency": 1000,
        "current_socclk": 1000, "throttle_status": 0, "current_fan_speed": 0,
        "pcie_link_width": 16, "pcie_link_speed": 160, "indep_throttle_status": _throttle(segment),
    }  # fmt: skip


def _processor(card: Card, segment: Segment) -> dict[str, int | tuple[int, ...]]:
    """Of an APU: temperatures in 0.01 °C, power in mW; activity in 0.01 % before v3.0."""
    clock_mhz, mem_mhz = _clock(segment, 0), _mem_clock(card, segment)
    per_percent = 1 if card.metrics_version >= (3, 0) else 100
    return {
        "temperature_gfx": segment.temperature_c * 100,
        "temperature_soc": segment.memory_temperature_c * 100,
        "average_gfx_activity": segment.activity_percent * per_percent,
        "average_socket_power": segment.power_w * 1000,
        "average_gfx_power": segment.power_w * 1000, "average_gfxclk_frequency": clock_mhz,
        "current_gfxclk": clock_mhz, "average_uclk_frequency": mem_mhz, "current_uclk": mem_mhz,
        "throttle_status": 0, "indep_throttle_status": _throttle(segment),
    }  # fmt: skip


def _many_dies(card: Card, segment: Segment) -> dict[str, int | tuple[int, ...]]:
    busy = segment.activity_percent
    dies = tuple(_clock(segment, die) for die in range(card.die_count))
    return {
        "current_gfxclks": dies + (ABSENT_16,) * (MAX_DIES - card.die_count),
        "current_socclks": (1200,) * 4, "temperature_vrsoc": 48, "gfxclk_lock_status": 0,
        "pcie_link_width": 16, "pcie_link_speed": 320, "pcie_replay_count_acc": ABSENT_16,
        "vram_max_bandwidth": 5300, "num_partition": card.partitions,
        **{
            f"xcp_stats.{partition}.gfx_busy_inst": (busy,) * card.dies_each
            for partition in range(card.partitions)
        },
    }  # fmt: skip


def _clock(segment: Segment, die: int) -> int:
    clock_mhz = segment.clock_mhz(die)
    return ABSENT_16 if clock_mhz is None else clock_mhz


def _mem_clock(card: Card, segment: Segment) -> int:
    return card.mem_clock_mhz if segment.mem_clock_mhz is None else segment.mem_clock_mhz


def _power_kinds(card: Card) -> tuple[str, ...]:
    return {"both": ("current", "average"), "none": ()}.get(card.power, (card.power,))


def _throttle(segment: Segment) -> int:
    """The bits that are the same on all cards.

    Source: amdgpu's `amdgpu_smu.h`, `SMU_THROTTLER_PPT0_BIT` 0, `SMU_THROTTLER_TEMP_*` from 32 on
    (memory 34, hotspot 36, VR GFX 38), `SMU_THROTTLER_PROCHOT_GFX_BIT` 47.
    """
    bits = {"ppt": 0, "hbm_thm": 34, "socket_thm": 36, "vr_thm": 38, "prochot": 47}
    return sum(1 << bits[limit] for limit in segment.limits if limit in bits)


def motions(card: Card, timeline: Timeline) -> tuple[Motion, ...]:
    """How all that moves does; `metric_values` of the first segment tells the rest."""
    return (*_changing(card, timeline), *_times(card), *_counters(card, timeline))


def _changing(card: Card, timeline: Timeline) -> Iterator[Motion]:
    each = [metric_values(card, segment) for segment in timeline.segments]
    for name, first in each[0].items():
        rows = [values[name] for values in each]
        if isinstance(first, int):
            columns: list[tuple[int, ...]] = [tuple(row for row in rows if isinstance(row, int))]
        else:
            columns = list(zip(*(row for row in rows if isinstance(row, tuple)), strict=True))
        for place, column in enumerate(columns):
            if len(set(column)) > 1:
                yield level(name, timeline, column, place)


def _times(card: Card) -> Iterator[Motion]:
    yield clock("system_clock_counter", at_read=True)
    if not card.apu:
        yield clock("firmware_timestamp", denominator=10)


def _counters(card: Card, timeline: Timeline) -> Iterator[Motion]:
    if card.energy != "absent":
        power_w = timeline.levels(lambda s: 0 if card.energy == "stands" else s.power_w)
        per_j = COUNTS_PER_J * (10 if card.energy == "wrong" else 1)
        yield counter("energy_accumulator", timeline, power_w, numerator=per_j,
                      denominator=NS_PER_S, base=10**9)  # fmt: skip
    if card.apu:
        return
    for name, percent in (
        ("gfx_activity_acc", timeline.levels(lambda s: s.activity_percent)),
        ("mem_activity_acc", timeline.levels(lambda s: s.memory_activity_percent)),
    ):
        yield counter(name, timeline, percent, bits=32)
    if card.residencies:
        yield clock("accumulation_counter", denominator=10**6, bits=32)
        yield from _residencies(timeline)
    if card.host_limits:
        yield from _host_limits(card, timeline)


def _residencies(timeline: Timeline) -> Iterator[Motion]:
    for limit in ("prochot", "ppt", "socket_thm", "vr_thm", "hbm_thm"):
        limited = [int(limit in segment.limits) for segment in timeline.segments]
        yield counter(f"{limit}_residency_acc", timeline, limited, bits=32, base=1000)


def _host_limits(card: Card, timeline: Timeline) -> Iterator[Motion]:
    """Of each die; v1.7 has one counter for all reasons."""
    power = timeline.levels(lambda s: int("ppt" in s.limits))
    heat = timeline.levels(lambda s: int(bool(s.limits - {"ppt"})))
    total = timeline.levels(lambda s: int(bool(s.limits)))
    idle = timeline.levels(lambda s: int(s.activity_percent == 0))
    counted = {
        "gfx_below_host_limit_ppt_acc": power,
        "gfx_below_host_limit_thm_acc": heat,
        "gfx_low_utilization_acc": idle,
        "gfx_below_host_limit_total_acc": total,
    }
    if card.metrics_version == (1, 7):
        counted = {"gfx_below_host_limit_acc": total}
    for die in range(card.die_count):
        runs = [int(segment.clock_mhz(die) is not None) for segment in timeline.segments]
        for name, rates in counted.items():
            while_running = [rate * run for rate, run in zip(rates, runs, strict=True)]
            partition, place = divmod(die, card.dies_each)
            metric = f"xcp_stats.{partition}.{name}"
            yield counter(metric, timeline, while_running, place=place)
