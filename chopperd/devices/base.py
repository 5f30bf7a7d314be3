"""The seam to a driver: what every back end gives, and what opening one may be told."""

from dataclasses import dataclass
from typing import Protocol

from chopperd.model.devices import DeviceReading, GpuInfo, ReadScope
from chopperd.model.samples import SampleSet
from chopperd.simulation.spec import SimulationSpec


class DeviceBackend(Protocol):
    """Reads the GPUs of one driver (or of a simulation, or of a recording).

    `read` is called by one thread a device, possibly at once for different devices.
    """

    @property
    def name(self) -> str:
        """The back end's name: "nvml", "simulated", "replay", ..."""
        ...

    @property
    def driver(self) -> str | None:
        """Driver version, where there is one."""
        ...

    @property
    def simulated(self) -> bool:
        """Whether the values come from a simulation."""
        ...

    def devices(self) -> tuple[GpuInfo, ...]:
        """The GPUs present, in the driver's order."""
        ...

    def read(self, device: GpuInfo, scope: ReadScope) -> DeviceReading:
        """One look at a device; fields that it does not report are None.

        Raises:
            TransientDeviceError: This look failed; the next may succeed.
            DeviceLostError: The device is gone until it is found again.
        """
        ...

    def close(self) -> None:
        """Let go of the driver; further calls are not allowed."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendOptions:
    """What opening a back end may need beyond its name."""

    simulation: SimulationSpec | None = None
    replay: SampleSet | None = None
