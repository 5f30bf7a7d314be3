"""The seam to a driver: what every back end gives, and what opening one may be told."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias, runtime_checkable

from chopperd.devices.read_plan import ReadPlan
from chopperd.model.devices import DeviceReading, FieldProbe, GpuInfo, GpuProcess, ReadScope
from chopperd.model.samples import SampleSet
from chopperd.simulation.presets import SimulationSpec

#: Reads one sensor; None where this read failed. Never raises for what a driver does.
SensorRead: TypeAlias = Callable[[], float | None]


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
        """Let go of the driver; `read` is a DeviceError from now on, a second call does nothing."""
        ...


class Choice(NamedTuple):
    """An open back end.

    Attributes:
        backend: The back end.
        reason: Why "auto" took it and no other, for people; None where it was named.
    """

    backend: DeviceBackend
    reason: str | None = None


@runtime_checkable
class ListsProcesses(Protocol):
    """A back end that knows who uses a GPU."""

    def processes(self, device: GpuInfo) -> tuple[GpuProcess, ...] | None:
        """The processes on a device; None where the driver does not say. Takes long: ask rarely.

        Raises:
            DeviceError: The call failed.
        """
        ...


@runtime_checkable
class CountsImplausible(Protocol):
    """A back end that drops values outside of their bounds, and counts them."""

    def implausible_total(self) -> dict[tuple[str, str], int]:
        """Values dropped since the start, by GPU label and field; asks no driver."""
        ...


@runtime_checkable
class ExplainsTrouble(Protocol):
    """A back end that can say what the driver knows of a device's trouble (XID, ECC, reset due)."""

    def trouble(self, device: GpuInfo) -> str | None:
        """What is known to be wrong, in a line for people; None if nothing is. Never raises."""
        ...


@runtime_checkable
class NoticesChanges(Protocol):
    """A back end that sees GPUs or partitions come and go after it was opened."""

    def changed(self) -> str | None:
        """What came or went since it was opened, for people; None if nothing did. Never raises.

        The process that asked starts anew then: labels, handles and memory are of the old set.
        """
        ...


@runtime_checkable
class PlansReads(Protocol):
    """A back end whose settled reads can be made without it, by a plan."""

    def read_plan(self, device: GpuInfo, scope: ReadScope) -> ReadPlan | None:
        """How to read a device, from what answered at its last `read`; None if `read` must.

        The same object as before while nothing changed.
        """
        ...


@runtime_checkable
class ProbesFields(Protocol):
    """A back end that can say field by field what a GPU answers, and at what price."""

    def probe(self, device: GpuInfo, calls_count: int = 100) -> tuple[FieldProbe, ...]:
        """What each call for a GPU gives now; for people who look, not for a loop.

        Raises:
            DeviceLostError: The GPU is gone.
        """
        ...

    def buffered_period_ns(self, device: GpuInfo, field: str) -> int | None:
        """How far apart the values of a field are that the driver keeps itself; None if it doesn't.

        Never raises.

        Args:
            device: The GPU.
            field: "power_w" or "sm_clock_mhz".
        """
        ...


@runtime_checkable
class KnowsItsShortfall(Protocol):
    """A back end that knows when it can tell less of a GPU than another might."""

    def shortfall(self) -> str | None:
        """What it can't tell, for people; None if nothing. Never raises."""
        ...


@runtime_checkable
class ReadsSensors(Protocol):
    """A back end that can read one sensor alone, fast enough to see it change."""

    def sensor_reads(self, device: GpuInfo) -> Mapping[str, SensorRead]:
        """How to read the sensors of a GPU, by field of `DeviceReading`; none where it is gone.

        For any thread, but one at a time; the reads that `read` makes go on beside.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendOptions:
    """What opening a back end may need beyond its name."""

    simulation: SimulationSpec | None = None
    replay: SampleSet | None = None
