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

    @property
    def failure(self) -> str | None:
        """Why the look failed, naming the GPU; None if it did not."""
        name = f"GPU {self.info.gpu}"
        if self.error is None or self.error.startswith(name):
            return self.error
        return f"{name}: {self.error}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """All GPUs that one back end sees.

    Attributes:
        backend, driver, simulated: As in `SampleSet`.
        gpus: In the back end's order.
        chosen: Why this back end was taken, for people; None where it was named.
    """

    backend: str
    driver: str | None
    simulated: bool
    gpus: tuple[InventoryEntry, ...]
    chosen: str | None = None
