"""One trace joined with the node's samples: its rows, and what must be said of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from chopperd.correlate.governing import governed
from chopperd.correlate.join import JoinedDevice, join_device
from chopperd.correlate.mapping import UNMAPPED, Mapped, map_device, said_of
from chopperd.correlate.timebase import realtime_step_ns
from chopperd.model.report import (
    DeviceSummary,
    FrameworkSummary,
    Note,
    Reference,
    Row,
    TraceSummary,
)
from chopperd.model.samples import GpuSamples, SampleSet
from chopperd.model.spec import GpuSpec, spec_of
from chopperd.model.timeline import DeviceTimeline, Timeline
from chopperd.model.trace import Trace, TraceDevice
from chopperd.report.lost import lost_by_kind
from chopperd.report.notes import device_notes, trace_notes
from chopperd.report.rocm_notes import rocm_notes
from chopperd.report.rows import DraftRow, RowContext, device_rows, host_rows
from chopperd.units import NS_PER_US

#: A wall clock that steps further than this inside a trace spoils the join.
MAX_REALTIME_STEP_NS = 100 * NS_PER_US


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinOptions:
    """What the user says about the join.

    Attributes:
        device_map: GPUs (UUID, PCI bus id or label) of trace devices.
        guess: Whether a GPU may be told by elimination.
        reference_mhz: The reference clock of all GPUs; None takes the next.
        model_references_mhz: Reference clocks by product name; others take the next.
        default_reference_mhz: That of models without one; None takes the device's maximum.
        limit_mhz: A standing limit (locked clock) on all GPUs; None takes the driver's.
    """

    device_map: Mapping[int, str] = field(default_factory=dict)
    guess: bool = True
    reference_mhz: float | None = None
    model_references_mhz: Mapping[str, float] = field(default_factory=dict)
    default_reference_mhz: float | None = None
    limit_mhz: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceAlignment:
    """How well one device's trace and samples lie on one axis; lags None if not measurable.

    `sensor_period_ns` is how often the clock's sensor looks; None where that is not known.
    """

    offset_uncertainty_ns: int
    period_ns: int
    sensor_period_ns: int | None
    lag_ns: int | None
    lag_low_ns: int | None
    lag_high_ns: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledBy:
    """What is to be said of the samples that a trace was joined with.

    Attributes:
        node, backend, driver, simulated, asked_hz: As of the `SampleSet`.
        power_sources: What the power of its GPUs is, each once.
        notes: What is to be read with care about them.
    """

    node: str | None
    backend: str
    driver: str | None
    simulated: bool
    asked_hz: float | None
    power_sources: tuple[str | None, ...]
    notes: tuple[Note, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceReport:
    """Everything of one trace that goes into a document; the trace itself is no longer needed.

    `sampled` is None where there were no samples.
    """

    trace: TraceSummary
    simulated: bool
    devices: tuple[DeviceSummary, ...]
    steps: tuple[DraftRow, ...]
    totals: tuple[DraftRow, ...]
    host_steps: tuple[Row, ...]
    framework: FrameworkSummary
    alignments: tuple[DeviceAlignment, ...]
    realtime_step: bool | None
    sampled: SampledBy | None
    notes: tuple[Note, ...]


def report_trace(
    trace: Trace, timeline: Timeline, samples: SampleSet | None, options: JoinOptions
) -> TraceReport:
    """The trace joined with the samples, device by device.

    Args:
        trace: As read.
        timeline: As laid out.
        samples: Of the node; None if there are none.
        options: What the user says.
    """
    usable = samples if samples is not None and trace.meta.anchored else None
    joined = [_joined(device, timeline, trace, usable, options) for device in timeline.devices]
    used = {window.step for device in timeline.devices for window in device.windows}
    context = _context(trace, None)
    stepped = _realtime_step(trace, usable)
    return TraceReport(
        trace=_summary(trace, timeline),
        simulated=trace.meta.simulated,
        devices=tuple(each.summary for each in joined),
        steps=tuple(row for each in joined for row in each.steps),
        totals=tuple(each.totals for each in joined),
        host_steps=tuple(host_rows(timeline, used, context)),
        framework=FrameworkSummary(
            name=timeline.framework.name, evidence=timeline.framework.evidence
        ),
        alignments=tuple(each.alignment for each in joined if each.alignment is not None),
        realtime_step=stepped,
        sampled=None if samples is None else _sampled_by(samples),
        notes=(
            *trace_notes(trace, timeline, samples, stepped=bool(stepped)),
            *(note for each in joined for note in each.notes),
        ),
    )


def _sampled_by(samples: SampleSet) -> SampledBy:
    return SampledBy(
        node=samples.node,
        backend=samples.backend,
        driver=samples.driver,
        simulated=samples.simulated,
        asked_hz=samples.asked_hz,
        power_sources=tuple(dict.fromkeys(each.gpu.power_source for each in samples.gpus)),
        notes=samples.notes,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _DeviceReport:
    summary: DeviceSummary
    steps: list[DraftRow]
    totals: DraftRow
    alignment: DeviceAlignment | None
    notes: tuple[Note, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockedDevice:
    """A traced device, the GPU that it is, and both joined.

    Attributes:
        mapped: The GPU and the rule that found it.
        samples: The GPU's, with the clock of its governing die; None without a GPU.
        reference: The reference clock.
        summary: What samples and trace say of it.
        spec: What its vendor states; None if unknown, for `no_spec`.
        joined: The device's figures.
    """

    mapped: Mapped
    samples: GpuSamples | None
    reference: Reference
    summary: DeviceSummary
    spec: GpuSpec | None
    no_spec: str
    joined: JoinedDevice


def clocked_device(
    device: DeviceTimeline,
    timeline: Timeline,
    trace: Trace,
    samples: SampleSet | None,
    options: JoinOptions,
) -> ClockedDevice:
    """One device of a trace joined with the samples of its GPU.

    Args:
        device: One of the timeline's.
        timeline: As laid out.
        trace: As read.
        samples: Of the node, on the trace's time axis; None if there are none.
        options: What the user says.
    """
    mapped = _mapped(device, timeline, trace, samples, options)
    mine = _samples_of(mapped, samples, options.limit_mhz)
    reference = _reference(mine, options)
    said = _said(device.device, timeline, trace)
    summary = _device_summary(said, trace, mapped, reference)
    is_part = mapped.gpu is not None and mapped.gpu.parent is not None
    spec, no_spec = spec_of(summary.name, units=said.units, is_part=is_part)
    reference_mhz, activity = reference.sm_clock_mhz, timeline.host_activity
    joined = join_device(device, activity, mine, reference_mhz, timeline.collectives, spec)
    return ClockedDevice(
        mapped=mapped,
        samples=mine,
        reference=reference,
        summary=summary,
        spec=spec,
        no_spec=no_spec,
        joined=joined,
    )


def _joined(
    device: DeviceTimeline,
    timeline: Timeline,
    trace: Trace,
    samples: SampleSet | None,
    options: JoinOptions,
) -> _DeviceReport:
    clocked = clocked_device(device, timeline, trace, samples, options)
    joined, mine, reference = clocked.joined, clocked.samples, clocked.reference
    steps, totals = device_rows(joined, timeline, _context(trace, clocked))
    return _DeviceReport(
        summary=clocked.summary,
        steps=steps,
        totals=totals,
        alignment=_alignment(joined),
        notes=(
            *rocm_notes(device, trace.meta.runtime),
            *device_notes(joined, samples, mine, reference, clocked.mapped.why_not),
        ),
    )


def _mapped(
    device: DeviceTimeline,
    timeline: Timeline,
    trace: Trace,
    samples: SampleSet | None,
    options: JoinOptions,
) -> Mapped:
    if samples is None:
        return UNMAPPED
    return map_device(
        device.device,
        trace.meta.devices,
        [each.device for each in timeline.devices],
        [each.gpu for each in samples.gpus],
        options.device_map,
        numbers=trace.meta.device_numbers,
        guess=options.guess,
    )


def _reference(mine: GpuSamples | None, options: JoinOptions) -> Reference:
    configured_mhz = options.reference_mhz
    if configured_mhz is None and mine is not None:
        configured_mhz = options.model_references_mhz.get(mine.gpu.name)
    if configured_mhz is None:
        configured_mhz = options.default_reference_mhz
    if configured_mhz is not None:
        return Reference(sm_clock_mhz=configured_mhz, source="configured")
    if mine is not None and mine.gpu.sm_clock_max_mhz is not None:
        return Reference(sm_clock_mhz=mine.gpu.sm_clock_max_mhz, source="device_max")
    return Reference(sm_clock_mhz=None, source=None)


def _samples_of(
    mapped: Mapped, samples: SampleSet | None, limit_mhz: float | None
) -> GpuSamples | None:
    """The samples of the GPU, with the clock of its governing die; None without a GPU."""
    if samples is None or mapped.gpu is None:
        return None
    own = next(each for each in samples.gpus if each.gpu is mapped.gpu)
    mine = governed(_with_card(own, samples))
    if limit_mhz is None:
        return mine
    return replace(mine, gpu=replace(mine.gpu, sm_clock_limit_mhz=limit_mhz))


def _with_card(mine: GpuSamples, samples: SampleSet) -> GpuSamples:
    """A partition's samples as those of the card whose clock it shares; others as they are.

    Without the energy: how much of the card's is the partition's is not known.
    """
    card = next((each for each in samples.gpus if each.gpu.gpu == mine.gpu.parent), None)
    if card is None:
        return mine
    info = replace(card.gpu, gpu=mine.gpu.gpu, uuid=mine.gpu.uuid, parent=mine.gpu.parent)
    return replace(card, gpu=info, energy_j=np.full_like(card.energy_j, np.nan))


def _context(trace: Trace, clocked: ClockedDevice | None) -> RowContext:
    device = clocked.summary if clocked else None
    samples = clocked.samples if clocked else None
    return RowContext(
        job=trace.meta.job,
        run=trace.meta.run,
        rank=trace.meta.rank,
        gpu=device.gpu if device else None,
        # Partitions of a card have one clock: they are no peers.
        model=device.name if device and (samples is None or not samples.gpu.parent) else None,
        anchored=trace.meta.anchored,
        reference_mhz=device.reference.sm_clock_mhz if device else None,
        samples=samples,
        spec=clocked.spec if clocked else None,
        no_spec=clocked.no_spec if clocked else "",
    )


def _said(device: int, timeline: Timeline, trace: Trace) -> TraceDevice:
    """What the trace says of a device."""
    used = [each.device for each in timeline.devices]
    numbers = trace.meta.device_numbers
    said = said_of(device, trace.meta.devices, used, numbers) or TraceDevice(device=device)
    return replace(said, device=device)


def _device_summary(
    said: TraceDevice, trace: Trace, mapped: Mapped, reference: Reference
) -> DeviceSummary:
    """What samples and, where they don't say, the trace tell of a device."""
    gpu = mapped.gpu
    return DeviceSummary(
        device=said.device,
        rank=trace.meta.rank,
        gpu=None if gpu is None else gpu.gpu,
        uuid=(gpu and gpu.uuid) or said.uuid or None,
        name=(gpu and gpu.name) or said.name or None,
        vendor=None if gpu is None else gpu.vendor.value,
        mapping=mapped.rule,
        pid=_pid(trace),
        reference=reference,
    )


def _pid(trace: Trace) -> int | None:
    """The process that launched all that the trace holds; None if it can't be told."""
    used = np.unique(trace.calls.thread)
    pids = {trace.threads[thread][0] for thread in used.tolist()}
    pid = next(iter(pids)) if len(pids) == 1 else None
    return pid if isinstance(pid, int) else None


def _alignment(joined: JoinedDevice) -> DeviceAlignment | None:
    clocks = joined.clocks
    if clocks is None:
        return None
    return DeviceAlignment(
        offset_uncertainty_ns=round(clocks.timing.join_ns),
        period_ns=clocks.period_ns,
        sensor_period_ns=clocks.sensor_period_ns,
        lag_ns=clocks.lag.lag_ns,
        lag_low_ns=clocks.lag.low_ns,
        lag_high_ns=clocks.lag.high_ns,
    )


def _realtime_step(trace: Trace, samples: SampleSet | None) -> bool | None:
    """Whether the wall clock stepped inside the trace; None where no clock triples tell."""
    if samples is None:
        return None
    step_ns = realtime_step_ns(samples.triples, *trace.span_ns)
    return None if step_ns is None else step_ns > MAX_REALTIME_STEP_NS


def _summary(trace: Trace, timeline: Timeline) -> TraceSummary:
    meta, damage = trace.meta, trace.damage
    lost = damage.damaged_events + damage.undecodable_events + damage.invalid_records
    cut = damage.truncated or damage.still_written or damage.unreadable_keys
    return TraceSummary(
        path=meta.path,
        sha256=meta.sha256,
        job=meta.job,
        run=meta.run,
        rank=meta.rank,
        rank_source=meta.rank_source,
        world_size=meta.world_size,
        base_time_unix_ns=meta.base_time_unix_ns,
        complete=not (cut or lost),
        events=meta.event_count,
        damaged_events=damage.damaged_events + damage.undecodable_events,
        invalid_records=damage.invalid_records,
        unlinked_kernels=timeline.unlinked_records,
        lost=lost_by_kind(damage, timeline),
    )
