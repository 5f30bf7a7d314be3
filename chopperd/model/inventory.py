"""The GPUs that a back end sees, each with one look at its sensors: what `devices` shows."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from chopperd.model.devices import DeviceReading, FieldProbe, GpuInfo, GpuProcess


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
