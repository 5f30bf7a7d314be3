"""Find the phase of a step each moment of a thread belongs to: forward, backward or optimizer.

Backward and optimizer are known by name; forward operators computed again inside backward
(activation checkpointing) are backward. Forward is the work before a backward pass of the same
step. Work between backward and optimizer (clipping of gradients), or after both, is of no phase, as
is all of a file without backward passes: inference, evaluation, an incomplete recording.
"""

import re
from typing import Final

import numpy as np

from chopperd.model.arrays import Bools, Int8s, Int64s
from chopperd.model.timeline import Phase, Step
from chopperd.model.trace import HostSpans, SpanKind, Trace
from chopperd.traces.kernels.names import names_matching
from chopperd.traces.timeline.nesting import Moments, Nesting
from chopperd.traces.timeline.steps import OPTIMIZER as OPTIMIZER_STEP
from chopperd.traces.timeline.steps import STEP_MARKER, step_at

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
    """Return the `Phase` of each moment: (n,) int8.

    Of a backward pass and an optimizer's step around a moment the inner one counts. Without
    `steps`, which are marked on the host, nothing is forward.
    """
    runs_back = backward_spans(trace)
    backward = Nesting(trace.spans, np.flatnonzero(runs_back)).innermost(moments)
    optimizer = Nesting(trace.spans, np.flatnonzero(_named(trace, OPTIMIZER))).innermost(moments)
    result = _between(trace, moments, steps, runs_back)
    result[backward > optimizer] = Phase.BACKWARD
    result[optimizer > backward] = Phase.OPTIMIZER
    return result


def backward_spans(trace: Trace) -> Bools:
    """Return which host spans are of a backward pass by their names: (spans,) bool."""
    return _named(trace, BACKWARD)


def _named(trace: Trace, pattern: re.Pattern[str]) -> Bools:
    found: Bools = trace.spans.kind != SpanKind.MODULE
    found &= names_matching(trace.names, pattern).take(trace.spans.name)
    return found


def _between(trace: Trace, moments: Moments, steps: tuple[Step, ...], runs_back: Bools) -> Int8s:
    """Return the phase of moments before a backward node of their step, else `UNKNOWN`: (n,) int8.

    Between two nodes of one pass (no operator between them makes a node) the engine sums gradients,
    in no span of its own: that is backward, on threads that run nodes. Anything else before a
    backward is forward, on threads that step: the work of others may be for either.
    """
    spans = trace.spans
    stepping = _named(trace, STEPPING)
    rows = np.flatnonzero(runs_back | _named(trace, OPTIMIZER_STEP))
    start_ns = spans.start_ns[rows]
    made = _nodes_made(spans, runs_back, start_ns)
    threads = trace.threads
    of_rows = step_at(steps, start_ns, spans.thread[rows], threads)
    step = np.where(runs_back[rows], of_rows, -1)
    step = np.pad(
        step, 1, constant_values=-1
    )  # Before the first and after the last there is no backward.
    before = np.searchsorted(start_ns, moments.at_ns, "right")
    mine = step_at(steps, moments.at_ns, moments.thread, threads)
    leads = (step[before + 1] >= 0) & (step[before + 1] == mine)
    same_pass = leads & (step[before] == step[before + 1]) & (made[before] == 0)
    result = np.full(len(moments), Phase.UNKNOWN, np.int8)
    result[leads & _on_threads_of(trace, stepping, moments)] = Phase.FORWARD
    result[same_pass & _on_threads_of(trace, runs_back, moments)] = Phase.BACKWARD
    return result


def _on_threads_of(trace: Trace, spans: Bools, moments: Moments) -> Bools:
    there = np.zeros(len(trace.threads) + 1, np.bool_)
    there[trace.spans.thread[spans]] = True
    return there[moments.thread]


def _nodes_made(spans: HostSpans, runs_back: Bools, start_ns: Int64s) -> Int64s:
    """Count operators outside backward that make nodes, before, between, after n times: (n + 1,).

    Source: torch gives operators a sequence number, and no forward thread, while it records a
    graph.
    """
    makes = np.flatnonzero((spans.sequence >= 0) & (spans.forward_thread == 0))
    began = Moments(thread=spans.thread[makes], at_ns=spans.start_ns[makes])
    outside = Nesting(spans, np.flatnonzero(runs_back)).innermost(began) < 0
    upto = np.searchsorted(spans.start_ns[makes[outside]], start_ns)
    return np.diff(np.concatenate(([0], upto, [np.count_nonzero(outside)])))
