"""What the fake driver answers, as a file that tests change while the driver is in use.

The layout is that of `fake_nvml.h`; `build.py` checks that the two agree.
"""

import mmap
from collections.abc import Iterable
from ctypes import Structure, c_char, c_int64, sizeof
from dataclasses import asdict, dataclass
from pathlib import Path

MAX_GPUS = 16
MAX_SEGMENTS = 32
LIMIT_COUNTERS = 5

CALLS = (
    "nvmlInitWithFlags",
    "nvmlShutdown",
    "nvmlSystemGetDriverVersion",
    "nvmlDeviceGetCount_v2",
    "nvmlDeviceGetHandleByIndex_v2",
    "nvmlDeviceGetHandleByUUID",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetName",
    "nvmlDeviceGetPciInfo_v3",
    "nvmlDeviceGetMaxClockInfo",
    "nvmlDeviceGetApplicationsClock",
    "nvmlDeviceGetDefaultApplicationsClock",
    "nvmlDeviceGetEnforcedPowerLimit",
    "nvmlDeviceGetPowerManagementDefaultLimit",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetClockInfo",
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetCurrentClocksThrottleReasons",
    "nvmlDeviceGetFieldValues",
    "nvmlDeviceGetPowerUsage",
    "nvmlDeviceGetTotalEnergyConsumption",
    "nvmlDeviceGetTemperatureV",
    "nvmlDeviceGetTemperature",
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetUtilizationRates",
    "nvmlDeviceGetTemperatureThreshold",
    "nvmlDeviceGetSamples",
    "nvmlDeviceGetViolationStatus",
    "nvmlDeviceGetMaxMigDeviceCount",
    "nvmlDeviceGetMigDeviceHandleByIndex",
    "nvmlDeviceGetGpuInstanceId",
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetComputeRunningProcesses_v2",
    "nvmlEventSetCreate",
    "nvmlDeviceRegisterEvents",
    "nvmlDeviceGetSupportedEventTypes",
    "nvmlEventSetWait_v2",
    "nvmlDeviceGetTotalEccErrors",
    "nvmlDeviceGetRemappedRows",
    "nvmlDeviceGetRetiredPagesPendingStatus",
)
#: What a code can be given for, in the order of `field_code`.
FIELDS = (
    *("power_cap", "sync_boost", "thermal", "hw_thermal", "power_brake"),
    *("power_instant", "power_average", "module_power_instant", "module_power_average"),
    *("memory_temperature", "energy", "accumulated_frequency"),
)
#: Which samples the driver keeps itself, in the order of `buffer_period_ns`.
BUFFERS = ("power", "sm_clock")
#: How many it keeps of each.
BUFFERED_SAMPLES = 120

SUCCESS = 0
UNINITIALIZED = 1
INVALID_ARGUMENT = 2
NOT_SUPPORTED = 3
NO_PERMISSION = 4
DRIVER_NOT_LOADED = 9
TIMEOUT = 10
GPU_IS_LOST = 15
LIB_RM_VERSION_MISMATCH = 18
UNKNOWN = 999
#: As codes: the call does not return while it stands; the call ends the process.
HANGS = -1
CRASHES = -2

MOST_PROCESSES = 80
MOST_XIDS = 8
#: What a GPU instance answers; all else is for cards.
INSTANCE_CALLS = frozenset(
    {
        "nvmlDeviceGetHandleByUUID",
        "nvmlDeviceGetUUID",
        "nvmlDeviceGetName",
        "nvmlDeviceGetMemoryInfo_v2",
        "nvmlDeviceGetMemoryInfo",
        "nvmlDeviceGetGpuInstanceId",
        "nvmlDeviceGetComputeRunningProcesses_v3",
        "nvmlDeviceGetComputeRunningProcesses_v2",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A stretch of time in which a GPU's values stand still."""

    length_ns: int = 1_000_000_000
    sm_clock_mhz: int = 1980
    mem_clock_mhz: int = 2619
    power_mw: int = 500_000
    temperature_c: int = 60
    reasons: int = 0
    activity_percent: int = 100


class SegmentLayout(Structure):
    _fields_ = [(name, c_int64) for name in Segment.__dataclass_fields__]


class GpuLayout(Structure):
    """One GPU: plain members may be assigned at any time; the methods do the rest."""

    _fields_ = [
        ("uuid", c_char * 96),
        ("name", c_char * 96),
        ("pci_bus_id", c_char * 32),
        ("sm_clock_max_mhz", c_int64),
        ("mem_clock_max_mhz", c_int64),
        ("applications_clock_mhz", c_int64),
        ("default_applications_clock_mhz", c_int64),
        ("power_limit_mw", c_int64),
        ("power_limit_default_mw", c_int64),
        ("memory_total_bytes", c_int64),
        ("memory_reserved_bytes", c_int64),
        ("memory_used_bytes", c_int64),
        ("mig_mode", c_int64),
        ("energy_start_mj", c_int64),
        ("limited_start_ns", c_int64 * LIMIT_COUNTERS),
        ("counter_period_ns", c_int64),
        ("origin_unix_ns", c_int64),
        ("repeats", c_int64),
        ("segment_count", c_int64),
        ("segments", SegmentLayout * MAX_SEGMENTS),
        ("code", c_int64 * len(CALLS)),
        ("delay_ms", c_int64 * len(CALLS)),
        ("field_code", c_int64 * len(FIELDS)),
        ("called", c_int64 * len(CALLS)),
        ("memory_temperature_c", c_int64),
        ("temperature_threshold_c", c_int64 * 3),
        ("module_extra_mw", c_int64),
        ("clock_period_ns", c_int64),
        ("power_period_ns", c_int64),
        ("buffer_period_ns", c_int64 * len(BUFFERS)),
    ]

    def plays(self, *segments: Segment, origin_unix_ns: int = 0, repeats: bool = False) -> None:
        """Values from `origin_unix_ns` on; the last segment stays, or they go round and round."""
        self.origin_unix_ns = origin_unix_ns
        self.repeats = int(repeats)
        for slot, segment in zip(self.segments, segments, strict=False):
            for name, value in asdict(segment).items():
                setattr(slot, name, value)
        self.segment_count = len(segments)

    def fails(self, code: int, *calls: str, delay_ms: int = 0) -> None:
        """The calls (all, if none is named) answer `code` after `delay_ms`; 0 heals them.

        Calls that wait already wait by the newest `delay_ms`.
        """
        for call in calls or CALLS:
            self.code[CALLS.index(call)] = code
            self.delay_ms[CALLS.index(call)] = delay_ms

    def fails_field(self, code: int, *fields: str) -> None:
        """These field values answer `code`, while the call itself succeeds."""
        for field in fields:
            self.field_code[FIELDS.index(field)] = code

    def buffers(self, **period_ns: int) -> None:
        """Keep samples of these sensors in the driver, one each `period_ns`; 0: none."""
        for name, value in period_ns.items():
            self.buffer_period_ns[BUFFERS.index(name)] = value

    def calls_of(self, call: str) -> int:
        """How often this GPU was asked by this call."""
        return int(self.called[CALLS.index(call)])

    def calls_total(self) -> int:
        """How often this GPU was asked anything."""
        return sum(self.called)


class AsideLayout(Structure):
    """What is seldom asked of a GPU, or tells that it is a GPU instance."""

    _fields_ = [
        ("mig_card", c_int64),
        ("mig_instance", c_int64),
        ("process_count", c_int64),
        ("process_pid", c_int64 * MOST_PROCESSES),
        ("process_bytes", c_int64 * MOST_PROCESSES),
        ("xid_count", c_int64),
        ("xid", c_int64 * MOST_XIDS),
        ("ecc_uncorrected", c_int64),
        ("rows_pending", c_int64),
        ("rows_failed", c_int64),
        ("pages_pending", c_int64),
        ("recovery_action", c_int64),
    ]

    def runs(self, *processes: tuple[int, int]) -> None:
        """These processes are on it: pid and bytes (-1: not available)."""
        for place, (pid, used_bytes) in enumerate(processes):
            self.process_pid[place], self.process_bytes[place] = pid, used_bytes
        self.process_count = len(processes)

    def has_xid(self, xid: int) -> None:
        """An XID occurs now."""
        self.xid[self.xid_count % MOST_XIDS] = xid
        self.xid_count += 1


class ScenarioLayout(Structure):
    _fields_ = [
        ("driver_version", c_char * 80),
        ("gpu_count", c_int64),
        ("frozen_unix_ns", c_int64),
        ("first_limit_field", c_int64),
        ("code", c_int64 * len(CALLS)),
        ("gpus", GpuLayout * MAX_GPUS),
        ("asides", AsideLayout * MAX_GPUS),
    ]


class Scenario:
    """A scenario file, mapped; the fake driver sees every change at once.

    Attributes:
        path: What `FAKE_NVML_SCENARIO` must name.
        gpus: The GPUs, in the driver's order.
    """

    def __init__(self, path: Path, gpu_count: int = 1) -> None:
        path.write_bytes(bytes(sizeof(ScenarioLayout)))
        self._map(path)
        self._layout.gpu_count = gpu_count
        self.gpus = tuple(self._layout.gpus[index] for index in range(gpu_count))
        for index, gpu in enumerate(self.gpus):
            _healthy_h100(gpu, index)
        self.driver("595.45.04", first_limit_field=269)

    @classmethod
    def attached(cls, path: Path) -> "Scenario":
        """A scenario that another process has written, to change it from here."""
        scenario = cls.__new__(cls)
        scenario._map(path)
        scenario.gpus = tuple(scenario._layout.gpus[: scenario._layout.gpu_count])
        return scenario

    def _map(self, path: Path) -> None:
        self.path = path
        with path.open("r+b") as file:
            self._layout = ScenarioLayout.from_buffer(mmap.mmap(file.fileno(), 0))

    def driver(self, version: str, *, first_limit_field: int) -> None:
        """The driver's version, and where its three newer limit counters are (0: nowhere)."""
        self._layout.driver_version = version.encode()
        self._layout.first_limit_field = first_limit_field

    def aside(self, gpu: GpuLayout) -> AsideLayout:
        """What is seldom asked of a GPU or of an instance."""
        place = next(p for p in range(MAX_GPUS) if self._layout.gpus[p].uuid == gpu.uuid)
        aside: AsideLayout = self._layout.asides[place]
        return aside

    def add_gpu(self) -> GpuLayout:
        """One more healthy GPU; the driver counts it from now on. Not after `partition`."""
        place = self._layout.gpu_count
        gpu: GpuLayout = self._layout.gpus[place]
        _healthy_h100(gpu, place)
        self._layout.gpu_count = place + 1
        self.gpus += (gpu,)
        return gpu

    def partition(self, card: int, instance: int, *, uuid: str, used_bytes: int = 0) -> GpuLayout:
        """A new GPU instance of 10 GiB on a card, whose MIG mode is on from now on."""
        taken = range(self._layout.gpu_count, MAX_GPUS)
        place = next(p for p in taken if not self._layout.asides[p].mig_card)
        gpu: GpuLayout = self._layout.gpus[place]
        gpu.uuid, gpu.name = uuid.encode(), self.gpus[card].name + b" MIG 1g.10gb"
        gpu.memory_total_bytes, gpu.memory_used_bytes = 10 << 30, used_bytes
        gpu.memory_reserved_bytes = 0
        gpu.plays(Segment())
        gpu.fails(SUCCESS)
        gpu.fails(INVALID_ARGUMENT, *(call for call in CALLS if call not in INSTANCE_CALLS))
        aside = self._layout.asides[place]
        aside.mig_instance, aside.process_count = instance, 0
        aside.mig_card = card + 1
        self.gpus[card].mig_mode = 1
        return gpu

    def remove(self, partition: GpuLayout) -> None:
        """The GPU instance is destroyed."""
        self.aside(partition).mig_card = 0
        partition.fails(INVALID_ARGUMENT)

    def freeze(self, unix_ns: int) -> None:
        """Stop the driver's clock at this instant, so that values can be worked out by hand."""
        self._layout.frozen_unix_ns = unix_ns

    def fails(self, code: int, calls: Iterable[str]) -> None:
        """Calls that concern no single GPU answer `code`."""
        for call in calls:
            self._layout.code[CALLS.index(call)] = code


def _healthy_h100(gpu: GpuLayout, index: int) -> None:
    gpu.uuid = f"GPU-0000000{index:x}".encode()
    gpu.name = b"NVIDIA H100 80GB HBM3"
    gpu.pci_bus_id = f"00000000:{0x10 + index:02X}:00.0".encode()
    gpu.sm_clock_max_mhz = 1980
    gpu.mem_clock_max_mhz = 2619
    gpu.applications_clock_mhz = 1980
    gpu.default_applications_clock_mhz = 1980
    gpu.power_limit_mw = 700_000
    gpu.power_limit_default_mw = 700_000
    gpu.memory_total_bytes = 85_899_345_920
    gpu.memory_reserved_bytes = 1_040_187_392
    gpu.memory_used_bytes = 8_388_608
    gpu.memory_temperature_c = 55
    gpu.temperature_threshold_c[:] = (100, 95, 105)
    gpu.fails_field(
        NOT_SUPPORTED, "module_power_instant", "module_power_average", "accumulated_frequency"
    )
    gpu.plays(Segment())
