"""Work of each device record: FLOPs of its operator, bytes of its copy."""

import re
from typing import Final

import numpy as np

from chopperd.model.arrays import Float64s, Int8s, Int64s
from chopperd.model.kinds import COPY_CLASSES, KernelClass
from chopperd.model.spec import DType
from chopperd.model.trace import DeviceRecords, RuntimeCalls, SpanKind, Trace
from chopperd.traces.kernels.flops import Work, work_of
from chopperd.traces.kernels.names import names_matching
from chopperd.traces.timeline.nesting import Nesting, beginnings

#: In names of kernels that multiply TF32 (cuBLAS, cuDNN, CUTLASS).
_TF32: Final = re.compile(r"tf32|s1688")
#: In names of kernels that multiply FP32: cuBLAS, cuDNN, CUTLASS's SIMT, Tensile's "S" type.
_FP32: Final = re.compile(r"sgemm|scudnn|simt|ffma|f32f32_f32f32|_S_?B_")


def record_work(
    trace: Trace, kernel_class: Int8s, op: Int64s, missing: Int64s
) -> tuple[Float64s, Int8s]:
    """(n,) float64 FLOPs of each record; (n,) int8 the `DType` that its operator multiplies.

    An operator's FLOPs are put on the longest of its matrix kernels, once for each call; all of
    its matrix kernels get the type. An operator's kernels are those that it launched
    itself, not through another operator, so that no work counts twice. The work of an operator with
    a launch without record is unknown: part of its time is not in the file.

    Args:
        trace: As read.
        kernel_class: (n,) int8, `KernelClass` of its records.
        op: (n,) int64, row in `Trace.spans` of the innermost operator around each record's launch;
            -1 unknown.
        missing: (m,) int64, indices of launches without a record.
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
    """The distinct works of operators, counted once each, and which each row has."""
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
    """Replace `FLOAT` by the type in the name of an operator's longest kernel, if it has one.

    Args:
        trace: As read.
        dtype: (n,) int8, changed in place.
        longest: (g,) int64, the longest kernel of each operator.
        group: (k,) int64, the operator of each of `rows`.
        rows: (k,) int64, matrix kernels of operators whose work is known.
    """
    floats = np.flatnonzero(dtype[rows] == DType.FLOAT)
    name = trace.records.name[longest[group[floats]]]
    for pattern, dtypes in ((_FP32, DType.FP32), (_TF32, DType.TF32)):
        dtype[rows[floats[names_matching(trace.names, pattern)[name]]]] = dtypes


def copied_bytes(
    records: DeviceRecords, calls: RuntimeCalls, call: Int64s, kernel_class: Int8s
) -> Int64s:
    """(records,) int64: bytes of each copy and fill; -1 unknown, and for kernels that compute.

    A call's size is that of its record only if it has just one.

    Args:
        records: The device records.
        calls: The runtime calls.
        call: (records,) int64, the call that launched each; -1 unlinked.
        kernel_class: (records,) int8, `KernelClass`; kernels that copy count as copies.

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
