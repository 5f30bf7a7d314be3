"""What a GPU is and what one look at its sensors gives."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from chopperd.model.kinds import Cause

#: `GpuInfo.memory_source` of the back ends of this package; one of another package may have more.
MEMORY_SOURCES: Final = ("v2", "v1", "system", "kernel")


class Vendor(StrEnum):
    """Who made the GPU."""

    NVIDIA = "nvidia"
    AMD = "amd"
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuInfo:
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
        memory_source: What `memory_used_bytes` is: "v2", "v1" (holds the driver's reserve),
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


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceReading:
    """Values of one look at a device, without a time; None is "not reported".

    Attributes:
        sm_clock_mhz: SM clock, MHz. Where there are `die_clocks_mhz` it is the lowest of the
            running ones at this instant; whoever samples puts that of the governing die in its
            place.
        mem_clock_mhz: Memory clock, MHz.
        power_w: Board power, as instantaneous as the device gives, W.
        energy_j: The driver's cumulative energy counter, J since the driver loaded.
        temperature_c: GPU temperature, degrees C.
        memory_used_bytes: Device memory in use.
        activity_ratio: Share of time that the device reports itself busy, 0..1.
        causes: Limits in force at this instant (empty: asked, none set); None: not readable.
        limited_ns: The driver's cumulative time under each limit, ns. That of `unexplained` is a
            difference of counters and may fall; only its rises mean anything.
        power_average_w: Board power as the mean of the last second, W; never stands for `power_w`
            where that is the power at this instant.
        temperature_memory_c: Memory temperature, degrees C.
        memory_reserved_bytes: Device memory that the driver keeps for itself.
        power_limit_w: Power limit in force now.
        die_clocks_mhz: Clock of each compute die (AMD: XCD) of a GPU that has several, in the
            driver's order, at most `MOST_DIES`, MHz; None of one that gives none. 0 is a clock that
            is switched off.
    """

    sm_clock_mhz: float | None = None
    mem_clock_mhz: float | None = None
    power_w: float | None = None
    energy_j: float | None = None
    temperature_c: float | None = None
    memory_used_bytes: int | None = None
    activity_ratio: float | None = None
    causes: frozenset[Cause] | None = None
    limited_ns: Mapping[Cause, int] = field(default_factory=dict)
    power_average_w: float | None = None
    temperature_memory_c: float | None = None
    memory_reserved_bytes: int | None = None
    power_limit_w: float | None = None
    die_clocks_mhz: tuple[float | None, ...] = ()


#: Compute dies that there is room for in a sample.
MOST_DIES: Final = 8
#: At this clock and below, a die sleeps; above, it runs. Source: AMD SMI's own command line tool
#: calls it deep sleep.
DEEP_SLEEP_MHZ: Final = 140.0

#: The numbers of a reading that are shown as they are now and are not part of a sample.
STATE_FIELDS: Final = (
    "power_average_w",
    "temperature_memory_c",
    "memory_reserved_bytes",
    "power_limit_w",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    """A process that holds a context on a GPU.

    Attributes:
        pid: As the driver gives it: of the initial pid namespace.
        memory_used_bytes: Its device memory; None where the driver does not say.
        partition: The GPU instance that it is on; None on a whole GPU.
    """

    pid: int
    memory_used_bytes: int | None = None
    partition: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SensorTiming:
    """How a sensor follows what it measures.

    Attributes:
        period_ns: Time between two updates of its value, as found; None where it was not seen to
            change often enough.
        window_ns: What each value is the mean of: 0 for an instant; None where that is not known.
    """

    period_ns: int | None = None
    window_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldProbe:
    """What one question to a driver gave, asked several times in a row.

    Attributes:
        operation: The vendor's name of the call, with what tells it from its like
            ("nvmlDeviceGetFieldValues[186]").
        feeds: The field of `DeviceReading` or `GpuInfo` that it is for, a counter with its cause
            ("limited_ns.power_cap"); None where its answer is not used, only known.
        source: Which of several ways to get that field it is ("v2"); None where there is one.
        used: Whether the field comes from this way now.
        error: The driver's words if it did not answer; None if it did.
        error_code: Its code then.
        value: The last answer, as the driver gave it.
        unit: The driver's own unit of it.
        calls_count: How often it was asked.
        call_p50_ns: Median time of a call.
        call_p99_ns: 99th percentile of it (the slowest, under 100 calls).
    """

    operation: str
    feeds: str | None
    source: str | None = None
    used: bool = False
    error: str | None = None
    error_code: int | None = None
    value: float | None = None
    unit: str = ""
    calls_count: int = 0
    call_p50_ns: int | None = None
    call_p99_ns: int | None = None

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


# The GPUs that a back end sees, each with one look at its sensors: what `devices` shows.


@dataclass(frozen=True, slots=True, kw_only=True)
class InventoryEntry:
    """One GPU: what it is, one look at its sensors, or why there is none.

    Attributes:
        info: What it is.
        reading: The look; None where it failed.
        error: Why it failed.
        probes: What each call for it gives, and at what price; empty where the back end does not
            say.
        buffered_period_ns: How far apart the values of a field are that the driver keeps itself.
        nvidia_smi: The fields that nvidia-smi gives, in our units; None where it was not asked, or
            does not know this GPU.
        processes: Those that the driver lists on it; None where it does not say.
    """

    info: GpuInfo
    reading: DeviceReading | None = None
    error: str | None = None
    probes: tuple[FieldProbe, ...] = ()
    buffered_period_ns: Mapping[str, int] = field(default_factory=dict)
    nvidia_smi: Mapping[str, float] | None = None
    processes: tuple[GpuProcess, ...] | None = None

    @property
    def failure(self) -> str | None:
        """Why the look failed, naming the GPU; None if it did not."""
        name = f"GPU {self.info.gpu}"
        if self.error is None or self.error.startswith(name):
            return self.error
        return f"{name}: {self.error}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessView:
    """What is seen from here of the processes on the GPUs, by which traces find theirs.

    Attributes:
        listed_count: How many the driver lists; None where it does not say.
        seen_count: How many of these /proc shows.
        environments: Whether the environments of others' processes can be read.
        own_namespace: Whether this is a pid namespace other than the machine's first; None: not
            known.
    """

    listed_count: int | None = None
    seen_count: int = 0
    environments: bool = False
    own_namespace: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """All GPUs that one back end sees.

    Attributes:
        backend, driver, simulated: As in `SampleSet`.
        gpus: In the back end's order.
        chosen: Why this back end was taken, for people; None where it was named.
        processes: What is seen of the processes; None where that was not looked at.
    """

    backend: str
    driver: str | None
    simulated: bool
    gpus: tuple[InventoryEntry, ...]
    chosen: str | None = None
    processes: ProcessView | None = None
