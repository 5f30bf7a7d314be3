"""A trace laid out for the join: what ran when on each device, for which step, launched by whom."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from chopperd.correlate import intervals
from chopperd.correlate.clock_drift import clock_drift
from chopperd.model.arrays import Bools, Int8s, Int32s, Int64s
from chopperd.model.classes import COMPUTE_CLASSES, KERNEL_CLASSES
from chopperd.model.timeline import (
    DeviceTimeline,
    Intervals,
    Marker,
    Step,
    StepSource,
    Timeline,
)
from chopperd.model.trace import DeviceRecords, RecordKind, Trace
from chopperd.traces.activity import DATA_WAIT_PATTERNS, host_activity
from chopperd.traces.class_table import ClassRule
from chopperd.traces.classes import classed_by_site, copy_directions, record_classes
from chopperd.traces.collectives import Collectives, collectives_of, generic_collectives
from chopperd.traces.families import family
from chopperd.traces.frameworks import framework
from chopperd.traces.host_work import host_work
from chopperd.traces.layers import layers
from chopperd.traces.links import link
from chopperd.traces.names import bounded, used_names
from chopperd.traces.operations import attribute, operation_names, with_operation_classes
from chopperd.traces.phases import phases
from chopperd.traces.record_flops import RecordWork, record_work
from chopperd.traces.sizes import copied_bytes
from chopperd.traces.steps import TRACE_ENDS, mark_steps, step_at
from chopperd.traces.unrecorded import unrecorded
from chopperd.traces.windows import device_windows, main_stream

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
class _Columns:
    """What is worked out for every record of the trace, before it is parted by device."""

    kernel_class: Int8s
    copy_direction: Int8s
    family: Int32s
    step: Int32s
    call_start_ns: Int64s
    call_end_ns: Int64s
    call_thread: Int32s
    called_ns: Int64s
    copied_bytes: Int64s
    collective: Int32s
    operation: Int32s
    layer: Int32s
    phase: Int8s
    work: RecordWork


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
    on_device = marked.source is StepSource.GPU_ROWS
    call_step = step_at(() if on_device else marked.steps, trace.calls.start_ns)
    attribution = attribute(trace, links.call)
    operations, operation_column = operation_names(trace, attribution)
    phase = phases(trace, attribution.launched, () if on_device else marked.steps)
    layer_names, layer = layers(trace, attribution.launched, phase)
    by_name = record_classes(trace.records, trace.names, options.class_rules)
    by_site = classed_by_site(trace.records, trace.names, options.class_rules)
    kernel_class = with_operation_classes(trace, attribution, by_name, by_site)
    collectives = collectives_of(trace, links.call, kernel_class)
    families, family_column = _families(trace, collectives)
    columns = _Columns(
        kernel_class=kernel_class,
        copy_direction=copy_directions(trace.records, trace.names),
        family=family_column,
        step=step_at(marked.steps, trace.records.start_ns)
        if on_device
        else _of_call(call_step, links.call, -1).astype(np.int32),
        call_start_ns=_of_call(trace.calls.start_ns, links.call, 0),
        call_end_ns=_of_call(trace.calls.end_ns, links.call, 0),
        call_thread=_of_call(trace.calls.thread, links.call, -1).astype(np.int32),
        called_ns=_of_call(trace.calls.start_ns, links.by_id, -1),
        copied_bytes=copied_bytes(trace.records, trace.calls, links.call, kernel_class),
        collective=collectives.column,
        operation=operation_column,
        layer=layer,
        phase=phase,
        work=record_work(trace, kernel_class, attribution.op, links.missing),
    )
    return Timeline(
        steps=_with_losses(trace, marked.steps, np.unique(call_step[links.missing])),
        step_source=marked.source,
        accumulation=marked.accumulation,
        devices=_devices(trace, columns, unrecorded(trace.records, trace.calls, links)),
        families=families,
        operations=operations,
        layers=layer_names,
        collectives=collectives.distinct,
        host_activity=host_activity(trace, options.data_wait_patterns),
        unlinked_records=int((links.call < 0).sum()),
        launch_count=int(links.launch.sum()),
        recorded_launch_count=int((links.launch & links.recorded).sum()),
        framework=framework(trace.names),
        host=None if len(trace.records) else host_work(trace, marked.steps),
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
    column = of_name[records.name]
    for rows, name, collective in generic_collectives(trace, collectives):
        text = f"{family(names[name])} {collective}"
        column[rows] = index_of.setdefault(text, len(index_of))
    return tuple(index_of), column


def _of_call(column: Int64s | Int32s, call: Int64s, otherwise: int) -> Int64s:
    """A column of the calls, spread over the records they launched."""
    if len(column) == 0:
        return np.full(len(call), otherwise, np.int64)
    return np.where(call >= 0, column[call], otherwise)


def _with_losses(trace: Trace, steps: tuple[Step, ...], lossy: Int32s) -> tuple[Step, ...]:
    """The steps, with what the file lost of them as reasons why they are partial.

    A file that only lacks its closing brackets has lost nothing that can be told: whole events
    end it, and launches without a record say the rest.

    Args:
        trace: The trace.
        steps: Its steps.
        lossy: Indices of steps with launches that have no record.
    """
    cut_short = trace.damage.truncated or trace.damage.still_written
    lost = set(lossy.tolist())
    reasons = [
        (*step.partial_reasons, *([LAUNCHES_WITHOUT_RECORD] if index in lost else []))
        for index, step in enumerate(steps)
    ]
    if cut_short and steps and TRACE_ENDS not in reasons[-1]:
        reasons[-1] = (*reasons[-1], TRACE_ENDS)
    return tuple(
        replace(step, partial_reasons=why) for step, why in zip(steps, reasons, strict=True)
    )


def _devices(
    trace: Trace, columns: _Columns, unknown: Mapping[int, Intervals]
) -> tuple[DeviceTimeline, ...]:
    records = trace.records
    return tuple(
        _device(
            int(number),
            records,
            columns,
            np.flatnonzero(records.device == number),
            unknown.get(int(number), intervals.EMPTY),
            may_drift=trace.meta.runtime == "rocm",
        )
        for number in np.unique(records.device)
    )


def _device(
    number: int,
    records: DeviceRecords,
    columns: _Columns,
    rows: Int64s,
    unknown: Intervals,
    *,
    may_drift: bool,
) -> DeviceTimeline:
    """One device's timeline, from its rows."""
    start_ns, end_ns, stream = records.start_ns[rows], records.end_ns[rows], records.stream[rows]
    kernel_class, step = columns.kernel_class[rows], columns.step[rows]
    compute = computes(kernel_class)
    main = main_stream(stream, end_ns - start_ns, compute)
    called_ns = columns.called_ns[rows]
    return DeviceTimeline(
        device=number,
        start_ns=start_ns,
        end_ns=end_ns,
        stream=stream,
        kernel_class=kernel_class,
        copy_direction=columns.copy_direction[rows],
        family=columns.family[rows],
        step=step,
        call_start_ns=columns.call_start_ns[rows],
        call_end_ns=columns.call_end_ns[rows],
        call_thread=columns.call_thread[rows],
        copied_bytes=columns.copied_bytes[rows],
        collective=columns.collective[rows],
        operation=columns.operation[rows],
        layer=columns.layer[rows],
        phase=columns.phase[rows],
        flops=columns.work.flops[rows],
        matrix_dtype=columns.work.matrix_dtype[rows],
        main_stream=main,
        windows=device_windows(
            step=step,
            start_ns=start_ns,
            end_ns=end_ns,
            compute=compute,
            on_main_stream=stream == main,
        ),
        unrecorded=unknown,
        early_count=int(np.count_nonzero(start_ns < called_ns)),
        drift=clock_drift(start_ns, end_ns, called_ns) if may_drift else None,
    )


def computes(kernel_class: Int8s) -> Bools:
    """Which records compute, by their class: (n,) bool."""
    of_class = np.array([each in COMPUTE_CLASSES for each in KERNEL_CLASSES])
    return of_class[kernel_class]
