"""Base of both AMD back ends: a GPU's state, reads, plans, probes, faults and changes.

How GPUs are listed and where their metrics come from is in `kernel` and `smi`.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Generic, TypeVar

from msgspec.structs import replace

from chopperd.clock import Clock
from chopperd.devices.amd import table
from chopperd.devices.amd.block import ABSENT, MetricsSource, sensor_reads
from chopperd.devices.amd.identity import difference
from chopperd.devices.amd.planning import PlannableCall
from chopperd.devices.amd.sensors import AmdSensors, ExtraField, GpuTraits
from chopperd.devices.base import SensorRead
from chopperd.devices.channel import Call, settle
from chopperd.devices.faults import (
    DeviceFaults,
    FieldProber,
    VendorErrors,
    counts_by_gpu,
    not_listed,
    used_if_answered,
)
from chopperd.devices.read_plan import FORMAT_BY_KIND, ReadPlan
from chopperd.errors import DeviceError, DeviceLostError
from chopperd.model.devices import DeviceReading, FieldProbe, GpuInfo, ReadScope

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(slots=True, kw_only=True)
class AmdGpu(Generic[T]):
    """State of one whole GPU (not of a partition) while the back end is open."""

    info: GpuInfo  # its identity, without the source of its power
    card: T  # the back end's own description of it: a `Card` or a `Processor`
    faults: DeviceFaults  # failures of the thread that reads it
    other_faults: DeviceFaults  # failures of the thread that lists its processes
    #: Fetch and decode its metrics; None before its first read, and after a loss.
    source: MetricsSource | None = None
    sensors: AmdSensors | None = None
    loss: DeviceError | None = None  # why it is lost; None if it is not


class AmdBackend(ABC, Generic[T]):
    """Base of the AMD back ends: reads whole GPUs; partitions are listed, and read as empty."""

    name: str
    simulated = False
    driver: str | None = None
    vendor_error: type[Exception]
    #: Operation named when a GPU is lost.
    metrics_call: str

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._open = True
        self._gpus: dict[str, AmdGpu[T]] = {}
        self._devices: tuple[GpuInfo, ...] = ()
        self._at_start: frozenset[str] = frozenset()

    @abstractmethod
    def _new_source(self, gpu: AmdGpu[T]) -> MetricsSource:
        """Open the source of a GPU's block of metrics; raises DeviceError."""

    @abstractmethod
    def _traits(self, gpu: AmdGpu[T]) -> GpuTraits:
        """Return what is known of a GPU before its first read."""

    @abstractmethod
    def _present(self) -> frozenset[str]:
        """Return names of the GPUs and partitions that are present now."""

    def _fixed(self, gpu: AmdGpu[T]) -> tuple[ExtraField, ...]:
        """Return the fields of `GpuInfo` that separate driver calls give; none by default."""
        del gpu
        return ()

    def _problems(self, gpu: AmdGpu[T]) -> Iterable[str]:
        """Return known faults of a GPU, one text for each; none by default."""
        del gpu
        return ()

    def devices(self) -> tuple[GpuInfo, ...]:
        """Return the GPUs found at the start, each before its partitions."""
        return self._devices

    def read(self, device: GpuInfo, scope: ReadScope) -> DeviceReading:
        """Read a GPU's sensors once, and store a loss. A partition's reading is empty."""
        gpu = self._gpu(device)
        if gpu is None:
            return DeviceReading()
        try:
            reading = self._sensors(gpu).read(scope)
        except DeviceLostError as error:
            self._release(gpu, error)
            raise
        gpu.loss = None
        return reading

    def read_plan(self, device: GpuInfo, scope: ReadScope) -> ReadPlan | None:
        """Return the plan of a read; None where `read` must be called instead.

        Only for the thread that reads the GPU, as plan and reads share buffers.
        """
        gpu = self._gpus.get(device.uuid) if self._open else None
        return None if gpu is None or gpu.sensors is None else gpu.sensors.read_plan(scope)

    def sensor_reads(self, device: GpuInfo) -> Mapping[str, SensorRead]:
        """Return functions that read a sensor of a GPU each, on any thread; none if it is gone."""
        gpu = self._gpus.get(device.uuid)
        try:
            source = None if gpu is None else self._new_source(gpu)
        except DeviceError:
            source = None
        if source is None:
            return {}
        return sensor_reads(source, device.power_source, self.vendor_error)

    def probe(self, device: GpuInfo, calls_count: int = 100) -> tuple[FieldProbe, ...]:
        """Make each call for a GPU and return what it answers and how long it takes; slow."""
        gpu = self._gpu(device)
        if gpu is None:
            error = f"reported by its card, GPU {device.parent}"
            return (FieldProbe(operation="partition", feeds="sm_clock_mhz", error=error),)
        prober = FieldProber(faults=gpu.faults, calls_count=calls_count)
        traits = self._traits(gpu)
        return (
            *_block_probes(self._new_source(gpu), prober),
            *_call_probes((*traits.fallbacks, *traits.extra), prober),
            *(
                probe
                for field in self._fixed(gpu)
                for probe in used_if_answered(*_call_probes((field,), prober))
            ),
        )

    def buffered_period_ns(self, device: GpuInfo, field: str) -> int | None:
        """Return None, as AMD's drivers store no samples."""
        del device, field
        return None

    def trouble(self, device: GpuInfo) -> str | None:
        """Return known faults of a GPU in one line of text; None if none. Never raises."""
        gpu = self._gpus.get(device.uuid)
        if gpu is None:
            return None
        loss = [] if gpu.loss is None else [str(gpu.loss).removeprefix(f"GPU {device.index}: ")]
        return "; ".join((*loss, *(self._problems(gpu) if self._open else ()))) or None

    def changed(self) -> str | None:
        """Return which GPUs or partitions appeared or disappeared; None if none. Never raises."""
        return "; ".join(self._changes()) or None

    def _changes(self) -> list[str]:
        return difference(self._at_start, self._present())

    def implausible_total(self) -> dict[tuple[str, str], int]:
        """Return the number of implausible values dropped, by GPU label and field."""
        return counts_by_gpu((gpu.info.gpu, gpu.faults.implausible_total) for gpu in self._all())

    def close(self) -> None:
        """Release the driver; a second call does nothing."""
        self._open = False
        for gpu in self._all():
            self._release(gpu, None)

    def _all(self) -> Sequence[AmdGpu[T]]:
        return tuple(self._gpus.values())

    def _gpu(self, device: GpuInfo) -> AmdGpu[T] | None:
        """Return the state of a GPU, or None for a partition; raises DeviceLostError if unknown."""
        gpu = self._gpus.get(device.uuid) if self._open else None
        is_partition = self._open and device.parent is not None and device in self._devices
        if gpu is None and not is_partition:
            raise not_listed(device, self.metrics_call)
        return gpu

    def _add(self, info: GpuInfo, card: T, errors: VendorErrors) -> GpuInfo:
        """Add a whole GPU, read it, and return its identity with the source of its power.

        If another GPU has the same UUID, the PCI address becomes the UUID of this one.
        """
        if info.uuid in self._gpus and info.pci_bus_id is not None:
            info = replace(info, uuid=info.pci_bus_id)
        faults, other_faults = (DeviceFaults(info.index, errors, self._clock) for _ in range(2))
        gpu = self._gpus[info.uuid] = AmdGpu(
            info=info, card=card, faults=faults, other_faults=other_faults
        )
        try:
            loss = settle(self._sensors(gpu))
        except DeviceError as error:
            logger.warning("first read failed: %s", error)
            loss = error if isinstance(error, DeviceLostError) else None
        if loss is not None:
            self._release(gpu, loss)
        return replace(info, power_source=gpu.sensors.power_source if gpu.sensors else None)

    def _sensors(self, gpu: AmdGpu[T]) -> AmdSensors:
        """Return the sensors of a GPU; create and store them at first and after each loss."""
        if gpu.sensors is None:
            gpu.source = self._new_source(gpu)
            gpu.sensors = AmdSensors(gpu.source, self._traits(gpu), gpu.faults)
        return gpu.sensors

    @staticmethod
    def _release(gpu: AmdGpu[T], loss: DeviceError | None) -> None:
        if gpu.source is not None:
            gpu.source.close()
        gpu.source = gpu.sensors = None
        gpu.loss = loss


_PROBED: Final = (*(table.ONE_CLOCK, table.POWER, table.ENERGY), *(*table.SLOW, *table.FULL_ONLY))


def _block_probes(source: MetricsSource, prober: FieldProber) -> Iterator[FieldProbe]:
    """Yield a probe of each metric that chopperd uses; the block's call is timed once for all."""
    called = prober.asked(FieldProbe(operation=source.operation, feeds=None), source.fetch)
    for probe, metric, place in _metrics(source, prober):
        slot = source.layout.slots.get(metric)
        number = None
        if slot is not None:
            number = FORMAT_BY_KIND[slot.kind].unpack_from(source.buffer, slot.offsets[place])[0]
        if called.error is not None:
            yield replace(probe, used=False, error=called.error, error_code=called.error_code)
        elif slot is None or number == ABSENT[slot.kind]:
            yield replace(probe, used=False, error="not reported")
        else:
            yield replace(
                probe,
                value=number,
                calls_count=called.calls_count,
                call_p50_ns=called.call_p50_ns,
                call_p99_ns=called.call_p99_ns,
            )


def _metrics(source: MetricsSource, prober: FieldProber) -> Iterator[tuple[FieldProbe, str, int]]:
    """Yield each used metric's probe without a value, its name, and which of its numbers it is."""

    def new(metric: str, feeds: str, unit: str) -> FieldProbe:
        return FieldProbe(operation=f"{source.operation}.{metric}", feeds=feeds, unit=unit)

    dies = source.layout.slots.get(table.DIE_CLOCKS)
    for die in range(len(dies.offsets) if dies else 0):
        probe = new(f"{table.DIE_CLOCKS}[{die}]", f"die_clocks_mhz.{die}", "MHz")
        yield replace(probe, used=True), table.DIE_CLOCKS, die
    for sensor in _PROBED:
        for method in sensor.methods:
            probe = new(method.metric, sensor.name, method.unit)
            used = prober.is_selected(sensor.name, method.metric)
            yield replace(probe, source=method.source, used=used), method.metric, 0
    counters = [(cause, (metric,)) for cause, metric in table.BELOW_LIMIT.items()]
    for cause, metrics in (*counters, *table.RESIDENCY.items()):
        for metric in metrics:
            yield new(metric, f"limited_ns.{cause.label}", "cycles"), metric, 0


def _call_probes(fields: Iterable[ExtraField], prober: FieldProber) -> Iterator[FieldProbe]:
    """Yield a probe of each call for fields that are not in the block, in the driver's units."""
    for field in fields:
        for call in field.calls:
            unit = call.unit if isinstance(call, PlannableCall) else ""
            probe = prober.base(field.name, call.operation, call.source, unit)
            yield prober.asked(probe, partial(_raw, call))


def _raw(call: Call) -> float:
    """Make a call and return its number in the driver's unit, where it is a whole number."""
    value = call.read()
    return round(value / call.scale) if isinstance(call, PlannableCall) else value
