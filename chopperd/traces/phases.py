"""The part of a step each moment of a thread belongs to: forward, backward or optimizer.

Backward and optimizer name themselves. What runs inside backward is backward time, also where it
computes forward operators once more (activation checkpointing).

Nothing in a trace names the forward pass: it is what leads up to a backward pass of the same step.
Work between backward and optimizer (clipping of gradients), or after both, is therefore of
no phase, and so is everything in a file without backward passes: of inference, evaluation or
a recording cut short, nothing tells which it is.
"""

import re
from typing import Final

import numpy as np

from chopperd.model.arrays import Bools, Int8s, Int64s
from chopperd.model.timeline import Phase, Step
from chopperd.model.trace import SpanKind, Trace
from chopperd.traces.names import names_matching
from chopperd.traces.nesting import Moments, Nesting
from chopperd.traces.steps import OPTIMIZER as OPTIMIZER_STEP
from chopperd.traces.steps import STEP_MARKER, step_at

#: Source: autograd's engine; nodes named after their forward operator or Python function; the
#: reducer of DDP; hooks of FSDP2 and of FSDP1.
BACKWARD: Final = re.compile(
    r"^autograd::engine::evaluate_function"
    r"|^\w+Backward\d*$"
    r"|^torch::autograd::(?:AccumulateGrad|CopyBackwards|CopySlices|GraphRoot)$"
    r"|^torch\.distributed\.ddp\.reducer::|^torch::distributed::reducer::"
    r"|^FSDP::(?:pre_backward|post_backward_\w+|backward_prefetch|root_post_backward_callback)\b"
    r"|^FullyShardedDataParallel\._(?:pre|post)_backward_"
)
OPTIMIZER: Final = re.compile(r"^Optimizer\.(?:step|zero_grad)#")
#: What only the thread that trains does.
STEPPING: Final = re.compile(rf"{OPTIMIZER_STEP.pattern}|{STEP_MARKER.pattern}")


def phases(trace: Trace, moments: Moments, steps: tuple[Step, ...]) -> Int8s:
    """The `Phase` of each moment: (n,) int8.

    Where an optimizer steps inside backward, or a backward pass runs inside an optimizer's step,
    the inner one counts.

    Args:
        trace: The trace.
        moments: When what began, on which thread.
        steps: The steps as marked on the host; without any, nothing is forward.
    """
    backward_rows = np.flatnonzero(backward_spans(trace))
    optimizer_rows = np.flatnonzero(_named(trace, OPTIMIZER))
    backward = Nesting(trace.spans, backward_rows).innermost(moments)
    optimizer = Nesting(trace.spans, optimizer_rows).innermost(moments)
    result = _between(trace, moments, steps, backward_rows)
    result[backward > optimizer] = Phase.BACKWARD
    result[optimizer > backward] = Phase.OPTIMIZER
    return result


def backward_spans(trace: Trace) -> Bools:
    """Which host spans are of a backward pass by their names: (spans,) bool."""
    return _named(trace, BACKWARD)


def _named(trace: Trace, pattern: re.Pattern[str]) -> Bools:
    """Operators and annotations of matching names: (spans,) bool."""
    found: Bools = trace.spans.kind != SpanKind.MODULE
    found &= names_matching(trace.names, pattern)[trace.spans.name]
    return found


def _between(
    trace: Trace, moments: Moments, steps: tuple[Step, ...], backward_rows: Int64s
) -> Int8s:
    """The phase of moments by what comes next, if that is a backward of the same step: (n,) int8.

    Between two nodes of one pass the engine sums gradients that meet, in no span of its own: that
    is backward, on threads that run nodes. It is one pass if no operator between them makes a node
    of a graph. Anything else before a backward is forward, on threads that step: what others
    (communication, loaders of data) do meanwhile may be for either.
    """
    spans = trace.spans
    stepping = np.flatnonzero(_named(trace, STEPPING))
    ends = stepping[names_matching(trace.names, OPTIMIZER_STEP)[spans.name[stepping]]]
    rows = np.union1d(backward_rows, ends)
    start_ns = spans.start_ns[rows]
    step = np.where(np.isin(rows, backward_rows), step_at(steps, start_ns), -1)
    # One more in front and behind, which are no backward.
    step, made = np.pad(step, 1, constant_values=-1), _nodes_made(trace, backward_rows, start_ns)
    before = np.searchsorted(start_ns, moments.at_ns, "right")
    leads = (step[before + 1] >= 0) & (step[before + 1] == step_at(steps, moments.at_ns))
    same_pass = leads & (step[before] == step[before + 1]) & (made[before] == 0)
    result = np.full(len(moments), Phase.UNKNOWN, np.int8)
    result[leads & np.isin(moments.thread, spans.thread[stepping])] = Phase.FORWARD
    result[same_pass & np.isin(moments.thread, spans.thread[backward_rows])] = Phase.BACKWARD
    result[moments.thread < 0] = Phase.UNKNOWN
    return result


def _nodes_made(trace: Trace, backward_rows: Int64s, start_ns: Int64s) -> Int64s:
    """(n + 1,) int64: operators outside backward that make nodes, before, between, behind n times.

    Source: torch gives operators a sequence number, and no forward thread, while it records a
        graph.
    """
    spans = trace.spans
    makes = np.flatnonzero((spans.sequence >= 0) & (spans.forward_thread == 0))
    began = Moments(thread=spans.thread[makes], at_ns=spans.start_ns[makes])
    outside = Nesting(spans, backward_rows).innermost(began) < 0
    upto = np.searchsorted(spans.start_ns[makes[outside]], start_ns)
    return np.diff(np.concatenate(([0], upto, [np.count_nonzero(outside)])))
