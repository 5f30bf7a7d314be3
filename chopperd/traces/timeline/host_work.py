"""What the operators of a trace did on the host: how long, for which layer, in which phase.

For traces without device records, of CPU jobs; a device's time is told by its own records.
"""

import numpy as np

from chopperd.model.arrays import Int64s
from chopperd.model.timeline import HostWork, Step
from chopperd.model.trace import HostSpans, SpanKind, Trace
from chopperd.traces.kernels.names import bounded, used_names
from chopperd.traces.timeline.layers import layers
from chopperd.traces.timeline.nesting import Moments, Nesting
from chopperd.traces.timeline.phases import phases


def host_work(trace: Trace, steps: tuple[Step, ...]) -> HostWork:
    """The operators of a trace, each with its own time and what it began in.

    Args:
        trace: The trace.
        steps: The steps as marked on the host.
    """
    spans = trace.spans
    operators = np.flatnonzero(spans.kind == SpanKind.OP)
    began = Moments(thread=spans.thread[operators], at_ns=spans.start_ns[operators])
    phase = phases(trace, began, steps)
    names, layer = layers(trace, began, phase)
    used = used_names(spans.name[operators], len(trace.names))
    return HostWork(
        operation=np.searchsorted(used, spans.name[operators]).astype(np.int32),
        layer=layer,
        phase=phase,
        own_ns=own_times(spans, operators),
        operations=tuple(bounded(trace.names[index]) for index in used.tolist()),
        layers=names,
    )


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
