"""The files that tell of a card what its block of metrics may not: hwmon's and others."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from chopperd.devices.amd.kernel.cards import TWO_DIE_DEVICES, Card, labelled
from chopperd.devices.amd.kernel.files import NumberFile
from chopperd.devices.amd.planning import PlannableCall
from chopperd.devices.amd.sensors import Beside, GpuTraits
from chopperd.devices.channel import Call
from chopperd.devices.read_plan import NumberKind
from chopperd.model import plausible
from chopperd.model.devices import GpuInfo
from chopperd.model.plausible import Bounds
from chopperd.units import HZ_PER_MHZ, MICROWATTS_PER_WATT, MILLIDEGREES_PER_DEGREE

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
