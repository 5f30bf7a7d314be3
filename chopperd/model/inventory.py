"""The GPUs that a back end sees, each with one look at its sensors: what `devices` shows."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from chopperd.model.devices import DeviceReading, FieldProbe, GpuInfo


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
    """

    info: GpuInfo
    reading: DeviceReading | None = None
    error: str | None = None
    probes: tuple[FieldProbe, ...] = ()
    buffered_period_ns: Mapping[str, int] = field(default_factory=dict)
    nvidia_smi: Mapping[str, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """All GPUs that one back end sees."""

    backend: str
    driver: str | None
    simulated: bool
    gpus: tuple[InventoryEntry, ...]
