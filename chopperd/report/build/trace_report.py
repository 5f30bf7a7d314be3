"""One trace joined with the node's samples: its rows, and what must be said of it."""

from dataclasses import dataclass

from chopperd.correlate.join import JoinedDevice
from chopperd.correlate.timebase import realtime_step_ns
from chopperd.model.report import DeviceSummary, FrameworkSummary, HostTime, Note, TraceSummary
from chopperd.model.report_rows import Row
from chopperd.model.run import RunIdentity
from chopperd.model.samples import SampleSet
from chopperd.model.timeline import DeviceTimeline, Timeline
from chopperd.model.trace import Trace, TraceMeta
from chopperd.report.build.clocked_device import ClockedDevice, JoinOptions, clocked_device
from chopperd.report.build.notes import device_notes, trace_notes
from chopperd.report.build.rows import (
    DraftRow,
    RowContext,
    device_rows,
    host_rows,
    without_intervals,
    without_loss_interval,
)
from chopperd.report.build.trace_faults import lost_by_kind, rocm_notes
from chopperd.report.build.work import host_time
from chopperd.units import NS_PER_US

#: A wall clock that steps further than this inside a trace spoils the join.
MAX_REALTIME_STEP_NS = 100 * NS_PER_US


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

    `said` is what the file's header says of its run; `sampled` is None where there were no
    samples, `host` where there is device work.
    """

    trace: TraceSummary
    said: RunIdentity
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
    host: HostTime | None = None


def report_trace(
    trace: Trace,
    timeline: Timeline,
    samples: SampleSet | None,
    options: JoinOptions,
) -> TraceReport:
    """The trace joined with the samples, device by device.

    Args:
        trace: As read.
        timeline: As laid out.
        samples: Of the node; None if there are none.
        options: What the user says.
    """
    usable = samples if samples is not None and trace.meta.anchored else None
    stepped = _realtime_step(trace, usable)
    joined = [
        _joined(device, timeline, trace, usable, options, stepped=bool(stepped))
        for device in timeline.devices
    ]
    used = {window.step for device in timeline.devices for window in device.windows}
    context = _context(trace, None)
    return TraceReport(
        trace=_summary(trace, timeline),
        said=_said(trace.meta),
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
        host=_host_time(timeline, context),
    )


def _said(meta: TraceMeta) -> RunIdentity:
    return RunIdentity(
        run=meta.run,
        rank=meta.rank,
        world_size=meta.world_size,
        backend=meta.backend,
        groups=meta.groups,
        trace_id=meta.trace_id,
        host_name=meta.host_name,
    )


def _host_time(timeline: Timeline, context: RowContext) -> HostTime | None:
    if timeline.host is None:
        return None
    return host_time(timeline.host, context.job, context.run, context.rank)


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


def _joined(
    device: DeviceTimeline,
    timeline: Timeline,
    trace: Trace,
    samples: SampleSet | None,
    options: JoinOptions,
    *,
    stepped: bool,
) -> _DeviceReport:
    clocked = clocked_device(device, timeline, trace, samples, options)
    joined, mine, reference = clocked.joined, clocked.samples, clocked.reference
    steps, totals = device_rows(joined, timeline, _context(trace, clocked))
    doubts = {each.code for each in clocked.doubts}
    if doubts or stepped:
        only_loss = doubts == {"reference_doubtful"} and not stepped
        without = without_loss_interval if only_loss else without_intervals
        steps, totals = [without(each) for each in steps], without(totals)
    return _DeviceReport(
        summary=clocked.summary,
        steps=steps,
        totals=totals,
        alignment=_alignment(joined),
        notes=(
            *rocm_notes(device, trace.meta.runtime),
            *clocked.doubts,
            *device_notes(
                joined,
                samples,
                mine,
                reference,
                clocked.mapped.why_not,
                in_agent=options.in_agent,
            ),
        ),
    )


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
    unread = damage.damaged_events + damage.undecodable_events + damage.further_events
    lost = unread + damage.invalid_records
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
        damaged_events=unread,
        invalid_records=damage.invalid_records,
        unlinked_kernels=timeline.unlinked_records,
        lost=lost_by_kind(damage, timeline),
        overrun_records=damage.overrun_records,
    )
