"""Find the training steps of a trace by the best marks that it or its job has."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Final, TypeAlias

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopperd.correlate import intervals
from chopperd.correlate.intervals import places
from chopperd.model.arrays import Bools, Int32s, Int64s
from chopperd.model.timeline import ACCUMULATION_IRREGULAR, Marker, Step, StepSource
from chopperd.model.trace import Trace
from chopperd.traces.correlation_ids import Threads
from chopperd.traces.kernels.names import names_matching
from chopperd.traces.timeline.iterations import ENGINE_ITERATION, iterations, marked_rows

STEP_MARKER: Final = re.compile(r"^(?:ProfilerStep#|Iteration[ #<]*)(\d{1,15})>?$")
OPTIMIZER: Final = re.compile(r"^Optimizer\.step#")
BACKWARD: Final = re.compile(r"^autograd::engine::evaluate_function|^\w+Backward\d*$")

STARTS_BEFORE_TRACE: Final = "starts_before_trace"
TRACE_ENDS: Final = "trace_ends"
ACCUMULATION_INCOMPLETE: Final = "accumulation_incomplete"
OPTIMIZER_MISSING: Final = "optimizer_missing"

Pid: TypeAlias = int | str | None


class MarkedSteps(Struct, frozen=True, kw_only=True):
    """The steps of a trace in time order; `accumulation` is markers per step, if known."""

    steps: tuple[Step, ...]
    source: StepSource
    accumulation: int | None = None
    marker: re.Pattern[str] | None = None  # what was found in their names, if not `STEP_MARKER`


NO_STEPS: Final = MarkedSteps(steps=(), source=StepSource.NONE)


def mark_steps(
    trace: Trace,
    *,
    job_marks: Sequence[Marker] = (),
    source: StepSource | None = None,
    marker: re.Pattern[str] | None = None,
) -> MarkedSteps:
    """Return the steps by the best source that has any; `NO_STEPS` if none has.

    `job_marks` lie on the trace's time axis. `source`: the only one to use. `marker`: what is found
    in names of spans that mark steps, before any other source; None for iterations of serving
    engines, after the marks of training.
    """
    finders: Mapping[StepSource, Callable[[], MarkedSteps]] = {
        StepSource.PROFILER_STEP: lambda: _by_markers(trace),
        StepSource.OPTIMIZER: lambda: _by_optimizer_rounds(trace),
        StepSource.JOB_MARKS: lambda: _by_job_marks(trace, job_marks),
        StepSource.STEP_MARKER: lambda: _by_iterations(trace, ENGINE_ITERATION),
        StepSource.GPU_ROWS: lambda: _by_device_rows(trace),
    }
    if marker is not None and (marked := _by_iterations(trace, marker)).steps:
        return marked
    tried = finders if source is None else {source: finders.get(source, lambda: NO_STEPS)}
    found = (find() for find in tried.values())
    return next((marked for marked in found if marked.steps), NO_STEPS)


def step_at(
    steps: Sequence[Step],
    times_ns: Int64s,
    thread: Int32s | Int64s | None = None,
    threads: Threads = (),
) -> Int32s:
    """Return the index of the step with a marker around each time: (n,) int32; -1 outside all.

    Where markers overlap, the one that started last counts. Of several processes with steps, each
    time is in a step of its own process, by its `thread`, an index into `threads` (-1 none).
    """
    found = np.full(len(times_ns), -1, np.int32)
    processes = dict.fromkeys(step.process for step in steps)
    for process in processes:
        markers = sorted(
            (marker.start_ns, marker.end_ns, index)
            for index, step in enumerate(steps)
            if step.process == process
            for marker in step.markers
        )
        if len(processes) == 1 or thread is None:
            return _marker_around(markers, times_ns)
        mine = np.array([*(pid == process for pid, _ in threads), False])[thread]
        found[mine] = _marker_around(markers, times_ns[mine])
    return found


def _marker_around(markers: Sequence[tuple[int, int, int]], times_ns: Int64s) -> Int32s:
    """Return the number of the last marker (start, end, number; sorted) around a time; -1 none."""
    start_ns, end_ns, index = np.array(markers, np.int64).T
    at = places(start_ns, times_ns, "right") - 1
    inside = (at >= 0) & (times_ns < end_ns[at])
    return np.where(inside, index.astype(np.int32)[at], np.int32(-1))


def _by_markers(trace: Trace) -> MarkedSteps:
    spans = trace.spans
    rows = np.flatnonzero(names_matching(trace.names, STEP_MARKER)[spans.name])
    optimizers = np.flatnonzero(_named(trace, OPTIMIZER))
    found = []
    for process, threads in _processes(trace, rows):
        mine = rows[threads[spans.thread[rows]]]
        markers = _numbered(
            [_step_number(trace.names[name]) for name in spans.name[mine].tolist()],
            (spans.start_ns[mine], spans.end_ns[mine]),
            spans.thread[mine].astype(np.int64),
            merged=lambda markers: max(markers, key=lambda each: each.end_ns - each.start_ns),
        )
        optimizer_ns = spans.start_ns[optimizers[threads[spans.thread[optimizers]]]]
        found.append((process, _accumulated(markers, optimizer_ns)))
    return _together(found)


def _by_iterations(trace: Trace, pattern: re.Pattern[str]) -> MarkedSteps:
    rows, source = marked_rows(trace, pattern), StepSource.STEP_MARKER
    found: list[tuple[Pid, MarkedSteps]] = []
    for process, threads in _processes(trace, rows):
        steps = iterations(trace, rows[threads[trace.spans.thread[rows]]], pattern)
        found.append((process, MarkedSteps(steps=steps, source=source)))
    return replace(_together(found), marker=pattern)


def _by_device_rows(trace: Trace) -> MarkedSteps:
    rows = trace.device_spans
    mine = np.flatnonzero(names_matching(trace.names, STEP_MARKER)[rows.name])
    cycles = _numbered(
        [_step_number(trace.names[name]) for name in rows.name[mine].tolist()],
        (rows.start_ns[mine], rows.end_ns[mine]),
        np.unique(np.stack((rows.device[mine], rows.stream[mine])), axis=1, return_inverse=True)[1],
        merged=_hull,
    )
    return MarkedSteps(steps=_of_cycles(map(_one_each, cycles)), source=StepSource.GPU_ROWS)


def _processes(trace: Trace, rows: Int64s) -> list[tuple[Pid, Bools]]:
    """Return the processes with some of the spans in `rows`, and their threads; None for one."""
    pids = dict.fromkeys(
        trace.threads[at][0] for at in np.unique(trace.spans.thread[rows]).tolist()
    )
    if len(pids) < 2:
        return [(None, np.ones(len(trace.threads), np.bool_))]
    return [(pid, np.array([each == pid for each, _ in trace.threads])) for pid in pids]


def _together(found: Sequence[tuple[Pid, MarkedSteps]]) -> MarkedSteps:
    steps = [replace(step, process=process) for process, marked in found for step in marked.steps]
    known = [marked.accumulation for _, marked in found if marked.accumulation is not None]
    return MarkedSteps(
        steps=tuple(sorted(steps, key=lambda step: step.start_ns)),
        source=found[0][1].source,
        accumulation=max(known, default=None),
    )


def _by_job_marks(trace: Trace, marks: Sequence[Marker]) -> MarkedSteps:
    first_ns, last_ns = trace.span_ns
    inside = [mark for mark in marks if mark.start_ns < last_ns and mark.end_ns > first_ns]
    steps = tuple(
        _with_reasons(
            step,
            STARTS_BEFORE_TRACE if step.start_ns < first_ns else None,
            TRACE_ENDS if step.end_ns > last_ns else None,
        )
        for step in _one_each(sorted(inside, key=lambda mark: mark.start_ns))
    )
    return MarkedSteps(steps=steps, source=StepSource.JOB_MARKS)


def _by_optimizer_rounds(trace: Trace) -> MarkedSteps:
    """Return the steps from one round of optimizers' end to the next one's, counted from 0."""
    optimizers = np.flatnonzero(_named(trace, OPTIMIZER) & ~_inside_backward(trace))
    found: list[tuple[Pid, MarkedSteps]] = []
    for process, threads in _processes(trace, optimizers):
        mine = optimizers[threads[trace.spans.thread[optimizers]]]
        ends_ns = _round_ends_ns(trace, mine, threads)
        starts_ns = [trace.span_ns[0], *ends_ns[:-1]]
        steps = _one_each(
            Marker(step=number, start_ns=start_ns, end_ns=end_ns)
            for number, (start_ns, end_ns) in enumerate(zip(starts_ns, ends_ns, strict=False))
        )
        first = tuple(_with_reasons(step, STARTS_BEFORE_TRACE) for step in steps[:1])
        marked = MarkedSteps(steps=first + steps[1:], source=StepSource.OPTIMIZER)
        found.append((process, marked))
    return _together(found)


def _round_ends_ns(trace: Trace, optimizers: Int64s, threads: Bools) -> list[int]:
    """Return when the last optimizer of each round ends, in ns, for one process.

    A new round begins after backward work; in a file without that if an optimizer's name is
    repeated.
    """
    spans = trace.spans
    backward_ns = spans.start_ns[_named(trace, BACKWARD) & threads[spans.thread]]
    ends_ns: list[int] = []
    seen: set[int] = set()
    done = np.searchsorted(backward_ns, spans.start_ns[optimizers])
    for nth, row in enumerate(optimizers.tolist()):
        name, end_ns = int(spans.name[row]), int(spans.end_ns[row])
        again = done[nth] > done[nth - 1] if len(backward_ns) else name in seen
        if not ends_ns or again:
            ends_ns.append(end_ns)
            seen.clear()
        ends_ns[-1] = max(ends_ns[-1], end_ns)
        seen.add(name)
    return ends_ns


def _inside_backward(trace: Trace) -> Bools:
    spans = trace.spans
    backward = _named(trace, BACKWARD)
    inside = np.zeros(len(spans), np.bool_)
    for thread in np.unique(spans.thread[backward]):
        here = spans.thread == thread
        work = intervals.union(spans.start_ns[here & backward], spans.end_ns[here & backward])
        inside[here] = intervals.contains(work, spans.start_ns[here])
    return inside


def _numbered(
    numbers: Sequence[int],
    times: tuple[Int64s, Int64s],
    lane: Int64s,
    *,
    merged: Callable[[Iterable[Marker]], Marker],
) -> list[list[Marker]]:
    """Return the markers of each profiler cycle, one per step number, in time order.

    A cycle that repeats numbers continues those of the one before it. `times`: starts, rising, and
    ends. `lane`: (n,), the thread or stream of each. `merged` makes one marker of rows with one
    number.
    """
    start_ns, end_ns = times
    cycle = np.searchsorted(
        _borders_ns(np.array(numbers, np.int64), times, lane), start_ns, "right"
    )
    rows = sorted(zip(cycle.tolist(), numbers, start_ns.tolist(), end_ns.tolist(), strict=True))
    cycles: list[list[Marker]] = []
    free = 0
    for nth, (_, mine) in enumerate(groupby(rows, key=itemgetter(0))):
        of_cycle = list(mine)
        shift = max(free - of_cycle[0][1], 0) if nth else 0
        found = [
            merged(Marker(step=number + shift, start_ns=a, end_ns=b) for _, _, a, b in group)
            for number, group in groupby(of_cycle, key=itemgetter(1))
        ]
        free = max(free, found[-1].step + 1)
        cycles.append(sorted(found, key=lambda marker: marker.start_ns))
    return cycles


def _borders_ns(number: Int64s, times: tuple[Int64s, Int64s], lane: Int64s) -> Int64s:
    if not len(number):
        return np.zeros(0, np.int64)
    rows = lane == np.argmax(np.bincount(lane))
    number, start_ns, reach_ns = number[rows], times[0][rows], np.maximum.accumulate(times[1][rows])
    again = (number[1:] <= number[:-1]) & (start_ns[1:] >= reach_ns[:-1])
    borders_ns: Int64s = (reach_ns[:-1][again] + start_ns[1:][again] + 1) // 2
    return borders_ns


def _step_number(name: str) -> int:
    found = STEP_MARKER.match(name)
    return int(found.group(1)) if found else -1


def _hull(markers: Iterable[Marker]) -> Marker:
    """Merge markers, first start to last end (each stream has its own row of a step)."""
    rows = list(markers)
    start_ns, end_ns = min(row.start_ns for row in rows), max(row.end_ns for row in rows)
    return replace(rows[0], start_ns=start_ns, end_ns=end_ns)


def _accumulated(cycles: list[list[Marker]], optimizer_ns: Int64s) -> MarkedSteps:
    """Group markers into steps, each up to and including the one that holds the optimizer.

    Without any optimizer each marker is a step and accumulation is unknown. A first run that is
    shorter than the others began before the trace; a longer one is irregular. Markers after the
    last optimizer are a step (one each, without accumulation) whose end is not in the file.
    """
    runs = [_runs(markers, optimizer_ns) for markers in cycles]
    sizes = Counter(len(run) for closed, _ in runs for run in closed[1:] or closed)
    if not sizes:
        steps = _of_cycles(map(_one_each, cycles))
        return MarkedSteps(steps=steps, source=StepSource.PROFILER_STEP)
    usual = max(sizes, key=lambda size: (sizes[size], size))
    return MarkedSteps(
        steps=_of_cycles(
            [*_closed(closed, usual), *_unclosed(rest, usual)] for closed, rest in runs
        ),
        source=StepSource.PROFILER_STEP,
        accumulation=usual,
    )


def _runs(markers: list[Marker], optimizer_ns: Int64s) -> tuple[list[list[Marker]], list[Marker]]:
    """Split markers into runs that an optimizer closes, and the markers after the last of them."""
    closing = [
        index
        for index, marker in enumerate(markers)
        if np.any((optimizer_ns >= marker.start_ns) & (optimizer_ns < marker.end_ns))
    ]
    opening = [0, *(index + 1 for index in closing)]
    closed = [markers[a : b + 1] for a, b in zip(opening, closing, strict=False)]
    return closed, markers[opening[-1] :]


def _closed(runs: list[list[Marker]], usual: int) -> list[Step]:
    return [
        _with_reasons(
            _step(run),
            STARTS_BEFORE_TRACE if nth == 0 and len(run) < usual else None,
            ACCUMULATION_IRREGULAR if len(run) > usual else None,
        )
        for nth, run in enumerate(runs)
    ]


def _unclosed(markers: list[Marker], accumulation: int) -> list[Step]:
    if not markers:
        return []
    if accumulation > 1:
        return [_with_reasons(_step(markers), ACCUMULATION_INCOMPLETE)]
    return [_with_reasons(step, OPTIMIZER_MISSING) for step in _one_each(markers)]


def _of_cycles(cycles: Iterable[Iterable[Step]]) -> tuple[Step, ...]:
    return tuple(
        replace(step, cycle=nth) if nth else step
        for nth, steps in enumerate(cycles)
        for step in steps
    )


def _one_each(markers: Iterable[Marker]) -> tuple[Step, ...]:
    return tuple(_step([marker]) for marker in markers)


def _step(run: list[Marker]) -> Step:
    start_ns, end_ns = run[0].start_ns, run[-1].end_ns
    return Step(step=run[-1].step, start_ns=start_ns, end_ns=end_ns, markers=tuple(run))


def _with_reasons(step: Step, *reasons: str | None) -> Step:
    known = tuple(reason for reason in reasons if reason is not None)
    return replace(step, partial_reasons=step.partial_reasons + known)


def _named(trace: Trace, pattern: re.Pattern[str]) -> Bools:
    return names_matching(trace.names, pattern).take(trace.spans.name)
