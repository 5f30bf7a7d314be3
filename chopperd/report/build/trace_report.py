"""Join one trace with the node's samples: its rows, and the notes on it."""

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import numpy as np
from msgspec import Struct

from chopperd.correlate.join import RowClocks
from chopperd.correlate.ranks.collectives import PackedCollectives, collectives_of_device, pack
from chopperd.correlate.timebase import realtime_step_ns
from chopperd.model.answers import DropShare, StepTimeline, TracedDrop
from chopperd.model.arrays import Float64s, Int8s, Int32s, Int64s
from chopperd.model.captures import GpuDrop
from chopperd.model.kinds import KERNEL_CLASSES
from chopperd.model.memory import RankMemory
from chopperd.model.report import DeviceSummary, FrameworkSummary, HostTime, Note, TraceSummary
from chopperd.model.report_rows import Row
from chopperd.model.run import RunIdentity
from chopperd.model.samples import GpuSamples, SampleSet
from chopperd.model.timeline import DeviceTimeline, Timeline
from chopperd.model.trace import Trace
from chopperd.report.build.clocked_device import ClockedDevice, JoinOptions, clocked_device
from chopperd.report.build.clocks import copied
from chopperd.report.build.device_notes import device_notes
from chopperd.report.build.memory import device_facts, memory_beside_clock
from chopperd.report.build.rows import (
    DraftRow,
    device_rows,
    host_rows,
    without_intervals,
    without_loss_interval,
)
from chopperd.report.build.timelines import device_timelines
from chopperd.report.build.trace_notes import lost_by_kind, rocm_notes, trace_notes
from chopperd.report.build.work import host_time
from chopperd.units import NS_PER_S, NS_PER_US

#: A wall clock that steps further than this inside a trace spoils the join.
MAX_REALTIME_STEP_NS = 100 * NS_PER_US
#: Samples so long before and after a trace are used. Before it: twice what a drop's reference is
#: over; after it: one a second holds for three seconds.
HISTORY_NS: Final = 120 * NS_PER_S
MARGIN_NS: Final = 10 * NS_PER_S
#: Of a drop so many families of kernels are named.
_MOST_FAMILIES: Final = 8
_CLASSES: Final = tuple(each.label for each in KERNEL_CLASSES)
#: Why samples are no evidence of what the traced GPU did.
_OF_ANOTHER: Final = frozenset({"time_axes_differ", "samples_contradict_trace"})

#: Finds the drops of a GPU, from its samples, that overlap a time: begin and end (Unix ns, by the
#: samples), and the length of a step in s (0 unknown). `chopperd.pipeline.reports.drops_between`.
FindDrops: TypeAlias = Callable[[GpuSamples, int, int, float], Sequence[GpuDrop]]


class DeviceAlignment(Struct, frozen=True, kw_only=True):
    """How well the time axes of a device's trace and samples agree; lags None if not measurable.

    `sensor_period_ns` is the time between two updates of the clock sensor; None if unknown.
    """

    offset_uncertainty_ns: int
    period_ns: int
    sensor_period_ns: int | None
    lag_ns: int | None
    lag_low_ns: int | None
    lag_high_ns: int | None


class SampledBy(Struct, frozen=True, kw_only=True):
    """Facts about the samples that a trace was joined with, most as in `SampleSet`."""

    node: str | None
    backend: str
    driver: str | None
    simulated: bool
    asked_hz: float | None
    power_sources: tuple[str | None, ...]  # of its GPUs, each once
    notes: tuple[Note, ...]


class TraceReport(Struct, frozen=True, kw_only=True):
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
    drops: tuple[TracedDrop, ...] = ()
    memory: tuple[RankMemory, ...] = ()
    timelines: tuple[StepTimeline, ...] = ()  # of steps that may be drawn in detail


def report_trace(
    trace: Trace,
    timeline: Timeline,
    samples: SampleSet | None,
    options: JoinOptions,
    find_drops: FindDrops | None = None,
    memory: Sequence[RankMemory] = (),
) -> TraceReport:
    """Join a trace with the node's samples, if any, by device; `find_drops` finds drops.

    `memory`: of its devices.
    """
    usable = samples if samples is not None and trace.meta.anchored else None
    stepped, meta, host = _realtime_step(trace, usable), trace.meta, timeline.host
    clocked = [
        clocked_device(device, timeline, trace, usable, options) for device in timeline.devices
    ]
    rows = [_rows(each, timeline, trace, stepped=bool(stepped)) for each in clocked]
    found = [
        () if stepped else tuple(_drops(device, each, timeline, find_drops))
        for device, each in zip(timeline.devices, clocked, strict=True)
    ]
    sources = dict.fromkeys(each.gpu.power_source for each in (samples.gpus if samples else ()))
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
        sampled=samples
        if samples is None
        else copied(samples, SampledBy, power_sources=tuple(sources)),
        notes=tuple(notes),
        host=None if host is None else host_time(host, meta.job, meta.run, meta.rank),
        collectives=_collectives(clocked, timeline) if meta.anchored else (),
        drops=tuple(drop for those in found for drop in those),
        memory=memory_beside_clock(
            memory,
            device_facts(clocked, timeline, trace) if memory else {},
            (draft.row for steps, _ in rows for draft in steps),
        ),
        timelines=tuple(
            each
            for one, (steps, _), drops in zip(clocked, rows, found, strict=True)
            for each in device_timelines(
                one,
                [draft.row for draft in steps],
                drops,
                wanted=options.drawn_step,
                with_samples=not (stepped or _untrue(one)),
            )
        ),
    )


def _untrue(clocked: ClockedDevice) -> bool:
    """Whether the samples are no evidence of what the traced GPU did."""
    return any(each.code in _OF_ANOTHER for each in clocked.doubts)


def _drops(
    device: DeviceTimeline, clocked: ClockedDevice, timeline: Timeline, find: FindDrops | None
) -> list[TracedDrop]:
    """Return the drops while the GPU was traced; times are the samples' less the sensor's lag."""
    clocks = clocked.joined.clocks
    if find is None or clocked.samples is None or clocks is None or _untrue(clocked):
        return []
    begin_ns, end_ns = int(device.start_ns[0]), int(device.end_ns.max())
    lag_ns = clocks.subtracted_ns
    lengths_ns = [each.end_ns - each.start_ns for each in device.windows]
    step_s = float(np.median(lengths_ns)) / NS_PER_S if lengths_ns else 0.0
    found = find(clocked.samples, begin_ns + lag_ns, end_ns + lag_ns, step_s)
    if not found:
        return []
    spans = [
        (each.begin_unix_ns - lag_ns, end_ns if (end := each.end_unix_ns) is None else end - lag_ns)
        for each in found
    ]
    inside_ns = [_inside_ns(device, *span) for span in spans]
    outside_ns = device.end_ns - device.start_ns - sum(inside_ns)
    return [
        TracedDrop(
            gpu=clocked.summary.gpu,
            rank=clocked.summary.rank,
            device=device.device,
            start_unix_ns=span[0],
            end_unix_ns=None if drop.end_unix_ns is None else span[1],
            duration_ns=round(drop.length_s * NS_PER_S),
            reference_mhz=drop.reference_mhz,
            mean_mhz=drop.mean_mhz,
            lowest_mhz=drop.lowest_mhz,
            lost_ns=round(drop.lost_s * NS_PER_S),
            by_cause_ns={k: round(v * NS_PER_S) for k, v in drop.lost_by_cause_s.items()},
            power_w=drop.mean_power_w,
            temperature_c=drop.mean_temperature_c,
            steps=_touched(device, timeline, *span),
            classes=_shares(device.kernel_class, _CLASSES, inside, outside_ns),
            families=_shares(device.family, timeline.families, inside, outside_ns)[:_MOST_FAMILIES],
        )
        for drop, span, inside in zip(found, spans, inside_ns, strict=True)
    ]


def _inside_ns(device: DeviceTimeline, begin_ns: int, end_ns: int) -> Int64s:
    inside_ns: Int64s = np.minimum(device.end_ns, end_ns) - np.maximum(device.start_ns, begin_ns)
    np.maximum(inside_ns, 0, out=inside_ns)
    return inside_ns


def _touched(
    device: DeviceTimeline, timeline: Timeline, begin_ns: int, end_ns: int
) -> tuple[int, int] | None:
    steps = [
        timeline.steps[each.step].step
        for each in device.windows
        if each.start_ns < end_ns and each.end_ns > begin_ns
    ]
    return (steps[0], steps[-1]) if steps else None


def _shares(
    number: Int8s | Int32s, names: Sequence[str], inside_ns: Int64s, outside_ns: Int64s
) -> tuple[DropShare, ...]:
    """Return shares of time inside and outside drops by name; largest difference first."""
    inside, outside = (
        np.bincount(number, each, len(names)).astype(np.float64) for each in (inside_ns, outside_ns)
    )
    ran = np.flatnonzero(inside + outside)
    inside_ratio, outside_ratio = (_ratios(each[ran]) for each in (inside, outside))
    apart = np.where(np.isnan(outside_ratio), inside_ratio, np.abs(inside_ratio - outside_ratio))
    return tuple(
        DropShare(
            name=names[ran[at]],
            inside_ratio=float(inside_ratio[at]),
            outside_ratio=None if np.isnan(outside_ratio[at]) else float(outside_ratio[at]),
        )
        for at in np.argsort(-apart, kind="stable").tolist()
        if not np.isnan(inside_ratio[at])
    )


def _ratios(times_ns: Float64s) -> Float64s:
    """Return shares of the sum; NaN where nothing ran."""
    whole_ns = float(times_ns.sum())
    return times_ns / whole_ns if whole_ns else np.full(len(times_ns), np.nan)


def _collectives(
    clocked: Sequence[ClockedDevice], timeline: Timeline
) -> tuple[PackedCollectives, ...]:
    return tuple(
        pack(collectives_of_device(one.timeline, timeline, one.exposed_comm), one.timeline.device)
        for one in (each.joined for each in clocked)
        if len(one.exposed_comm) or one.times.comm_ns[-1]
    )


def _rows(
    clocked: ClockedDevice, timeline: Timeline, trace: Trace, *, stepped: bool
) -> tuple[list[DraftRow], DraftRow]:
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
