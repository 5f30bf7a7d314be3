"""Find the program's own annotation (`record_function`) that each moment of a thread works for.

Also those on kernels of a graph. Annotated steps and layers are steps and layers, not annotations.
"""

import re
from collections.abc import Sequence
from typing import Final

import numpy as np

from chopperd.model.arrays import Bools, Int8s, Int32s, Int64s
from chopperd.model.timeline import Phase
from chopperd.model.trace import HostSpans, SpanKind, Trace
from chopperd.traces.kernels.names import bounded, names_matching
from chopperd.traces.timeline.nesting import Moments, Nesting
from chopperd.traces.timeline.phases import backward_spans

#: An annotation of one layer of the model. Source: Chopper names them `Layer0`, `Layer1`, ...
LAYER_MARK: Final = re.compile(r"^Layer[ #<]*\d{1,9}>?$")
#: torch's own annotation of a collective, which says less than one of the program around it.
COLLECTIVE_MARK: Final = re.compile(r"^(?:nccl|rccl|gloo|mpi|ucc|xccl):")

#: Before the annotation of a forward operator, for the work of its backward; Chopper marks forward
#: and backward so.
_BACKWARD: Final = "b_"
_FORWARD: Final = "f_"

#: Phases as programs mark kernels of graphs with them.
_PHASES: Final = {
    **{"forward": Phase.FORWARD, "fwd": Phase.FORWARD},
    **{"backward": Phase.BACKWARD, "bwd": Phase.BACKWARD},
    "optimizer": Phase.OPTIMIZER,
}


def annotations(
    trace: Trace, moments: Moments, phase: Int8s, marks: Bools
) -> tuple[tuple[str, ...], Int32s]:
    """Return names of annotations, and each moment's index into them: (n,) int32, -1 unknown.

    It is the innermost one around the moment. In backward one that began inside the backward
    operator; else that around the forward operator whose node runs, with "b_" before its name; else
    any around. Annotations of collectives by torch count where there is no other. `marks`:
    (names,), which of `Trace.names` mark steps.
    """
    spans = trace.spans
    given = spans.kind == SpanKind.ANNOTATION
    given &= ~(marks | names_matching(trace.names, LAYER_MARK)).take(spans.name)
    by_torch = names_matching(trace.names, COLLECTIVE_MARK).take(spans.name)
    own = Nesting(spans, np.flatnonzero(given & ~by_torch))
    found = own.innermost(moments)
    inherited = np.zeros(len(moments), bool)
    backward = np.flatnonzero(phase == Phase.BACKWARD)
    if len(backward) and np.any(given & ~by_torch):
        at = moments.of(backward)
        node = Nesting(spans, np.flatnonzero(backward_spans(trace))).innermost(at)
        origin = own.innermost(Origins(trace).of(at))
        of_forward = (found[backward] < node) & (origin >= 0)
        found[backward[of_forward]] = origin[of_forward]
        inherited[backward[of_forward]] = True
    collective = Nesting(spans, np.flatnonzero(given & by_torch)).innermost(moments)
    return _numbered(trace, np.where(found < 0, collective, found), inherited)


def marked_in_graphs(
    trace: Trace, texts: Sequence[str | None], names: tuple[str, ...], column: Int32s
) -> tuple[tuple[str, ...], Int32s]:
    """Return names, and each record's index into them, replaced by what marks in graphs say.

    What was around the launch of a graph says little about its kernels. `texts`: what each of
    `Trace.marks` says, or None. `column`: (records,), index into `names`; -1 unknown.
    """
    if not any(texts):
        return names, column
    number = {name: index for index, name in enumerate(names)}
    said = [number.setdefault(bounded(text), len(number)) if text else -1 for text in texts]
    of_record = np.array([*said, -1], np.int32)[trace.records.mark]
    return tuple(number), np.where(of_record < 0, column, of_record)


def phases_in_graphs(trace: Trace, phase: Int8s) -> Int8s:
    """Return the `Phase` of each record, replaced by what marks in graphs say: (records,) int8."""
    if not trace.marks:
        return phase
    said = [_PHASES.get((mark.phase or "").lower(), Phase.UNKNOWN) for mark in trace.marks]
    of_record = np.array([*said, Phase.UNKNOWN], np.int8)[trace.records.mark]
    return np.where(of_record < 0, phase, of_record)


def _numbered(trace: Trace, span: Int64s, inherited: Bools) -> tuple[tuple[str, ...], Int32s]:
    """Number the names of spans, (n,) int64 with -1 none, apart where `inherited`: (n,) bool."""
    key = np.where(span < 0, -1, 2 * np.append(trace.spans.name, 0)[span].astype(np.int64))
    key += inherited
    used, column = np.unique(key, return_inverse=True)
    names = [
        _BACKWARD + text.removeprefix(_FORWARD) if nth % 2 else text
        for nth in used[used >= 0].tolist()
        for text in (bounded(trace.names[nth // 2]),)
    ]
    # A name of the program's own may begin with "b_" too.
    number = {name: index for index, name in enumerate(dict.fromkeys(names))}
    of_key = [*([-1] if len(used) > len(names) else []), *(number[name] for name in names)]
    return tuple(number), np.array(of_key, np.int32)[column]


class Origins:
    """Finds the forward operators whose nodes run in backward: by arrow, else by sequence."""

    def __init__(self, trace: Trace) -> None:
        spans = trace.spans
        arrows = _arrows(trace)
        self._thread = np.full(len(spans) + 1, -1, np.int32)
        self._at_ns = np.zeros(len(spans) + 1, np.int64)
        for row, origin in (_by_sequence(spans), arrows):
            self._thread[row], self._at_ns[row] = origin.thread, origin.at_ns
        linked = _numbered_nodes(spans)
        linked[arrows[0]] = True
        self._nodes = Nesting(spans, np.flatnonzero(linked))

    def of(self, moments: Moments) -> Moments:
        """Return the start of the forward operator of the innermost node around each moment.

        The thread is -1 if there is no node, or its operator is not known.
        """
        node = self._nodes.innermost(moments)
        return Moments(thread=self._thread[node], at_ns=self._at_ns[node])


def _numbered_nodes(spans: HostSpans) -> Bools:
    numbered: Bools = (spans.sequence >= 0) & (spans.forward_thread > 0)
    numbered &= spans.kind == SpanKind.OP
    return numbered


def _arrows(trace: Trace) -> tuple[Int64s, Moments]:
    """Return backward operators with an arrow, ascending, and when their forward ones began.

    An arrow ends at the start of a backward operator, of several that start there the outermost.
    """
    flows, spans = trace.flows, trace.spans
    starts, ends = np.flatnonzero(flows.is_end == 0), np.flatnonzero(flows.is_end == 1)
    starts = starts[np.argsort(flows.flow[starts], kind="stable")]
    number = flows.flow[ends]
    first = np.searchsorted(flows.flow[starts], number, "left")
    alone = np.searchsorted(flows.flow[starts], number, "right") - first == 1
    alone &= number >= 0
    ends, starts = ends[alone], starts[first[alone]]
    there = Moments(thread=flows.thread[ends], at_ns=flows.t_ns[ends])
    begun = (spans.kind == SpanKind.OP) & _starting(spans.start_ns, there.at_ns)
    row = Nesting(spans, np.flatnonzero(begun)).starting(there)
    known = np.flatnonzero(row >= 0)
    row, which = np.unique(row[known], return_index=True)
    origin = starts[known[which]]
    return row, Moments(thread=flows.thread[origin], at_ns=flows.t_ns[origin])


def _starting(start_ns: Int64s, at_ns: Int64s) -> Bools:
    """Return which of the starts, (n,) int64, rising, are any of some instants."""
    size = len(start_ns) + 1
    first = np.bincount(np.searchsorted(start_ns, at_ns, "left"), minlength=size)
    after = np.bincount(np.searchsorted(start_ns, at_ns, "right"), minlength=size)
    found: Bools = np.cumsum(first - after)[:-1] > 0
    return found


def _by_sequence(spans: HostSpans) -> tuple[Int64s, Moments]:
    """Return the same as `_arrows`, by sequence number if a single thread uses it.

    Each thread counts for itself, and "Fwd thread id" is torch's own numbering of threads. The
    operator that makes the node is the last with its number: those around it, and others before,
    have it too.
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
    maker = maker[fits]
    return nodes[fits], Moments(thread=spans.thread[maker], at_ns=spans.start_ns[maker])
