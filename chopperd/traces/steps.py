"""Where training steps begin and end, by the best marks that a trace (or its job) offers."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final

import numpy as np

from chopperd.correlate import intervals
from chopperd.correlate.order import places
from chopperd.model.arrays import Bools, Int32s, Int64s
from chopperd.model.timeline import Marker, Step, StepSource
from chopperd.model.trace import Trace
from chopperd.traces.names import names_matching

STEP_MARKER: Final = re.compile(r"^(?:ProfilerStep#|Iteration[ #<]*)(\d+)>?$")
OPTIMIZER: Final = re.compile(r"^Optimizer\.step#")
BACKWARD: Final = re.compile(r"^autograd::engine::evaluate_function|^\w+Backward\d*$")

STARTS_BEFORE_TRACE: Final = "starts_before_trace"
TRACE_ENDS: Final = "trace_ends"
ACCUMULATION_INCOMPLETE: Final = "accumulation_incomplete"
OPTIMIZER_MISSING: Final = "optimizer_missing"


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkedSteps:
    """The steps of a trace.

    Attributes:
        steps: In time order.
        source: What marked them.
        accumulation: Markers per step, where optimizers show it.
    """

    steps: tuple[Step, ...]
    source: StepSource
    accumulation: int | None = None


NO_STEPS: Final = MarkedSteps(steps=(), source=StepSource.NONE)


def mark_steps(
    trace: Trace, *, job_marks: Sequence[Marker] = (), source: StepSource | None = None
) -> MarkedSteps:
    """The steps by the best source that has any; `NO_STEPS` where none has.

    Args:
        trace: The trace.
        job_marks: Steps as the job itself marked them, on the trace's time axis.
        source: The only source to use, instead of the best.
    """
    finders: Mapping[StepSource, Callable[[], MarkedSteps]] = {
        StepSource.PROFILER_STEP: lambda: _by_markers(trace),
        StepSource.OPTIMIZER: lambda: _by_optimizer_rounds(trace),
        StepSource.JOB_MARKS: lambda: _by_job_marks(trace, job_marks),
        StepSource.GPU_ROWS: lambda: _by_device_rows(trace),
    }
    tried = finders if source is None else {source: finders.get(source, lambda: NO_STEPS)}
    found = (find() for find in tried.values())
    return next((marked for marked in found if marked.steps), NO_STEPS)


def step_at(steps: tuple[Step, ...], times_ns: Int64s) -> Int32s:
    """The index of the step with a marker around each time: (n,) int32; -1 outside all markers.

    Where markers overlap, the one that started last counts.
    """
    markers = sorted(
        (marker.start_ns, marker.end_ns, index)
        for index, step in enumerate(steps)
        for marker in step.markers
    )
    if not markers:
        return np.full(len(times_ns), -1, np.int32)
    start_ns, end_ns, index = np.array(markers, np.int64).T
    at = places(start_ns, times_ns, "right") - 1
    inside = (at >= 0) & (times_ns < end_ns[at])
    return np.where(inside, index.astype(np.int32)[at], np.int32(-1))


def _by_markers(trace: Trace) -> MarkedSteps:
    spans = trace.spans
    markers = _numbered(trace.names, spans.name, spans.start_ns, spans.end_ns, merged=_longest)
    optimizer_ns = spans.start_ns[_named(trace, OPTIMIZER)]
    return _accumulated(markers, _holds_any(markers, optimizer_ns))


def _by_device_rows(trace: Trace) -> MarkedSteps:
    rows = trace.device_spans
    markers = _numbered(trace.names, rows.name, rows.start_ns, rows.end_ns, merged=_hull)
    return MarkedSteps(steps=_one_each(markers), source=StepSource.GPU_ROWS)


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
    """Steps from the end of one round of optimizers to the end of the next, counted from 0.

    What came before the first optimizer began before the trace, for all that the file says.
    """
    ends_ns = _round_ends_ns(trace)
    starts_ns = [trace.span_ns[0], *ends_ns[:-1]]
    markers = [
        Marker(step=number, start_ns=start_ns, end_ns=end_ns)
        for number, (start_ns, end_ns) in enumerate(zip(starts_ns, ends_ns, strict=False))
    ]
    steps = _one_each(markers)
    first = tuple(_with_reasons(step, STARTS_BEFORE_TRACE) for step in steps[:1])
    return MarkedSteps(steps=first + steps[1:], source=StepSource.OPTIMIZER)


def _round_ends_ns(trace: Trace) -> list[int]:
    """The end of the last optimizer of each round.

    A new round begins where backward work lies before an optimizer and behind the one before it.
    In a file without backward rows it begins where an optimizer's name comes again.
    """
    spans = trace.spans
    optimizers = np.flatnonzero(_named(trace, OPTIMIZER))
    optimizers = optimizers[~_inside_backward(trace)[optimizers]]
    backward_ns = spans.start_ns[_named(trace, BACKWARD)]
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
    """Which spans start inside backward work of their thread (optimizers run by hooks there)."""
    spans = trace.spans
    backward = _named(trace, BACKWARD)
    inside = np.zeros(len(spans), np.bool_)
    for thread in np.unique(spans.thread[backward]):
        here = spans.thread == thread
        work = intervals.union(spans.start_ns[here & backward], spans.end_ns[here & backward])
        inside[here] = intervals.contains(work, spans.start_ns[here])
    return inside


def _numbered(
    names: tuple[str, ...],
    name: Int32s,
    start_ns: Int64s,
    end_ns: Int64s,
    *,
    merged: Callable[[Iterable[Marker]], Marker],
) -> list[Marker]:
    """The rows whose name carries a step's number, one marker a number, in time order."""
    rows = np.flatnonzero(names_matching(names, STEP_MARKER)[name])
    found = [
        Marker(
            step=_step_number(names[name[row]]),
            start_ns=int(start_ns[row]),
            end_ns=int(end_ns[row]),
        )
        for row in rows
    ]
    by_number = groupby(sorted(found, key=lambda marker: marker.step), key=lambda m: m.step)
    return sorted((merged(group) for _, group in by_number), key=lambda m: m.start_ns)


def _step_number(name: str) -> int:
    found = STEP_MARKER.match(name)
    return int(found.group(1)) if found else -1


def _longest(markers: Iterable[Marker]) -> Marker:
    return max(markers, key=lambda marker: marker.end_ns - marker.start_ns)


def _hull(markers: Iterable[Marker]) -> Marker:
    """From the first start to the last end (each stream has its own row of a step)."""
    rows = list(markers)
    return replace(
        rows[0],
        start_ns=min(row.start_ns for row in rows),
        end_ns=max(row.end_ns for row in rows),
    )


def _holds_any(markers: list[Marker], times_ns: Int64s) -> list[bool]:
    return [
        bool(np.any((times_ns >= marker.start_ns) & (times_ns < marker.end_ns)))
        for marker in markers
    ]


def _accumulated(markers: list[Marker], has_optimizer: list[bool]) -> MarkedSteps:
    """Steps of the runs of markers up to and including the one that holds the optimizer.

    Without any optimizer each marker is a step and accumulation is unknown. A first run that is
    shorter than the others began before the trace; markers after the last optimizer are a step
    (one each, without accumulation) whose end is not in the file.
    """
    if not any(has_optimizer):
        return MarkedSteps(steps=_one_each(markers), source=StepSource.PROFILER_STEP)
    closing = [index for index, closes in enumerate(has_optimizer) if closes]
    opening = [0, *(index + 1 for index in closing)]
    runs = [markers[a : b + 1] for a, b in zip(opening, closing, strict=False)]
    sizes = Counter(len(run) for run in runs[1:] or runs)
    accumulation = max(sizes, key=lambda size: (sizes[size], size))
    steps = [_step(run) for run in runs]
    if len(runs[0]) < accumulation:
        steps[0] = _with_reasons(steps[0], STARTS_BEFORE_TRACE)
    steps += _unclosed(markers[opening[-1] :], accumulation)
    return MarkedSteps(
        steps=tuple(steps), source=StepSource.PROFILER_STEP, accumulation=accumulation
    )


def _unclosed(markers: list[Marker], accumulation: int) -> list[Step]:
    """The partial steps of the markers after the last optimizer."""
    if not markers:
        return []
    if accumulation > 1:
        return [_with_reasons(_step(markers), ACCUMULATION_INCOMPLETE)]
    return [_with_reasons(step, OPTIMIZER_MISSING) for step in _one_each(markers)]


def _one_each(markers: Iterable[Marker]) -> tuple[Step, ...]:
    return tuple(_step([marker]) for marker in markers)


def _step(run: list[Marker]) -> Step:
    return Step(
        step=run[-1].step,
        start_ns=run[0].start_ns,
        end_ns=run[-1].end_ns,
        markers=tuple(run),
    )


def _with_reasons(step: Step, *reasons: str | None) -> Step:
    known = tuple(reason for reason in reasons if reason is not None)
    return replace(step, partial_reasons=step.partial_reasons + known)


def _named(trace: Trace, pattern: re.Pattern[str]) -> Bools:
    """Which host spans have a name that the pattern is found in."""
    return names_matching(trace.names, pattern).take(trace.spans.name)
