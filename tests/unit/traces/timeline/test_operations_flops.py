"""Which record of an operator gets its work, on hand-made traces."""

import numpy as np
import pytest

from chopperd.model.kinds import DType, KernelClass
from chopperd.model.trace import Shapes, SpanKind, Trace
from chopperd.traces.timeline.layout import lay_out
from chopperd.traces.timeline.operations import record_work
from tests.trace_building import TraceBuilder

GEMM, ATTENTION, OTHER = KernelClass.GEMM, KernelClass.ATTENTION, KernelClass.OTHER
MM = Shapes(dims="[[3,4],[4,5]]", types='["c10::Half","c10::Half"]', values='["",""]')
FLOATS = Shapes(dims="[[3,4],[4,5]]", types='["float","float"]', values='["",""]')


def traced(kernels: list[tuple[str, int]], ops: list[tuple[str, Shapes | None]]) -> Trace:
    """A trace of kernels (name, duration), one after the other, and of operators."""
    builder = TraceBuilder()
    for index, (name, duration_ns) in enumerate(kernels):
        builder.record(name, 1000 * index, duration_ns)
    for index, (name, shapes) in enumerate(ops):
        builder.span(name, 1000 * index, 900, kind=SpanKind.OP, shapes=shapes)
    return builder.build()


def found(
    trace: Trace, classes: list[KernelClass], op: list[int]
) -> tuple[list[float | None], list[DType]]:
    """The work of each record, None unknown, and what it multiplies."""
    counted, matrix_dtype = record_work(
        trace, np.array(classes, np.int8), np.array(op, np.int64), np.empty(0, np.int64)
    )
    flops = [None if np.isnan(each) else float(each) for each in counted]
    return flops, [DType(each) for each in matrix_dtype]


def test_the_longest_matrix_kernel_of_an_operator_has_its_work() -> None:
    trace = traced([("a", 5), ("b", 9), ("c", 9), ("d", 20)], [("aten::mm", MM)])
    flops, dtype = found(trace, [GEMM, GEMM, ATTENTION, OTHER], [0, 0, 0, 0])
    assert flops == [None, 120.0, None, None]
    assert dtype == [DType.FP16, DType.FP16, DType.FP16, DType.NONE]


def test_each_call_of_an_operator_counts_once() -> None:
    trace = traced([("a", 5), ("a", 6), ("a", 7)], [("aten::mm", MM), ("aten::mm", MM)])
    flops, _ = found(trace, [GEMM] * 3, [0, 1, 1])
    assert flops == [120.0, None, 120.0]


def test_records_without_an_operator_shapes_or_known_work_have_none() -> None:
    ops = [("aten::mm", None), ("aten::mystery_mm", MM), ("aten::mm", MM)]
    trace = traced([("a", 5)] * 4, ops)
    flops, dtype = found(trace, [GEMM] * 4, [-1, 0, 1, 2])
    assert flops == [None, None, None, 120.0]
    assert dtype == [DType.NONE] * 3 + [DType.FP16]


def test_an_operator_without_a_matrix_kernel_gives_its_work_to_none() -> None:
    trace = traced([("a", 5)], [("aten::mm", MM)])
    assert found(trace, [OTHER], [0]) == ([None], [DType.NONE])


def test_an_operator_with_a_launch_that_left_no_record_has_unknown_work() -> None:
    builder = TraceBuilder()
    for index in range(2):
        builder.span("aten::mm", 1000 * index, 900, kind=SpanKind.OP, shapes=MM)
        builder.kernel("gemm", 1000 * index + 10, 1000 * index + 100, 50)
    builder.call("cudaLaunchKernel", 1500, correlation=77)
    (device,) = lay_out(builder.build()).devices
    assert device.flops[0] == 120.0
    assert np.isnan(device.flops[1])
    assert device.matrix_dtype.tolist() == [DType.FP16, DType.NONE]


@pytest.mark.parametrize(
    ("kernel", "dtype"),
    [
        ("sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize64x64x32_stage3_cublas", DType.TF32),
        ("cutlass_80_tensorop_s1688gemm_128x128_16x5_nn_align4", DType.TF32),
        ("sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize32x32x8_ffma_cublas", DType.FP32),
        ("cutlass_80_simt_sgemm_128x32_8x5_nn_align1", DType.FP32),
        ("volta_scudnn_128x64_relu_interior_nn_v1", DType.FP32),
        ("Cijk_Alik_Bljk_SB_Bias_AS_SAV_UserArgs_MT64x16x32_MI16x16x1", DType.FP32),
        ("Cijk_Ailk_Bljk_S_B_Bias_HA_S_SAV_UserArgs_MT16x16x128", DType.FP32),
        ("some_gemm", DType.FLOAT),
    ],
)
def test_the_longest_kernels_name_tells_fp32_from_tf32(kernel: str, dtype: DType) -> None:
    trace = traced([("helper", 1), (kernel, 5)], [("aten::mm", FLOATS)])
    assert found(trace, [GEMM, GEMM], [0, 0])[1] == [dtype, dtype]
