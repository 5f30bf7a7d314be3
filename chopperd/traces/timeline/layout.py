"""Timeline of a trace: what ran when on each device, for which step, launched by which call."""

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Final, TypeAlias

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopperd.correlate import intervals
from chopperd.correlate.timebase import clock_drift
from chopperd.model.arrays import Bools, Float64s, Int8s, Int32s, Int64s, Ints, rows_of
from chopperd.model.kinds import COMPUTE_CLASSES, KERNEL_CLASSES
from chopperd.model.timeline import DeviceTimeline, DeviceWindow, Marker, Step, StepSource, Timeline
from chopperd.model.trace import Collective, RecordKind, SpanKind, Trace
from chopperd.traces.kernels.classes import ClassRule, copy_directions, record_classes
from chopperd.traces.kernels.names import bounded, family, framework, names_matching, used_names
from chopperd.traces.timeline.annotations import annotations, marked_in_graphs, phases_in_graphs
from chopperd.traces.timeline.host import DATA_WAIT_PATTERNS, host_activity, host_work
from chopperd.traces.timeline.host_stacks import host_stacks
from chopperd.traces.timeline.layers import layers
from chopperd.traces.timeline.links import (
    Links,
    collectives_of,
    generic_collectives,
    link,
    unrecorded,
)
from chopperd.traces.timeline.operations import (
    attribute,
    copied_bytes,
    operation_names,
    record_work,
    with_operation_classes,
)
from chopperd.traces.timeline.phases import phases
from chopperd.traces.timeline.steps import STEP_MARKER, TRACE_ENDS, mark_steps, step_at

_NEVER_NS: Final = np.iinfo(np.int64).max
LAUNCHES_WITHOUT_RECORD: Final = "launches_without_record"


class LayoutOptions(Struct, frozen=True, kw_only=True):
    """Settings of a site or a job for the layout of its traces."""

    # Regular expressions, found in names of host spans that wait for data
    data_wait_patterns: tuple[str, ...] = DATA_WAIT_PATTERNS
    # The site's own kernel classes, tried before the built-in table
    class_rules: tuple[ClassRule, ...] = ()
    # The only source of steps to use; None takes the best one present
    step_source: StepSource | None = None
    # A regular expression, found in names of annotations that mark steps, before any other source
    # of steps; None without
    step_marker: str | None = None
    job_marks: tuple[Marker, ...] = ()  # steps as the job marked them, on the trace's time axis


Columns: TypeAlias = Mapping[str, Ints | Float64s]
"""Columns of `DeviceTimeline` by name, of the records of all devices."""


def lay_out(trace: Trace, options: LayoutOptions | None = None) -> Timeline:
    """Build a trace's timeline: link, class and assign every device record; none is dropped.

    A record belongs to the step whose marker its launch started in; where only device rows mark
    steps, to the step whose row it started in.
    """
    options = options or LayoutOptions()
    links = link(trace.records, trace.calls, trace.names, trace.threads)
    marker = None if options.step_marker is None else re.compile(options.step_marker)
    marked = mark_steps(
        trace, job_marks=options.job_marks, source=options.step_source, marker=marker
    )
    on_device = marked.source is StepSource.GPU_ROWS
    host_steps = () if on_device else marked.steps
    call_step = step_at(host_steps, trace.calls.start_ns, trace.calls.thread, trace.threads)
    attribution = attribute(trace, links.call)
    phase = phases(trace, attribution.launched, host_steps)
    layer_names, layer = layers(trace, attribution.launched, phase)
    modules = [mark.module for mark in trace.marks]
    layer_names, layer = marked_in_graphs(trace, modules, layer_names, layer)
    step_marks = names_matching(trace.names, STEP_MARKER)
    if marked.marker is not None:
        step_marks |= names_matching(trace.names, marked.marker)
    annotation_names, annotation = annotations(trace, attribution.launched, phase, step_marks)
    marks = [mark.name for mark in trace.marks]
    annotation_names, annotation = marked_in_graphs(trace, marks, annotation_names, annotation)
    operations, operation = operation_names(trace, attribution)
    by_name, by_site = record_classes(trace.records, trace.names, options.class_rules)
    kernel_class = with_operation_classes(trace, attribution, by_name, by_site)
    collectives, collective = collectives_of(trace, links.call, kernel_class)
    families, family_column = _families(trace, collectives, collective)
    flops, matrix_dtype = record_work(trace, kernel_class, attribution.op, links.missing)
    columns = _call_columns(trace, links) | {
        "kernel_class": kernel_class,
        "copied_bytes": copied_bytes(trace.records, trace.calls, links.call, kernel_class),
        "family": family_column,
        "step": step_at(marked.steps, trace.records.start_ns)
        if on_device
        else _of_call(call_step, links.call, -1).astype(np.int32),
        "collective": collective,
        "seq": trace.records.seq,
        "comms_id": trace.records.comms_id,
        "operation": operation,
        "layer": layer,
        "annotation": annotation,
        "phase": phases_in_graphs(trace, phase),
        "flops": flops,
        "matrix_dtype": matrix_dtype,
    }
    return Timeline(
        steps=_with_losses(trace, marked.steps, np.unique(call_step[links.missing])),
        step_source=marked.source,
        accumulation=marked.accumulation,
        devices=_devices(trace, links, columns, [step.cycle for step in marked.steps]),
        families=families,
        operations=operations,
        layers=layer_names,
        annotations=annotation_names,
        collectives=collectives,
        host_activity=host_activity(trace, options.data_wait_patterns),
        unlinked_records=int((links.call < 0).sum()),
        launch_count=int(links.launch.sum()),
        recorded_launch_count=int((links.launch & links.recorded).sum()),
        framework=framework(trace.names),
        unmatched_marker=options.step_marker if marked.marker is not marker else None,
        graph_records=_of_graphs(links.call, layer),
        stacks=host_stacks(trace, np.flatnonzero(links.launch | links.recorded), step_marks)
        if len(trace.records)
        else None,
        host=None if len(trace.records) else host_work(trace, marked.steps, step_marks),
    )


def without_laid_out(trace: Trace) -> Trace:
    """Return a trace without the rows that only its timeline is built of, most of its memory.

    Runtime calls and annotations are left.
    """
    annotations = np.flatnonzero(trace.spans.kind == SpanKind.ANNOTATION)
    none = np.zeros(0, np.int64)
    return replace(
        trace,
        spans=rows_of(trace.spans, annotations),
        records=rows_of(trace.records, none),
        frames=rows_of(trace.frames, none),
        memory=rows_of(trace.memory, none),
    )


def _call_columns(trace: Trace, links: Links) -> dict[str, Ints | Float64s]:
    records, calls, call = trace.records, trace.calls, links.call
    return {
        "start_ns": records.start_ns,
        "end_ns": records.end_ns,
        "stream": records.stream,
        "copy_direction": copy_directions(records, trace.names),
        "call_start_ns": _of_call(calls.start_ns, call, 0),
        "call_end_ns": _of_call(calls.end_ns, call, 0),
        "call_thread": _of_call(calls.thread, call, -1).astype(np.int32),
    }


def _of_graphs(call: Int64s, layer: Int32s) -> int:
    """Count the records of unknown layer that share their launching call with others of them."""
    launched = call[(call >= 0) & (layer < 0)]
    return int((np.bincount(launched)[launched] > 1).sum()) if len(launched) else 0


def _families(
    trace: Trace, collectives: Sequence[Collective], collective: Int32s
) -> tuple[tuple[str, ...], Int32s]:
    """Return a trace's families, and each record's index; generic kernels: one a collective."""
    records, names = trace.records, trace.names
    kernels = set(used_names(records.name[records.kind == RecordKind.KERNEL], len(names)).tolist())
    index_of: dict[str, int] = {}
    of_name = np.full(len(names), -1, np.int32)
    for name in used_names(records.name, len(names)).tolist():
        text = family(names[name]) if name in kernels else bounded(names[name])
        of_name[name] = index_of.setdefault(text, len(index_of))
    column = of_name.take(records.name)
    for rows, name, which in generic_collectives(trace, collectives, collective):
        text = f"{family(names[name])} {which}"
        column[rows] = index_of.setdefault(text, len(index_of))
    return tuple(index_of), column


def _of_call(column: Int64s | Int32s, call: Int64s, otherwise: int) -> Int64s:
    if len(column) == 0:
        return np.full(len(call), otherwise, np.int64)
    return np.where(call >= 0, column.take(call), otherwise)


def _with_losses(trace: Trace, steps: tuple[Step, ...], lossy: Int32s) -> tuple[Step, ...]:
    """Add to each step the reasons for which the file holds only part of it.

    A file that only lacks its closing brackets has no known loss: launches without a record show
    it.
    """
    cut_short = trace.damage.truncated or trace.damage.still_written
    lost = set(lossy.tolist())
    last = {step.process: index for index, step in enumerate(steps)}
    found = []
    for index, step in enumerate(steps):
        reasons = [*step.partial_reasons, *([LAUNCHES_WITHOUT_RECORD] if index in lost else [])]
        if cut_short and last[step.process] == index and TRACE_ENDS not in reasons:
            reasons.append(TRACE_ENDS)
        found.append(replace(step, partial_reasons=tuple(reasons)))
    return tuple(found)


def _devices(
    trace: Trace, links: Links, columns: Columns, cycle: Sequence[int]
) -> tuple[DeviceTimeline, ...]:
    device = trace.records.device
    unknown = unrecorded(trace.records, trace.calls, links)
    called_ns = _of_call(trace.calls.start_ns, links.by_id, -1)
    numbers = np.unique(device).tolist()
    build: Callable[..., DeviceTimeline] = DeviceTimeline
    devices = []
    for number in numbers:
        # Of a single device no column is copied.
        rows = slice(None) if len(numbers) == 1 else np.flatnonzero(device == number)
        found = build(
            device=number,
            windows=(),
            unrecorded=unknown.get(number, intervals.EMPTY),
            early_count=int(np.count_nonzero(columns["start_ns"][rows] < called_ns[rows])),
            **{name: column[rows] for name, column in columns.items()},
        )
        if trace.meta.runtime == "rocm":
            drift = clock_drift(found.start_ns, found.end_ns, called_ns[rows])
            found = replace(found, drift=drift)
        compute = computes(found.kernel_class)
        main = main_stream(found.stream, found.end_ns - found.start_ns, compute)
        windows = device_windows(
            step=found.step,
            start_ns=found.start_ns,
            end_ns=found.end_ns,
            compute=compute,
            on_main_stream=found.stream == main,
            cycle=cycle,
        )
        devices.append(replace(found, windows=windows))
    return tuple(devices)


def computes(kernel_class: Int8s) -> Bools:
    """Return which records compute, by their class: (n,) bool."""
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
    """Return one window for each step with records on the device, abutting, in step order.

    A window starts at the step's cut: the start of its first own compute kernel on the main stream,
    else on any stream, else of its first own record; no earlier than the cut before it. The last
    one of a profiler cycle ends at the step's last own record, or at the next cut.

    `step`: (n,), the step that launched each record; -1 none. `start_ns`: (n,), rising. `cycle`:
    the profiler's cycle of each step; empty if there is only one.
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
    """Return the stream of the records (one or more) with most compute time; if none, most time."""
    rows = compute if compute.any() else np.ones(len(stream), np.bool_)
    streams, which = np.unique(stream[rows], return_inverse=True)
    return int(streams[np.argmax(np.bincount(which, weights=duration_ns[rows]))])


def _first_start_ns(step: Int32s, start_ns: Int64s, rows: Bools, count: int) -> Int64s:
    """Return each step's first start among the rows; `_NEVER_NS` for steps without any."""
    own = np.flatnonzero(rows & (step >= 0))[::-1]
    first_ns = np.full(count, _NEVER_NS, np.int64)
    first_ns[step[own]] = start_ns[own]  # rows come last to first, and the last write stays
    return first_ns
