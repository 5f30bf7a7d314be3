"""Floating point operations of an operator, from its name and the shapes of its inputs.

A multiply and an add are two. Only products are counted, no bias, scale, softmax or mask. Counts
agree with `torch.utils.flop_counter` but for two: causal attention counts as half, as masked blocks
are skipped (as in FlashAttention's benchmarks and Chopper); and the weight gradient of a grouped
convolution counts no more than its forward. Everything uncertain is unknown: other operators,
sequences of several lengths, windows, causal attention over unequal lengths.
"""

from collections.abc import Callable, Sequence
from math import prod
from typing import Final, TypeAlias

import msgspec
from msgspec import Struct

from chopperd.model.kinds import DType
from chopperd.model.trace import Shapes

Dims: TypeAlias = tuple[int, ...]

_DTYPES: Final = {
    "double": DType.FP64,
    "float": DType.FLOAT,
    "c10::Half": DType.FP16,
    "c10::BFloat16": DType.BF16,
    "c10::Float8_e4m3fn": DType.FP8,
    "c10::Float8_e5m2": DType.FP8,
    "c10::Float8_e4m3fnuz": DType.FP8,
    "c10::Float8_e5m2fnuz": DType.FP8,
    "signed char": DType.INT8,
}
#: Beyond these a shape is damage; products of those below fit a float.
_MAX_RANK: Final = 8
_MAX_SIZE: Final = 2**40


class Work(Struct, frozen=True, kw_only=True):
    """An operator's floating point operations, and the type of what it multiplies."""

    flops: float
    dtype: DType


class _Unknown(Exception):  # noqa: N818 (no error: some work can't be known)
    """An operator's work is unknown."""


class _Inputs(Struct, frozen=True, kw_only=True):
    """The inputs of one operator, by position."""

    dims: Sequence[object]
    types: Sequence[object]
    values: Sequence[object]

    def shape(self, index: int) -> Dims:
        """Return the shape of an input; raise `_Unknown` if it is no tensor."""
        dims = self.dims[index] if index < len(self.dims) else None
        if not isinstance(dims, list):
            raise _Unknown
        _need(0 < len(dims) <= _MAX_RANK)
        _need(*(type(size) is int and 0 <= size <= _MAX_SIZE for size in dims))
        return tuple(dims)

    def need_absent(self, *indices: int) -> None:
        """Raise `_Unknown` if one of these inputs, which describe sequence lengths, is given."""
        _need(all(index >= len(self.dims) or self.dims[index] == [] for index in indices))

    def need_no_window(self, *indices: int) -> None:
        """Raise `_Unknown` if one of these inputs limits attention to a window."""
        _need(*(self._text(index) in {"", "-1", "None"} for index in indices))

    def flag(self, index: int) -> bool:
        """Return an input that is a bool; raise `_Unknown` if it is not recorded."""
        text = self._text(index)
        _need(text in {"True", "False"})
        return text == "True"

    def number(self, index: int) -> int:
        """Return an input that is a whole number >= 0; raise `_Unknown` if it is not recorded."""
        text = self._text(index)
        _need(text.isdecimal())
        return int(text)

    def numbers(self, index: int, count: int) -> Dims:
        """Return a whole number per dimension, a single one repeated; else raise `_Unknown`."""
        parts = self._list(index)
        _need(len(parts) in {1, count}, *(part.isdecimal() for part in parts))
        found = tuple(int(part) for part in parts)
        _need(max(found) <= _MAX_SIZE)
        return found * (count // len(parts))

    def flags(self, index: int) -> tuple[bool, ...]:
        """Return an input that is a list of bools; raise `_Unknown` if it is not recorded."""
        parts = self._list(index)
        _need(*(part in {"True", "False"} for part in parts))
        return tuple(part == "True" for part in parts)

    def dtype(self, *indices: int) -> DType:
        """Return the tensors' element type; raise `_Unknown` if they differ or it is unknown."""
        kinds = [self.types[index] for index in indices if index < len(self.types)]
        found = {_DTYPES.get(each, DType.NONE) for each in kinds if isinstance(each, str)}
        _need(len(kinds) == len(indices), len(found) == 1, DType.NONE not in found)
        return found.pop()

    def _text(self, index: int) -> str:
        text = self.values[index] if index < len(self.values) else ""
        return text if isinstance(text, str) else ""

    def _list(self, index: int) -> list[str]:
        text = self._text(index)
        _need(text.startswith("["), text.endswith("]"))
        return [part.strip() for part in text[1:-1].split(",")]


def work_of(name: str, shapes: Shapes) -> Work | None:
    """Compute the work of an operator's call, named as profiled ("aten::mm"); None if unknown."""
    counter = _COUNTERS.get(name) or _COUNTERS.get(name.removesuffix("_"))
    if counter is None:
        return None
    try:
        dims, types, values = (
            msgspec.json.decode(text or "[]", type=list[object])
            for text in (shapes.dims, shapes.types, shapes.values)
        )
        return counter(_Inputs(dims=dims, types=types, values=values))
    except (_Unknown, ValueError, RecursionError):
        return None


def _need(*conditions: bool) -> None:
    if not all(conditions):
        raise _Unknown


def _product(left: int, right: int) -> Callable[[_Inputs], Work]:
    """Make a counter for matrix products, or batches of them, of the inputs at two positions."""

    def count(inputs: _Inputs) -> Work:
        a, b = inputs.shape(left), inputs.shape(right)
        _need(len(a) == len(b), len(a) in {2, 3})
        _need(a[:-2] == b[:-2], a[-1] == b[-2])
        return Work(flops=2.0 * prod(a) * b[-1], dtype=inputs.dtype(left, right))

    return count


def _matmul(inputs: _Inputs) -> Work:
    """Count the work of `matmul`; unknown if it broadcasts, other than many rows to one matrix."""
    a, b = inputs.shape(0), inputs.shape(1)
    _need(len(b) >= 2, len(b) == 2 or a[:-2] == b[:-2])
    _need(a[-1] == b[-2])
    return Work(flops=2.0 * prod(a) * b[-1], dtype=inputs.dtype(0, 1))


def _linear(inputs: _Inputs) -> Work:
    a, weight = inputs.shape(0), inputs.shape(1)
    _need(len(weight) == 2)
    _need(a[-1] == weight[1])
    return Work(flops=2.0 * prod(a) * weight[0], dtype=inputs.dtype(0, 1))


def _convolution(
    stride: int, padding: int, dilation: int | None, transposed: int | None = None
) -> Callable[[_Inputs], Work]:
    """Make a counter for forward convolutions that have their parameters at these positions."""

    def count(inputs: _Inputs) -> Work:
        image, weight = inputs.shape(0), inputs.shape(1)
        rank = len(image) - 2
        _need(rank > 0, len(weight) == len(image))
        if transposed is not None and inputs.flag(transposed):
            return _transposed(inputs)
        out = [
            (size + 2 * pad - reach * (kernel - 1) - 1) // step + 1
            for size, kernel, step, pad, reach in zip(
                image[2:],
                weight[2:],
                (max(each, 1) for each in inputs.numbers(stride, rank)),
                inputs.numbers(padding, rank),
                (1,) * rank if dilation is None else inputs.numbers(dilation, rank),
                strict=True,
            )
        ]
        _need(weight[1] > 0, all(size > 0 for size in out))
        _need(image[1] % weight[1] == 0)
        flops = 2.0 * image[0] * prod(out) * prod(weight)
        return Work(flops=flops, dtype=inputs.dtype(0, 1))

    return count


def _transposed(inputs: _Inputs) -> Work:
    """Count a transposed convolution: an input element meets each output channel of its group."""
    image, weight = inputs.shape(0), inputs.shape(1)
    _need(len(image) == len(weight) > 2)
    _need(image[1] == weight[0])
    return Work(flops=2.0 * prod(image) * prod(weight[1:]), dtype=inputs.dtype(0, 1))


def _convolution_backward(mask: int, transposed: int | None = None) -> Callable[[_Inputs], Work]:
    """Make a counter for gradients of input and weight, each as much work as the forward."""

    def count(inputs: _Inputs) -> Work:
        gradient, image, weight = (inputs.shape(index) for index in range(3))
        _need(len(gradient) == len(image) == len(weight) > 2, gradient[0] == image[0])
        is_transposed = transposed is not None and inputs.flag(transposed)
        small, channels = (image, image[1]) if is_transposed else (gradient, gradient[1])
        _need(channels == weight[0])
        wanted = sum(inputs.flags(mask)[:2])
        flops = 2.0 * prod(small) * prod(weight[1:]) * wanted
        return Work(flops=flops, dtype=inputs.dtype(0, 1, 2))

    return count


def _input_gradient(inputs: _Inputs) -> Work:
    """Count the work of cuDNN's own operator, of 2021, for the gradient of the input."""
    gradient, weight = inputs.shape(1), inputs.shape(2)
    _need(len(gradient) == len(weight) > 2)
    _need(gradient[1] == weight[0])
    return Work(flops=2.0 * prod(gradient) * prod(weight[1:]), dtype=inputs.dtype(1, 2))


class _Attention(Struct, frozen=True):
    """Counter of an attention operator's work: positions of its inputs, and their layout."""

    causal: int  # position of the flag for causal masking; of the mask's type where `by_type`
    # Position of the query, which key and value follow; backward if above 0, as the gradient of the
    # output comes first
    query: int = 0
    heads: int = 1  # the dimension of the heads, before or after that of the sequence
    by_type: bool = False
    absent: tuple[int, ...] = ()  # positions of inputs that must not be given
    windows: tuple[int, ...] = ()  # positions of window sizes

    def __call__(self, inputs: _Inputs) -> Work:
        inputs.need_absent(*self.absent)
        inputs.need_no_window(*self.windows)
        tensors = tuple(range(self.query, self.query + 3))
        query, key, value = (inputs.shape(index) for index in tensors)
        _need(len(query) == len(key) == len(value) == 4)
        heads, along = self.heads, 3 - self.heads
        _need(query[0] == key[0] == value[0], query[3] == key[3], key[along] == value[along])
        _need(key[heads] == value[heads] > 0)
        _need(query[heads] % key[heads] == 0)
        pairs = query[along] * float(key[along])
        if inputs.number(self.causal) > 0 if self.by_type else inputs.flag(self.causal):
            _need(query[along] == key[along])
            pairs /= 2
        depth = 3 * query[3] + 2 * value[3] if self.query else query[3] + value[3]
        flops = 2.0 * query[0] * query[heads] * pairs * depth
        return Work(flops=flops, dtype=inputs.dtype(*tensors))


_COUNTERS: Final[dict[str, Callable[[_Inputs], Work]]] = {
    **dict.fromkeys(("aten::mm", "aten::bmm", "aten::_scaled_mm", "aten::_int_mm"), _product(0, 1)),
    **dict.fromkeys(
        ("aten::addmm", "aten::_addmm_activation", "aten::baddbmm", "aten::addbmm"), _product(1, 2)
    ),
    "aten::matmul": _matmul,
    "aten::linear": _linear,
    **dict.fromkeys(
        ("aten::convolution", "aten::_convolution", "aten::convolution_overrideable"),
        _convolution(3, 4, 5, 6),
    ),
    "aten::cudnn_convolution": _convolution(3, 2, 4),
    **dict.fromkeys(
        ("aten::cudnn_convolution_relu", "aten::miopen_convolution_relu"), _convolution(3, 4, 5)
    ),
    "aten::cudnn_convolution_add_relu": _convolution(5, 6, 7),
    **dict.fromkeys(
        (f"aten::{each}_convolution" for each in ("miopen", "miopen_depthwise", "mkldnn")),
        _convolution(4, 3, 5),
    ),
    **dict.fromkeys(
        ("aten::_conv_depthwise2d", "aten::conv_depthwise3d", "aten::slow_conv_dilated2d"),
        _convolution(4, 5, 6),
    ),
    **dict.fromkeys(
        ("aten::_slow_conv2d_forward", "aten::slow_conv3d_forward"), _convolution(4, 5, None)
    ),
    **dict.fromkeys(
        ("aten::cudnn_convolution_transpose", "aten::miopen_convolution_transpose"), _transposed
    ),
    "aten::convolution_backward": _convolution_backward(10, 7),
    "aten::_slow_conv2d_backward": _convolution_backward(6),
    "aten::cudnn_convolution_backward_input": _input_gradient,
    "aten::_scaled_dot_product_flash_attention": _Attention(4),
    "aten::_scaled_dot_product_flash_attention_backward": _Attention(11, 1, absent=(6, 7)),
    "aten::_flash_attention_forward": _Attention(
        8, heads=2, absent=(3, 4, 13, 15), windows=(11, 12)
    ),
    "aten::_flash_attention_backward": _Attention(11, 1, 2, absent=(6, 7), windows=(15, 16)),
    "aten::_scaled_dot_product_efficient_attention": _Attention(6),
    "aten::_scaled_dot_product_efficient_attention_backward": _Attention(11, 1),
    "aten::_efficient_attention_forward": _Attention(
        9, heads=2, by_type=True, absent=(4, 5, 12), windows=(13,)
    ),
    "aten::_efficient_attention_backward": _Attention(
        14, 1, 2, by_type=True, absent=(6, 7), windows=(18,)
    ),
    "aten::_scaled_dot_product_cudnn_attention": _Attention(6),
    "aten::_scaled_dot_product_cudnn_attention_backward": _Attention(14, 1, absent=(9, 10)),
    "aten::_cudnn_attention_forward": _Attention(10, absent=(4, 5)),
    "aten::_cudnn_attention_backward": _Attention(14, 1, absent=(9, 10)),
    "aten::_scaled_dot_product_fused_attention_overrideable": _Attention(5),
    "flash_attn::_flash_attn_forward": _Attention(5, heads=2, windows=(6, 7)),
    "flash_attn::_flash_attn_backward": _Attention(11, 1, 2, windows=(12, 13)),
    **dict.fromkeys(("aiter::mha_fwd", "aiter::fmha_v3_fwd"), _Attention(5, 0, 2, windows=(6, 7))),
    **dict.fromkeys(("aiter::mha_bwd", "aiter::fmha_v3_bwd"), _Attention(8, 1, 2, windows=(9, 10))),
}
