"""Table of the NVML calls that give each field, best first; makes no calls.

Layouts are those of nvml.h 13.5 on Linux, where each member is aligned to its size.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from chopperd import plausible
from chopperd.devices.nvml.codes import POWER_INSTANT_FIELD
from chopperd.devices.read_plan import NumberKind
from chopperd.model.kinds import Cause
from chopperd.plausible import Bounds
from chopperd.units import MILLIJOULES_PER_JOULE, MILLIWATTS_PER_WATT

#: `GpuInfo.power_source`: the GPU's power at this instant, that of its whole module, or the mean
#: of the last second.
POWER_INSTANT: Final = "instant"
POWER_MODULE: Final = "module"
POWER_AVERAGE_1S: Final = "average_1s"
#: `GpuInfo.memory_source`.
MEMORY_V2: Final = "v2"
MEMORY_V1: Final = "v1"
MEMORY_SYSTEM: Final = "system"

FIELD_VALUES: Final = "nvmlDeviceGetFieldValues"
GPU_SCOPE: Final = 0
MODULE_SCOPE: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Direct:
    """A number that one NVML call gives, in the buffer it fills."""

    operation: str  # the entry point: f(handle, buffer), or f(handle, argument, buffer)
    argument: int | None = None  # the call's argument; None if it has none
    size_bytes: int = 4  # size of the buffer
    #: Input at the start of the buffer (uint32 each): a version, a sensor.
    words: tuple[int, ...] = ()
    #: Where the number is, and its encoding.
    offset: int = 0
    kind: NumberKind = NumberKind.UINT32
    per_unit: int = 1  # how many of the driver's units are one of the field's
    unit: str  # the driver's unit
    source: str | None = None  # name of this method where a field has several

    @property
    def label(self) -> str:
        """Name of the method in errors and counts."""
        return self.operation

    @property
    def full_label(self) -> str:
        """Name of the method with its argument, if it has one."""
        return self.operation if self.argument is None else f"{self.operation}[{self.argument}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldValue:
    """A number that the driver gives by id, many in one call; attributes as in `Direct`."""

    field_id: int
    scope_id: int = GPU_SCOPE
    per_unit: int = 1
    unit: str
    source: str | None = None

    @property
    def key(self) -> int:
        """Id of field and scope as one number."""
        return self.scope_id << 32 | self.field_id

    @property
    def label(self) -> str:
        """Name of the method in errors and counts."""
        scope = ", module" if self.scope_id == MODULE_SCOPE else ""
        return f"{FIELD_VALUES}[{self.field_id}{scope}]"

    @property
    def full_label(self) -> str:
        """Name of the method, the same as `label`."""
        return self.label


Method: TypeAlias = Direct | FieldValue


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensor:
    """A field of `DeviceReading`, its bounds, and the methods to read it, best first."""

    name: str
    bounds: Bounds
    methods: tuple[Method, ...]


def _sensor(name: str, bounds: Bounds, *methods: Method) -> Sensor:
    return Sensor(name=name, bounds=bounds, methods=methods)


# The clock at this instant. Source: nvmlDeviceGetClockInfo, NVML_CLOCK_SM and NVML_CLOCK_MEM.
SM_CLOCK, MEM_CLOCK = (
    _sensor(
        name,
        plausible.CLOCK_MHZ,
        Direct(operation="nvmlDeviceGetClockInfo", argument=clock, unit="MHz"),
    )
    for clock, name in ((1, "sm_clock_mhz"), (2, "mem_clock_mhz"))
)

# Limits in force, as NVML's bits. Source: nvmlDeviceGetCurrentClocksEventReasons, and its name
# before driver 535, removed in CUDA 14.
REASONS: Final = _sensor(
    "causes",
    plausible.BITS,
    *(
        Direct(
            operation=f"nvmlDeviceGetCurrentClocks{name}Reasons",
            size_bytes=8,
            kind=NumberKind.UINT64,
            unit="bits",
        )
        for name in ("Event", "Throttle")
    ),
)


def _power(field_id: int, scope_id: int, source: str) -> FieldValue:
    return FieldValue(
        field_id=field_id, scope_id=scope_id, per_unit=MILLIWATTS_PER_WATT, unit="mW", source=source
    )


def _power_call(operation: str, source: str | None = None) -> Direct:
    return Direct(operation=operation, per_unit=MILLIWATTS_PER_WATT, unit="mW", source=source)


# Source: NVML_FI_DEV_POWER_AVERAGE and _INSTANT of nvml.h. All architectures have the instant
# power, Ampere and later (except GA100) the average. `nvmlDeviceGetPowerUsage` gives the average
# where there is one, else the instant power. It can't be asked which, so it counts as an average on
# every GPU, and is used only if no field answers. Some superchips know only the power of the module
# (processor and GPU).
POWER_AVERAGE_FIELD: Final = 185
_AVERAGE: Final = _power(POWER_AVERAGE_FIELD, GPU_SCOPE, POWER_AVERAGE_1S)
POWER: Final = _sensor(
    "power_w",
    plausible.POWER_W,
    _power(POWER_INSTANT_FIELD, GPU_SCOPE, POWER_INSTANT),
    _power(POWER_INSTANT_FIELD, MODULE_SCOPE, POWER_MODULE),
    _AVERAGE,
    _power_call("nvmlDeviceGetPowerUsage", POWER_AVERAGE_1S),
)
POWER_AVERAGE: Final = _sensor("power_average_w", plausible.POWER_W, _AVERAGE)
MODULE_POWER_AVERAGE: Final = _sensor(
    "power_average_w.module",
    plausible.POWER_W,
    _power(POWER_AVERAGE_FIELD, MODULE_SCOPE, POWER_MODULE),
)
POWER_LIMIT: Final = _sensor(
    "power_limit_w", plausible.POWER_W, _power_call("nvmlDeviceGetEnforcedPowerLimit")
)

# Since the driver loaded; Volta and later. Source: nvmlDeviceGetTotalEnergyConsumption, and
# NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION: one counter by their words in nvml.h, not seen on hardware.
ENERGY: Final = _sensor(
    "energy_j",
    plausible.ENERGY_J,
    Direct(
        operation="nvmlDeviceGetTotalEnergyConsumption",
        size_bytes=8,
        kind=NumberKind.UINT64,
        per_unit=MILLIJOULES_PER_JOULE,
        unit="mJ",
    ),
    FieldValue(field_id=83, per_unit=MILLIJOULES_PER_JOULE, unit="mJ"),
)

# Source: nvmlTemperature_v1_t: version, sensor (NVML_TEMPERATURE_GPU), signed temperature. The
# older call is unsigned: frost reads as 4 billion degrees.
TEMPERATURE: Final = _sensor(
    "temperature_c",
    plausible.TEMPERATURE_C,
    Direct(
        operation="nvmlDeviceGetTemperatureV",
        size_bytes=12,
        words=(0x0100000C, 0),
        offset=8,
        kind=NumberKind.INT32,
        unit="C",
    ),
    Direct(operation="nvmlDeviceGetTemperature", argument=0, unit="C"),
)
# Source: NVML_FI_DEV_MEMORY_TEMP. HBM only: others answer "not supported", or 0.
MEMORY_TEMPERATURE: Final = _sensor(
    "temperature_memory_c", plausible.MEMORY_TEMPERATURE_C, FieldValue(field_id=82, unit="C")
)


def _memory_v2(offset: int) -> Direct:
    return Direct(
        operation="nvmlDeviceGetMemoryInfo_v2",
        size_bytes=40,
        words=(0x02000028,),
        offset=offset,
        kind=NumberKind.UINT64,
        unit="bytes",
        source=MEMORY_V2,
    )


def _memory_v1(offset: int) -> Direct:
    return Direct(
        operation="nvmlDeviceGetMemoryInfo",
        size_bytes=24,
        offset=offset,
        kind=NumberKind.UINT64,
        unit="bytes",
        source=MEMORY_V1,
    )


# Source: nvmlMemory_v2_t: version, total, reserved, free, used. nvmlMemory_t: total, free, used,
# which holds the driver's reserve (about a GB). A GPU whose memory is the system's answers neither.
MEMORY_USED: Final = _sensor(
    "memory_used_bytes", plausible.MEMORY_BYTES, _memory_v2(32), _memory_v1(16)
)
# Read from the buffer that the v2 call above fills, without another call.
MEMORY_RESERVED_METHOD: Final = _memory_v2(16)
MEMORY_RESERVED: Final = _sensor(
    "memory_reserved_bytes", plausible.MEMORY_BYTES, MEMORY_RESERVED_METHOD
)
MEMORY_SIZE: Final = _sensor(
    "memory_size_bytes", plausible.MEMORY_BYTES, _memory_v2(8), _memory_v1(0)
)

# Share of time with a kernel running, over the driver's own window of 1/6 s to 1 s; not defined
# while MIG mode is on. Source: nvmlUtilization_t: gpu, memory.
ACTIVITY: Final = _sensor(
    "activity_ratio",
    plausible.RATIO,
    Direct(operation="nvmlDeviceGetUtilizationRates", size_bytes=8, per_unit=100, unit="%"),
)

#: What full reads read of a board besides clock, limits, power and memory, one number each.
SLOW: Final = (MEM_CLOCK, ENERGY, TEMPERATURE, MEMORY_TEMPERATURE, POWER_LIMIT, ACTIVITY)

# Causes with a counter before there were fields; deprecated, removed in CUDA 14.
# Source: NVML_PERF_POLICY_*, and nvmlViolationTime_t: time of the answer in us, time under the
# limit in ns.
_OLD_POLICIES: Final = {Cause.POWER_CAP: 0, Cause.THERMAL: 1, Cause.SYNC_BOOST: 2}

#: Limits that a driver may count.
COUNTED_CAUSES: Final = (
    Cause.POWER_CAP,
    Cause.SYNC_BOOST,
    Cause.THERMAL,
    Cause.HW_THERMAL,
    Cause.POWER_BRAKE,
)


def limit_counters(limit_fields: Mapping[int, Cause]) -> dict[Cause, Sensor]:
    """Return the counter (ns) of each limit that a driver may count, by cause.

    `limit_fields` gives causes by this driver's field ids (`codes.limit_fields`).
    """
    field_by_cause = {cause: field_id for field_id, cause in limit_fields.items()}
    return {cause: _limit_counter(cause, field_by_cause.get(cause)) for cause in COUNTED_CAUSES}


def _limit_counter(cause: Cause, field_id: int | None) -> Sensor:
    methods: list[Method] = []
    if field_id is not None:
        methods.append(FieldValue(field_id=field_id, unit="ns"))
    if cause in _OLD_POLICIES:
        methods.append(
            Direct(
                operation="nvmlDeviceGetViolationStatus",
                argument=_OLD_POLICIES[cause],
                size_bytes=16,
                offset=8,
                kind=NumberKind.UINT64,
                unit="ns",
            )
        )
    return _sensor(f"limited_ns.{cause.label}", plausible.LIMITED_NS, *methods)


#: Fields of `GpuInfo`, read once; the applications clock becomes a limit in `identity`. Arguments
#: are NVML_CLOCK_* and NVML_TEMPERATURE_THRESHOLD_*. The successors of these thresholds from Ada
#: on, fields 193-195, count from a limit that is not reported. The highest clock in P0 may differ
#: by a few MHz; nvmlDeviceGet[Default]ApplicationsClock are deprecated and not on the newest GPUs.
FIXED: Final = (
    *(
        _sensor(name, plausible.CLOCK_MHZ, Direct(operation=call, argument=clock, unit="MHz"))
        for name, call, clock in (
            ("sm_clock_max_mhz", "nvmlDeviceGetMaxClockInfo", 1),
            ("mem_clock_max_mhz", "nvmlDeviceGetMaxClockInfo", 2),
            ("sm_clock_limit_mhz", "nvmlDeviceGetApplicationsClock", 0),
        )
    ),
    _sensor(
        "power_limit_default_w",
        plausible.POWER_W,
        _power_call("nvmlDeviceGetPowerManagementDefaultLimit"),
    ),
    *(
        _sensor(
            name,
            plausible.THRESHOLD_C,
            Direct(operation="nvmlDeviceGetTemperatureThreshold", argument=threshold, unit="C"),
        )
        for threshold, name in enumerate(
            ("temperature_shutdown_c", "temperature_slowdown_c", "temperature_memory_max_c")
        )
    ),
)
DEFAULT_CLOCK: Final = _sensor(
    "sm_clock_limit_mhz",
    plausible.CLOCK_MHZ,
    Direct(operation="nvmlDeviceGetDefaultApplicationsClock", argument=0, unit="MHz"),
)

# NVML_FI_DEV_POWER_SYNC_BALANCING_FREQ: "accumulated frequency of the GPU to be used for
# averaging", in nvml.h 13.5; neither its unit nor which GPUs have it is documented, and it was not
# seen on hardware. It is probed, and enters no sample.
ACCUMULATED_CLOCK: Final = FieldValue(field_id=272, unit="accumulated")
