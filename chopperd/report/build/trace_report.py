"""Join one trace with the node's samples: its rows, and the notes on it."""

from collections.abc import Sequence
from dataclasses import dataclass

from chopperd.correlate.join import RowClocks
from chopperd.correlate.ranks.collectives import PackedCollectives, collectives_of_device, pack
from chopperd.correlate.timebase import realtime_step_ns
from chopperd.model.report import DeviceSummary, FrameworkSummary, HostTime, Note, TraceSummary
from chopperd.model.report_rows import Row
from chopperd.model.run import RunIdentity
from chopperd.model.samples import SampleSet
from chopperd.model.timeline import Timeline
from chopperd.model.trace import Trace
from chopperd.report.build.clocked_device import ClockedDevice, JoinOptions, clocked_device
from chopperd.report.build.clocks import copied
from chopperd.report.build.device_notes import device_notes
from chopperd.report.build.rows import (
    DraftRow,
    device_rows,
    host_rows,
    without_intervals,
    without_loss_interval,
)
from chopperd.report.build.trace_notes import lost_by_kind, rocm_notes, trace_notes
from chopperd.report.build.work import host_time
from chopperd.units import NS_PER_US

#: A wall clock that steps further than this inside a trace spoils the join.
MAX_REALTIME_STEP_NS = 100 * NS_PER_US


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceAlignment:
    """How well the time axes of a device's trace and samples agree; lags None if not measurable.

    `sensor_period_ns` is the time between two updates of the clock sensor; None if unknown.
    """

    offset_uncertainty_ns: int
    period_ns: int
    sensor_period_ns: int | None
    lag_ns: int | None
    lag_low_ns: int | None
    lag_high_ns: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledBy:
    """Facts about the samples that a trace was joined with, most as in `SampleSet`."""

    node: str | None
    backend: str
    driver: str | None
    simulated: bool
    asked_hz: float | None
    power_sources: tuple[str | None, ...]  # of its GPUs, each once
    notes: tuple[Note, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceReport:
    """The figures of one trace that go into a document; the trace itself is no longer needed.

    It is stored in MessagePack by these field names until other traces of its job have arrived.
    """

    trace: TraceSummary
    said: RunIdentity  # what the file's header says about its run
    simulated: bool
    devices: tuple[DeviceSummary, ...]
    steps: tuple[DraftRow, ...]
    totals: tuple[DraftRow, ...]
    host_steps: tuple[Row, ...]
    framework: FrameworkSummary
    alignments: tuple[DeviceAlignment, ...]
    realtime_step: bool | None
    sampled: SampledBy | None  # None without samples
    notes: tuple[Note, ...]
    host: HostTime | None = None  # None where there is device work
    # Of each device, for the comparison with other ranks; empty without a time base
    collectives: tuple[PackedCollectives, ...] = ()


def report_trace(
    trace: Trace, timeline: Timeline, samples: SampleSet | None, options: JoinOptions
) -> TraceReport:
    """Join a trace with the node's samples (None if there are none), device by device."""
    usable = samples if samples is not None and trace.meta.anchored else None
    stepped, meta, host = _realtime_step(trace, usable), trace.meta, timeline.host
    clocked = [
        clocked_device(device, timeline, trace, usable, options) for device in timeline.devices
    ]
    rows = [_rows(each, timeline, trace, stepped=bool(stepped)) for each in clocked]
    used = {window.step for device in timeline.devices for window in device.windows}
    clocks = [each.joined.clocks for each in clocked]
    notes = trace_notes(trace, timeline, samples, stepped=bool(stepped))
    for device, each in zip(timeline.devices, clocked, strict=True):
        notes += [*rocm_notes(device, meta.runtime), *each.doubts]
        notes += device_notes(each, usable, in_agent=options.in_agent)
    return TraceReport(
        trace=_summary(trace, timeline),
        said=copied(meta, RunIdentity),
        simulated=meta.simulated,
        devices=tuple(each.summary for each in clocked),
        steps=tuple(row for steps, _ in rows for row in steps),
        totals=tuple(totals for _, totals in rows),
        host_steps=tuple(host_rows(timeline, used, meta)),
        framework=copied(timeline.framework, FrameworkSummary),
        alignments=tuple(_alignment(each) for each in clocks if each is not None),
        realtime_step=stepped,
        sampled=None if samples is None else _sampled_by(samples),
        notes=tuple(notes),
        host=None if host is None else host_time(host, meta.job, meta.run, meta.rank),
        collectives=_collectives(clocked, timeline) if meta.anchored else (),
    )


def _collectives(
    clocked: Sequence[ClockedDevice], timeline: Timeline
) -> tuple[PackedCollectives, ...]:
    joined = [each.joined for each in clocked]
    return tuple(
        pack(
            collectives_of_device(each.timeline, timeline, each.exposed_comm), each.timeline.device
        )
        for each in joined
        if len(each.exposed_comm) or each.times.comm_ns[-1]
    )


def _sampled_by(samples: SampleSet) -> SampledBy:
    sources = dict.fromkeys(each.gpu.power_source for each in samples.gpus)
    return copied(samples, SampledBy, power_sources=tuple(sources))


def _rows(
    clocked: ClockedDevice, timeline: Timeline, trace: Trace, *, stepped: bool
) -> tuple[list[DraftRow], DraftRow]:
    """Return step rows and totals of a device, without the intervals that are in doubt."""
    steps, totals = device_rows(clocked, timeline, trace.meta)
    doubts = {each.code for each in clocked.doubts}
    if not doubts and not stepped:
        return steps, totals
    only_loss = doubts == {"reference_doubtful"} and not stepped
    without = without_loss_interval if only_loss else without_intervals
    return [without(each) for each in steps], without(totals)


def _alignment(clocks: RowClocks) -> DeviceAlignment:
    return DeviceAlignment(
        offset_uncertainty_ns=round(clocks.timing.join_ns),
        period_ns=clocks.period_ns,
        sensor_period_ns=clocks.sensor_period_ns,
        lag_ns=clocks.lag.lag_ns,
        lag_low_ns=clocks.lag.low_ns,
        lag_high_ns=clocks.lag.high_ns,
    )


def _realtime_step(trace: Trace, samples: SampleSet | None) -> bool | None:
    """Whether the wall clock stepped inside the trace; None where no clock triples cover it."""
    if samples is None:
        return None
    step_ns = realtime_step_ns(samples.triples, *trace.span_ns)
    return None if step_ns is None else step_ns > MAX_REALTIME_STEP_NS


def _summary(trace: Trace, timeline: Timeline) -> TraceSummary:
    damage = trace.damage
    unread = damage.damaged_events + damage.undecodable_events + damage.further_events
    cut = damage.truncated or damage.still_written or damage.unreadable_keys
    return copied(
        trace.meta,
        TraceSummary,
        complete=not (cut or unread or damage.invalid_records),
        events=trace.meta.event_count,
        damaged_events=unread,
        invalid_records=damage.invalid_records,
        unlinked_kernels=timeline.unlinked_records,
        lost=lost_by_kind(damage, timeline),
        overrun_records=damage.overrun_records,
    )
