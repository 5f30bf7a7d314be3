"""GPUs: identity, one reading of their sensors, the inventory of a node, and stated peaks."""

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final, NamedTuple

from msgspec import Struct, field

from chopperd.model.kinds import Cause, DType

#: `GpuInfo.memory_source` of the back ends of this package; one of another package may have more.
MEMORY_SOURCES: Final = ("v2", "v1", "system", "kernel")


class Vendor(StrEnum):
    """Who made the GPU."""

    NVIDIA = "nvidia"
    AMD = "amd"
    OTHER = "other"


class GpuInfo(Struct, frozen=True, kw_only=True):
    """A GPU's identity and fixed properties; what the driver does not report is None.

    Attributes:
        gpu: The label everywhere outside: the driver's index at first sight ("0"; partition "0.1").
        index: The driver's index.
        uuid: The driver's unique id.
        pci_bus_id: As the driver writes it ("00000000:65:00.0").
        name: Product name.
        vendor: Maker.
        sm_clock_max_mhz: Highest SM (GFX) clock by the driver: the `device_max` reference.
        sm_clock_limit_mhz: Lowest standing limit below it (applications clock, lock, host limit).
        mem_clock_max_mhz: Highest memory clock.
        power_limit_w: Enforced power limit at start.
        power_limit_default_w: Default power limit.
        memory_size_bytes: Device memory.
        sensor_lag_ns: How long after the fact the clock reading shows it, where that is known.
        power_source: What `power_w` is: "instant", "module" (at this instant, of the GPU and the
            processor on one module), "average_1s" (too slow for steps), "average" (the firmware's
            own mean, over a time that is not known) or "card" (such a mean, of a card both of whose
            dies are GPUs of their own; the other die has none).
        memory_source: Source of `memory_used_bytes`: "v2", "v1" (holds the driver's reserve),
            "system" or "kernel" (the driver's own files).
        parent: Label of the card that this is a partition of, with which it shares clock, power
            and temperature; None for a whole GPU.
        temperature_slowdown_c: GPU temperature at which the hardware slows down.
        temperature_shutdown_c: GPU temperature at which it shuts down.
        temperature_memory_max_c: Memory temperature at which it slows down.
        sm_clock_period_ns, power_period_ns, energy_period_ns: Time between two updates of these
            sensors, where it was found.
        sm_clock_average_ns: Over what time its sensor averages the clock; 0: it shows an instant.
            None where that is not known.
        kfd_node: AMD: its number among the nodes of the kernel's compute driver that can be read
            where it is sampled, CPUs first: so roctracer numbers the devices of a process there,
            and in this order rocprofiler-sdk counts them.
    """

    gpu: str
    index: int
    uuid: str
    name: str
    vendor: Vendor
    pci_bus_id: str | None = None
    sm_clock_max_mhz: float | None = None
    sm_clock_limit_mhz: float | None = None
    mem_clock_max_mhz: float | None = None
    power_limit_w: float | None = None
    power_limit_default_w: float | None = None
    memory_size_bytes: int | None = None
    sensor_lag_ns: int | None = None
    power_source: str | None = None
    memory_source: str | None = None
    parent: str | None = None
    temperature_slowdown_c: float | None = None
    temperature_shutdown_c: float | None = None
    temperature_memory_max_c: float | None = None
    sm_clock_period_ns: int | None = None
    power_period_ns: int | None = None
    energy_period_ns: int | None = None
    sm_clock_average_ns: int | None = None
    kfd_node: int | None = None


class DeviceReading(Struct, frozen=True, kw_only=True):
    """Values of one read of a device, without a time; None is "not reported"."""

    # SM clock, MHz. Where there are `die_clocks_mhz` it is the lowest of the running ones at this
    # instant; the sampler replaces it by that of the governing die.
    sm_clock_mhz: float | None = None
    mem_clock_mhz: float | None = None  # memory clock, MHz
    power_w: float | None = None  # board power, as instantaneous as the device gives, W
    # The driver's cumulative energy counter, J since the driver loaded
    energy_j: float | None = None
    temperature_c: float | None = None  # GPU temperature, degrees C
    memory_used_bytes: int | None = None  # device memory in use
    activity_ratio: float | None = None  # share of time that the device reports itself busy, 0..1
    # Limits in force at this instant (empty: asked, none set); None: not readable
    causes: frozenset[Cause] | None = None
    # The driver's cumulative time under each limit, ns. That of `unexplained` is a difference of
    # counters and may fall; only its rises mean anything.
    limited_ns: Mapping[Cause, int] = field(default_factory=dict)
    # Board power as the mean of the last second, W; never used as `power_w` where that is the power
    # at this instant
    power_average_w: float | None = None
    temperature_memory_c: float | None = None  # memory temperature, degrees C
    memory_reserved_bytes: int | None = None  # device memory that the driver keeps for itself
    power_limit_w: float | None = None  # power limit in force now
    # Clock of each compute die (AMD: XCD) of a GPU that has several, in the driver's order, at most
    # `MOST_DIES`, MHz; None of one that gives none. 0 is a clock that is switched off.
    die_clocks_mhz: tuple[float | None, ...] = ()


#: Compute dies that there is room for in a sample.
MOST_DIES: Final = 8
#: At this clock and below, a die sleeps; above, it runs. Source: AMD SMI's own command line tool
#: calls it deep sleep.
DEEP_SLEEP_MHZ: Final = 140.0


def lowest_running_mhz(clocks_mhz: Iterable[float | None]) -> float | None:
    """Return the lowest clock of the dies that run; if none runs, of those that sleep.

    None where no die has a clock: all are switched off (0), or not reported (None).
    """
    present = [clock for clock in clocks_mhz if clock]
    return min([mhz for mhz in present if mhz > DEEP_SLEEP_MHZ] or present, default=None)


#: The numbers of a reading that are shown as they are now and are not part of a sample.
STATE_FIELDS: Final = (
    *("power_average_w", "temperature_memory_c", "memory_reserved_bytes", "power_limit_w"),
)


class GpuProcess(Struct, frozen=True, kw_only=True):
    """A process that holds a context on a GPU.

    Attributes:
        pid: As the driver gives it: of the initial pid namespace.
        memory_used_bytes: Its device memory; None where the driver does not say.
        partition: The GPU instance that it is on; None on a whole GPU.
    """

    pid: int
    memory_used_bytes: int | None = None
    partition: int | None = None


class SensorTiming(Struct, frozen=True, kw_only=True):
    """How a sensor follows what it measures.

    Attributes:
        period_ns: Time between two updates of its value, as found; None where it was not seen to
            change often enough.
        window_ns: What each value is the mean of: 0 for an instant; None where that is not known.
    """

    period_ns: int | None = None
    window_ns: int | None = None


class FieldProbe(Struct, frozen=True, kw_only=True):
    """The result of one driver call, made several times in a row."""

    # The vendor's name of the call, with its distinguishing argument
    # ("nvmlDeviceGetFieldValues[186]")
    operation: str
    # The field of `DeviceReading` or `GpuInfo` that it is for, a counter with its cause
    # ("limited_ns.power_cap"); None where its answer is not used
    feeds: str | None
    # Which of several methods for that field it is ("v2"); None where there is one
    source: str | None = None
    used: bool = False  # whether the field comes from this call now
    error: str | None = None  # the driver's words if it did not answer; None if it did
    error_code: int | None = None  # its code then
    value: float | None = None  # the last answer, as the driver gave it
    unit: str = ""  # the driver's own unit of it
    calls_count: int = 0
    call_p50_ns: int | None = None  # median time of a call
    call_p99_ns: int | None = None  # 99th percentile of it (the slowest, under 100 calls)

    @property
    def answers(self) -> bool:
        """Whether the driver answered."""
        return self.error is None


class ReadScope(StrEnum):
    """How much of a device one read covers; driver-lock time is the scarce resource.

    `FAST`: clock and limit reasons/counters only. `FULL`: everything the device answers.
    """

    FAST = "fast"
    FULL = "full"


class InventoryEntry(Struct, frozen=True, kw_only=True):
    """One GPU with one read of its sensors, or the error."""

    info: GpuInfo
    reading: DeviceReading | None = None  # None where the read failed
    error: str | None = None  # why it failed
    # Result and cost of each call for it; empty where the back end has none
    probes: tuple[FieldProbe, ...] = ()
    # Time between two values of a field that the driver itself buffers
    buffered_period_ns: Mapping[str, int] = field(default_factory=dict)
    # The fields by nvidia-smi, in our units; None where it was not asked, or does not know this GPU
    nvidia_smi: Mapping[str, float] | None = None
    # Those that the driver lists on it; None where it does not say
    processes: tuple[GpuProcess, ...] | None = None

    @property
    def failure(self) -> str | None:
        """Why the read failed, naming the GPU; None if it did not."""
        name = f"GPU {self.info.gpu}"
        if self.error is None or self.error.startswith(name):
            return self.error
        return f"{name}: {self.error}"


class ProcessView(Struct, frozen=True, kw_only=True):
    """Which processes on the GPUs are visible, by which traces find their GPUs."""

    listed_count: int | None = None  # how many the driver lists; None where it does not say
    seen_count: int = 0  # how many of these /proc shows
    environments: bool = False  # whether the environments of others' processes can be read
    # Whether this is a pid namespace other than the machine's first; None: not known
    own_namespace: bool | None = None


class Inventory(Struct, frozen=True, kw_only=True):
    """All GPUs that one back end sees."""

    backend: str
    driver: str | None
    simulated: bool
    gpus: tuple[InventoryEntry, ...]  # in the back end's order
    chosen: str | None = None  # why this back end was taken, for people; None where it was named
    # Visibility of the processes; None where that was not checked
    processes: ProcessView | None = None


# What vendors state of GPUs: dense peak rates by element type, and their clocks. Facts of public
# documents only. A product that is not here has no spec, and so has a part of one (MIG,
# partitions): its peak is not the whole's.

_TERA: Final = 1e12

_A100: Final = "NVIDIA A100 Tensor Core GPU Architecture, whitepaper (2020)"
_H100: Final = "NVIDIA H100 Tensor Core GPU Architecture, whitepaper (2023), tables 2 and 3"
_H200: Final = (
    "NVIDIA H200 Tensor Core GPU, data sheet (2024); clocks of H100 SXM5, of the same rates"
)
_B200: Final = "NVIDIA HGX B200, data sheet (2025), an eighth of the board, without sparsity"
_MI210: Final = "AMD Instinct MI210 Accelerator, data sheet (2022)"
_MI250X: Final = "AMD Instinct MI250X Accelerator, data sheet (2021), half of the card"
_MI300X: Final = "AMD Instinct MI300X Accelerator, data sheet (2023), without sparsity"
_MI325X: Final = "AMD Instinct MI325X Accelerator, data sheet (2024), without sparsity"


class Peak(Struct, frozen=True, kw_only=True):
    """A vendor's stated dense peak rate of matrix kernels."""

    flops_per_s: float  # the rate as stated
    flops_per_cycle: int  # of one SM or CU
    sm_clock_mhz: float | None  # the clock that the rate is stated at; None where no document says


class GpuSpec(NamedTuple):
    """A vendor's statements about a product."""

    product: str  # what is meant by it
    units: int  # SMs or CUs of what the driver calls one GPU
    peaks: Mapping[DType, Peak]  # by element type
    source: str  # the document


def _peaks(
    sm_clock_mhz: float | None, *stated: tuple[float, int, tuple[DType, ...]]
) -> dict[DType, Peak]:
    """Return the peaks at one clock by element type.

    Each of `stated` is TFLOP/s, FLOP per cycle of a unit, and the types with that peak.
    """
    return {
        dtype: Peak(flops_per_s=tera * _TERA, flops_per_cycle=each, sm_clock_mhz=sm_clock_mhz)
        for tera, each, dtypes in stated
        for dtype in dtypes
    }


_SINGLE_DOUBLE: Final = (DType.FP64, DType.FP32)
_HALF: Final = (DType.FP16, DType.BF16)
_BYTE: Final = (DType.FP8, DType.INT8)
_TF32: Final = (DType.TF32,)

_A100_PEAKS: Final = _peaks(
    1410.0,
    (19.5, 128, _SINGLE_DOUBLE),
    (156.0, 1024, _TF32),
    (312.0, 2048, _HALF),
    (624.0, 4096, (DType.INT8,)),
)
#: Matrix rates of the low precisions are stated at a lower clock than the others.
_H100_SXM_PEAKS: Final = _peaks(1980.0, (66.9, 256, _SINGLE_DOUBLE)) | _peaks(
    1830.0, (494.7, 2048, _TF32), (989.4, 4096, _HALF), (1978.9, 8192, _BYTE)
)
_H100_PCIE_PEAKS: Final = _peaks(1755.0, (51.2, 256, _SINGLE_DOUBLE)) | _peaks(
    1620.0, (378.0, 2048, _TF32), (756.0, 4096, _HALF), (1513.0, 8192, _BYTE)
)
#: No document gives the clock of these.
_B200_PEAKS: Final = _peaks(
    None,
    (1125.0, 4096, _TF32),
    (2250.0, 8192, _HALF),
    (4500.0, 16384, _BYTE),
    (9000.0, 32768, (DType.FP4,)),
)
_MI210_PEAKS: Final = _peaks(
    1700.0, (45.3, 256, _SINGLE_DOUBLE), (181.0, 1024, (*_HALF, DType.INT8))
)
#: Half of the card's, as each of its two dies is a GPU.
_MI250X_PEAKS: Final = _peaks(
    1700.0, (47.85, 256, _SINGLE_DOUBLE), (191.5, 1024, (*_HALF, DType.INT8))
)
_MI300X_PEAKS: Final = _peaks(
    2100.0,
    (163.4, 256, _SINGLE_DOUBLE),
    (653.7, 1024, _TF32),
    (1307.4, 2048, _HALF),
    (2614.9, 4096, _BYTE),
)


A100: Final = GpuSpec("A100", 108, _A100_PEAKS, _A100)
H100_SXM: Final = GpuSpec("H100 SXM5", 132, _H100_SXM_PEAKS, _H100)
H100_PCIE: Final = GpuSpec("H100 PCIe", 114, _H100_PCIE_PEAKS, _H100)
H200: Final = GpuSpec("H200 SXM", 132, _H100_SXM_PEAKS, _H200)
B200: Final = GpuSpec("B200", 148, _B200_PEAKS, _B200)
MI210: Final = GpuSpec("MI210", 104, _MI210_PEAKS, _MI210)
MI250X: Final = GpuSpec("MI250X, one die", 110, _MI250X_PEAKS, _MI250X)
MI300X: Final = GpuSpec("MI300X", 304, _MI300X_PEAKS, _MI300X)
MI325X: Final = GpuSpec("MI325X", 304, _MI300X_PEAKS, _MI325X)

#: By whole product names, as drivers report them.
SPECS: Final = (
    (r"(NVIDIA )?A100-(SXM4|PCIE)-(40|80)GB", A100),
    (r"NVIDIA A100 80GB PCIe", A100),
    (r"NVIDIA H100 80GB HBM3", H100_SXM),
    (r"NVIDIA H100 PCIe", H100_PCIE),
    (r"NVIDIA H200", H200),
    (r"NVIDIA B200", B200),
    (r"(AMD )?Instinct MI210", MI210),
    (r"(AMD )?Instinct MI250X", MI250X),
    (r"(AMD )?Instinct MI300X( OAM| VF)?", MI300X),
    (r"(AMD )?Instinct MI325X( OAM| VF)?", MI325X),
)


def spec_of(name: str | None, *, units: int | None, is_part: bool) -> tuple[GpuSpec | None, str]:
    """Return the spec of a GPU, and the reason where there is none ("" where there is).

    `name`: product name as the driver or a trace reports it; None if not known. `units`: its SMs or
    CUs as a trace reports them; None if it does not. `is_part`: whether it is known to be a
    partition or a MIG instance.
    """
    if not name:
        return None, "the GPU's product name is not known"
    if is_part or re.search(r"\bMIG\b", name):
        return None, "a part of a GPU has no stated peak"
    found = next((spec for pattern, spec in SPECS if re.fullmatch(pattern, name, re.I)), None)
    if found is None:
        return None, f"no stated peak is known of {name}"
    if units is not None and units != found.units:
        return None, f"{units} of the {found.units} units of {found.product} are no whole GPU"
    return found, ""


def peak_of(spec: GpuSpec, dtype: DType) -> Peak | None:
    """Return the stated peak of an element type; `FLOAT` is FP32 where the GPU has no TF32."""
    if dtype is DType.FLOAT and DType.TF32 not in spec.peaks:
        return spec.peaks.get(DType.FP32)
    return spec.peaks.get(dtype)
