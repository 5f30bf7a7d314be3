"""What a GPU is and what one look at its sensors gives."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from chopperd.model.causes import Cause


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
        power_source: What `power_w` is: "instant", or "average_1s" (too slow for steps).
        memory_source: What `memory_used_bytes` is: "v2", "v1" (holds the driver's reserve) or
            "system".
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


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceReading:
    """Values of one look at a device, without a time; None is "not reported".

    Attributes:
        sm_clock_mhz: SM clock (AMD: GFX clock of the governing die), MHz.
        mem_clock_mhz: Memory clock, MHz.
        power_w: Board power, as instantaneous as the device gives, W.
        energy_j: The driver's cumulative energy counter, J since the driver loaded.
        temperature_c: GPU temperature, degrees C.
        memory_used_bytes: Device memory in use.
        activity_ratio: Share of time that the device reports itself busy, 0..1.
        causes: Limits in force at this instant (empty: asked, none set); None: not readable.
        limited_ns: The driver's cumulative time under each limit, ns.
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


class ReadScope(StrEnum):
    """How much of a device one read covers; driver-lock time is the scarce resource.

    `FAST`: clock and limit reasons/counters only. `FULL`: everything the device answers.
    """

    FAST = "fast"
    FULL = "full"
