"""Recipes of the kernels of a simulated training job: names, classes, how they use the device."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from chopperd.model.kinds import KernelClass
from chopperd.simulation.presets import Runtime

Dims = tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One kind of kernel."""

    kernel_class: KernelClass
    op: str  # the operator that launches it
    cuda: str  # its name on either runtime
    rocm: str
    grid: Dims  # launch dimensions
    block: Dims
    activity: float  # switching activity while it runs, 1 for a dense GEMM
    clocked: float  # share of its time at the highest clock that scales with the clock

    def name(self, runtime: Runtime) -> str:
        """Return the kernel's name as a trace of this runtime shows it."""
        return self.cuda if runtime == "cuda" else self.rocm


_ANONYMOUS: Final = "at::native::(anonymous namespace)::"
#: RCCL has one kernel for all collectives.
_RCCL: Final = "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)"
_PLAIN: Final = ((4096, 1, 1), (256, 1, 1), 0.4, 0.1)
#: Grid, block, activity and clocked share of the kernels of a class.
_BY_CLASS: Final[Mapping[KernelClass, tuple[Dims, Dims, float, float]]] = {
    KernelClass.GEMM: ((132, 1, 1), (384, 1, 1), 1.0, 0.93),
    KernelClass.ATTENTION: ((64, 32, 2), (128, 1, 1), 0.86, 0.88),
    KernelClass.NORM: ((8192, 1, 1), (32, 16, 1), 0.5, 0.2),
    KernelClass.ELEMENTWISE: ((8192, 1, 1), (128, 1, 1), 0.45, 0.12),
    KernelClass.EMBEDDING: _PLAIN,
    KernelClass.REDUCTION: _PLAIN,
    KernelClass.OPTIMIZER: ((320, 1, 1), (512, 1, 1), 0.42, 0.1),
    KernelClass.COMM_PACK: ((1056, 9, 1), (1024, 1, 1), 0.4, 0.1),
    KernelClass.MEMCPY: ((0, 0, 0), (0, 0, 0), 0.12, 0.0),
    KernelClass.COMM: _PLAIN,
}


def _recipe(
    kernel_class: KernelClass,
    op: str,
    cuda: str,
    rocm: str | None = None,
    *,
    width: int | None = None,
    clocked: float | None = None,
) -> Recipe:
    """Make a recipe by its class; `width` and `clocked` where it differs from the class."""
    grid, block, activity, usual = _BY_CLASS[kernel_class]
    return Recipe(
        kernel_class=kernel_class,
        op=op,
        cuda=cuda,
        rocm=rocm or cuda,
        grid=grid if width is None else (width, 1, 1),
        block=block,
        activity=activity,
        clocked=usual if clocked is None else clocked,
    )


def _gemm(shape: str, transposed: str, tile: str, width: int = 132) -> Recipe:
    cuda = f"nvjet_tst_{shape}_v_bz_{transposed}"
    rocm = f"Cijk_{tile}_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x256x64_MI16x16x1_SN_LDSB0_AFC1"
    return _recipe(KernelClass.GEMM, "aten::mm", cuda, rocm, width=width)


def _pointwise(op: str, functor: str, width: int) -> Recipe:
    name = (
        f"void at::native::vectorized_elementwise_kernel<8, at::native::{functor}, "
        f"std::array<char*, 3ul> >(int, at::native::{functor}, std::array<char*, 3ul>)"
    )
    return _recipe(KernelClass.ELEMENTWISE, op, name, width=width)


def _flash(op: str, cuda: str, rocm: str, clocked: float | None = None) -> Recipe:
    op, cuda = f"aten::_flash_attention_{op}", f"void pytorch_flash::flash_{cuda}"
    return _recipe(KernelClass.ATTENTION, op, cuda, rocm, clocked=clocked)


def _copy(op: str, name: str) -> Recipe:
    cuda, rocm = (f"Memcpy {name.format(memory)}" for memory in ("Pinned", "Host"))
    return _recipe(KernelClass.MEMCPY, op, cuda, rocm)


def _collective(op: str, name: str) -> Recipe:
    cuda = f"ncclDevKernel_{name}_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    return _recipe(KernelClass.COMM, op, cuda, _RCCL)


def _foreach(op: str, functor: str) -> Recipe:
    name = (
        f"void {_ANONYMOUS}multi_tensor_apply_kernel<{_ANONYMOUS}{functor}, float>"
        f"({_ANONYMOUS}{functor}, float)"
    )
    return _recipe(KernelClass.OPTIMIZER, op, name)


_TRAITS: Final = "_kernel<pytorch_flash::Flash_{}_kernel_traits<128, {}>"

RECIPES: Final[Mapping[str, Recipe]] = {
    "gemm_qkv": _gemm("256x128_64x4_2x1", "TNT", "Alik_Bljk"),
    "gemm_out": _gemm("128x256_64x4_1x2", "TNN", "Alik_Bljk", 128),
    "gemm_gate": _gemm("256x152_64x4_2x1", "TNT", "Alik_Bljk"),
    "gemm_down": _gemm("192x192_64x3_2x1", "TNN", "Alik_Bljk"),
    "gemm_dgrad": _gemm("128x160_64x5_2x1", "NNT", "Ailk_Bljk"),
    "gemm_wgrad": _gemm("192x208_64x3_1x2", "NTN", "Ailk_Bjlk"),
    "attention": _flash(
        "forward",
        f"fwd{_TRAITS.format('fwd', '128, 64, 4')}, true, false>(pytorch_flash::Flash_fwd_params)",
        "attn_fwd",
    ),
    "attention_dot": _flash(
        "backward",
        f"bwd_dot_do_o{_TRAITS.format('bwd', '64, 128, 8')}>(pytorch_flash::Flash_bwd_params)",
        "fmha_bwd_hd128_odo_bf16",
        0.3,
    ),
    "attention_grad": _flash(
        "backward",
        f"bwd_dq_dk_dv_loop_seqk_parallel{_TRAITS.format('bwd', '64, 128, 8')}, true>"
        "(pytorch_flash::Flash_bwd_params)",
        "fmha_bwd_hd128_bf16_causal_a32_rtz",
    ),
    "norm": _recipe(
        KernelClass.NORM,
        "aten::_fused_rms_norm",
        f"void {_ANONYMOUS}vectorized_layer_norm_kernel<c10::BFloat16, float, true>(int, float, "
        "c10::BFloat16 const*, c10::BFloat16 const*, float*, c10::BFloat16*)",
    ),
    "norm_grad": _recipe(
        KernelClass.NORM,
        "aten::_fused_rms_norm_backward",
        f"void {_ANONYMOUS}layer_norm_grad_input_kernel_vectorized<c10::BFloat16, float, true>"
        "(c10::BFloat16 const*, c10::BFloat16 const*, int)",
    ),
    "rope": _pointwise("aten::mul", "BinaryFunctor<float, float, float, MulFunctor>", 8192),
    "add": _pointwise("aten::add", "CUDAFunctor_add<c10::BFloat16>", 16384),
    "silu_mul": _pointwise("aten::silu", "silu_kernel_lambda", 28672),
    "silu_grad": _pointwise("aten::silu_backward", "silu_backward_kernel_lambda", 28672),
    "embedding": _recipe(
        KernelClass.EMBEDDING,
        "aten::embedding",
        f"void {_ANONYMOUS}indexSelectLargeIndex<c10::BFloat16, long, unsigned int, 2, 2, -2, true>"
        "(at::cuda::detail::TensorInfo<c10::BFloat16, unsigned int>)",
    ),
    "embedding_grad": _recipe(
        KernelClass.EMBEDDING,
        "aten::embedding_dense_backward",
        f"void {_ANONYMOUS}compute_grad_weight<c10::BFloat16, long>(long*)",
    ),
    "loss": _recipe(
        KernelClass.REDUCTION,
        "aten::_log_softmax",
        f"void {_ANONYMOUS}cunn_SoftMaxForward<8, float, float, float, "
        f"{_ANONYMOUS}LogSoftMaxForwardEpilogue>(float*, float const*, int)",
    ),
    "loss_grad": _recipe(
        KernelClass.REDUCTION,
        "aten::_log_softmax_backward_data",
        f"void {_ANONYMOUS}cunn_SoftMaxBackward<8, float, float, float, "
        f"{_ANONYMOUS}LogSoftMaxBackwardEpilogue>(float*, float const*, int)",
    ),
    "grad_norm": _foreach("aten::_foreach_norm", "LpNormFunctor<float, (at::native::NormType)1>"),
    "grad_clip": _foreach("aten::_foreach_mul_", "BinaryOpScalarTensorFunctor<float, 1, 1, 0>"),
    "adamw": _foreach("aten::_fused_adamw_", "FusedAdamMathFunctor<float, 4, ADAM_MODE::ADAMW>"),
    "copy_out": _recipe(
        KernelClass.COMM_PACK,
        "fsdp::split_with_sizes_copy",
        f"void {_ANONYMOUS}split_with_sizes_copy_out_contiguous_no_cast_kernel"
        "(char**, char**, long*, long*, long*, long, long)",
    ),
    "chunk_cat": _recipe(
        KernelClass.COMM_PACK,
        "fsdp::chunk_cat",
        f"void {_ANONYMOUS}chunk_cat_cuda_kernel<float, c10::BFloat16>"
        "(c10::BFloat16**, float*, long*, long*, long*, long, long, long)",
    ),
    "h2d": _copy("aten::copy_", "HtoD ({} -> Device)"),
    "d2h": _copy("aten::_local_scalar_dense", "DtoH (Device -> {})"),
    "all_gather": _collective("c10d::_allgather_base_", "AllGather"),
    "reduce_scatter": _collective("c10d::_reduce_scatter_base_", "ReduceScatter_Sum_bf16"),
    "all_reduce": _collective("c10d::allreduce_", "AllReduce_Sum_f32"),
}
