"""Counts of work against torch's own flop counter, operator by operator."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from chopperd.model.trace import Shapes
from chopperd.traces.kernels.flops import work_of

pytestmark = pytest.mark.torch

Shape = Sequence[int]
SIZES = st.integers(1, 40)


@pytest.fixture(scope="module")
def counted() -> Callable[..., int]:
    """What torch counts for an operator: (name, shapes and other inputs, shape of the output)."""
    flop_counter = pytest.importorskip("torch.utils.flop_counter")
    torch = pytest.importorskip("torch")

    def count(name: str, *inputs: object, out: object = None) -> int:
        formula = flop_counter.flop_registry[getattr(torch.ops.aten, name)]
        return int(formula(*inputs, out_val=out))

    return count


def ours(name: str, *inputs: object) -> float | None:
    """Our count of an operator, its inputs given as a profile has them."""
    tensors = [isinstance(each, tuple) for each in inputs]
    dims = [list(each) if isinstance(each, tuple) else [] for each in inputs]
    types = ["c10::BFloat16" if tensor else "" for tensor in tensors]
    values = ["" if isinstance(each, tuple) or each is None else str(each) for each in inputs]
    work = work_of(
        f"aten::{name}",
        Shapes(dims=json.dumps(dims), types=json.dumps(types), values=json.dumps(values)),
    )
    return None if work is None else work.flops


@given(b=SIZES, m=SIZES, k=SIZES, n=SIZES)
@settings(max_examples=50, deadline=None)
def test_matrix_products_count_as_torch_counts_them(
    counted: Callable[..., int], b: int, m: int, k: int, n: int
) -> None:
    mm = ((m, k), (k, n))
    bmm = ((b, m, k), (b, k, n))
    for name, inputs in (
        ("mm", mm),
        ("addmm", ((n,), *mm)),
        ("bmm", bmm),
        ("baddbmm", ((b, m, n), *bmm)),
        ("_scaled_mm", (*mm, (1,), (1,))),
    ):
        assert ours(name, *inputs) == counted(name, *inputs)


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[Any, ...]:
    """Inputs of a convolution of one to three dimensions whose kernel fits."""
    rank, groups = draw(st.integers(1, 3)), draw(st.sampled_from([1, 1, 2, 4]))
    small = st.lists(st.integers(1, 3), min_size=rank, max_size=rank)
    image = (draw(SIZES), groups * draw(st.integers(1, 8)), *draw(st.tuples(*[SIZES] * rank)))
    weight = (groups * draw(st.integers(1, 8)), image[1] // groups, *draw(small))
    return image, weight, draw(small), [each - 1 for each in draw(small)], draw(small), groups


@given(inputs=convolutions())
@settings(max_examples=50, deadline=None)
def test_convolutions_and_gradients_count_as_torch_counts_them(
    counted: Callable[..., int], inputs: tuple[Any, ...]
) -> None:
    image, weight, stride, padding, dilation, groups = inputs
    torch = pytest.importorskip("torch")
    reach = [(k - 1) * d for k, d in zip(weight[2:], dilation, strict=True)]
    assume(all(s + 2 * p > r for s, p, r in zip(image[2:], padding, reach, strict=True)))
    empty = (torch.empty(each, device="meta") for each in (image, weight))
    rest = (None, stride, padding, dilation, False, [0] * len(stride), groups)
    out = tuple(torch.convolution(*empty, *rest).shape)
    forward = counted("convolution", image, weight, *rest, out=out)
    assert ours("convolution", image, weight, *rest) == forward

    def backward(mask: list[bool]) -> tuple[float | None, int]:
        given = (out, image, weight, [0], *rest[1:], mask)
        return ours("convolution_backward", *given), counted(
            "convolution_backward", *given, out=[image, weight, None]
        )

    of_input, torchs_of_input = backward([True, False, False])
    of_weight, torchs_of_weight = backward([False, True, False])
    assert of_input == torchs_of_input == forward
    # Torch's count of this gradient passes over groups.
    assert of_weight == torchs_of_weight / groups == forward


@given(b=SIZES, group=st.integers(1, 4), kv=st.integers(1, 8), q=SIZES, k=SIZES, d=SIZES, v=SIZES)
@settings(max_examples=50, deadline=None)
def test_attention_that_is_not_causal_counts_as_torch_counts_it(
    counted: Callable[..., int], b: int, group: int, kv: int, q: int, k: int, d: int, v: int
) -> None:
    query, key, value = (b, group * kv, q, d), (b, kv, k, d), (b, kv, k, v)
    out = (b, group * kv, q, v)
    name = "_scaled_dot_product_flash_attention"
    assert ours(name, query, key, value, 0.0, False) == counted(name, query, key, value)
    backward = f"{name}_backward"
    inputs = (out, query, key, value, out, (b, group * kv, q))
    found = ours(backward, *inputs, None, None, q, k, 0.0, False)
    assert found == counted(backward, *inputs[:4])


def test_names_and_positions_are_those_of_this_torch() -> None:
    """That flags lie where they are looked for, by the schemas of this torch."""
    torch = pytest.importorskip("torch")
    for name, index, argument in (
        ("_flash_attention_forward", 8, "is_causal"),
        ("_flash_attention_forward", 11, "window_size_left"),
        ("_flash_attention_backward", 11, "is_causal"),
        ("_flash_attention_backward", 15, "window_size_left"),
        ("_scaled_dot_product_flash_attention", 4, "is_causal"),
        ("_scaled_dot_product_flash_attention_backward", 11, "is_causal"),
        ("_scaled_dot_product_efficient_attention", 6, "is_causal"),
        ("_scaled_dot_product_efficient_attention_backward", 11, "is_causal"),
        ("_efficient_attention_forward", 9, "custom_mask_type"),
        ("_efficient_attention_backward", 14, "custom_mask_type"),
        ("_scaled_dot_product_cudnn_attention", 6, "is_causal"),
        ("_scaled_dot_product_cudnn_attention_backward", 14, "is_causal"),
        ("_cudnn_attention_forward", 10, "is_causal"),
        ("_cudnn_attention_backward", 14, "is_causal"),
        ("convolution", 6, "transposed"),
        ("convolution_backward", 10, "output_mask"),
        ("cudnn_convolution", 3, "stride"),
        ("miopen_convolution", 4, "stride"),
        ("mkldnn_convolution", 4, "stride"),
        ("_conv_depthwise2d", 4, "stride"),
    ):
        schema = getattr(torch.ops.aten, name).default._schema
        assert schema.arguments[index].name == argument, name
