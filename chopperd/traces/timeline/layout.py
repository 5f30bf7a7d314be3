"""Timeline of a trace: what ran when on each device, for which step, launched by which call."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

import numpy as np

from chopperd.correlate import intervals
from chopperd.correlate.timebase import clock_drift
from chopperd.model.arrays import Bools, Float64s, Int8s, Int32s, Int64s
from chopperd.model.kinds import COMPUTE_CLASSES, KERNEL_CLASSES
from chopperd.model.timeline import (
    DeviceTimeline,
    DeviceWindow,
    Intervals,
    Marker,
    Step,
    StepSource,
    Timeline,
)
from chopperd.model.trace import DeviceRecords, RecordKind, Trace
from chopperd.traces.kernels.classes import (
    ClassRule,
    classed_by_site,
    copy_directions,
    record_classes,
)
from chopperd.traces.kernels.names import bounded, family, framework, used_names
from chopperd.traces.timeline.collectives import Collectives, collectives_of, generic_collectives
from chopperd.traces.timeline.host import DATA_WAIT_PATTERNS, host_activity, host_work
from chopperd.traces.timeline.layers import layers
from chopperd.traces.timeline.links import Links, link, unrecorded
from chopperd.traces.timeline.nesting import Moments
from chopperd.traces.timeline.operations import (
    Launches,
    attribute,
    launches,
    operation_names,
    with_operation_classes,
)
from chopperd.traces.timeline.phases import phases
from chopperd.traces.timeline.steps import TRACE_ENDS, MarkedSteps, mark_steps, step_at
from chopperd.traces.timeline.work import copied_bytes, record_work

_NEVER_NS: Final = np.iinfo(np.int64).max
LAUNCHES_WITHOUT_RECORD: Final = "launches_without_record"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutOptions:
    """What a site or a job may say about its traces.

    Attributes:
        data_wait_patterns: Regular expressions, found in names of host spans that wait for data.
        class_rules: The site's own kernel classes, tried before the built-in table.
        step_source: The only source of steps to use; None takes the best one present.
        job_marks: Steps as the job marked them, on the trace's time axis.
    """

    data_wait_patterns: tuple[str, ...] = DATA_WAIT_PATTERNS
    class_rules: tuple[ClassRule, ...] = ()
    step_source: StepSource | None = None
    job_marks: tuple[Marker, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """What every record of the trace did: columns of `DeviceTimeline`, and what they index."""

    kernel_class: Int8s
    copy_direction: Int8s
    families: tuple[str, ...]
    family: Int32s
    collectives: Collectives
    operations: tuple[str, ...]
    operation: Int32s
    copied_bytes: Int64s
    flops: Float64s
    matrix_dtype: Int8s


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """When and for what every record was launched, likewise.

    `call_step` is the step of each call, `called_ns` when the call of a record's id began.
    """

    call_step: Int32s
    step: Int32s
    call_start_ns: Int64s
    call_end_ns: Int64s
    call_thread: Int32s
    called_ns: Int64s
    layers: tuple[str, ...]
    layer: Int32s
    phase: Int8s


def lay_out(trace: Trace, options: LayoutOptions | None = None) -> Timeline:
    """Link, class and assign every device record of a trace; nothing is dropped.

    A record belongs to the step whose marker its launch started in; where only device rows mark
    steps, to the step whose row it started in.

    Args:
        trace: A trace as read.
        options: What the site or the job knows; None for the defaults.
    """
    options = options or LayoutOptions()
    links = link(trace.records, trace.calls, trace.names, trace.threads)
    marked = mark_steps(trace, job_marks=options.job_marks, source=options.step_source)
    launched = launches(trace, links.call)
    work = _work(trace, links, launched, options.class_rules)
    place = _place(trace, links, launched.moments, marked)
    lossy = np.unique(place.call_step[links.missing])
    unknown = unrecorded(trace.records, trace.calls, links)
    return Timeline(
        steps=_with_losses(trace, marked.steps, lossy),
        step_source=marked.source,
        accumulation=marked.accumulation,
        devices=_devices(trace, work, place, unknown, [step.cycle for step in marked.steps]),
        families=work.families,
        operations=work.operations,
        layers=place.layers,
        collectives=work.collectives.distinct,
        host_activity=host_activity(trace, options.data_wait_patterns),
        unlinked_records=int((links.call < 0).sum()),
        launch_count=int(links.launch.sum()),
        recorded_launch_count=int((links.launch & links.recorded).sum()),
        framework=framework(trace.names),
        graph_records=_of_graphs(links.call, place.layer),
        host=None if len(trace.records) else host_work(trace, marked.steps),
    )


def _of_graphs(call: Int64s, layer: Int32s) -> int:
    """How many records of unknown layer have their launching call in common with others."""
    launched = call[(call >= 0) & (layer < 0)]
    return int((np.bincount(launched)[launched] > 1).sum()) if len(launched) else 0


def _work(
    trace: Trace, links: Links, launched: Launches, class_rules: tuple[ClassRule, ...]
) -> _Work:
    """What each record did."""
    attribution = attribute(trace, launched)
    operations, operation = operation_names(trace, attribution)
    by_name = record_classes(trace.records, trace.names, class_rules)
    by_site = classed_by_site(trace.records, trace.names, class_rules)
    kernel_class = with_operation_classes(trace, attribution, by_name, by_site)
    collectives = collectives_of(trace, links.call, kernel_class)
    families, family_column = _families(trace, collectives)
    flops, matrix_dtype = record_work(trace, kernel_class, attribution.op, links.missing)
    return _Work(
        kernel_class=kernel_class,
        copy_direction=copy_directions(trace.records, trace.names),
        families=families,
        family=family_column,
        collectives=collectives,
        operations=operations,
        operation=operation,
        copied_bytes=copied_bytes(trace.records, trace.calls, links.call, kernel_class),
        flops=flops,
        matrix_dtype=matrix_dtype,
    )


def _place(trace: Trace, links: Links, launched: Moments, marked: MarkedSteps) -> _Place:
    """When and for what each record was launched."""
    on_device = marked.source is StepSource.GPU_ROWS
    host_steps = () if on_device else marked.steps
    calls = trace.calls
    call_step = step_at(host_steps, calls.start_ns, calls.thread, trace.threads)
    phase = phases(trace, launched, host_steps)
    layer_names, layer = layers(trace, launched, phase)
    return _Place(
        call_step=call_step,
        step=step_at(marked.steps, trace.records.start_ns)
        if on_device
        else _of_call(call_step, links.call, -1).astype(np.int32),
        call_start_ns=_of_call(trace.calls.start_ns, links.call, 0),
        call_end_ns=_of_call(trace.calls.end_ns, links.call, 0),
        call_thread=_of_call(trace.calls.thread, links.call, -1).astype(np.int32),
        called_ns=_of_call(trace.calls.start_ns, links.by_id, -1),
        layers=layer_names,
        layer=layer,
        phase=phase,
    )


def _families(trace: Trace, collectives: Collectives) -> tuple[tuple[str, ...], Int32s]:
    """The families of a trace, and the column that indexes them; copies go by their own names.

    A kernel that serves all collectives is a family for each of them.
    """
    records, names = trace.records, trace.names
    kernels = set(used_names(records.name[records.kind == RecordKind.KERNEL], len(names)).tolist())
    index_of: dict[str, int] = {}
    of_name = np.full(len(names), -1, np.int32)
    for name in used_names(records.name, len(names)).tolist():
        text = family(names[name]) if name in kernels else bounded(names[name])
        of_name[name] = index_of.setdefault(text, len(index_of))
    column = of_name.take(records.name)
    for rows, name, collective in generic_collectives(trace, collectives):
        text = f"{family(names[name])} {collective}"
        column[rows] = index_of.setdefault(text, len(index_of))
    return tuple(index_of), column


def _of_call(column: Int64s | Int32s, call: Int64s, otherwise: int) -> Int64s:
    """A column of the calls, spread over the records they launched."""
    if len(column) == 0:
        return np.full(len(call), otherwise, np.int64)
    return np.where(call >= 0, column.take(call), otherwise)


def _with_losses(trace: Trace, steps: tuple[Step, ...], lossy: Int32s) -> tuple[Step, ...]:
    """The steps, with what the file lost of them as reasons why they are partial.

    A file that only lacks its closing brackets has no known loss: whole events
    end it, and launches without a record say the rest.

    Args:
        trace: The trace.
        steps: Its steps.
        lossy: Indices of steps with launches that have no record.
    """
    cut_short = trace.damage.truncated or trace.damage.still_written
    lost = set(lossy.tolist())
    last = {step.process: index for index, step in enumerate(steps)}.values() if cut_short else ()
    reasons = [
        (*step.partial_reasons, *([LAUNCHES_WITHOUT_RECORD] if index in lost else []))
        for index, step in enumerate(steps)
    ]
    for index in last:
        if TRACE_ENDS not in reasons[index]:
            reasons[index] = (*reasons[index], TRACE_ENDS)
    return tuple(
        replace(step, partial_reasons=why) for step, why in zip(steps, reasons, strict=True)
    )


def _devices(
    trace: Trace,
    work: _Work,
    place: _Place,
    unknown: Mapping[int, Intervals],
    cycle: Sequence[int],
) -> tuple[DeviceTimeline, ...]:
    records = trace.records
    numbers = np.unique(records.device).tolist()
    return tuple(
        _device(
            number,
            records,
            work,
            place,
            slice(None) if len(numbers) == 1 else np.flatnonzero(records.device == number),
            unknown.get(number, intervals.EMPTY),
            cycle,
            may_drift=trace.meta.runtime == "rocm",
        )
        for number in numbers
    )


def _device(
    number: int,
    records: DeviceRecords,
    work: _Work,
    place: _Place,
    rows: Int64s | slice,
    unknown: Intervals,
    cycle: Sequence[int],
    *,
    may_drift: bool,
) -> DeviceTimeline:
    """One device's timeline, from its rows; all of them are not copied."""
    start_ns, end_ns, stream = records.start_ns[rows], records.end_ns[rows], records.stream[rows]
    kernel_class, step = work.kernel_class[rows], place.step[rows]
    compute = computes(kernel_class)
    main = main_stream(stream, end_ns - start_ns, compute)
    called_ns = place.called_ns[rows]
    return DeviceTimeline(
        device=number,
        start_ns=start_ns,
        end_ns=end_ns,
        stream=stream,
        kernel_class=kernel_class,
        copy_direction=work.copy_direction[rows],
        family=work.family[rows],
        step=step,
        call_start_ns=place.call_start_ns[rows],
        call_end_ns=place.call_end_ns[rows],
        call_thread=place.call_thread[rows],
        copied_bytes=work.copied_bytes[rows],
        collective=work.collectives.column[rows],
        operation=work.operation[rows],
        layer=place.layer[rows],
        phase=place.phase[rows],
        flops=work.flops[rows],
        matrix_dtype=work.matrix_dtype[rows],
        main_stream=main,
        windows=device_windows(
            step=step,
            start_ns=start_ns,
            end_ns=end_ns,
            compute=compute,
            on_main_stream=stream == main,
            cycle=cycle,
        ),
        unrecorded=unknown,
        early_count=int(np.count_nonzero(start_ns < called_ns)),
        drift=clock_drift(start_ns, end_ns, called_ns) if may_drift else None,
    )


def computes(kernel_class: Int8s) -> Bools:
    """Which records compute, by their class: (n,) bool."""
    of_class = np.array([each in COMPUTE_CLASSES for each in KERNEL_CLASSES])
    return of_class.take(kernel_class)


def device_windows(
    *,
    step: Int32s,
    start_ns: Int64s,
    end_ns: Int64s,
    compute: Bools,
    on_main_stream: Bools,
    cycle: Sequence[int] = (),
) -> tuple[DeviceWindow, ...]:
    """One window a step with records on the device, abutting, in step order.

    A window starts at the step's cut: the start of its first own compute kernel on the main
    stream, else on any stream, else of its first own record; no earlier than the cut before it.
    The last one of a profiler cycle ends at the step's last own record, or at the next cut.

    Args:
        step: (n,) int32, the step that launched each record; -1 none.
        start_ns: (n,) int64, rising.
        end_ns: (n,) int64.
        compute: (n,) bool, records that compute.
        on_main_stream: (n,) bool.
        cycle: Of each step the profiler's cycle; none if there is one.
    """
    if not np.any(step >= 0):
        return ()
    count = int(step.max()) + 1
    cut_ns = _first_start_ns(step, start_ns, compute & on_main_stream, count)
    for rows in (compute, np.ones(len(step), np.bool_)):
        other_ns = _first_start_ns(step, start_ns, rows, count)
        cut_ns = np.where(cut_ns == _NEVER_NS, other_ns, cut_ns)
    present = np.flatnonzero(cut_ns != _NEVER_NS)
    cut_ns = np.maximum.accumulate(cut_ns[present])
    cycles = [cycle[which] if cycle else 0 for which in present.tolist()]
    tails = [*(a != b for a, b in pairwise(cycles)), True]
    next_ns = [*cut_ns[1:].tolist(), _NEVER_NS]
    return tuple(
        DeviceWindow(
            step=which,
            start_ns=cut,
            end_ns=min(after, max(int(end_ns[step == which].max()), cut)) if tail else after,
            tail=tail,
        )
        for which, cut, after, tail in zip(
            present.tolist(), cut_ns.tolist(), next_ns, tails, strict=True
        )
    )


def main_stream(stream: Int64s, duration_ns: Int64s, compute: Bools) -> int:
    """The stream with the most compute time; with none, the one with the most time at all.

    Args:
        stream: (n,) int64, n > 0.
        duration_ns: (n,) int64.
        compute: (n,) bool.
    """
    rows = compute if compute.any() else np.ones(len(stream), np.bool_)
    streams, which = np.unique(stream[rows], return_inverse=True)
    return int(streams[np.argmax(np.bincount(which, weights=duration_ns[rows]))])


def _first_start_ns(step: Int32s, start_ns: Int64s, rows: Bools, count: int) -> Int64s:
    """The first start of each step among the rows; `_NEVER_NS` for steps without any."""
    own = np.flatnonzero(rows & (step >= 0))[::-1]
    first_ns = np.full(count, _NEVER_NS, np.int64)
    first_ns[step[own]] = start_ns[own]  # rows come last to first, and the last write stays
    return first_ns
