"""Find the operator and annotation that launched each device record, and its work in FLOPs.

Those around its launching call, on the call's thread. If the file lacks the call but the record has
an External id, the operator of that id launched it, provided that External ids of this file are ids
of operators: in some they repeat the correlation ids.
"""

import re
from math import sqrt
from typing import Final

import numpy as np
from msgspec import Struct

from chopperd.model.arrays import Bools, Float64s, Int8s, Int32s, Int64s
from chopperd.model.kinds import COPY_CLASSES, DType, KernelClass
from chopperd.model.trace import DeviceRecords, RuntimeCalls, SpanKind, Trace
from chopperd.traces.kernels.classes import class_by_operation
from chopperd.traces.kernels.flops import Work, work_of
from chopperd.traces.kernels.names import bounded, names_matching, used_names
from chopperd.traces.timeline.annotations import COLLECTIVE_MARK
from chopperd.traces.timeline.nesting import Moments, Nesting, beginnings

#: External ids are taken to be those of operators if, with 95 % confidence, at least this share is:
#: from 268 on that linked records confirm, if all do.
_VALID_SHARE: Final = 0.99
_ONE_SIDED_Z: Final = 1.6449

#: torch's record around every collective: an operator that says less than the annotation in it.
_RECORDED_COLLECTIVE: Final = re.compile(r"^record_param_comms$")

#: Copies and communication have their own class, independent of what launched them.
_CERTAIN: Final = (KernelClass.COMM, KernelClass.FUSED_COMM, KernelClass.MEMCPY, KernelClass.MEMSET)

#: In names of kernels that multiply TF32 (cuBLAS, cuDNN, CUTLASS).
_TF32: Final = re.compile(r"tf32|s1688")
#: In names of kernels that multiply FP32: cuBLAS, cuDNN, CUTLASS's SIMT, Tensile's "S" type.
_FP32: Final = re.compile(r"sgemm|scudnn|simt|ffma|f32f32_f32f32|_S_?B_")


class Attribution(Struct, frozen=True, kw_only=True):
    """The operator and annotation that launched each device record; -1 none or unknown."""

    # (records,) when and on which thread: at the start of the launching call, or of the operator
    # where only that is known; thread -1 where neither is
    launched: Moments
    op: Int64s  # (records,), the innermost operator around the launch, index in `Trace.spans`
    annotation: Int64s  # (records,), the innermost annotation, index in `Trace.spans`


def attribute(trace: Trace, call: Int64s) -> Attribution:
    """Find what launched each device record by its call, (records,); -1 unlinked."""
    spans = trace.spans
    launched = beginnings(trace.calls, call)
    by_id = _operator_by_id(trace, call, launched)
    known = by_id >= 0
    if known.any():
        launched = Moments(
            thread=np.where(known, spans.thread[by_id], launched.thread),
            at_ns=np.where(known, spans.start_ns[by_id], launched.at_ns),
        )
    op, annotation = (
        Nesting(spans, np.flatnonzero(spans.kind == kind)).innermost(launched)
        for kind in (SpanKind.OP, SpanKind.ANNOTATION)
    )
    return Attribution(launched=launched, op=np.where(known, by_id, op), annotation=annotation)


def _operator_by_id(trace: Trace, call: Int64s, launched: Moments) -> Int64s:
    """Return unlinked records' operators by External id: (records,) int64; -1 none or unsure."""
    spans, external_id = trace.spans, trace.records.external_id
    unlinked = (call < 0) & (external_id >= 0)
    if not unlinked.any() or not len(spans):
        return np.full(len(call), -1, np.int64)
    operator = _by_unique_id(spans.external_id, spans.kind == SpanKind.OP, external_id)
    # Each id once: the records of one operator are one witness.
    shown = np.flatnonzero((call >= 0) & (external_id >= 0))
    shown = shown[np.unique(external_id[shown], return_index=True)[1]]
    of, when = operator[shown], launched.at_ns[shown]
    right = (of >= 0) & (spans.thread[of] == launched.thread[shown])
    right &= (spans.start_ns[of] <= when) & (when < spans.end_ns[of])
    valid = _least_share(int(np.count_nonzero(right)), len(shown)) >= _VALID_SHARE
    return np.where(unlinked & valid, operator, -1)


def _least_share(right: int, shown: int) -> float:
    """Compute the lower end of the one-sided 95 % interval of a share; 0 if nothing is shown.

    Source: Wilson (1927), the score interval of a binomial share.
    """
    if not shown:
        return 0.0
    share, z2 = right / shown, _ONE_SIDED_Z**2 / shown
    spread = sqrt(share * (1 - share) * z2 + z2 * z2 / 4)
    return (share + z2 / 2 - spread) / (1 + z2)


def _by_unique_id(ids: Int64s, allowed: Bools, wanted: Int64s) -> Int64s:
    """Return the one allowed row with each wanted id: (n,) int64; -1 if none or several have it."""
    rows = np.flatnonzero(allowed & (ids >= 0))
    if not len(rows):
        return np.full(len(wanted), -1, np.int64)
    rows = rows[np.argsort(ids[rows], kind="stable")]
    first = np.minimum(np.searchsorted(ids[rows], wanted, "left"), len(rows) - 1)
    several = np.searchsorted(ids[rows], wanted, "right") - first > 1
    found = (wanted >= 0) & (ids[rows[first]] == wanted) & ~several
    return np.where(found, rows[first], -1)


def operation_names(trace: Trace, found: Attribution) -> tuple[tuple[str, ...], Int32s]:
    """Return a trace's operation names, and each record's index into them: int32; -1 unknown.

    That is the innermost operator, "aten::mm"; `record_param_comms`, the same around every
    collective, is replaced by the annotation in it: "nccl:all_reduce".
    """
    spans = trace.spans
    shown = found.op.copy()
    named = names_matching(trace.names, COLLECTIVE_MARK).take(spans.name)
    recorded = names_matching(trace.names, _RECORDED_COLLECTIVE).take(spans.name)
    inside = (found.op >= 0) & (found.annotation > found.op)
    inside[inside] = recorded[found.op[inside]] & named[found.annotation[inside]]
    shown[inside] = found.annotation[inside]
    name = spans.name[shown[shown >= 0]]
    used = used_names(name, len(trace.names))
    number = np.full(len(trace.names), -1, np.int32)
    number[used] = np.arange(len(used))
    column = np.full(len(shown), -1, np.int32)
    column[shown >= 0] = number[name]
    return tuple(bounded(trace.names[index]) for index in used.tolist()), column


def with_operation_classes(
    trace: Trace, found: Attribution, kernel_class: Int8s, settled: Bools
) -> Int8s:
    """Return the classes, those of kernels launched by FSDP's copies replaced by COMM_PACK.

    Any operator or annotation around the launch counts (`class_by_operation`). `settled`:
    (records,), classed by the site's own rules, which win.
    """
    spans = trace.spans
    classes = [class_by_operation(name) for name in trace.names]
    result = kernel_class.copy()
    open_ = np.flatnonzero(~(np.isin(kernel_class, _CERTAIN) | settled))
    for each_class in {each for each in classes if each is not None}:
        of_name = np.array([each is each_class for each in classes])
        chosen = np.flatnonzero(of_name.take(spans.name) & (spans.kind != SpanKind.MODULE))
        around = Nesting(spans, chosen).innermost(found.launched.of(open_))
        result[open_[around >= 0]] = each_class
    return result


def record_work(
    trace: Trace, kernel_class: Int8s, op: Int64s, missing: Int64s
) -> tuple[Float64s, Int8s]:
    """Return each record's FLOPs, (n,) float64, and the `DType` that is multiplied, (n,) int8.

    An operator's FLOPs are put on the longest of its matrix kernels, once for each call; all of
    them get the type, other records NaN and `NONE`. Its kernels are those that it launched itself,
    not through another operator. The work of an operator with a launch without record is unknown.

    `op`: (n,), row in `Trace.spans` of the innermost operator around each record's launch; -1
    unknown. `missing`: (m,), indices of launches without a record.
    """
    records, spans = trace.records, trace.spans
    flops = np.full(len(records), np.nan)
    dtype = np.full(len(records), DType.NONE, np.int8)
    matrix = (kernel_class == KernelClass.GEMM) | (kernel_class == KernelClass.ATTENTION)
    rows = np.flatnonzero(matrix & (op >= 0))
    rows = rows[spans.shapes[op[rows]] >= 0]
    if len(rows) and len(missing):
        operators = Nesting(spans, np.flatnonzero(spans.kind == SpanKind.OP))
        lacking = operators.innermost(beginnings(trace.calls, missing))
        rows = rows[~np.isin(op[rows], lacking)]
    if not len(rows):
        return flops, dtype
    # By operator, longest kernel first; of equal ones the first.
    duration_ns = records.end_ns[rows] - records.start_ns[rows]
    rows = rows[np.lexsort((-duration_ns, op[rows]))]
    work, which = _works(trace, op[rows])
    known = np.array([each is not None for each in work], bool)[which]
    rows, which, owner = rows[known], which[known], op[rows][known]
    dtype[rows] = np.array([each.dtype if each else DType.NONE for each in work], np.int8)[which]
    first = np.diff(owner, prepend=-1) != 0
    counts = np.array([each.flops if each else np.nan for each in work])
    flops[rows[first]] = counts[which[first]]
    _name_floats(trace, dtype, rows[first], np.cumsum(first) - 1, rows)
    return flops, dtype


def _works(trace: Trace, op: Int64s) -> tuple[list[Work | None], Int64s]:
    """Return the distinct works of operators, None unknown, and each row's index into them."""
    spans = trace.spans
    key = spans.name[op].astype(np.int64) * len(trace.shapes) + spans.shapes[op]
    distinct, which = np.unique(key, return_inverse=True)
    name, shapes = np.divmod(distinct, len(trace.shapes))
    work = [
        work_of(trace.names[one], trace.shapes[other])
        for one, other in zip(name.tolist(), shapes.tolist(), strict=True)
    ]
    return work, which


def _name_floats(trace: Trace, dtype: Int8s, longest: Int64s, group: Int64s, rows: Int64s) -> None:
    """Replace `FLOAT` in `dtype` by the type in the name of an operator's longest kernel."""
    floats = np.flatnonzero(dtype[rows] == DType.FLOAT)
    name = trace.records.name[longest[group[floats]]]
    for pattern, dtypes in ((_FP32, DType.FP32), (_TF32, DType.TF32)):
        dtype[rows[floats[names_matching(trace.names, pattern)[name]]]] = dtypes


def copied_bytes(
    records: DeviceRecords, calls: RuntimeCalls, call: Int64s, kernel_class: Int8s
) -> Int64s:
    """Return the bytes of each copy and fill: (records,) int64; -1 unknown or no copy or fill.

    A call's size is that of its record only if it has just one.

    Source: `args.bytes` of Kineto's copies; ROCm 6.2 writes none there, and `size` of its calls.
    """
    recorded = records.copied_bytes
    copies = np.isin(kernel_class, [int(each) for each in COPY_CLASSES])
    asked = np.flatnonzero((recorded < 0) & (call >= 0) & copies)
    if not len(asked):
        return recorded
    alone = np.bincount(call[call >= 0], minlength=len(calls))[call[asked]] == 1
    sizes = recorded.copy()
    sizes[asked[alone]] = calls.size_bytes[call[asked[alone]]]
    return sizes
