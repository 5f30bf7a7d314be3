"""The GPUs that a back end sees, each with one look at its sensors: what `devices` shows."""

from dataclasses import dataclass

from chopperd.model.devices import DeviceReading, GpuInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class InventoryEntry:
    """One GPU: what it is, one look at its sensors, or why there is none."""

    info: GpuInfo
    reading: DeviceReading | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """All GPUs that one back end sees."""

    backend: str
    driver: str | None
    simulated: bool
    gpus: tuple[InventoryEntry, ...]
