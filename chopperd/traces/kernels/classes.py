"""Class of each device record: kernels by words in their names (one table), copies by kind.

To add a kernel: add a word of its name in lower case to the rule of its library or kind, and the
kernel's real name with its origin to the tables under `tests/unit/traces/kernels/named`. The first
rule that matches counts, so a word comes after those that must win over it.

A name, in lower case and without what `names` drops, is matched with:

1. `LIBRARIES`, the qualified name with its template arguments: the library it comes from.
2. `COMMUNICATION`, its own name alone: a template argument may contain "all reduce" of a block.
3. `WORDS`, its own name, then the whole: in `reduce_kernel<..., softmax ...>` the first says what
   the kernel does, in `device_kernel<flash::...>` only the arguments do.

What the classes include: convolutions (implicit GEMM, Winograd, their offset and
filter helpers) are `GEMM`, as the same units do the same work; so are the experts' products of a
mixture. Linear attention and chunked state-space scans, which replace attention, are
`ATTENTION`. Softmax, losses, pooling, scans, sorting, sampling and expert routing are `REDUCTION`.
Copies between layouts and dtypes, quantisation, rotary embeddings and writes to a KV cache are
`ELEMENTWISE`. Gathers and scatters by an index are `EMBEDDING`. What only moves data between GPUs
is `COMM`, also where it adds them up on the way or applies a norm to the sum (all-reduces over
symmetric memory, custom all-reduces of serving engines): `FUSED_COMM` has a GEMM in it. Kernels
that a runtime copies and fills with are `MEMCPY` and `MEMSET`.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np

from chopperd.model.arrays import Bools, Int8s
from chopperd.model.kinds import CopyDirection, KernelClass
from chopperd.model.trace import DeviceRecords, RecordKind
from chopperd.traces.kernels.names import bare_name, own_name, used_names

#: A site's own expressions are matched against no more of a name, which bounds slow ones.
MATCHED_LENGTH: Final = 256

_LONG_NUMBER: Final = re.compile(r"\d\d+")
_UNCLASSED: Final = np.int8(-1)

_OPERATION: Final = re.compile(
    r"^fsdp::(?:all_gather_copy_(?:in|out)|split_with_sizes_copy|chunk_cat|copy_)", re.IGNORECASE
)

_COPY_DIRECTIONS: Final = (
    (CopyDirection.H2D, re.compile(r"HtoD|HostToDevice|HtoA|Host -> Device")),
    (CopyDirection.D2H, re.compile(r"DtoH|DeviceToHost|AtoH|Device -> Host")),
    (CopyDirection.D2D, re.compile(r"")),
)

_Compiled = list[tuple[KernelClass, re.Pattern[str]]]


class ClassRule(NamedTuple):
    """The class of kernels whose name matches a regular expression."""

    kernel_class: KernelClass
    pattern: str


#: Found in the qualified name with its template arguments.
LIBRARIES: Final = (
    # NCCL, RCCL, MSCCL, MSCCL++: ncclDevKernel_*, ncclSymDevKernel_*, mscclpp::collective::*
    ClassRule(KernelClass.COMM, r"^(?:nccl|rccl|msccl)"),
    # GEMMs that wait for or send their tiles: torch's AsyncMM, Flux, CUTLASS's distributed one
    ClassRule(
        KernelClass.FUSED_COMM,
        r"asyncinputscheduler|bytedance::flux::|cutlass::distributed|distributedgemm",
    ),
    # expert parallelism: DeepEP and its descendants, MORI, UCCL, pplx; NVSHMEM and rocSHMEM
    ClassRule(
        KernelClass.COMM,
        r"(?:^|::)(?:deep_ep|hybrid_ep|dpsk::ep|mori|uccl|nixl|pplx|dlslime|quickreduce|symm_mem)::"
        r"|(?:^|::)(?:inter|intra)node(?:_ll)?::(?:dispatch|combine|\w*notify|get_dispatch)"
        r"|^\w*(?:nv|roc)shmem",
    ),
    # FSDP2's copies into and out of its buffers, ATen's kernels and Inductor's
    ClassRule(KernelClass.COMM_PACK, r"chunk_cat|split_with_sizes_copy|all_gather_copy_(?:in|out)"),
    # Inductor names a kernel after the operators fused into it; its kind says what it does.
    ClassRule(KernelClass.OPTIMIZER, r"^triton_(?:for_(?!.*_copy)|\w*(?:adam|addcdiv))"),
    # Inductor's reductions of norms, also those spelled out in a model
    ClassRule(
        KernelClass.NORM,
        r"^triton_(?:red|per|mix)_fused_\w*(?:layer_norm|rms_norm|batch_norm|group_norm|rsqrt)",
    ),
    ClassRule(KernelClass.EMBEDDING, r"^triton_[a-z]+_fused_\w*embedding"),
    ClassRule(KernelClass.ATTENTION, r"^triton_tem_fused_\w*(?:attention|flex)"),
    ClassRule(KernelClass.GEMM, r"^triton_(?:tem_|b?mm|addmm)"),
    ClassRule(KernelClass.REDUCTION, r"^triton_(?:red|per|mix|split_scan)_"),
    ClassRule(KernelClass.ELEMENTWISE, r"^triton_poi_"),
    # XLA's and TVM's fusions are named after what they were fused of; a reduction rules its loop.
    # XLA's gemm_fusion_dot_*, TVM's products
    ClassRule(KernelClass.GEMM, r"^gemm_fusion|^tvmgen_\w*_(?:dense|(?:batch_)?matmul|conv[123]d)"),
    ClassRule(KernelClass.NORM, r"^tvmgen_\w*_(?:batch|layer|group|instance|l2|rms)_norm"),
    ClassRule(
        KernelClass.REDUCTION,
        r"^(?:input|loop)_\w*reduce(?!_precision)\w*fusion"
        r"|^tvmgen_\w*_(?:softmax|\w*pool\dd|mean|sum|argm(?:ax|in)|topk|sort|cumsum)",
    ),
    ClassRule(
        KernelClass.EMBEDDING,
        r"^(?:input|loop)_\w*(?:gather|scatter)\w*fusion|^tvmgen_\w*_(?:take|gather|scatter)",
    ),
    # XLA's loops over elements, TVM
    ClassRule(KernelClass.ELEMENTWISE, r"^(?:input|loop)_\w*fusion|^tvmgen_\w*fused_"),
    # HIP's copies and fills by kernel
    ClassRule(KernelClass.MEMCPY, r"^__amd_rocclr_copy"),
    ClassRule(KernelClass.MEMSET, r"^__amd_rocclr_fill"),
    # PyTorch's skeletons: the functor inside may be called anything.
    # ATen's norms, also those that are pieced together from skeletons
    ClassRule(KernelClass.NORM, r"^at::native::.*(?:batch|layer|group|instance|rms)_?norm"),
    ClassRule(KernelClass.ELEMENTWISE, r"multi_tensor_apply_kernel<.*copyfunctor"),
    # _foreach_*, apex and Transformer Engine
    ClassRule(KernelClass.OPTIMIZER, r"multi_tensor_"),
    # ATen's index, gather and scatter
    ClassRule(
        KernelClass.EMBEDDING, r"^(?:at::native::)?\w*(?:index|scatter_gather)_elementwise_kernel"
    ),
    ClassRule(KernelClass.ELEMENTWISE, r"^(?:at::native::)?\w*elementwise_kernel"),
    ClassRule(KernelClass.REDUCTION, r"^at::native::reduce_kernel"),
)

#: Found in a kernel's own name.
COMMUNICATION: Final = (
    # GEMMs fused with a collective: Triton-distributed, TileLink, TensorRT-LLM and others
    ClassRule(
        KernelClass.FUSED_COMM,
        r"(?:gemm|matmul|(?:^|_)b?mm)\w*?"
        r"(?:all_?gather|reduce_?scatter|all_?reduce|all_?to_?all|all2all)"
        r"|(?:all_?gather|reduce_?scatter|all_?reduce|all_?to_?all|all2all)\w*(?:gemm|matmul|_mm)"
        r"|(?:^|_)(?:ag|a2a)_(?:moe_)?(?:group_)?gemm|gemm_(?:rs|ar|ag)(?:$|_)|consumer_\w*gemm"
        r"|gemm_notify",
    ),
    # torch's symmetric memory, all-reduces of vLLM, SGLang, AITER, TensorRT-LLM and FlashInfer,
    # Transformer Engine's user buffers, TensorRT-LLM's moeA2A*, Triton-distributed
    ClassRule(
        KernelClass.COMM,
        r"multimem|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|all2all"
        r"|cross_device_reduce|a2a|lamport|userbuffers|ep_?(?:dispatch|combine)(?:intra|inter)"
        r"|(?:put|wait)_signal|barrier_all_|barrier_kernel|exchangesplitandoffset"
        r"|(?:dispatch|combine)_(?:token|kernel_v\d)|_p2p_for_|^_forward_(?:pull|push)_"
        r"|get_ag_splits",
    ),
)

#: Found in a kernel's own name, else in the whole.
WORDS: Final = (
    # ATen, cuDNN, MIOpen, CK, AITER, apex, Transformer Engine, vLLM, Liger
    ClassRule(
        KernelClass.NORM,
        r"(?:batch|layer|rms|group|instance|l2|weight)_?norm"
        r"|(?:^|[_:])(?:bn_(?:fw|bw)|ln_(?:fwd|bwd))"
        r"|rowwisemoments|gammabeta|compute(?:backward)?fusedparams|computeinternalgradients"
        r"|(?:^|_)(?:fused_)?rms_|norm_rope|::norm(?:alization)?::|cucomputegradinput",
    ),
    # ATen and FBGEMM, whose backward kernels carry their optimizer's name
    ClassRule(
        KernelClass.EMBEDDING,
        r"(?<!rotary_)(?<!rotary)embedding(?!s?_rope)|compute_grad_weight|sum_and_scatter"
        r"|krn_partial",
    ),
    # fused optimizers of apex, DeepSpeed and bitsandbytes
    ClassRule(
        KernelClass.OPTIMIZER,
        r"(?:^|[^a-z])(?:fused_?)?(?:adamw?|adagrad|rmsprop|lamb|lion|sgd)(?![a-z])"
        r"|(?:adam|lamb|sgd)\w*(?:functor|stage|math)|fusedadam|k(?:precondition)?optimizer",
    ),
    # layouts, images
    ClassRule(KernelClass.ELEMENTWISE, r"repack|upsampl|interpolat|grid_?sampl"),
    # FlashAttention, cuDNN, xformers, FlashInfer, TensorRT-LLM, AITER, AOTriton, FlexAttention
    ClassRule(
        KernelClass.ATTENTION,
        r"flash_?(?:fwd|bwd|attn|attention|mla|prefill|decode)|flash::|fmha|attn|attention|sdpa"
        r"|batch(?:prefill|decode|mla|attention)|single(?:prefill|decode)with|mergestates?kernel"
        r"|dot_do_o|convert_dq|mqa_logits|gqa_(?:sparse|fwd)|fwd_(?:grouped_)?kernel_stage[12]"
        r"|(?:^|_)bwd_(?:kernel_(?:dk_?dv|dq|fuse)|preprocess)",
    ),
    # rotary embeddings and writes to a KV cache
    ClassRule(
        KernelClass.ELEMENTWISE,
        r"rotary|rope(?:$|[_:<]|[a-z]*kernel)|(?:reshape|concat)_and_cache|kv_?(?:cache|buffer)",
    ),
    # AITER's paged attention and MLA, fla's linear attention, Mamba's scans, TE's ragged heads
    ClassRule(
        KernelClass.ATTENTION,
        r"(?:^|[_:])(?:mha|mla|mqa)_|(?:^|::)pa_[a-z]*\d|delta_rule|linear_attn"
        r"|chunk_(?:scan|state|scaled_dot|(?:\w*_)?(?:fwd|bwd))|recompute_w_u|fused_recurrent|_nsa_"
        r"|selective_scan|state_passing|(?:^|::)thd_",
    ),
    # cuBLAS, CUTLASS, Tensile, hipBLASLt, CK, AITER, DeepGEMM, Marlin, experts' products
    ClassRule(
        KernelClass.GEMM,
        r"gemm(?!a(?:_|\d|$))|gemv|^cijk_|nvjet|xmma|matmul|flatmm|split_?k_?reduce|splitk"
        r"|(?:^|[_:])b?mm(?:$|[_:<])"
        r"|cublas|hipblas|rocblas|wgmma|_tensorop_|epilogue::impl|grouped_mm|dot_kernel|wvsplit"
        r"|fmoe|fused_moe|(?:fused|moe)_experts|moe_?stage|moe_?[12]_|mfma_moe|marlin|machete"
        r"|lora_(?:shrink|expand)|[bs]gmv|tinygemm|mul_mat",
    ),
    # convolutions and recurrent layers of cuDNN, MIOpen and CUTLASS
    ClassRule(
        KernelClass.GEMM,
        r"conv(?!ert|ers)|winograd|wgrad|dgrad|fprop|\dcudnn_|scudnn|im2(?:d2)?col|col2im"
        r"|^cask_|fft2d_"
        r"|^cutlass(?:3x)?_|^cutlass\w*::(?:device_)?kernel"
        r"|(?:^|::)(?:rnn|lstm|gru)_(?!cell|elementwise)",
    ),
    # also those that do more than that
    ClassRule(
        KernelClass.ELEMENTWISE,
        r"quant|cast_?transpose|act_and_mul|(?:lstm|gru)_(?:cell|elementwise)",
    ),
    # before gathers: gatherTopK selects
    ClassRule(
        KernelClass.REDUCTION,
        r"top_?k|sort|radix|softmax|rout(?:e_|er|ing)|moe_?(?:align|sum|fused_gate)|expert",
    ),
    # ATen and serving engines
    ClassRule(
        KernelClass.EMBEDDING,
        r"index_?select|index_?(?:put|add|copy|fill|func)|indexing|gather|scatter",
    ),
    # ATen, CUB, rocPRIM, TensorRT-LLM, sampling of serving engines
    ClassRule(
        KernelClass.REDUCTION,
        r"reduc|log_?sum_?exp|cross_?entropy|nll|loss|argm(?:ax|in)|scan|cumsum|cumprod|pool"
        r"|histogram|nonzero|unique|^cub::|^rocprim|^hipcub|moe::dev::finalize|sampl|multinomial"
        r"|welford|sum_|_sum|mean|norm|amax|absmax|bincount|gating|segment",
    ),
    # everything that does one thing to each element
    ClassRule(
        KernelClass.ELEMENTWISE,
        r"element_?wise|element_mul|pointwise|unary_?kernel|copy|catarray|transpose|permute"
        r"|nchwtonhwc|nhwctonchw|fill|scale|scal_"
        r"|subtensorop|op1?d?tensor|vectorized|unrolled|distribution|dropout|random|philox|silu"
        r"|gelu|swiglu|geglu|gated|activation|cast|convert|pad_?kernel|tril|triu|arange|where|lerp"
        r"|roll|flip|swizzle|parallel_?for|slot_mapping",
    ),
)


def record_classes(
    records: DeviceRecords, names: tuple[str, ...], extra_rules: Sequence[ClassRule] = ()
) -> tuple[Int8s, Bools]:
    """Return each record's `KernelClass`, (n,) int8, and whether a site rule gave it, (n,) bool.

    Copies and fills are classed by their kind, kernels by `extra_rules`, the site's own, found in
    the first `MATCHED_LENGTH` characters of their qualified name in any case; else those with
    collective metadata are communication, and the built-in table classes the rest.
    """
    own_rules, table = _compiled(extra_rules, re.IGNORECASE), _Table()
    by_site = np.full(len(names), _UNCLASSED, np.int8)
    by_table = np.full(len(names), KernelClass.OTHER, np.int8)
    is_kernel = records.kind == RecordKind.KERNEL
    for index in used_names(records.name[is_kernel], len(names)):
        bare = bare_name(names[index])
        ours = _first_fit(own_rules, bare[:MATCHED_LENGTH])
        by_site[index] = _UNCLASSED if ours is None else ours
        by_table[index] = table.kernel_class(bare)
    site_column = by_site[records.name]
    is_sites: Bools = is_kernel & (site_column != _UNCLASSED)
    column = by_table[records.name]
    column[records.collective >= 0] = KernelClass.COMM
    column[is_sites] = site_column[is_sites]
    column[records.kind == RecordKind.MEMCPY] = KernelClass.MEMCPY
    column[records.kind == RecordKind.MEMSET] = KernelClass.MEMSET
    return column, is_sites


def kernel_class(kernel_name: str) -> KernelClass:
    """Return the class of a kernel by its name alone, from the built-in table."""
    return _Table().kernel_class(bare_name(kernel_name))


def class_by_operation(operation: str) -> KernelClass | None:
    """Return the class of all kernels that an operator or annotation launches; None for most.

    FSDP2's copies run ordinary kernels. Any of its operators around the launch counts, not the
    innermost alone (`fsdp::all_gather_copy_in` launches through `aten::_foreach_copy_`).

    Source: operators and annotations of FSDP2 as torch 2.13 records them.
    """
    return KernelClass.COMM_PACK if _OPERATION.search(operation) else None


def copy_directions(records: DeviceRecords, names: tuple[str, ...]) -> Int8s:
    """Return the `CopyDirection` of each record: (n,) int8; `NONE` for kernels.

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


class _Table(dict[str, KernelClass]):
    """The built-in table, compiled, and the classes of the names asked so far."""

    def __init__(self) -> None:
        super().__init__()
        tables = (LIBRARIES, COMMUNICATION, WORDS)
        self._libraries, self._communication, self._words = map(_compiled, tables)

    def kernel_class(self, bare: str) -> KernelClass:
        # Generated kernels differ in numbers of several digits, which no rule contains.
        return self[_LONG_NUMBER.sub("00", bare.lower())]

    def __missing__(self, whole: str) -> KernelClass:
        own = own_name(whole)
        asked = [(self._libraries, whole), (self._communication, own), (self._words, own)]
        if own != whole:
            asked.append((self._words, whole))
        fits = (_first_fit(rules, text) for rules, text in asked)
        found = next((fit for fit in fits if fit is not None), KernelClass.OTHER)
        self[whole] = found
        return found


def _compiled(rules: Iterable[ClassRule], flags: int = 0) -> _Compiled:
    return [(rule.kernel_class, re.compile(rule.pattern, flags)) for rule in rules]


def _first_fit(rules: _Compiled, text: str) -> KernelClass | None:
    return next((fit for fit, pattern in rules if pattern.search(text)), None)
