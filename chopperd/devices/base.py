"""Protocols of a back end, one required and several optional, and the options to open one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias, runtime_checkable

from chopperd.devices.read_plan import ReadPlan
from chopperd.model.devices import DeviceReading, FieldProbe, GpuInfo, GpuProcess, ReadScope
from chopperd.model.samples import SampleSet

#: Reads one sensor; None where this read failed. Never raises for a driver's error.
SensorRead: TypeAlias = Callable[[], float | None]

if TYPE_CHECKING:  # its presets import numpy.random, which the sampler does without
    from chopperd.simulation.presets import SimulationSpec


class DeviceBackend(Protocol):
    """Reads the GPUs of one driver, of a simulation or of a recording.

    `read` is called by one thread per device, for several devices at the same time.
    """

    @property
    def name(self) -> str:
        """The back end's name: "nvml", "simulated", "replay", ..."""
        ...

    @property
    def driver(self) -> str | None:
        """Driver version; None where there is none or it is not known."""
        ...

    @property
    def simulated(self) -> bool:
        """Whether the values come from a simulation."""
        ...

    def devices(self) -> tuple[GpuInfo, ...]:
        """Return the GPUs found when it was opened, in the driver's order."""
        ...

    def read(self, device: GpuInfo, scope: ReadScope) -> DeviceReading:
        """Read a device's sensors once; fields that it does not report are None.

        Raises:
            TransientDeviceError: This read failed; the next may succeed.
            DeviceLostError: The device is gone until it is found again.
        """
        ...

    def close(self) -> None:
        """Release the driver; a later `read` raises DeviceError, a second call does nothing."""
        ...


class Choice(NamedTuple):
    """An open back end, and why "auto" chose it (None where it was named)."""

    backend: DeviceBackend
    reason: str | None = None


@runtime_checkable
class ListsProcesses(Protocol):
    """A back end that lists the processes on a GPU."""

    def processes(self, device: GpuInfo) -> tuple[GpuProcess, ...] | None:
        """List the processes on a device; None where the driver does not report them. Slow.

        Raises:
            DeviceError: The call failed.
        """
        ...


@runtime_checkable
class CountsImplausible(Protocol):
    """A back end that counts the values it dropped for being outside of their bounds."""

    def implausible_total(self) -> dict[tuple[str, str], int]:
        """Return the number of values dropped, by GPU label and field; makes no driver call."""
        ...


@runtime_checkable
class ExplainsTrouble(Protocol):
    """A back end that reports known faults of a device (XID, ECC, reset required)."""

    def trouble(self, device: GpuInfo) -> str | None:
        """Return known faults of a device in one line of text; None if none. Never raises."""
        ...


@runtime_checkable
class NoticesChanges(Protocol):
    """A back end that notices GPUs or partitions that appear or disappear while it is open."""

    def changed(self) -> str | None:
        """Return what appeared or disappeared since the start; None if nothing. Never raises.

        On a change the sampler process is restarted, as it has the old set's labels, handles and
        memory.
        """
        ...


@runtime_checkable
class PlansReads(Protocol):
    """A back end that describes its reads as plans, which the sampler carries out itself."""

    def read_plan(self, device: GpuInfo, scope: ReadScope) -> ReadPlan | None:
        """Return the plan of a read, by what answered last; None if `read` must be called.

        Returns the same object as before while nothing changed.
        """
        ...


@runtime_checkable
class ProbesFields(Protocol):
    """A back end that reports, field by field, what a GPU answers and what each call costs."""

    def probe(self, device: GpuInfo, calls_count: int = 100) -> tuple[FieldProbe, ...]:
        """Make each call for a GPU and return what it answers and how long it takes; slow.

        Raises:
            DeviceLostError: The GPU is gone.
        """
        ...

    def buffered_period_ns(self, device: GpuInfo, field: str) -> int | None:
        """Return the period, in ns, of a field's samples that the driver stores; None if none.

        Never raises.

        Args:
            device: The GPU.
            field: "power_w" or "sm_clock_mhz".
        """
        ...


@runtime_checkable
class KnowsItsShortfall(Protocol):
    """A back end that knows when another one might report more of a GPU."""

    def shortfall(self) -> str | None:
        """Return what it can't report, as text; None if nothing is missing. Never raises."""
        ...


@runtime_checkable
class ReadsSensors(Protocol):
    """A back end that reads single sensors, fast enough to observe their update period."""

    def sensor_reads(self, device: GpuInfo) -> Mapping[str, SensorRead]:
        """Return functions that read one sensor each, by field; empty if the device is gone.

        Keys are fields of `DeviceReading`. The functions are for any thread, one at a time, also
        while another thread calls `read`.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendOptions:
    """Options of the back ends: what to simulate, or the recording to replay."""

    simulation: "SimulationSpec | None" = None
    replay: SampleSet | None = None
