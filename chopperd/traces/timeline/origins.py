"""Where the forward operator began whose node of the graph runs at a moment of a backward pass."""

from dataclasses import dataclass

import numpy as np

from chopperd.model.arrays import Bools, Int64s
from chopperd.model.trace import HostSpans, SpanKind, Trace
from chopperd.traces.timeline.nesting import Moments, Nesting


class Origins:
    """Forward operators whose nodes run in backward passes.

    By the arrow that the profiler drew from the one to the other, else by sequence number.

    Args:
        trace: The trace.
    """

    def __init__(self, trace: Trace) -> None:
        spans = trace.spans
        arrows = _arrows(trace)
        self._thread = np.full(len(spans) + 1, -1, np.int32)
        self._at_ns = np.zeros(len(spans) + 1, np.int64)
        for told in (_by_sequence(spans), arrows):
            self._thread[told.row], self._at_ns[told.row] = told.origin.thread, told.origin.at_ns
        linked = _numbered_nodes(spans)
        linked[arrows.row] = True
        self._nodes = Nesting(spans, np.flatnonzero(linked))

    def of(self, moments: Moments) -> Moments:
        """The start of the forward operator of the innermost node around each moment.

        The thread is -1 where there is no node, or its operator is not known.
        """
        node = self._nodes.innermost(moments)
        return Moments(thread=self._thread[node], at_ns=self._at_ns[node])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pairs:
    """Backward operators with their forward operators.

    Attributes:
        row: (n,) int64, backward operators, rising, as indices in `Trace.spans`.
        origin: (n,) when their forward operators began.
    """

    row: Int64s
    origin: Moments


def _numbered_nodes(spans: HostSpans) -> Bools:
    """Backward operators with the number of a forward operator: (spans,) bool."""
    numbered: Bools = (spans.sequence >= 0) & (spans.forward_thread > 0)
    numbered &= spans.kind == SpanKind.OP
    return numbered


def _arrows(trace: Trace) -> _Pairs:
    """The arrows of the trace whose two ends are known.

    An end is the start of a backward operator. Of several that start there it is the outermost.
    """
    flows, spans = trace.flows, trace.spans
    starts, ends = np.flatnonzero(flows.is_end == 0), np.flatnonzero(flows.is_end == 1)
    starts = starts[np.argsort(flows.flow[starts], kind="stable")]
    number = flows.flow[ends]
    first = np.searchsorted(flows.flow[starts], number, "left")
    alone = np.searchsorted(flows.flow[starts], number, "right") - first == 1
    alone &= number >= 0
    ends, starts = ends[alone], starts[first[alone]]
    operators = np.flatnonzero(spans.kind == SpanKind.OP)
    there = Moments(thread=flows.thread[ends], at_ns=flows.t_ns[ends])
    row = Nesting(spans, operators).starting(there)
    kept = np.flatnonzero(row >= 0)
    row, which = np.unique(row[kept], return_index=True)
    origin = starts[kept[which]]
    return _Pairs(row=row, origin=Moments(thread=flows.thread[origin], at_ns=flows.t_ns[origin]))


def _by_sequence(spans: HostSpans) -> _Pairs:
    """Nodes and forward operators of one sequence number, where no other can be meant.

    Each thread counts for itself, and "Fwd thread id" is torch's own numbering of threads, which
    names none of the trace: a number says something where only one thread has it. The operator that
    makes the node is the last with its number: those around it, and others before that make no
    node, have it too.
    """
    nodes = np.flatnonzero(_numbered_nodes(spans))
    makers = np.flatnonzero((spans.sequence >= 0) & (spans.forward_thread == 0))
    makers = makers[np.lexsort((makers, spans.thread[makers], spans.sequence[makers]))]
    sequence, thread = spans.sequence[makers], spans.thread[makers]
    first = np.searchsorted(sequence, spans.sequence[nodes], "left")
    last = np.searchsorted(sequence, spans.sequence[nodes], "right") - 1
    known = np.flatnonzero(last >= first)
    nodes, first, last = nodes[known], first[known], last[known]
    maker = makers[last]
    fits = (thread[first] == thread[last]) & (maker < nodes)
    return _Pairs(
        row=nodes[fits],
        origin=Moments(thread=spans.thread[maker[fits]], at_ns=spans.start_ns[maker[fits]]),
    )
