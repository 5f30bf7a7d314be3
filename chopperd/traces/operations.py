"""Which operator, annotation and module launched each device record.

A record goes to what its launching call lies in, on the call's thread. The call is found by
correlation id. Where the file lacks it but the record has an External id, the operator of that id
launched it, provided that External ids of this file are ids of operators at all: in some they are
the correlation ids over again.
"""

import re
from dataclasses import dataclass
from typing import Final

import numpy as np

from chopperd.model.arrays import Bools, Int8s, Int32s, Int64s
from chopperd.model.classes import KernelClass
from chopperd.model.trace import SpanKind, Trace
from chopperd.traces.classes import class_by_operation
from chopperd.traces.names import names_matching, used_names
from chopperd.traces.nesting import Nesting

#: External ids are those of operators where at least this share of linked records says so.
_VALID_SHARE: Final = 0.99

#: torch's record around every collective: an operator that says less than what is around it.
_RECORDED_COLLECTIVE: Final = re.compile(r"^record_param_comms$")
_COLLECTIVE: Final = re.compile(r"^(?:nccl|rccl|gloo|mpi|ucc|xccl):")

#: Copies and communication keep their class, whatever launched them.
_CERTAIN: Final = (
    KernelClass.COMM,
    KernelClass.FUSED_COMM,
    KernelClass.MEMCPY,
    KernelClass.MEMSET,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution:
    """What launched each device record; rows are indices in `Trace.spans`, -1 none or unknown.

    Attributes:
        thread: (records,) int32, the thread it was launched on, index into `Trace.threads`.
        at_ns: (records,) int64, when: the start of the launching call, or of the operator where
            only that is known; meaningless where `thread` is -1.
        op: (records,) int64, the innermost operator around the launch.
        annotation: (records,) int64, the innermost annotation.
        module: (records,) int64, the innermost call of a module.
    """

    thread: Int32s
    at_ns: Int64s
    op: Int64s
    annotation: Int64s
    module: Int64s


def attribute(trace: Trace, call: Int64s) -> Attribution:
    """Find what launched each record.

    Args:
        trace: The trace.
        call: (records,) int64, the call that launched each record; -1 unlinked.
    """
    spans, calls = trace.spans, trace.calls
    nestings = {kind: Nesting(spans, np.flatnonzero(spans.kind == kind)) for kind in SpanKind}
    thread, at_ns = _of_calls(calls.thread, call, -1), _of_calls(calls.start_ns, call, 0)
    by_id = _operator_by_id(trace, call, thread, at_ns)
    known = by_id >= 0
    thread[known], at_ns[known] = spans.thread[by_id[known]], spans.start_ns[by_id[known]]
    launched_on = thread.astype(np.int32)
    op, annotation, module = (
        nestings[kind].innermost(launched_on, at_ns)
        for kind in (SpanKind.OP, SpanKind.ANNOTATION, SpanKind.MODULE)
    )
    return Attribution(
        thread=launched_on,
        at_ns=at_ns,
        op=np.where(known, by_id, op),
        annotation=annotation,
        module=module,
    )


def _of_calls(column: Int64s | Int32s, call: Int64s, otherwise: int) -> Int64s:
    """A column of the calls, spread over the records they launched."""
    spread = np.full(len(call), otherwise, np.int64)
    linked = call >= 0
    spread[linked] = column[call[linked]]
    return spread


def _operator_by_id(trace: Trace, call: Int64s, thread: Int64s, at_ns: Int64s) -> Int64s:
    """(records,) int64: the operator of the External id of each record without a call; -1 none.

    Args:
        trace: The trace.
        call: (records,) int64, -1 unlinked.
        thread: (records,) int64, where the call was.
        at_ns: (records,) int64, when it began.
    """
    spans, external_id = trace.spans, trace.records.external_id
    unlinked = (call < 0) & (external_id >= 0)
    if not unlinked.any():
        return np.full(len(call), -1, np.int64)
    operator = _by_unique_id(spans.external_id, spans.kind == SpanKind.OP, external_id)
    shown = np.flatnonzero((call >= 0) & (external_id >= 0))
    of, when = operator[shown], at_ns[shown]
    right = (of >= 0) & (spans.thread[of] == thread[shown])
    right &= (spans.start_ns[of] <= when) & (when < spans.end_ns[of])
    valid = len(shown) > 0 and np.count_nonzero(right) >= _VALID_SHARE * len(shown)
    return np.where(unlinked & valid, operator, -1)


def _by_unique_id(ids: Int64s, allowed: Bools, wanted: Int64s) -> Int64s:
    """(n,) int64: the one allowed row with each wanted id; -1 where none or several have it."""
    rows = np.flatnonzero(allowed & (ids >= 0))
    if not len(rows):
        return np.full(len(wanted), -1, np.int64)
    rows = rows[np.argsort(ids[rows], kind="stable")]
    first = np.minimum(np.searchsorted(ids[rows], wanted, "left"), len(rows) - 1)
    several = np.searchsorted(ids[rows], wanted, "right") - first > 1
    found = (wanted >= 0) & (ids[rows[first]] == wanted) & ~several
    return np.where(found, rows[first], -1)


def operation_names(trace: Trace, found: Attribution) -> tuple[tuple[str, ...], Int32s]:
    """The operations of a trace, and the column that indexes them; -1 unknown.

    An operation goes by the name of the innermost operator, "aten::mm". Only
    `record_param_comms`, the same around every collective, gives way to the annotation in it that
    says which: "nccl:all_reduce".
    """
    spans = trace.spans
    shown = found.op.copy()
    named = names_matching(trace.names, _COLLECTIVE)[spans.name]
    recorded = names_matching(trace.names, _RECORDED_COLLECTIVE)[spans.name]
    inside = (found.op >= 0) & (found.annotation > found.op)
    inside[inside] = recorded[found.op[inside]] & named[found.annotation[inside]]
    shown[inside] = found.annotation[inside]
    name = spans.name[shown[shown >= 0]]
    used = used_names(name, len(trace.names))
    number = np.full(len(trace.names), -1, np.int32)
    number[used] = np.arange(len(used))
    column = np.full(len(shown), -1, np.int32)
    column[shown >= 0] = number[name]
    return tuple(trace.names[index] for index in used.tolist()), column


def with_operation_classes(trace: Trace, found: Attribution, kernel_class: Int8s) -> Int8s:
    """The classes, kernels launched by FSDP's own copies (`class_by_operation`) as COMM_PACK.

    Any operator or annotation around the launch counts, not only the innermost.

    Args:
        trace: The trace.
        found: What launched each record.
        kernel_class: (records,) int8, `KernelClass` by names.
    """
    spans = trace.spans
    classes = [class_by_operation(name) for name in trace.names]
    result = kernel_class.copy()
    open_ = np.flatnonzero(~np.isin(kernel_class, _CERTAIN))
    for told in {each for each in classes if each is not None}:
        of_name = np.array([each is told for each in classes])
        chosen = np.flatnonzero(of_name[spans.name] & (spans.kind != SpanKind.MODULE))
        around = Nesting(spans, chosen).innermost(found.thread[open_], found.at_ns[open_])
        result[open_[around >= 0]] = told
    return result
