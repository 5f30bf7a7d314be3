"""Fill the rows of a report from the columns of a joined device: a step each, and the file."""

import math
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from chopperd.correlate.join import JoinedDevice
from chopperd.correlate.waterfall import marker_busy_ns
from chopperd.model.report_rows import (
    ExposedComm,
    ExposedCopy,
    MicroStep,
    Part,
    Phases,
    Row,
    Waterfall,
)
from chopperd.model.timeline import PHASE_LABELS, DeviceTimeline, Phase, Step, Timeline
from chopperd.model.trace import TraceMeta
from chopperd.report.build.clocked_device import ClockedDevice
from chopperd.report.build.clocks import (
    capped_w,
    clock_of,
    compute_rows,
    dvfs_of,
    inside,
    known_or_none,
    mean_of_samples,
    power_of,
    temperature_of,
)
from chopperd.report.build.holders import MOST_OF_FILE, held_of, most_of_step
from chopperd.report.build.work import (
    chopper_of,
    classes_of,
    collectives_of,
    copies_of,
    efficiency_of,
    families_of,
    parts_of,
    types_of,
)
from chopperd.units import NS_PER_S

#: Columns of `RowTimes` that a row has under the same names.
_LENGTHS: Final = tuple(
    ["busy_ns", "compute_ns", "comm_ns", "copy_ns", "overlap_ns", "launched_ns", "foreign_ns"]
)
_NO_INTERVAL: Final = {"lost_low_ns": None, "lost_high_ns": None}


class DraftRow(Struct, frozen=True, kw_only=True):
    """A row with the figures needed to pool it with others; NaN and None are unknown."""

    row: Row  # without what takes rows of other devices
    model: str | None = None  # product name of its GPU; None also for a part of a card
    process: int = 0  # number of the trace's process; devices are numbered within one
    first_step: int | None = None  # of its file, by which files of one process pair up with others'
    covered_ns: int = 0  # compute covered by samples
    samples_in_compute: int = 0
    capped_w: float | None = None  # mean power while it computes under its power cap
    # Half of the 95 % interval of the mean compute clock, and of the loss: the part that averages
    # out over steps, and the part that does not.
    random_mhz: float = math.nan
    bias_mhz: float = math.nan
    random_ns: float = math.nan
    bias_ns: float = math.nan
    # Whether others are compared with its clock: not where that may be another GPU's or time's.
    is_peer: bool = True


def device_rows(
    clocked: ClockedDevice, timeline: Timeline, meta: TraceMeta
) -> tuple[list[DraftRow], DraftRow]:
    """Return the step rows of a device in order, and its row of totals."""
    indices = range(len(clocked.joined.times.windows))
    *steps, totals = (_draft(clocked, timeline, meta, index) for index in indices)
    return steps, totals


def host_rows(timeline: Timeline, used: Collection[int], meta: TraceMeta) -> list[Row]:
    """Return rows of the steps that left no record on any device; `used` are indices of others."""
    return [
        replace(
            _identified(timeline, index, meta),
            host_only=True,
            micro_steps=_micro_steps(step, None, meta),
        )
        for index, step in enumerate(timeline.steps)
        if index not in used
    ]


def _draft(clocked: ClockedDevice, timeline: Timeline, meta: TraceMeta, index: int) -> DraftRow:
    """Fill row `index` of the device; the last is the whole file."""
    joined = clocked.joined
    device, times, traffic = joined.timeline, joined.times, joined.traffic
    window = device.windows[index] if index < len(device.windows) else None
    start_ns, comm_ns = int(times.windows.start_ns[index]), int(times.comm_ns[index])
    most_held = MOST_OF_FILE if window is None else most_of_step(len(device.windows))
    row = replace(
        _identified(timeline, None if window is None else window.step, meta),
        device=device.device,
        gpu=clocked.summary.gpu,
        start_unix_ns=start_ns if meta.anchored else None,
        start=rfc3339(start_ns) if meta.anchored else None,
        window_ns=int(times.windows.end_ns[index]) - start_ns,
        **{name: getattr(times, name)[index].item() for name in _LENGTHS},
        overlap_ratio=int(times.overlap_ns[index]) / comm_ns if comm_ns else None,
        waterfall_ns=_waterfall(joined, index),
        exposed_comm_ns=ExposedComm(),
        exposed_copy_ns=ExposedCopy(
            **{way.label: int(each[index]) for way, each in times.exposed_copy_ns.items()}
        ),
        phases=_phases(joined, index),
        copies=copies_of(traffic.copies, index),
        collectives=collectives_of(traffic.collectives, index),
        chopper=chopper_of(traffic, index),
        dtype_ratio=types_of(joined.type_ns[index], int(joined.kernel_ns[index])),
        efficiency=efficiency_of(joined.efficiency, index, clocked.spec, clocked.no_spec),
        held=held_of(joined.held, index, most_held),
    )
    if window is None:
        classes = classes_of(joined.classes, joined.class_exposed_ns)
        row = replace(row, launched_ns=None, foreign_ns=None, classes=classes)
    else:
        micro_steps = _micro_steps(timeline.steps[window.step], device, meta)
        row = replace(row, tail=window.tail, micro_steps=micro_steps)
    return _with_clocks(_with_parts(row, joined, timeline, index), clocked, index)


def _with_parts(row: Row, joined: JoinedDevice, timeline: Timeline, index: int) -> Row:
    is_step = index < len(joined.timeline.windows)
    groups = {
        name: each[index] if is_step else getattr(joined, name)
        for name, each in joined.steps.items()
    }
    work = {} if is_step else joined.work
    contention = None if is_step else joined.traffic.contention
    return replace(
        row,
        families=families_of(groups["families"], timeline.families, contention, work.get("family")),
        by_operation=parts_of(groups["operations"], timeline.operations, work.get("operation")),
        by_layer=parts_of(groups["layers"], timeline.layers, work.get("layer")),
        by_phase=parts_of(groups["phases"], PHASE_LABELS),
        by_annotation=parts_of(groups["annotations"], timeline.annotations, work.get("annotation")),
    )


def _identified(timeline: Timeline, step: int | None, meta: TraceMeta) -> Row:
    marked = None if step is None else timeline.steps[step]
    return Row(
        job=meta.job,
        run=meta.run,
        rank=meta.rank,
        step=None if marked is None else marked.step,
        step_source=timeline.step_source.value,
        step_name=None if marked is None else marked.name,
        device=None,
        gpu=None,
        partial=bool(marked and marked.partial_reasons),
        partial_reasons=marked.partial_reasons if marked else (),
        host_only=False,
        accumulation=timeline.accumulation,
        marker_start_unix_ns=marked.start_ns if marked and meta.anchored else None,
        marker_ns=marked.end_ns - marked.start_ns if marked else None,
    )


def _waterfall(joined: JoinedDevice, index: int) -> Waterfall:
    """Without covered compute or a reference clock, all compute is unsampled."""
    times, clocks = joined.times, joined.clocks
    compute_ns = int(times.compute_ns[index])
    covered_ns = lost_ns = None
    if clocks is not None and clocks.loss is not None and clocks.compute.covered_ns[index]:
        covered_ns = int(clocks.compute.covered_ns[index])
        lost_ns = int(clocks.loss.lost_ns[index])
    return Waterfall(
        compute_at_ref=None if covered_ns is None else covered_ns - (lost_ns or 0),
        dvfs_loss=lost_ns,
        compute_unsampled=compute_ns - (covered_ns or 0),
        exposed_comm=int(times.exposed_comm_ns[index]),
        exposed_copy=sum(int(each[index]) for each in times.exposed_copy_ns.values()),
        **{name: int(each[index]) for name, each in times.idle_ns.items()},
    )


def _phases(joined: JoinedDevice, index: int) -> Phases | None:
    """Return the time by phase; None where no work in the row's window has a known phase.

    A phase without work is 0 only if no work of unknown phase took time.
    """
    found_ns = {phase: int(each[index]) for phase, each in joined.times.phase_ns.items()}
    unknown_ns = found_ns.pop(Phase.UNKNOWN, 0)
    known_ns = {phase: each for phase, each in found_ns.items() if each or not unknown_ns}
    if not any(known_ns.values()):
        return None
    return Phases(
        forward=known_ns.get(Phase.FORWARD),
        backward=known_ns.get(Phase.BACKWARD),
        optimizer=known_ns.get(Phase.OPTIMIZER),
    )


def _micro_steps(
    step: Step, device: DeviceTimeline | None, meta: TraceMeta
) -> tuple[MicroStep, ...]:
    """Return the markers of an accumulated step; nothing for a step of one marker."""
    if len(step.markers) < 2:
        return ()
    return tuple(
        MicroStep(
            step=marker.step,
            marker_start_unix_ns=marker.start_ns if meta.anchored else None,
            marker_ns=marker.end_ns - marker.start_ns,
            busy_ns=None if device is None else marker_busy_ns(device, marker),
        )
        for marker in step.markers
    )


def _with_clocks(row: Row, clocked: ClockedDevice, index: int) -> DraftRow:
    clocks, samples = clocked.joined.clocks, clocked.samples
    if clocks is None or samples is None:
        return DraftRow(row=row, model=clocked.model)
    reference_mhz = clocked.summary.reference.sm_clock_mhz
    within = inside(samples.t_unix_ns, clocks, index)
    power_w, power_source = power_of(samples, clocks, index)
    row = replace(
        row,
        clock=clock_of(clocks, index, samples),
        dvfs=dvfs_of(clocks, reference_mhz, index),
        energy_j=known_or_none(clocks.energy.energy_j[index]),
        energy_error_j=known_or_none(clocks.energy.energy_error_j[index]),
        power_w=power_w,
        power_source=power_source,
        mem_clock_mhz=mean_of_samples(samples.mem_clock_mhz[within]),
        power_limit_w=samples.gpu.power_limit_w,
        temperature_c=temperature_of(samples.temperature_c[within]),
    )
    compute, covered_ns = clocks.compute, int(clocks.compute.covered_ns[index])
    bias_mhz = float(compute.bias_mhz[index])
    random_mhz = float(compute.half_width_mhz[index] - compute.bias_mhz[index])
    ns_per_mhz = covered_ns / reference_mhz if reference_mhz else math.nan
    return DraftRow(
        row=row,
        model=clocked.model,
        covered_ns=covered_ns,
        samples_in_compute=len(compute_rows(clocks, index)),
        capped_w=capped_w(samples, clocks, index),
        random_mhz=random_mhz,
        bias_mhz=bias_mhz,
        random_ns=random_mhz * ns_per_mhz,
        bias_ns=bias_mhz * ns_per_mhz,
    )


def without_loss_interval(draft: DraftRow) -> DraftRow:
    """Return the row with no interval of its loss, nor of any part of it."""
    row = draft.row
    row = replace(
        row,
        dvfs=replace(row.dvfs, gap_low=None, gap_high=None),
        families=tuple(msgspec.structs.replace(each, **_NO_INTERVAL) for each in row.families),
        classes=tuple(msgspec.structs.replace(each, **_NO_INTERVAL) for each in row.classes),
        by_operation=_bare(row.by_operation),
        by_layer=_bare(row.by_layer),
        by_phase=_bare(row.by_phase),
        by_annotation=_bare(row.by_annotation),
    )
    return replace(draft, row=row, random_ns=math.nan, bias_ns=math.nan)


def _bare(parts: Sequence[Part]) -> tuple[Part, ...]:
    return tuple(replace(each, lost_low_ns=None, lost_high_ns=None) for each in parts)


def without_intervals(draft: DraftRow) -> DraftRow:
    """Return the row without intervals, and no peer: its clock may be of another GPU or time."""
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
    """Format a Unix time as RFC 3339 text with nanoseconds, UTC."""
    seconds, nanoseconds = divmod(unix_ns, NS_PER_S)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{nanoseconds:09d}Z"
