"""Reductions, expert routing and sampling."""

from typing import Final

from chopperd.model.kinds import KernelClass
from tests.unit.traces.kernels.named.origin import Named

REDUCTIONS: Final = (
    Named(
        "ATen, CUB, rocPRIM, Megatron, Inductor, Liger",
        KernelClass.REDUCTION,
        (
            "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float>>>(i)",
            "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::NormTwoOps<float>>>",
            "_ZN2at6native13reduce_kernelILi512ELi1ENS0_8ReduceOpIfNS0_7MeanOpsIfEEEEEEvT1_",
            "void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, true>(float*)",
            "void at::native::(anonymous namespace)::cunn_SoftMaxForward<4, float, float, float>(float*)",
            "void scaled_upper_triang_masked_softmax_warp_forward<c10::BFloat16, c10::BFloat16, float>",
            "void cunn_ClassNLLCriterion_updateOutput_kernel<float, float>(float*)",
            "void at::native::(anonymous namespace)::nll_loss_forward_reduce_cuda_kernel_2d<float, float, long>(float*)",
            "void at::native::(anonymous namespace)::max_pool_forward_nchw<float, float>(int, float const*)",
            "void at::native::(anonymous namespace)::adaptive_average_pool<float>(float const*)",
            "void at::native::sbtopk::gatherTopK<float, unsigned int, 2, false>(int)",
            "void at::native::bitonicSortKVInPlace<2, -1, 16, 16, float, long>(int)",
            "void at::native::tensor_kernel_scan_innermost_dim<float, std::plus<float> >(float*)",
            "void cub::CUB_200700_900_NS::DeviceRadixSortOnesweepKernel<int>(int)",
            "void at_cuda_detail::cub::DeviceReduceSingleTileKernel<int>(int)",
            "void at_cuda_detail::cub::DeviceScanKernel<int>(int)",
            "void rocprim::ROCPRIM_400200_NS::detail::trampoline_kernel<rocprim::detail::config>(int)",
            "triton_red_fused__log_softmax_nll_loss_forward_9",
            "triton_per_fused_copy__mul_sum_0",
            "triton_red_fused__to_copy_mean_pow_view_0",
            "liger_cross_entropy_kernel",
            "reduce_segments.kd",
        ),
    ),
    Named(
        "expert routing and sampling: TensorRT-LLM, CK, AITER, vLLM, SGLang, FlashInfer",
        KernelClass.REDUCTION,
        (
            "void moe::dev::finalize::finalizeKernelVecLoad<moe::dev::finalize::KernelParams<cutlass::bfloat16_t, cutlass::bfloat16_t, 4, true> >(int)",
            "void moe::dev::routing::routingIndicesHistogramKernel<moe::dev::routing::KernelParams>(i)",
            "void ck_tile::kentry<2, ck_tile::MoeSortingKernel<ck_tile::MoeSortingProblemEx<int> > >(i",
            "_ZN7ck_tile6kentryILi1ENS_16MoeSortingKernelINS_16MoeSortingProblemEEEEEvNT0_5KargsE",
            "void aiter::opus_moe_sorting_entry<aiter::MoeSortingKernel<int> >(int)",
            "void aiter::grouped_topk_kernel<float, float __vector(4), 1, true, true, false>(float*)",
            "_ZN5aiter19topksoftmax_4x128x4E",
            "void vllm::moe::topkGatingSoftplusSqrt<6, 384, 4, 8>(int)",
            "void vllm::topKPerRowDecode<1024, true, false, true>(int)",
            "void vllm::moe::topkGatingSoftmax<8, 128, 4, 16, 32, int>(int)",
            "void moe_align_block_size_kernel<int>(int)",
            "void count_and_sort_expert_tokens_kernel<int>(int)",
            "moe_fused_gate_kernel",
            "moe_sum_kernel",
            "dsv4_route_kernel",
            "moe_reduction_kernel_plain_bf16_topk6_md7168",
            "_sort_chunks_by_map_kernel",
            "void rtp_llm::fakeBalanceExpertKernel<long>(long*)",
            "void flashinfer::sampling::TopKTopPSamplingFromProbKernel<1024u>(int)",
            "_gumbel_sample_kernel.kd",
        ),
    ),
    Named(
        "XLA's and TVM's fused reductions, Triton-distributed's sums of what came from others",
        KernelClass.REDUCTION,
        (
            "input_reduce_fusion",
            "input_reduce_fusion_92",
            "tvmgen_default_fused_nn_global_avg_pool2d_kernel1",
            "kernel_ring_reduce",
            "kernel_ring_reduce_non_tma",
            "kernel_bincount",
        ),
    ),
)
