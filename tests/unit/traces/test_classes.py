"""Classes by name: kernels as real jobs and libraries name them, classed by hand."""

import pytest

from chopperd.model.classes import CopyDirection, KernelClass
from chopperd.model.trace import RecordKind
from chopperd.traces.classes import (
    ClassRule,
    copy_directions,
    kernel_class,
    record_classes,
)
from tests.trace_building import TraceBuilder

NATIVE = "void at::native::"
ANONYMOUS = NATIVE + "(anonymous namespace)::"
BINARY = "at::native::BinaryFunctor<float, float, float, at::native::MulFunctor<float> >"

CLASSED = {
    KernelClass.GEMM: [
        "volta_sgemm_128x32_nt",
        "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_nn",
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute"
        "_segment_k_off_kernel__5x_cublas",
        "nvjet_tst_64x64_64x16_2x1_2cta_v_bz_bias_TNT",
        "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_64x64_32x6_nn_align8>"
        "(cutlass_80_tensorop_bf16_s16816gemm_bf16_64x64_32x6_nn_align8::Params)",
        "void cutlass_cudnn_infer::Kernel<cutlass_tensorop_s1688dgrad_optimized_tf32_64x128_32x3>"
        "(cutlass_tensorop_s1688dgrad_optimized_tf32_64x128_32x3::Params)",
        "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x192x64_MI16x16x1_SN_LDSB1_AFC1",
        "_ZN2ck16tensor_operation6device37kernel_batched_gemm_xdlops_bwd_weightINS_47Gridwise",
        "_ZN2ck16tensor_operation6device12_GLOBAL__N_149kernel_grouped_conv_fwd_multiple_abd_xdl",
        "igemm_fwd_gtcx3_nhwc_bf16_bx0_ex1_bt128x128x32_wt32x32x8_ws1x1_wr2x2",
        "bmm_MxE4m3_MxE2m1MxE4m3_Fp32_t128x16x256u2_s3_et128x16_m128x16x32_cga1x1x1_16dp256b",
        "void cublasLt::splitKreduce_kernel<32, 16, int, float, float, float, float, true, true>"
        "(cublasLt::cublasSplitKParams<float>, float const*)",
        "void epilogue::impl::globalKernel<float, float, float, true, true>(int, int, long, float*,"
        " cublasLtEpilogue_t, int)",
        "cudnn_infer_volta_scudnn_128x64_relu_medium_nn_v1",
        "void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>"
        "(cudnn::winograd_nonfused::WinogradDataParams<float, float>)",
        "void wgrad_alg0_engine<float, 128, 6, 7, 3, 3, 5, false, 512>(int, int, int)",
        "void implicit_convolve_sgemm<float, float, 1024, 6, 7, 3, 3, 5, 1>(int, int, int)",
        "void cask_cudnn_infer::computeOffsetsKernel<false, false>(cask_cudnn_infer::Params)",
        "triton_tem_fused_mm_5",
        "void dot_kernel<float, 128, 0, cublasDotParams<cublasGemvTensor<float const>>>(int)",
    ],
    KernelClass.ATTENTION: [
        "attn_fwd",
        "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128, 128,"
        " 4, false, false, cutlass::bfloat16_t> >(pytorch_flash::Flash_fwd_params)",
        "void flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<128, 64>>(int)",
        "void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<int>>>(int)",
        "fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::Params)",
        "fmhaSm100aKernel_QkvE4m3OBfloat16H64PagedKvCausalP16VarSeqQ128Kv128PersistentContext",
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x64_1x1x1",
        "_ZN5aiter31fmha_bwd_hd128_bf16_causal_a32_rtzE",
        "triton_tem_fused_flex_attention_3",
    ],
    KernelClass.NORM: [
        "void cudnn::bn_bw_1C11_kernel_new<float, float, float2, 128, true, 1>(float, float)",
        NATIVE + "batch_norm_backward_kernel<c10::BFloat16, c10::BFloat16, float, int>(int)",
        ANONYMOUS + "vectorized_layer_norm_kernel<float, float>(int, float, float const*)",
        ANONYMOUS + "RowwiseMomentsCUDAKernel<float>(long, float, float const*)",
        ANONYMOUS + "GammaBetaBackwardSimpleCUDAKernel<float, float>(long, long)",
        ANONYMOUS + "unrolled_elementwise_kernel_for_multi_outputs<3,"
        " at::native::batch_norm_update_stats_and_invert(at::Tensor const&)::{lambda()#1}>(int)",
        "std::enable_if<(((8)>(0)))&&vllm::_typeConvert<c10::BFloat16>::exists, void>::type"
        " vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>(c10::BFloat16*, long, float, int, int)",
        "triton_per_fused_native_layer_norm_12",
        "triton_red_fused__unsafe_view_add_mean_mul_pow_rsqrt_1",
        "_rms_norm_forward_kernel",
    ],
    KernelClass.ELEMENTWISE: [
        NATIVE + f"vectorized_elementwise_kernel<4, {BINARY}, at::detail::Array<char*, 3> >(int)",
        NATIVE + "elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::"
        "direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}> >(int)",
        NATIVE + "elementwise_kernel_manual_unroll<128, 8, at::native::gpu_kernel_impl_nocast<"
        "at::native::neg_kernel_cuda(at::TensorIteratorBase&)::{lambda()#2}> >(int)",
        ANONYMOUS + "CatArrayBatchedCopy<at::native::OpaqueType<2u>, unsigned int, 4, 64, 64>(int)",
        "void (anonymous namespace)::elementwise_kernel_with_index<int, at::native::arange>(int)",
        "void vllm::rotary_embedding_kernel<c10::BFloat16, true>(long const*, c10::BFloat16*)",
        "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, unsigned char>(int)",
        "void tensorrt_llm::kernels::quantize_with_block_size<(tensorrt_llm::Type)2, true>"
        "(int, int, flashinfer::Layout)",
        "void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true>(int)",
        "batched_transpose_16x32_half",
        "SubTensorOpWithCastTensor1d",
        "triton_poi_fused__unsafe_view_mul_silu_2",
        "triton_poi_fused__scaled_dot_product_flash_attention_clone_4",
    ],
    KernelClass.REDUCTION: [
        NATIVE
        + "reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float>>>(i)",
        "void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, true>(float*)",
        ANONYMOUS + "cunn_SoftMaxForward<4, float, float, float>(float*)",
        ANONYMOUS + "nll_loss_forward_reduce_cuda_kernel_2d<float, float, long>(float*)",
        ANONYMOUS + "max_pool_forward_nchw<float, float>(int, float const*)",
        "void moe::dev::finalize::finalizeKernelVecLoad<moe::dev::finalize::KernelParams<cutlass::"
        "bfloat16_t, cutlass::bfloat16_t, 4, true> >(int)",
        "triton_red_fused__log_softmax_nll_loss_forward_9",
        "liger_cross_entropy_kernel",
        "void cub::CUB_200700_900_NS::DeviceRadixSortOnesweepKernel<int>(int)",
    ],
    KernelClass.EMBEDDING: [
        ANONYMOUS + "indexSelectLargeIndex<c10::BFloat16, long, unsigned int, 2, 2, -2, true>(int)",
        ANONYMOUS + "embedding_backward_feature_kernel<float, float, long>(long const*)",
        NATIVE + "vectorized_gather_kernel<16, long>(char*, char*, long*)",
        NATIVE + "index_elementwise_kernel<128, 4, at::native::gpu_index_kernel<int>>(long)",
        "triton_poi_fused_embedding_0",
    ],
    KernelClass.OPTIMIZER: [
        ANONYMOUS + "multi_tensor_apply_kernel<at::native::(anonymous namespace)::"
        "FusedOptimizerTensorListMetadata<4>, at::native::(anonymous namespace)::"
        "FusedAdamMathFunctor<float, 4, (at::native::ADAM_MODE)0, false> >(int)",
        ANONYMOUS
        + "multi_tensor_apply_kernel<TensorListMetadata<2>, BinaryOpListAlphaFunctor<float,"
        " 2, 2, 0>, std::plus<float>, float>(int)",
        "adam",
        "triton_for_fused_0",
        "void kOptimizerStatic8bit2StateBlockwise<float, 1>(float*)",
    ],
    KernelClass.COMM: [
        "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)",
        "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)",
        "nccldevkernel_ReduceScatter",
        "rcclGenericKernel<1, false>(ncclDevKernelArgsStorage<4096ul>)",
        "mscclKernel_Sum_half_LL(ncclDevComm*)",
        "void deep_ep::intranode::dispatch<8, 768, 8192>(int4*)",
        "void nvshmemi_transfer_put_nbi(int)",
    ],
    KernelClass.COMM_PACK: [
        NATIVE + "(anonymous namespace)::chunk_cat_cuda_kernel<float, c10::BFloat16>(float**)",
        NATIVE + "split_with_sizes_copy_out_contiguous_no_cast_kernel(char**, char**)",
    ],
    KernelClass.FUSED_COMM: [
        "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*)",
        "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)",
        "cutlass_gemm_reduce_scatter_bf16_128x256",
    ],
    KernelClass.OTHER: ["k1", "fwdbwd", "_fwd_kernel", "computeUnitBusy"],
}


@pytest.mark.parametrize(
    ("name", "expected"), [(name, each) for each, names in CLASSED.items() for name in names]
)
def test_a_kernel_is_classed_by_its_name(name: str, expected: KernelClass) -> None:
    assert kernel_class(name).label == expected.label


def test_copies_and_fills_are_classed_by_kind_and_metadata_makes_communication() -> None:
    built = TraceBuilder()
    built.record("gemm of ours", 0, 5)
    built.record("strange", 10, 5, collective="allreduce")
    built.record("Memcpy HtoD (Pinned -> Device)", 20, 5, kind=RecordKind.MEMCPY)
    built.record("Memset (Device)", 30, 5, kind=RecordKind.MEMSET)
    trace = built.build()
    assert record_classes(trace.records, trace.names).tolist() == [
        KernelClass.GEMM,
        KernelClass.COMM,
        KernelClass.MEMCPY,
        KernelClass.MEMSET,
    ]


def test_a_sites_own_rules_go_first() -> None:
    built = TraceBuilder()
    built.record("our_gemm_like_allreduce", 0, 5)
    trace = built.build()
    rules = (ClassRule(KernelClass.COMM, "^our_"),)
    assert record_classes(trace.records, trace.names, rules).tolist() == [KernelClass.COMM]


def test_copies_have_the_direction_of_their_name() -> None:
    built = TraceBuilder()
    expected = {
        "Memcpy HtoD (Pageable -> Device)": CopyDirection.H2D,
        "Memcpy HtoD (Host -> Device)": CopyDirection.H2D,
        "CopyHostToDevice": CopyDirection.H2D,
        "Memcpy DtoH (Device -> Pinned)": CopyDirection.D2H,
        "CopyDeviceToHost": CopyDirection.D2H,
        "Memcpy DtoD (Device -> Device)": CopyDirection.D2D,
        "Memcpy PtoP (Device -> Device)": CopyDirection.D2D,
    }
    for nth, name in enumerate(expected):
        built.record(name, nth, 1, kind=RecordKind.MEMCPY)
    built.record("Memset (Device)", 100, 1, kind=RecordKind.MEMSET)
    built.record("HtoD is a kernel here", 200, 1)
    trace = built.build()
    assert copy_directions(trace.records, trace.names).tolist() == [
        *expected.values(),
        CopyDirection.MEMSET,
        CopyDirection.NONE,
    ]
