"""The protocol of a back end, optional protocols, and the options to open one."""

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
        """The GPUs present, in the driver's order."""
        ...

    def read(self, device: GpuInfo, scope: ReadScope) -> DeviceReading:
        """One read of a device; fields that it does not report are None.

        Raises:
            TransientDeviceError: This read failed; the next may succeed.
            DeviceLostError: The device is gone until it is found again.
        """
        ...

    def close(self) -> None:
        """Release the driver; a later `read` is a DeviceError, a second call does nothing."""
        ...


class Choice(NamedTuple):
    """An open back end, and why "auto" chose it (None where it was named)."""

    backend: DeviceBackend
    reason: str | None = None


@runtime_checkable
class ListsProcesses(Protocol):
    """A back end that lists the processes on a GPU."""

    def processes(self, device: GpuInfo) -> tuple[GpuProcess, ...] | None:
        """The processes on a device; None where the driver does not report them. Slow.

        Raises:
            DeviceError: The call failed.
        """
        ...


@runtime_checkable
class CountsImplausible(Protocol):
    """A back end that drops values outside of their bounds, and counts them."""

    def implausible_total(self) -> dict[tuple[str, str], int]:
        """Values dropped since the start, by GPU label and field; makes no driver call."""
        ...


@runtime_checkable
class ExplainsTrouble(Protocol):
    """A back end that reports known faults of a device (XID, ECC, reset required)."""

    def trouble(self, device: GpuInfo) -> str | None:
        """Known faults of a device in one line of text; None if there are none. Never raises."""
        ...


@runtime_checkable
class NoticesChanges(Protocol):
    """A back end that notices GPUs or partitions that appear or disappear while it is open."""

    def changed(self) -> str | None:
        """What has appeared or disappeared since it was opened; None if nothing. Never raises.

        The sampler process is then restarted: labels, handles and memory are of the old set.
        """
        ...


@runtime_checkable
class PlansReads(Protocol):
    """A back end that describes its reads as plans, to be carried out without it."""

    def read_plan(self, device: GpuInfo, scope: ReadScope) -> ReadPlan | None:
        """The plan of a read, from what answered at the last `read`; None if `read` is needed.

        The same object as before while nothing changed.
        """
        ...


@runtime_checkable
class ProbesFields(Protocol):
    """A back end that reports, field by field, what a GPU answers and what each call costs."""

    def probe(self, device: GpuInfo, calls_count: int = 100) -> tuple[FieldProbe, ...]:
        """What each call for a GPU answers now; takes long.

        Raises:
            DeviceLostError: The GPU is gone.
        """
        ...

    def buffered_period_ns(self, device: GpuInfo, field: str) -> int | None:
        """Period of the samples of a field that the driver itself stores; None if it does not.

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
        """What it can't report, as text; None if nothing is missing. Never raises."""
        ...


@runtime_checkable
class ReadsSensors(Protocol):
    """A back end that reads single sensors, fast enough to observe their update period."""

    def sensor_reads(self, device: GpuInfo) -> Mapping[str, SensorRead]:
        """Functions that read one sensor each, by field of `DeviceReading`; empty if it is gone.

        For any thread, one at a time, also while another thread calls `read`.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendOptions:
    """What a back end may need besides its name: a simulation's spec, or a recording."""

    simulation: "SimulationSpec | None" = None
    replay: SampleSet | None = None
