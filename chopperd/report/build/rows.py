"""Rows of a report from the columns of a joined device; unknown numbers become None here."""

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

import msgspec
import numpy as np

from chopperd.correlate.clock.governing import are_gated, are_running
from chopperd.correlate.clock.signal import RunningClass
from chopperd.correlate.join import JoinedDevice, RowClocks
from chopperd.correlate.row_work import marker_busy_ns
from chopperd.model.kinds import CopyDirection
from chopperd.model.report_rows import (
    ClockDies,
    ExposedComm,
    ExposedCopy,
    MicroStep,
    Phases,
    Row,
    Waterfall,
)
from chopperd.model.samples import GpuSamples
from chopperd.model.spec import GpuSpec
from chopperd.model.timeline import PHASE_LABELS, DeviceTimeline, Phase, Step, Timeline
from chopperd.report.build.clocks import (
    capped_w,
    class_samples,
    classes_of,
    clock_of,
    dvfs_of,
    energy_of,
    families_of,
    mean_of_samples,
    parts_of,
    power_of,
    reads_inside,
    row_samples,
    temperature_of,
)
from chopperd.report.build.work import efficiency_of, with_contention, with_traffic
from chopperd.units import NS_PER_S

# How the dies of a GPU ran beside the governing one, over a row; unknown is None.


def dies_of(samples: GpuSamples, clocks: RowClocks, index: int) -> ClockDies | None:
    """The row's figures of the dies; None without dies, or where none ran at a sample in compute.

    Args:
        samples: As they were joined: their clock is the governing die's.
        clocks: The joined rows.
        index: The row.
    """
    if samples.die_clocks_mhz is None or not clocks.compute.covered_ns[index]:
        return None
    inside = row_samples(clocks, index)
    rows = clocks.kept[inside][clocks.samples.label[inside] == RunningClass.COMPUTE]
    dies_mhz = samples.die_clocks_mhz[rows]
    ran = are_running(dies_mhz)
    if not ran.any():
        return None
    running_mhz = np.where(ran, dies_mhz, np.nan)
    means_mhz = np.nanmean(running_mhz[:, ran.any(axis=0)], axis=0)
    at_all = ran.any(axis=1)
    above_mhz = np.nanmean(running_mhz[at_all], axis=1) - samples.sm_clock_mhz[rows][at_all]
    return ClockDies(
        running=len(means_mhz),
        gated=int(are_gated(dies_mhz).any(axis=0).sum()),
        mean_mhz=float(clocks.compute.mean_mhz[index] + above_mhz.mean()),
        spread_mhz=float(np.ptp(means_mhz)) if len(means_mhz) > 1 else None,
        governing=int(np.flatnonzero(ran.any(axis=0))[means_mhz.argmin()]),
    )


_NO_INTERVAL: Final = {"lost_low_ns": None, "lost_high_ns": None}


@dataclass(frozen=True, slots=True, kw_only=True)
class RowContext:
    """What a device's rows share.

    Attributes:
        job, run, rank: Identity of the trace.
        gpu: Label of the GPU; None if not mapped.
        model: Product name; None if not known.
        anchored: Whether the trace's times are Unix times.
        reference_mhz: f_ref; None if unknown.
        samples: The GPU's samples; None if there are none.
        spec: What the GPU's vendor states; None if unknown, for `no_spec`.
    """

    job: str | None
    run: str | None
    rank: int | None
    gpu: str | None
    model: str | None
    anchored: bool
    reference_mhz: float | None
    samples: GpuSamples | None
    spec: GpuSpec | None = None
    no_spec: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftRow:
    """A row, and what it takes to pool it with others.

    Attributes:
        row: The row, without what only other devices' rows tell.
        model: Product name of its GPU; None if not known.
        process: Number of the process that the trace is of; devices are numbered within one.
        first_step: First step of its file, by which files of one process pair up with others'.
        covered_ns: Compute covered by samples.
        samples_in_compute: Clock samples that fell into compute.
        capped_w: Mean power while it computes under its power cap; None if not known.
        random_mhz, bias_mhz: Parts of the half width of the mean compute clock's 95 % interval that
            do and do not average out over steps; NaN unknown.
        random_ns, bias_ns: Parts of the half width of the loss's 95 % interval that do and do not
            average out over steps; NaN unknown.
        is_peer: Whether others are compared with its clock: not where that may be another GPU's, or
            that of another time.
    """

    row: Row
    model: str | None = None
    process: int = 0
    first_step: int | None = None
    covered_ns: int = 0
    samples_in_compute: int = 0
    capped_w: float | None = None
    random_mhz: float = math.nan
    bias_mhz: float = math.nan
    random_ns: float = math.nan
    bias_ns: float = math.nan
    is_peer: bool = True


def device_rows(
    joined: JoinedDevice, timeline: Timeline, context: RowContext
) -> tuple[list[DraftRow], DraftRow]:
    """The step rows of a device in order, and its row of totals."""
    drafts = [
        _draft(joined, timeline, context, index) for index in range(len(joined.times.windows))
    ]
    return drafts[:-1], drafts[-1]


def host_rows(timeline: Timeline, used: Collection[int], context: RowContext) -> list[Row]:
    """Rows of the steps (by index) that left no record on any device."""
    return [
        replace(
            _identified(timeline, index, context),
            gpu=None,
            host_only=True,
            micro_steps=_micro_steps(step, None, context),
        )
        for index, step in enumerate(timeline.steps)
        if index not in used
    ]


def _draft(joined: JoinedDevice, timeline: Timeline, context: RowContext, index: int) -> DraftRow:
    """Row `index` of the device; the last is the whole file."""
    windows = joined.timeline.windows
    window = windows[index] if index < len(windows) else None
    row = _identified(timeline, None if window is None else window.step, context)
    row = _with_lengths(replace(row, device=joined.timeline.device), joined, context, index)
    row = with_traffic(row, joined.traffic, index)
    efficiency = efficiency_of(joined.efficiency, index, context.spec, context.no_spec)
    row = replace(row, efficiency=efficiency)
    if window is None:
        row = _with_parts(replace(row, launched_ns=None, foreign_ns=None), joined, timeline)
    else:
        micro_steps = _micro_steps(timeline.steps[window.step], joined.timeline, context)
        row = replace(row, tail=window.tail, micro_steps=micro_steps)
    if joined.clocks is None:
        return DraftRow(row=row, model=context.model)
    return _with_clocks(row, joined.clocks, context, index)


def _with_parts(row: Row, joined: JoinedDevice, timeline: Timeline) -> Row:
    """The row of the whole file with what each family, operation, layer and phase has of it."""
    families = families_of(joined.families, timeline.families)
    return replace(
        row,
        families=with_contention(families, joined.families, joined.traffic.contention),
        classes=classes_of(joined.classes),
        by_operation=parts_of(joined.operations, timeline.operations),
        by_layer=parts_of(joined.layers, timeline.layers),
        by_phase=parts_of(joined.phases, PHASE_LABELS),
    )


def _identified(timeline: Timeline, step: int | None, context: RowContext) -> Row:
    """A row that says whose it is and what its markers say, and measures nothing yet."""
    row = Row(
        job=context.job,
        run=context.run,
        rank=context.rank,
        step=None,
        step_source=timeline.step_source.value,
        device=None,
        gpu=context.gpu,
        partial=False,
        partial_reasons=(),
        host_only=False,
        accumulation=timeline.accumulation,
    )
    if step is None:
        return row
    marked = timeline.steps[step]
    return replace(
        row,
        step=marked.step,
        partial=bool(marked.partial_reasons),
        partial_reasons=marked.partial_reasons,
        marker_start_unix_ns=marked.start_ns if context.anchored else None,
        marker_ns=marked.end_ns - marked.start_ns,
    )


def _with_lengths(row: Row, joined: JoinedDevice, context: RowContext, index: int) -> Row:
    times = joined.times
    start_ns = int(times.windows.start_ns[index])
    comm_ns, overlap_ns = int(times.comm_ns[index]), int(times.overlap_ns[index])
    return replace(
        row,
        start_unix_ns=start_ns if context.anchored else None,
        start=rfc3339(start_ns) if context.anchored else None,
        window_ns=int(times.windows.end_ns[index]) - start_ns,
        busy_ns=int(times.busy_ns[index]),
        compute_ns=int(times.compute_ns[index]),
        comm_ns=comm_ns,
        copy_ns=int(times.copy_ns[index]),
        overlap_ns=overlap_ns,
        overlap_ratio=overlap_ns / comm_ns if comm_ns else None,
        launched_ns=int(times.launched_ns[index]),
        foreign_ns=int(times.foreign_ns[index]),
        waterfall_ns=_waterfall(joined, index),
        exposed_comm_ns=ExposedComm(),
        exposed_copy_ns=_exposed_copy(joined, index),
        phases=_phases(joined, index),
    )


def _waterfall(joined: JoinedDevice, index: int) -> Waterfall:
    """The rows of the window; without covered compute or a reference, compute is unsampled."""
    times, clocks = joined.times, joined.clocks
    compute_ns = int(times.compute_ns[index])
    covered_ns = lost_ns = None
    if clocks is not None and clocks.loss is not None and clocks.compute.covered_ns[index]:
        covered_ns = int(clocks.compute.covered_ns[index])
        lost_ns = int(clocks.loss.lost_ns[index])
    copies_ns = sum(int(each[index]) for each in times.exposed_copy_ns.values())
    idle_ns = {name: int(each[index]) for name, each in times.idle_ns.items()}
    return Waterfall(
        compute_at_ref=None if covered_ns is None else covered_ns - (lost_ns or 0),
        dvfs_loss=lost_ns,
        compute_unsampled=compute_ns - (covered_ns or 0),
        exposed_comm=int(times.exposed_comm_ns[index]),
        exposed_copy=copies_ns,
        **idle_ns,
    )


def _exposed_copy(joined: JoinedDevice, index: int) -> ExposedCopy:
    by_way = {way: int(each[index]) for way, each in joined.times.exposed_copy_ns.items()}
    return ExposedCopy(
        h2d=by_way[CopyDirection.H2D],
        d2h=by_way[CopyDirection.D2H],
        d2d=by_way[CopyDirection.D2D],
        memset=by_way[CopyDirection.MEMSET],
    )


def _phases(joined: JoinedDevice, index: int) -> Phases | None:
    """None where nothing in the row's window is known to be of a phase.

    No time is 0 only if work of unknown phase, which might be of this one, took none either.
    """
    found_ns = {phase: int(each[index]) for phase, each in joined.times.phase_ns.items()}
    untold_ns = found_ns.pop(Phase.UNKNOWN, 0)
    told_ns = {phase: each for phase, each in found_ns.items() if each or not untold_ns}
    if not any(told_ns.values()):
        return None
    return Phases(
        forward=told_ns.get(Phase.FORWARD),
        backward=told_ns.get(Phase.BACKWARD),
        optimizer=told_ns.get(Phase.OPTIMIZER),
    )


def _micro_steps(
    step: Step, device: DeviceTimeline | None, context: RowContext
) -> tuple[MicroStep, ...]:
    """The markers of an accumulated step; nothing for a step of one marker."""
    if len(step.markers) < 2:
        return ()
    return tuple(
        MicroStep(
            step=marker.step,
            marker_start_unix_ns=marker.start_ns if context.anchored else None,
            marker_ns=marker.end_ns - marker.start_ns,
            busy_ns=None if device is None else marker_busy_ns(device, marker),
        )
        for marker in step.markers
    )


def _with_clocks(row: Row, clocks: RowClocks, context: RowContext, index: int) -> DraftRow:
    energy_j, energy_error_j = energy_of(clocks, index)
    row = replace(
        row,
        clock=clock_of(clocks, index),
        dvfs=dvfs_of(clocks, context.reference_mhz, index),
        energy_j=energy_j,
        energy_error_j=energy_error_j,
    )
    if context.samples is not None:
        inside = reads_inside(context.samples, clocks, index)
        power_w, power_source = power_of(context.samples, clocks, index)
        row = replace(
            row,
            clock=replace(clock_of(clocks, index), dies=dies_of(context.samples, clocks, index)),
            power_w=power_w,
            power_source=power_source,
            mem_clock_mhz=mean_of_samples(context.samples.mem_clock_mhz[inside]),
            power_limit_w=context.samples.gpu.power_limit_w,
            temperature_c=temperature_of(context.samples.temperature_c[inside]),
        )
    half_mhz, bias_mhz = clocks.compute.half_width_mhz[index], clocks.compute.bias_mhz[index]
    covered_ns = int(clocks.compute.covered_ns[index])
    ns_per_mhz = covered_ns / context.reference_mhz if context.reference_mhz else math.nan
    return DraftRow(
        row=row,
        model=context.model,
        covered_ns=covered_ns,
        samples_in_compute=len(class_samples(clocks, index)),
        capped_w=None if context.samples is None else capped_w(context.samples, clocks, index),
        random_mhz=float(half_mhz - bias_mhz),
        bias_mhz=float(bias_mhz),
        random_ns=float(half_mhz - bias_mhz) * ns_per_mhz,
        bias_ns=float(bias_mhz) * ns_per_mhz,
    )


def without_loss_interval(draft: DraftRow) -> DraftRow:
    """The row with no interval of its loss, nor of any part of it."""
    row = draft.row
    families = [msgspec.structs.replace(each, **_NO_INTERVAL) for each in row.families]
    classes = [msgspec.structs.replace(each, **_NO_INTERVAL) for each in row.classes]
    by_operation, by_layer, by_phase = (
        tuple(replace(each, lost_low_ns=None, lost_high_ns=None) for each in those)
        for those in (row.by_operation, row.by_layer, row.by_phase)
    )
    row = replace(
        row,
        dvfs=replace(row.dvfs, gap_low=None, gap_high=None),
        families=tuple(families),
        classes=tuple(classes),
        by_operation=by_operation,
        by_layer=by_layer,
        by_phase=by_phase,
    )
    return replace(draft, row=row, random_ns=math.nan, bias_ns=math.nan)


def without_intervals(draft: DraftRow) -> DraftRow:
    """The row with no interval of a clock or a loss, and no peer: its clock may be another's."""
    draft, clock = without_loss_interval(draft), draft.row.clock
    if clock is not None:
        compute, busy = (
            each and replace(each, low_mhz=None, high_mhz=None)
            for each in (clock.compute, clock.busy)
        )
        clock = replace(clock, compute=compute, busy=busy)
    row = replace(draft.row, clock=clock)
    return replace(draft, row=row, random_mhz=math.nan, bias_mhz=math.nan, is_peer=False)


def rfc3339(unix_ns: int) -> str:
    """The time as RFC 3339 text with nanoseconds, UTC."""
    seconds, nanoseconds = divmod(unix_ns, NS_PER_S)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{nanoseconds:09d}Z"
