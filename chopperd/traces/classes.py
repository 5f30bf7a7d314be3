"""What each device record does: one ordered table from kernel names to classes.

Convolutions (implicit GEMM, Winograd, their offset and filter helpers) are `GEMM`: the same units
do the same work. Softmax, losses, pooling, scans, sorting, top-k and expert routing are
`REDUCTION`. Copies between layouts and dtypes, and rotary embeddings, are `ELEMENTWISE`.
"""

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from chopperd.model.arrays import Int8s
from chopperd.model.classes import CopyDirection, KernelClass
from chopperd.model.trace import DeviceRecords, RecordKind
from chopperd.traces.families import bare_name
from chopperd.traces.names import used_names


class ClassRule(NamedTuple):
    """A kernel whose bare name the pattern is found in (in any case) has this class."""

    kernel_class: KernelClass
    pattern: str


#: Tried in order, on the name without return type and parameter list; the first that fits counts.
RULES: Final = (
    # Libraries whose whole business is communication.
    ClassRule(KernelClass.COMM, r"^(?:nccl|rccl|msccl)|nvshmem|^deep_ep::|DeepEP"),
    ClassRule(KernelClass.COMM_PACK, r"chunk_cat|split_with_sizes_copy|all_gather_copy_in"),
    # Inductor names a kernel after the operators fused into it; its kind says what it does.
    ClassRule(KernelClass.OPTIMIZER, r"^triton_(?:for_|.*(?:adam|addcdiv|foreach))"),
    ClassRule(
        KernelClass.NORM,
        r"^triton_(?:red|per)_fused_.*(?:layer_norm|rms_norm|batch_norm|group_norm|rsqrt)",
    ),
    ClassRule(KernelClass.EMBEDDING, r"^triton_\w+?_fused_.*embedding"),
    ClassRule(KernelClass.REDUCTION, r"^triton_(?:red|per|split_scan)_"),
    ClassRule(KernelClass.ELEMENTWISE, r"^triton_poi_"),
    ClassRule(KernelClass.ATTENTION, r"^triton_tem_fused_.*attention"),
    ClassRule(KernelClass.GEMM, r"^triton_tem_|^triton_(?:b?mm|addmm)"),
    # Communication inside a kernel that also computes, or that reads peers' memory itself.
    ClassRule(
        KernelClass.FUSED_COMM,
        r"multimem_|cross_device_reduce|(?:one|two)_?shot_?all_?reduce|all_?reduce_fusion"
        r"|(?:gemm|matmul|mm).*(?:all_?gather|reduce_?scatter|all_?reduce)"
        r"|(?:all_?gather|reduce_?scatter|all_?reduce).*(?:gemm|matmul)",
    ),
    # PyTorch's skeletons: the functor inside may be called anything.
    ClassRule(KernelClass.NORM, r"batch_?norm|layer_?norm|rms_?norm|group_?norm|instance_?norm"),
    ClassRule(
        KernelClass.OPTIMIZER, r"multi_tensor_apply|multi_tensor_\w*(?:adam|sgd|lamb|l2norm)"
    ),
    ClassRule(KernelClass.EMBEDDING, r"index_elementwise_kernel"),
    ClassRule(
        KernelClass.ELEMENTWISE, r"^(?:at::native::)?(?:\(anonymous namespace\)::)?\w*elementwise_"
    ),
    ClassRule(KernelClass.REDUCTION, r"^at::native::reduce_kernel"),
    # Everything else, the telling words first.
    ClassRule(
        KernelClass.OPTIMIZER,
        r"(?:^|[^a-z])(?:fused_?)?(?:adamw?|adagrad|rmsprop|lamb|lion|sgd)(?![a-z])"
        r"|(?:adam|lamb|sgd)\w*(?:functor|stage|math)|FusedAdam|kOptimizer(?:Static)?\d",
    ),
    ClassRule(
        KernelClass.ELEMENTWISE,
        r"rotary|(?:^|[_:])rope(?:$|[_:<])|(?:reshape|concat)_and_cache|kv_?cache|quantize|_quant_",
    ),
    ClassRule(
        KernelClass.NORM,
        r"(?:^|[_:])(?:bn_(?:fw|bw)|ln_(?:fwd|bwd))|RowwiseMoments|GammaBeta|ComputeFusedParams"
        r"|ComputeInternalGradients|::norm::",
    ),
    ClassRule(
        KernelClass.ATTENTION,
        r"flash_?(?:fwd|bwd|attn|attention|mla|prefill|decode)|flash::|fmha|attn|attention|sdpa"
        r"|(?:^|[_:])(?:mha|mla)_|Batch(?:Prefill|Decode)With|SinglePrefillWith|SingleDecodeWith",
    ),
    ClassRule(
        KernelClass.GEMM,
        r"gemm|gemv|^Cijk_|nvjet|xmma|matmul|split_?k_?reduce|splitk|(?:^|[_:])b?mm(?:$|[_:<])"
        r"|cublas|hipblas|^cutlass\w*::Kernel|wgmma|_tensorop_|epilogue::impl|grouped_mm|dot_kernel"
        r"|conv(?!ert|ers)|winograd|wgrad|dgrad|fprop|scudnn|im2col|col2im|^cask_"
        r"|^_ZN2ck.*(?:gemm|conv)|^ck(?:_tile)?::.*(?:gemm|conv)",
    ),
    ClassRule(
        KernelClass.EMBEDDING,
        r"embedding|compute_grad_weight|sum_and_scatter|index_?select|index_?(?:put|add|copy|fill|func)|indexing|gather|scatter",
    ),
    ClassRule(
        KernelClass.REDUCTION,
        r"reduc|softmax|log_?sum_?exp|cross_?entropy|nll|argm(?:ax|in)|top_?k|sort|scan|cumsum"
        r"|pool|histogram|radix|nonzero|unique|^cub::|^rocprim|^hipcub|moe::dev::(?:routing|finalize)"
        r"|routing|Welford|sum_|_sum|mean|norm",
    ),
    ClassRule(
        KernelClass.ELEMENTWISE,
        r"elementwise|pointwise|copy|catarray|transpose|permute|nchwtonhwc|nhwctonchw|fill|scale"
        r"|SubTensorOp|OpTensor|vectorized|unrolled|distribution|dropout|random|philox|silu|gelu"
        r"|swiglu|act_and_mul|activation|cast|convert|pad_?kernel|tril|triu|arange|where|lerp|roll"
        r"|flip",
    ),
)

_COPY_DIRECTIONS: Final = (
    (CopyDirection.H2D, re.compile(r"HtoD|HostToDevice|HtoA|Host -> Device")),
    (CopyDirection.D2H, re.compile(r"DtoH|DeviceToHost|AtoH|Device -> Host")),
    (CopyDirection.D2D, re.compile(r"")),
)


def record_classes(
    records: DeviceRecords, names: tuple[str, ...], extra_rules: Sequence[ClassRule] = ()
) -> Int8s:
    """The `KernelClass` of each record: (n,) int8.

    Copies and fills by their kind; kernels with collective metadata are communication; other
    kernels by name.

    Args:
        records: The device records.
        names: What their `name` column indexes.
        extra_rules: The site's own rules, tried before `RULES`.
    """
    classes = _compiled((*extra_rules, *RULES))
    of_name = np.full(len(names), KernelClass.OTHER, np.int8)
    for index in used_names(records.name[records.kind == RecordKind.KERNEL], len(names)):
        of_name[index] = _first_fit(classes, bare_name(names[index]))
    column = of_name[records.name]
    column[(records.collective >= 0) & (records.kind == RecordKind.KERNEL)] = KernelClass.COMM
    column[records.kind == RecordKind.MEMCPY] = KernelClass.MEMCPY
    column[records.kind == RecordKind.MEMSET] = KernelClass.MEMSET
    return column


def kernel_class(kernel_name: str) -> KernelClass:
    """The class of a kernel by its name alone."""
    return _first_fit(_compiled(RULES), bare_name(kernel_name))


def copy_directions(records: DeviceRecords, names: tuple[str, ...]) -> Int8s:
    """The `CopyDirection` of each record: (n,) int8; `NONE` for kernels.

    Source: Kineto's names, "Memcpy HtoD (Pinned -> Device)", and HIP's "CopyHostToDevice". Copies
    that name neither host are between or inside devices.
    """
    of_name = np.full(len(names), CopyDirection.NONE, np.int8)
    for index in used_names(records.name[records.kind == RecordKind.MEMCPY], len(names)):
        of_name[index] = next(
            direction for direction, words in _COPY_DIRECTIONS if words.search(names[index])
        )
    column = np.where(records.kind == RecordKind.MEMCPY, of_name[records.name], CopyDirection.NONE)
    column[records.kind == RecordKind.MEMSET] = CopyDirection.MEMSET
    return column.astype(np.int8)


def _compiled(rules: Sequence[ClassRule]) -> list[tuple[KernelClass, re.Pattern[str]]]:
    return [(rule.kernel_class, re.compile(rule.pattern, re.IGNORECASE)) for rule in rules]


def _first_fit(rules: list[tuple[KernelClass, re.Pattern[str]]], name: str) -> KernelClass:
    return next((fit for fit, pattern in rules if pattern.search(name)), KernelClass.OTHER)
