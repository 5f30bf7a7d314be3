"""The classes of every kernel in the public traces, against the operators that launched them.

The operators are read from the files by plain JSON; what each runs was written down by hand.
"""

from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest

from chopperd.model.kinds import KERNEL_CLASSES, KernelClass
from chopperd.model.trace import RecordKind
from chopperd.traces.kernels.classes import kernel_class
from tests.integration.reference_reader import Row, read_json
from tests.integration.test_timeline_corpus import SHARES

pytestmark = pytest.mark.corpus

Events = Callable[[str], list[dict[str, Any]]]
PlainRows = Callable[[str], list[Row]]

GEMM, NORM, ELEMENTWISE = KernelClass.GEMM, KernelClass.NORM, KernelClass.ELEMENTWISE
REDUCTION, EMBEDDING = KernelClass.REDUCTION, KernelClass.EMBEDDING

#: What else than one class an operator runs: convolutions change layouts, biases are copied and
#: reduced, a loss scales, `_local_scalar_dense` copies a number.
SEVERAL: Final = {
    "aten::addmm": {GEMM, ELEMENTWISE},
    "aten::convolution_backward": {GEMM, ELEMENTWISE},
    "aten::cudnn_convolution": {GEMM, ELEMENTWISE},
    "aten::cudnn_convolution_backward_input": {GEMM, ELEMENTWISE},
    "aten::miopen_convolution": {GEMM, ELEMENTWISE},
    "vllm::moe_forward": {GEMM, ELEMENTWISE, REDUCTION},
}
ONE: Final = {
    GEMM: "mm bmm cudnn_convolution_backward_weight",
    NORM: "cudnn_batch_norm cudnn_batch_norm_backward native_batch_norm native_batch_norm_backward",
    ELEMENTWISE: "add add_ mul mul_ div sub neg pow rsqrt cos sin eq fill_ copy_ cat silu clamp_min"
    " clamp_min_ threshold_backward mse_loss mse_loss_backward arange masked_fill_",
    REDUCTION: "sum mean all _log_softmax _log_softmax_backward_data nll_loss_forward"
    " nll_loss_backward max_pool2d_with_indices max_pool2d_with_indices_backward",
    EMBEDDING: "index_select index gather",
    KernelClass.ATTENTION: "_flash_attention_forward",
    KernelClass.OPTIMIZER: "_foreach_add_ _foreach_mul_",
}
OTHERS: Final = {
    "record_param_comms": {KernelClass.COMM},
    "symm_mem::multimem_all_reduce_": {KernelClass.COMM},
    "_C::fused_add_rms_norm": {NORM},
    "_C::rms_norm": {NORM},
    "_C::rotary_embedding": {ELEMENTWISE},
    "_C::static_scaled_fp8_quant": {ELEMENTWISE},
    "_C_cache_ops::reshape_and_cache_flash": {ELEMENTWISE},
    "vllm::unified_attention_with_output": {KernelClass.ATTENTION},
    "triton_poi_fused__unsafe_view_add_3": {ELEMENTWISE},
    "triton_poi_fused__unsafe_view_mul_silu_2": {ELEMENTWISE},
    "triton_red_fused_add_mean_mul_pow_rsqrt_0": {NORM},
    "triton_red_fused__unsafe_view_add_mean_mul_pow_rsqrt_1": {NORM},
    "triton_poi_fused_add_bitwise_and_bitwise_not_bitwise_or_ge_lt_mul_sub_0": {ELEMENTWISE},
}
RUNS: Final = {
    **{f"aten::{op}": {runs} for runs, ops in ONE.items() for op in ops.split()},
    **SEVERAL,
    **OTHERS,
}

#: In this file External ids are no operator's.
WITHOUT_OPERATORS: Final = {"hta_v100_ddp_memory"}
FILES: Final = (*(set(SHARES) - WITHOUT_OPERATORS), "hta_a100_cuda_sync_multistream")


@pytest.fixture(scope="module")
def events(shared: Path) -> Events:
    """The events of the traces by name, each read once."""
    read = cache(lambda name: read_json(shared / "traces" / f"{name}.json.gz"))
    return lambda name: read(name)["traceEvents"]


def _external_id(event: dict[str, Any]) -> object:
    arguments = event.get("args") or {}
    return arguments.get("External id", arguments.get("external id"))


@pytest.mark.parametrize("name", sorted(FILES))
def test_kernels_have_a_class_of_what_their_operator_runs(events: Events, name: str) -> None:
    of_category = Counter(event.get("cat", "").lower() for event in events(name))
    operators = {
        _external_id(event): event["name"]
        for event in events(name)
        if event.get("cat") in {"cpu_op", "Operator"}
    }
    launched = [
        (operators[_external_id(event)], event["name"])
        for event in events(name)
        if event.get("cat", "").lower() == "kernel" and _external_id(event) in operators
    ]
    # 70 % is what H100's and MI300X's files link: the rest were launched before they began.
    assert len(launched) >= 0.69 * of_category["kernel"] > 0
    for operator, kernel in set(launched):
        assert kernel_class(kernel) in RUNS[operator], (operator, kernel)


def test_the_kernels_of_all_files_are_of_the_classes_that_were_counted_by_hand(
    plain_rows: PlainRows,
) -> None:
    names = {
        row.name for file in SHARES for row in plain_rows(file) if row.kind is RecordKind.KERNEL
    }
    counted = Counter(kernel_class(name).label for name in names)
    assert {label: counted[label] for label in sorted(counted)} == {
        "attention": 4,
        "comm": 6,
        "elementwise": 103,
        "embedding": 3,
        "gemm": 162,
        "norm": 19,
        "optimizer": 3,
        "reduction": 27,
    }
    assert set(counted) < {each.label for each in KERNEL_CLASSES}
