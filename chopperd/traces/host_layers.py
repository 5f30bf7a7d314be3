"""Where the operators of a trace spend the host's time, by layer and phase.

For traces without device records, of CPU jobs; a device's time is told by its own records.
"""

from dataclasses import dataclass

import numpy as np

from chopperd.model.arrays import Int64s
from chopperd.model.timeline import Phase
from chopperd.model.trace import HostSpans, SpanKind, Trace
from chopperd.traces.layers import layers
from chopperd.traces.nesting import Moments, Nesting
from chopperd.traces.phases import phases
from chopperd.traces.steps import mark_steps


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLayer:
    """Time of one layer in one phase.

    Attributes:
        layer: Its name; None for operators of no known layer.
        phase: The phase.
        operator_count: Operators that began in it.
        own_ns: Their own time: while they ran and no operator within them did. Over all layers and
            phases this adds up to the time in which threads were in an operator.
    """

    layer: str | None
    phase: Phase
    operator_count: int
    own_ns: int


def host_layers(trace: Trace) -> tuple[HostLayer, ...]:
    """Operators' own time by layer and phase, over the whole trace; the longest first."""
    spans = trace.spans
    operators = np.flatnonzero(spans.kind == SpanKind.OP)
    if not len(operators):
        return ()
    began = Moments(thread=spans.thread[operators], at_ns=spans.start_ns[operators])
    phase = phases(trace, began, mark_steps(trace).steps)
    names, layer = layers(trace, began, phase)
    own_ns = own_times(spans, operators)
    width = len(Phase)
    key = (layer.astype(np.int64) + 1) * width + phase + 1
    distinct, group, count = np.unique(key, return_inverse=True, return_counts=True)
    total_ns = np.zeros(len(distinct), np.int64)
    np.add.at(total_ns, group, own_ns)
    rows = [
        HostLayer(
            layer=names[one // width - 1] if one >= width else None,
            phase=Phase(one % width - 1),
            operator_count=int(count[at]),
            own_ns=int(total_ns[at]),
        )
        for at, one in enumerate(distinct.tolist())
    ]
    return tuple(sorted(rows, key=lambda row: -row.own_ns))


def own_times(spans: HostSpans, chosen: Int64s) -> Int64s:
    """(m,) int64: how long each chosen span was the innermost of them on its thread, in ns.

    Args:
        spans: All spans.
        chosen: (m,) int64, rising indices of the spans meant.
    """
    thread = np.tile(spans.thread[chosen], 2)
    at_ns = np.concatenate((spans.start_ns[chosen], spans.end_ns[chosen]))
    order = np.lexsort((at_ns, thread))
    thread, at_ns = thread[order], at_ns[order]
    innermost = Nesting(spans, chosen).innermost(Moments(thread=thread, at_ns=at_ns))[:-1]
    inside = np.flatnonzero(innermost >= 0)
    own_ns = np.zeros(len(chosen), np.int64)
    row = np.searchsorted(chosen, innermost[inside])
    np.add.at(own_ns, row, np.diff(at_ns)[inside])
    return own_ns
