"""Recipes of the kernels of a simulated training job: names, classes, how they use the device."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from chopperd.model.kinds import KernelClass
from chopperd.simulation.presets import Runtime

Dims = tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One kind of kernel.

    Attributes:
        kernel_class: Class of the kernel, such as GEMM.
        op: The operator that launches it.
        cuda, rocm: Its name on either runtime.
        grid, block: Launch dimensions.
        activity: Switching activity while it runs, 1 for a dense GEMM.
        clocked: Share of the kernel's time at the highest clock that scales with the clock.
    """

    kernel_class: KernelClass
    op: str
    cuda: str
    rocm: str
    grid: Dims
    block: Dims
    activity: float
    clocked: float

    def name(self, runtime: Runtime) -> str:
        """Return the kernel's name as a trace of this runtime shows it."""
        return self.cuda if runtime == "cuda" else self.rocm


def _gemm(shape: str, cuda_grid: Dims, *, transposed: str, tile: str) -> Recipe:
    return Recipe(
        kernel_class=KernelClass.GEMM,
        op="aten::mm",
        cuda=f"nvjet_tst_{shape}_v_bz_{transposed}",
        rocm=f"Cijk_{tile}_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x256x64_MI16x16x1_SN_LDSB0_AFC1",
        grid=cuda_grid,
        block=(384, 1, 1),
        activity=1.0,
        clocked=0.93,
    )


def _pointwise(
    op: str, functor: str, *, grid: Dims, kernel_class: KernelClass = KernelClass.ELEMENTWISE
) -> Recipe:
    name = (
        f"void at::native::vectorized_elementwise_kernel<8, at::native::{functor}, "
        "std::array<char*, 3ul> >(int, at::native::"
        f"{functor}, std::array<char*, 3ul>)"
    )
    return Recipe(
        kernel_class=kernel_class,
        op=op,
        cuda=name,
        rocm=name,
        grid=grid,
        block=(128, 1, 1),
        activity=0.45,
        clocked=0.12,
    )


def _norm(op: str, name: str) -> Recipe:
    return Recipe(
        kernel_class=KernelClass.NORM,
        op=op,
        cuda=name,
        rocm=name,
        grid=(8192, 1, 1),
        block=(32, 16, 1),
        activity=0.5,
        clocked=0.2,
    )


def _attention(op: str, cuda: str, rocm: str, clocked: float) -> Recipe:
    return Recipe(
        kernel_class=KernelClass.ATTENTION,
        op=op,
        cuda=cuda,
        rocm=rocm,
        grid=(64, 32, 2),
        block=(128, 1, 1),
        activity=0.86,
        clocked=clocked,
    )


def _foreach(op: str, functor: str) -> Recipe:
    name = (
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<"
        f"at::native::(anonymous namespace)::{functor}, float>"
        f"(at::native::(anonymous namespace)::{functor}, float)"
    )
    return Recipe(
        kernel_class=KernelClass.OPTIMIZER,
        op=op,
        cuda=name,
        rocm=name,
        grid=(320, 1, 1),
        block=(512, 1, 1),
        activity=0.42,
        clocked=0.1,
    )


def _packing(op: str, name: str) -> Recipe:
    return Recipe(
        kernel_class=KernelClass.COMM_PACK,
        op=op,
        cuda=name,
        rocm=name,
        grid=(1056, 9, 1),
        block=(1024, 1, 1),
        activity=0.4,
        clocked=0.1,
    )


def _plain(kernel_class: KernelClass, op: str, name: str) -> Recipe:
    return Recipe(
        kernel_class=kernel_class,
        op=op,
        cuda=name,
        rocm=name,
        grid=(4096, 1, 1),
        block=(256, 1, 1),
        activity=0.4,
        clocked=0.1,
    )


def _copy(op: str, name: str) -> Recipe:
    return Recipe(
        kernel_class=KernelClass.MEMCPY,
        op=op,
        cuda=name.format("Pinned"),
        rocm=name.format("Host"),
        grid=(0, 0, 0),
        block=(0, 0, 0),
        activity=0.12,
        clocked=0.0,
    )


_FLASH: Final = "void pytorch_flash::flash_{}_kernel<pytorch_flash::Flash_{}_kernel_traits<128, {}>"

RECIPES: Final[Mapping[str, Recipe]] = {
    "gemm_qkv": _gemm("256x128_64x4_2x1", (132, 1, 1), transposed="TNT", tile="Alik_Bljk"),
    "gemm_out": _gemm("128x256_64x4_1x2", (128, 1, 1), transposed="TNN", tile="Alik_Bljk"),
    "gemm_gate": _gemm("256x152_64x4_2x1", (132, 1, 1), transposed="TNT", tile="Alik_Bljk"),
    "gemm_down": _gemm("192x192_64x3_2x1", (132, 1, 1), transposed="TNN", tile="Alik_Bljk"),
    "gemm_dgrad": _gemm("128x160_64x5_2x1", (132, 1, 1), transposed="NNT", tile="Ailk_Bljk"),
    "gemm_wgrad": _gemm("192x208_64x3_1x2", (132, 1, 1), transposed="NTN", tile="Ailk_Bjlk"),
    "attention": _attention(
        "aten::_flash_attention_forward",
        _FLASH.format("fwd", "fwd", "128, 64, 4")
        + ", true, false>(pytorch_flash::Flash_fwd_params)",
        "attn_fwd",
        0.88,
    ),
    "attention_dot": _attention(
        "aten::_flash_attention_backward",
        _FLASH.format("bwd_dot_do_o", "bwd", "64, 128, 8") + ">(pytorch_flash::Flash_bwd_params)",
        "fmha_bwd_hd128_odo_bf16",
        0.3,
    ),
    "attention_grad": _attention(
        "aten::_flash_attention_backward",
        _FLASH.format("bwd_dq_dk_dv_loop_seqk_parallel", "bwd", "64, 128, 8")
        + ", true>(pytorch_flash::Flash_bwd_params)",
        "fmha_bwd_hd128_bf16_causal_a32_rtz",
        0.88,
    ),
    "norm": _norm(
        "aten::_fused_rms_norm",
        "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float,"
        " true>(int, float, c10::BFloat16 const*, c10::BFloat16 const*, float*, c10::BFloat16*)",
    ),
    "norm_grad": _norm(
        "aten::_fused_rms_norm_backward",
        "void at::native::(anonymous namespace)::layer_norm_grad_input_kernel_vectorized<"
        "c10::BFloat16, float, true>(c10::BFloat16 const*, c10::BFloat16 const*, int)",
    ),
    "rope": _pointwise(
        "aten::mul", "BinaryFunctor<float, float, float, MulFunctor>", grid=(8192, 1, 1)
    ),
    "add": _pointwise("aten::add", "CUDAFunctor_add<c10::BFloat16>", grid=(16384, 1, 1)),
    "silu_mul": _pointwise("aten::silu", "silu_kernel_lambda", grid=(28672, 1, 1)),
    "silu_grad": _pointwise(
        "aten::silu_backward", "silu_backward_kernel_lambda", grid=(28672, 1, 1)
    ),
    "embedding": _plain(
        KernelClass.EMBEDDING,
        "aten::embedding",
        "void at::native::(anonymous namespace)::indexSelectLargeIndex<c10::BFloat16, long, "
        "unsigned int, 2, 2, -2, true>(at::cuda::detail::TensorInfo<c10::BFloat16, unsigned int>)",
    ),
    "embedding_grad": _plain(
        KernelClass.EMBEDDING,
        "aten::embedding_dense_backward",
        "void at::native::(anonymous namespace)::compute_grad_weight<c10::BFloat16, long>(long*)",
    ),
    "loss": _plain(
        KernelClass.REDUCTION,
        "aten::_log_softmax",
        "void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, float, float, float, "
        "at::native::(anonymous namespace)::LogSoftMaxForwardEpilogue>(float*, float const*, int)",
    ),
    "loss_grad": _plain(
        KernelClass.REDUCTION,
        "aten::_log_softmax_backward_data",
        "void at::native::(anonymous namespace)::cunn_SoftMaxBackward<8, float, float, float, "
        "at::native::(anonymous namespace)::LogSoftMaxBackwardEpilogue>(float*, float const*, int)",
    ),
    "grad_norm": _foreach("aten::_foreach_norm", "LpNormFunctor<float, (at::native::NormType)1>"),
    "grad_clip": _foreach("aten::_foreach_mul_", "BinaryOpScalarTensorFunctor<float, 1, 1, 0>"),
    "adamw": _foreach("aten::_fused_adamw_", "FusedAdamMathFunctor<float, 4, ADAM_MODE::ADAMW>"),
    "copy_out": _packing(
        "fsdp::split_with_sizes_copy",
        "void at::native::(anonymous namespace)::"
        "split_with_sizes_copy_out_contiguous_no_cast_kernel"
        "(char**, char**, long*, long*, long*, long, long)",
    ),
    "chunk_cat": _packing(
        "fsdp::chunk_cat",
        "void at::native::(anonymous namespace)::chunk_cat_cuda_kernel<float, c10::BFloat16>"
        "(c10::BFloat16**, float*, long*, long*, long*, long, long, long)",
    ),
    "h2d": _copy("aten::copy_", "Memcpy HtoD ({} -> Device)"),
    "d2h": _copy("aten::_local_scalar_dense", "Memcpy DtoH (Device -> {})"),
    "all_gather": _plain(
        KernelClass.COMM,
        "c10d::_allgather_base_",
        "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    ),
    "reduce_scatter": _plain(
        KernelClass.COMM,
        "c10d::_reduce_scatter_base_",
        "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    ),
    "all_reduce": _plain(
        KernelClass.COMM,
        "c10d::allreduce_",
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    ),
}

#: RCCL has one kernel for all collectives.
RCCL_KERNEL: Final = "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)"
