"""Table of the metrics of an AMD GPU that give each field, best first; reads nothing.

Units are those of amdgpu's `gpu_metrics`, which AMD SMI passes on. Source: kgd_pp_interface.h of
Linux 6.18; other sources are named with each metric.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from chopperd import plausible
from chopperd.model.kinds import Cause
from chopperd.plausible import Bounds

#: `GpuInfo.power_source`.
POWER_INSTANT: Final = "instant"
POWER_AVERAGE: Final = "average"
POWER_CARD: Final = "card"

#: The energy counter has steps of 2^-16 J; AMD SMI's own factor (15.3 uJ) is 0.27 % too high.
COUNTS_PER_JOULE: Final = 65_536
#: Unit of `firmware_timestamp`.
FIRMWARE_TICK_NS: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """A metric that gives a field of a reading."""

    metric: str  # its name, as in `MetricsLayout.slots`
    per_unit: int = 1  # how many of the metric's units are one of the field's
    unit: str  # the metric's unit
    source: str | None = None  # name of this method where a field has several
    absent: int | None = None  # a value that means "not reported", in addition to all ones


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensor:
    """A field of `DeviceReading` and the methods to read it, best first."""

    name: str
    bounds: Bounds
    methods: tuple[Method, ...]


def _sensor(name: str, bounds: Bounds, *methods: Method) -> Sensor:
    return Sensor(name=name, bounds=bounds, methods=methods)


DIE_CLOCKS: Final = "current_gfxclks"
#: The clock of a chip with one die; on a chip with several it is that of the first die.
ONE_CLOCK: Final = _sensor(
    "sm_clock_mhz", plausible.CLOCK_MHZ, Method(metric="current_gfxclk", unit="MHz")
)
#: MI200 and older report only an average, over a time that is not documented; MI300 only the
#: instantaneous power. A card that reports both (Radeon) is read by the latter.
POWER: Final = _sensor(
    "power_w",
    plausible.POWER_W,
    Method(metric="current_socket_power", unit="W", source=POWER_INSTANT),
    Method(metric="average_socket_power", unit="W", source=POWER_AVERAGE),
)
ENERGY: Final = _sensor(
    "energy_j",
    plausible.ENERGY_J,
    Method(
        metric="energy_accumulator",
        per_unit=COUNTS_PER_JOULE,
        unit="2^-16 J",
        absent=2**32 - 1,  # written by Radeon's driver into the 64 bits
    ),
)
# A sensor that does not exist reads 0 in some versions.
TEMPERATURE: Final = _sensor(
    "temperature_c",
    plausible.MEMORY_TEMPERATURE_C,
    Method(metric="temperature_hotspot", unit="C"),
    Method(metric="temperature_edge", unit="C"),
)
MEM_CLOCK: Final = _sensor(
    "mem_clock_mhz", plausible.CLOCK_MHZ, Method(metric="current_uclk", unit="MHz")
)
ACTIVITY: Final = _sensor(
    "activity_ratio", plausible.RATIO, Method(metric="average_gfx_activity", per_unit=100, unit="%")
)
MEMORY_TEMPERATURE: Final = _sensor(
    "temperature_memory_c",
    plausible.MEMORY_TEMPERATURE_C,
    Method(metric="temperature_mem", unit="C"),
)
#: What every read takes from the block besides clocks, power and energy; what only full reads take.
SLOW: Final = (MEM_CLOCK, TEMPERATURE, ACTIVITY)
FULL_ONLY: Final = (MEMORY_TEMPERATURE,)

#: The firmware's cycle counter; the counters below count some of these cycles.
CYCLES: Final = "accumulation_counter"
STAMP: Final = "firmware_timestamp"

# Cycles in which a die was below the host's limit, by reason. Source: gpu_metrics v1.8,
# "HST_LIMIT_METRICS" in smu_v13_0_6_ppt.c; AMD SMI's violations are quotients of these and CYCLES.
BELOW_LIMIT: Final[Mapping[Cause, str]] = {
    Cause.POWER_CAP: "gfx_below_host_limit_ppt_acc",
    Cause.THERMAL: "gfx_below_host_limit_thm_acc",
    Cause.LOW_UTILIZATION: "gfx_low_utilization_acc",
}
#: Below the host's limit for any reason except low utilization; less the reasons: unexplained.
BELOW_LIMIT_TOTAL: Final = "gfx_below_host_limit_total_acc"
BELOW_LIMIT_REASONS: Final = (BELOW_LIMIT[Cause.POWER_CAP], BELOW_LIMIT[Cause.THERMAL])

# Cycles in which the firmware's controllers limited the chip: package power (PPT), temperature of
# socket, memory and regulators, and the signal PROCHOT, by which the board slows it down.
RESIDENCY: Final[Mapping[Cause, tuple[str, ...]]] = {
    Cause.POWER_CAP: ("ppt_residency_acc",),
    Cause.THERMAL: ("socket_thm_residency_acc", "hbm_thm_residency_acc"),
    Cause.HW_THERMAL: ("vr_thm_residency_acc",),
    Cause.HW_SLOWDOWN: ("prochot_residency_acc",),
}

#: Limits in force, as bits, on chips without such counters. Source: SMU_THROTTLER_*_BIT of
#: amdgpu_smu.h: power 0-7, current 16-23, temperature 32-43, regulators 44-45, PROCHOT 46-47.
THROTTLE_STATUS: Final = "indep_throttle_status"
_CAUSE_BY_BITS: Final = (
    (range(8), Cause.POWER_CAP),
    (range(16, 24), Cause.POWER_CAP),
    (range(32, 44), Cause.THERMAL),
    (range(44, 46), Cause.HW_THERMAL),
    (range(46, 48), Cause.HW_SLOWDOWN),
)
#: The bit set of `Cause` of each of its 64 bits.
CAUSES_BY_BIT: Final = tuple(
    next((cause.bit for bits, cause in _CAUSE_BY_BITS if index in bits), Cause.UNKNOWN.bit)
    for index in range(64)
)
#: Bits of the chip's own temperature (whole, core, edge, hotspot), and of any temperature.
OWN_TEMPERATURE_BITS: Final = 1 << 32 | 1 << 33 | 1 << 35 | 1 << 36
TEMPERATURE_BITS: Final = sum(1 << index for index in range(32, 46))
#: For a number whose bits mean nothing: the limits are reported by counters alone.
NO_CAUSES: Final = (0,) * 64
