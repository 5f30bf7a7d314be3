"""Work of operators against numbers worked out by hand; `tests/integration` has torch's own."""

import json
import math
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chopperd.model.kinds import DType
from chopperd.model.trace import Shapes
from chopperd.traces.kernels.flops import _COUNTERS, Work, work_of

BF16 = "c10::BFloat16"


def work(
    name: str, tensors: Sequence[Sequence[int]], values: Sequence[str] = (), dtype: str = BF16
) -> Work | None:
    """The work of an operator of these tensors, then of these other inputs."""
    dims = [list(each) for each in tensors] + [[]] * len(values)
    types = [dtype if each else "" for each in tensors] + ["Scalar"] * len(values)
    texts = ["" for _ in tensors] + list(values)
    return work_of(
        name, Shapes(dims=json.dumps(dims), types=json.dumps(types), values=json.dumps(texts))
    )


def flops(name: str, tensors: Sequence[Sequence[int]], values: Sequence[str] = ()) -> float | None:
    """Its operations."""
    found = work(name, tensors, values)
    return None if found is None else found.flops


@pytest.mark.parametrize(
    ("name", "tensors", "expected"),
    [
        # Each of 3 x 5 results is 4 products and 4 sums.
        ("aten::mm", [[3, 4], [4, 5]], 120.0),
        ("aten::addmm", [[5], [3, 4], [4, 5]], 120.0),
        ("aten::addmm_", [[3, 5], [3, 4], [4, 5]], 120.0),
        ("aten::bmm", [[7, 3, 4], [7, 4, 5]], 840.0),
        ("aten::baddbmm", [[7, 3, 5], [7, 3, 4], [7, 4, 5]], 840.0),
        ("aten::addbmm", [[3, 5], [7, 3, 4], [7, 4, 5]], 840.0),
        ("aten::_scaled_mm", [[3, 4], [4, 5], [1], [1]], 120.0),
        ("aten::_int_mm", [[3, 4], [4, 5]], 120.0),
        ("aten::linear", [[2, 3, 4], [5, 4], [5]], 240.0),
        ("aten::matmul", [[2, 3, 4], [4, 5]], 240.0),
        ("aten::matmul", [[2, 3, 4], [2, 4, 5]], 240.0),
    ],
)
def test_a_matrix_product_counts_a_product_and_a_sum_for_each_term(
    name: str, tensors: list[list[int]], expected: float
) -> None:
    assert flops(name, tensors) == expected


CONV = [[10, 64, 56, 56], [64, 64, 3, 3], []]


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("aten::convolution", ["[1, 1]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1"]),
        ("aten::_convolution", ["[1, 1]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1", "False"]),
        ("aten::miopen_convolution", ["[1, 1]", "[1, 1]", "[1, 1]", "1", "False", "False"]),
        ("aten::mkldnn_convolution", ["[1, 1]", "[1]", "[1, 1]", "1"]),
    ],
)
def test_a_convolution_counts_its_kernel_for_each_output(name: str, values: list[str]) -> None:
    # Output 56 x 56 as the kernel of 3 is padded by 1: 10 x 64 x 56 x 56 of 64 x 9 terms.
    assert flops(name, CONV, values) == 2 * 10 * 64 * 56 * 56 * 64 * 9


def test_strides_padding_dilation_and_groups_shape_the_output() -> None:
    # Height (9 + 2*2 - 2*(3-1) - 1) // 2 + 1 = 5; width (8 + 0 - (3-1) - 1) // 3 + 1 = 2.
    values = ["[2, 0]", "[2, 3]", "[2, 1]", "3", "False", "False", "True"]
    found = flops("aten::cudnn_convolution", [[4, 6, 9, 8], [12, 2, 3, 3]], values)
    assert found == 2 * 4 * 12 * 5 * 2 * 2 * 9


def test_a_depthwise_convolution_counts_one_channel_an_output() -> None:
    values = ["[3, 3]", "", "[1, 1]", "[1, 1]", "[1, 1]"]
    found = flops("aten::_conv_depthwise2d", [[2, 8, 5, 5], [8, 1, 3, 3]], values)
    assert found == 2 * 2 * 8 * 25 * 9


def test_a_transposed_convolution_counts_its_kernel_for_each_input() -> None:
    values = ["[2]", "[0]", "[1]", "True", "[0]", "1"]
    found = flops("aten::convolution", [[2, 6, 10], [6, 4, 3], []], values)
    assert found == 2 * 2 * 6 * 10 * 4 * 3
    assert flops("aten::cudnn_convolution_transpose", [[2, 6, 10], [6, 4, 3]]) == found


@pytest.mark.parametrize(
    ("mask", "gradients"),
    [("[True, True, False]", 2), ("[False, True, True]", 1), ("[False, False, True]", 0)],
)
def test_a_convolutions_gradients_count_as_much_as_itself_each(mask: str, gradients: int) -> None:
    values = ["[0]", "[2, 2]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1", mask]
    tensors = [[10, 128, 28, 28], [10, 64, 56, 56], [128, 64, 3, 3]]
    once = 2 * 10 * 128 * 28 * 28 * 64 * 9
    assert flops("aten::convolution_backward", tensors, values) == once * gradients


HEADS_FIRST = [[2, 8, 100, 64]] * 3
HEADS_THIRD = [[2, 100, 8, 64]] * 3
#: Scores and their sums of values: for each of 2 x 8 x 100 x 100 pairs 2 x (64 + 64).
FORWARD = 2 * 8 * 100 * 100 * 2 * 128


@pytest.mark.parametrize(
    ("name", "tensors", "values"),
    [
        ("aten::_scaled_dot_product_flash_attention", HEADS_FIRST, ["0.", "{}", "False", ""]),
        (
            "aten::_flash_attention_forward",
            HEADS_THIRD,
            ["", "", "100", "100", "0.", "{}", "False", "0.125", "", "", "", ""],
        ),
        (
            "aten::_scaled_dot_product_efficient_attention",
            HEADS_FIRST,
            ["", "False", "0.", "{}", ""],
        ),
        (
            "aten::_scaled_dot_product_cudnn_attention",
            HEADS_FIRST,
            ["", "True", "0.", "{}", "False", ""],
        ),
        ("flash_attn::_flash_attn_forward", HEADS_THIRD, ["0.", "0.125", "{}", "-1", "-1", "0."]),
        ("aiter::mha_fwd", HEADS_THIRD, ["0.", "0.125", "{}", "-1", "-1", "True", "False"]),
    ],
)
def test_attention_counts_two_products_and_half_of_them_where_it_is_causal(
    name: str, tensors: list[list[int]], values: list[str]
) -> None:
    full = flops(name, tensors, [each.format("False") for each in values])
    causal = flops(name, tensors, [each.format("True") for each in values])
    assert (full, causal) == (FORWARD, FORWARD / 2)


def test_efficient_attention_tells_its_mask_by_a_number() -> None:
    values = ["", "", "", "100", "100", "0.", "{}", "True", "", ""]
    masks = ["0", "1", "2", ""]
    found = [
        flops(
            "aten::_efficient_attention_forward",
            HEADS_THIRD,
            [each.format(mask) for each in values],
        )
        for mask in masks
    ]
    assert found == [FORWARD, FORWARD / 2, FORWARD / 2, None]


def test_attentions_gradients_count_five_products() -> None:
    # Scores, gradients of scores, of values, of queries, of keys; depths 64 and, of values, 32.
    tensors = [[2, 8, 100, 32], [2, 8, 100, 64], [2, 8, 100, 64], [2, 8, 100, 32]]
    values = ["", "", "", "", "100", "100", "0.", "True", "", "", ""]
    found = flops("aten::_scaled_dot_product_flash_attention_backward", tensors, values)
    assert found == 2 * 8 * 100 * 100 / 2 * 2 * (3 * 64 + 2 * 32)


def test_grouped_heads_count_by_the_queries() -> None:
    tensors = [[2, 8, 100, 64], [2, 2, 100, 64], [2, 2, 100, 64]]
    found = flops("aten::_scaled_dot_product_flash_attention", tensors, ["0.", "False", "False"])
    assert found == FORWARD


@pytest.mark.parametrize(
    ("name", "tensors", "values"),
    [
        ("aten::add", [[3, 4], [3, 4]], []),
        ("aten::mm", [[3, 4], [5, 6]], []),
        ("aten::mm", [[3, 4]], []),
        ("aten::mm", [[3], [3]], []),
        ("aten::matmul", [[3], [3]], []),
        ("aten::linear", [[3], [3]], []),
        ("aten::cudnn_convolution_transpose", [[3], [3]], []),
        ("aten::cudnn_convolution_backward_input", [[3], [3], [3]], []),
        ("aten::mm", [[3, 4], [4, -5]], []),
        ("aten::mm", [[3, 2**50], [2**50, 5]], []),
        ("aten::cudnn_convolution", CONV[:2], []),
        ("aten::convolution", CONV, ["[1, 1]", "[1, 1]", "[1, 1]", "", "[0, 0]", "1"]),
        ("aten::convolution", [[1, 64, 1, 1], *CONV[1:]], ["[1, 1]"] + ["[0, 0]"] * 2),
        ("aten::convolution", CONV, ["[1]", f"[{10**400}]", "[1]", "False", "[0]", "1"]),
        ("aten::convolution_backward", [[1, 2, 3, 3]] * 3, ["[0]"] * 8),
        ("aten::_scaled_dot_product_flash_attention", HEADS_FIRST, ["0."]),
        # Sequences of several lengths, a window, and causal attention over unequal lengths.
        ("aten::_flash_attention_forward", [*HEADS_THIRD, [3], [3]], ["100", "100", "0.", "False"]),
        ("flash_attn::_flash_attn_forward", HEADS_THIRD, ["0.", "0.1", "False", "256", "0"]),
        (
            "aten::_scaled_dot_product_flash_attention",
            [[2, 8, 1, 64], *HEADS_FIRST[1:]],
            ["0.", "True"],
        ),
    ],
)
def test_what_is_not_certain_is_unknown(
    name: str, tensors: list[list[int]], values: list[str]
) -> None:
    assert work(name, tensors, values) is None


@pytest.mark.parametrize(
    ("text", "dtype"),
    [
        ("double", DType.FP64),
        ("float", DType.FLOAT),
        ("c10::Half", DType.FP16),
        (BF16, DType.BF16),
        ("c10::Float8_e4m3fnuz", DType.FP8),
        ("signed char", DType.INT8),
    ],
)
def test_the_type_is_that_of_the_inputs(text: str, dtype: DType) -> None:
    found = work("aten::mm", [[3, 4], [4, 5]], dtype=text)
    assert found == Work(flops=120.0, dtype=dtype)


@pytest.mark.parametrize("text", ["c10::complex<float>", "bool", ""])
def test_work_of_an_unknown_type_is_unknown(text: str) -> None:
    assert work("aten::mm", [[3, 4], [4, 5]], dtype=text) is None


def test_inputs_of_two_types_are_unknown() -> None:
    shapes = Shapes(dims="[[3,4],[4,5]]", types='["float","c10::Half"]', values='["",""]')
    assert work_of("aten::mm", shapes) is None


@pytest.mark.parametrize(
    "dims", ["", "[[3,4],[4,", "7", "[[3,4],[4,5.5]]", "[" * 5000, '["a","b"]']
)
def test_damaged_shapes_are_unknown(dims: str) -> None:
    assert work_of("aten::mm", Shapes(dims=dims, types=f'["{BF16}","{BF16}"]')) is None


@pytest.mark.parametrize("types", ["", "[[1],[2]]", "[7,8]", '["float"]', '{"a":1}', '["float",'])
def test_damaged_types_are_unknown(types: str) -> None:
    assert work_of("aten::mm", Shapes(dims="[[3,4],[4,5]]", types=types)) is None


@given(
    name=st.sampled_from(sorted(_COUNTERS)),
    dims=st.lists(st.lists(st.integers(-1, 3) | st.none(), max_size=5), max_size=5) | st.integers(),
    values=st.lists(st.sampled_from(["True", "1", "[1, 1]", "", "[", "-1"]) | st.none()),
)
@settings(max_examples=100, deadline=None)
def test_any_shapes_are_counted_or_unknown(name: str, dims: object, values: list[object]) -> None:
    shapes = Shapes(
        dims=json.dumps(dims), types=json.dumps(["c10::Half"] * 4), values=json.dumps(values)
    )
    found = work_of(name, shapes)
    assert found is None or 0 <= found.flops < math.inf
