"""Work of the real traces' matrix kernels against plain Python over their JSON, and by hand.

The innermost operator comes from a stack for each thread, the work from formulas written down
here once more; classes of kernels are the report's own, as others test them.
"""

import ast
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path

import numpy as np
import pytest

from chopperd.model.report import ReportDocument
from chopperd.model.report_rows import Efficiency, Row
from chopperd.pipeline.reports import ReportOptions, report_files
from chopperd.traces.kernels.flops import work_of
from chopperd.traces.kernels.names import family
from chopperd.traces.read.reader import read_trace
from tests.integration import reference_reader as plain

pytestmark = pytest.mark.corpus

RESNET, B200 = "tracelens_mi300x_resnet_act_checkpoint", "tracelens_b200_vllm_eager"
QWEN_AMD, QWEN_NVIDIA = "tracelens_mi300x_qwen15_05b", "tracelens_h100_qwen15_05b"
MI250, TRITON = "hta_mi250_rocm62_minitoy", "tracelens_mi300x_compile_triton"


@dataclass(frozen=True, slots=True)
class Kernel:
    """A matrix kernel, and the operator that launched it; None where the file has none."""

    row: plain.Row
    op: int | None

    @property
    def ns(self) -> int:
        return self.row.end_ns - self.row.start_ns


@dataclass(frozen=True, slots=True)
class File:
    document: ReportDocument
    kernels: list[Kernel]
    ops: list[plain.Event]


Files = Callable[[str], File]


@pytest.fixture(scope="module")
def files(shared: Path, plain_rows: Callable[[str], list[plain.Row]]) -> Files:
    """The real traces by name: the report on each, its matrix kernels and its operators."""

    @cache
    def read(name: str) -> File:
        path = shared / "traces" / f"{name}.json.gz"
        document = report_files([path], samples=None, options=ReportOptions())
        (total,) = document.totals
        matrix = {each.name for each in total.families if each.class_ in {"gemm", "attention"}}
        events = [e for e in plain.read_json(path)["traceEvents"] if e.get("ph") == "X"]
        ops = [e for e in events if e.get("cat") == "cpu_op"]
        calls = [e for e in events if str(e.get("cat")).lower() in plain.CALLS]
        innermost = dict(operators_around(ops, calls))
        device = [e for e in events if str(e.get("cat", "")).lower() in plain.RECORD_KINDS]
        kernels = [
            Kernel(row, innermost.get(event["args"]["correlation"]))
            for row, event in zip(plain_rows(name), device, strict=True)
            if plain.is_compute(row) and family(row.name) in matrix
        ]
        return File(document, kernels, ops)

    return read


def operators_around(
    ops: list[plain.Event], calls: list[plain.Event]
) -> Iterable[tuple[int, int | None]]:
    """Of each call's correlation id the innermost operator, by a stack for each thread."""
    by_thread = defaultdict(list)
    for index, op in enumerate(ops):
        by_thread[op["pid"], op["tid"]].append((op["ts"], 0, -op["dur"], index))
    for index, call in enumerate(calls):
        by_thread[call["pid"], call["tid"]].append((call["ts"], 1, 0, index))
    for rows in by_thread.values():
        stack: list[int] = []
        for ts, is_call, _, index in sorted(rows):
            while stack and ops[stack[-1]]["ts"] + ops[stack[-1]]["dur"] <= ts:
                stack.pop()
            if is_call:
                yield calls[index]["args"]["correlation"], stack[-1] if stack else None
            else:
                stack.append(index)


def expected_flops(op: plain.Event) -> int | None:
    """The work of an operator; None where it is none of those that the corpus has."""
    dims: list[list[int]] = op["args"].get("Input Dims")
    values: list[str] = op["args"].get("Concrete Inputs")
    match op["name"]:
        case "aten::mm" | "aten::bmm":
            return 2 * prod(dims[0]) * dims[1][-1]
        case "aten::addmm":
            return 2 * prod(dims[1]) * dims[2][-1]
        case "aten::_flash_attention_forward":
            batch, length, heads, depth = dims[0]
            pairs = length * dims[1][1]
            assert values[8] in {"True", "False"}
            return 4 * batch * heads * depth * pairs // (2 if values[8] == "True" else 1)
        case "aten::miopen_convolution":
            padding, stride = ast.literal_eval(values[3]), ast.literal_eval(values[4])
            assert values[5] == "[1, 1]"
            out = [
                len(range(0, size + 2 * pad - kernel + 1, step))
                for size, pad, kernel, step in zip(
                    dims[0][2:], padding, dims[1][2:], stride, strict=True
                )
            ]
            return 2 * dims[0][0] * prod(out) * prod(dims[1])
        case "aten::convolution_backward":
            assert values[7] == "False"
            wanted: list[bool] = ast.literal_eval(values[10])
            return 2 * prod(dims[0]) * prod(dims[2][1:]) * sum(wanted[:2])
    return None


def efficiency(row: Row) -> Efficiency:
    assert row.efficiency is not None
    return row.efficiency


@pytest.mark.parametrize("name", [RESNET, QWEN_AMD, QWEN_NVIDIA, B200, MI250, TRITON])
def test_work_and_its_kernels_are_those_of_the_operators_around_launches(
    files: Files, name: str
) -> None:
    file = files(name)
    for row in (*file.document.steps, *file.document.totals):
        own = [k for k in file.kernels if row.step in {None, k.row.step}]
        work = {k.op: expected_flops(file.ops[k.op]) for k in own if k.op is not None}
        shaped = [k for k in own if k.op is not None and work[k.op] is not None]
        if not own:
            assert row.efficiency is None
            continue
        found = efficiency(row)
        assert found.flops == pytest.approx(sum(work[k] or 0 for k in work), rel=1e-12)
        assert found.shaped_time_ns == sum(k.ns for k in shaped)
        assert found.matrix_time_ns == sum(k.ns for k in own)


@pytest.mark.parametrize(
    ("name", "dtype", "peak_tflops"),
    [
        (RESNET, "bf16", 1307.4),
        (QWEN_AMD, "bf16", 1307.4),
        (QWEN_NVIDIA, "bf16", 989.4),
        (B200, "bf16", 2250.0),
        (TRITON, "bf16", 1307.4),
    ],
)
def test_rates_are_held_against_the_products_peak(
    files: Files, name: str, dtype: str, peak_tflops: float
) -> None:
    (total,) = files(name).document.totals
    found = efficiency(total)
    assert found.dtype == dtype
    assert found.spec_flops_per_s is not None
    assert found.spec_flops_per_s == pytest.approx(peak_tflops * 1e12)
    assert found.achieved_flops_per_s is not None
    assert found.utilization == pytest.approx(
        found.achieved_flops_per_s / found.spec_flops_per_s, rel=1e-3
    )
    assert 0 < (found.utilization or 0) < 1
    assert found.overhead_frequency is None
    assert found.reason is not None


def test_a_gpu_of_no_known_product_has_work_and_no_peak(files: Files) -> None:
    (total,) = files(MI250).document.totals
    found = efficiency(total)
    # addmm [5,128] x [128,128] and mm [128,5] x [5,128]: 163,840 each.
    assert (found.flops, found.dtype) == (327_680.0, "fp32")
    assert found.spec_flops_per_s is None
    assert found.reason == "no stated peak is known of AMD Radeon Graphics"


def test_a_compiled_models_work_is_what_hand_says(files: Files) -> None:
    """Eight sequences of 4096 tokens through one layer of width 2048, and no kernel else.

    Four matrices of [2048, 2048] and three of [2048, 8192], four times as much each: 16 times
    2 x 32768 x 2048 x 2048 = 274,877,906,944. Attention of 8 x 16 heads of 128, not causal:
    4 x 8 x 16 x 4096 x 4096 x 128 = 1,099,511,627,776.
    """
    (total,) = files(TRITON).document.totals
    found = efficiency(total)
    assert found.flops == 16 * 274_877_906_944 + 1_099_511_627_776
    # By the durations of the eight kernels, in us: three of 597.526, 557.346 and 564.477, the
    # attention's 3683.509, then 527.342, 1775.035, 1974.13 and 2033.699.
    assert found.shaped_time_ns == 11_713_064
    assert found.utilization == pytest.approx(5_497_558_138_880 / 1307.4e12 / 11.713064e-3)


@pytest.mark.parametrize(
    ("name", "operator", "by_hand"),
    [
        # 10 images of 64 x 56 x 56, kernels of 3 x 3, padded by 1: 2 x 10 x 64 x 56^2 x 64 x 9.
        (RESNET, "aten::miopen_convolution", 2_312_110_080),
        # Its gradients of input and weight.
        (RESNET, "aten::convolution_backward", 4_624_220_160),
        # 16 sequences of 559 tokens by [1024, 2816]: 2 x 8944 x 1024 x 2816.
        (QWEN_NVIDIA, "aten::mm", 51_581_550_592),
        # 16 x 16 heads of 64, causal: 4 x 16 x 16 x 64 x 559^2 / 2.
        (QWEN_NVIDIA, "aten::_flash_attention_forward", 10_239_377_408),
    ],
)
def test_operators_of_the_corpus_do_what_hand_says(
    shared: Path, name: str, operator: str, by_hand: int
) -> None:
    trace = read_trace(shared / "traces" / f"{name}.json.gz")
    shaped = np.flatnonzero(trace.spans.shapes >= 0).tolist()
    works = {
        work_of(operator, trace.shapes[trace.spans.shapes[row]])
        for row in shaped
        if trace.names[trace.spans.name[row]] == operator
    }
    assert None not in works
    assert by_hand in {work.flops for work in works if work is not None}
