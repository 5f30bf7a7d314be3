"""Normalised kernel names, each expected name written by hand."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chopperd.traces.kernels.names import LONGEST_NAME, LONGEST_READ, UNNAMED, family
from tests.unit.traces.kernels.named import NAMED

NAMES = [name for named in NAMED for name in named.names]
PIECES = ("_ZN", "2at", "12_GLOBAL__N_1", "I", "E", "a::b", "<", ">", "(", ")", " ", "void ", ".kd")
MORE = (
    "triton_poi_fused_",
    "_3",
    "_0d1d2de",
    "~0123abcd",
    "(anonymous namespace)::",
    "_Z1k",
    "x" * 190,
)

MUL = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::MulFunctor<float>, "
    "at::detail::Array<char*, 3> >(int, at::native::MulFunctor<float>, at::detail::Array<char*, 3>)"
)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("volta_sgemm_128x32_nt", "volta_sgemm_128x32_nt"),
        ("attn_fwd", "attn_fwd"),
        ("attn_fwd.kd", "attn_fwd"),
        ("attn_fwd_0d1d2d34de5c", "attn_fwd"),
        ("ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)", "ncclDevKernel_Generic"),
        (
            "void (anonymous namespace)::softmax_warp_forward<float, 10, true>(float*, int)",
            "softmax_warp_forward<float, 10, true>",
        ),
        (
            "std::enable_if<(((8)>(0)))&&vllm::_typeConvert<c10::BFloat16>::exists, void>::type "
            "vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>(c10::BFloat16*, long)",
            "vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>",
        ),
        (
            "void k<f(at::Iterator&)::{lambda(float)#1}::operator()() const>(int) [clone .kd]",
            "k<f(at::Iterator&)::{lambda(float)#1}::operator()() const>",
        ),
        ("auto f()::{lambda()#1}::operator()() const", "f()::{lambda()#1}::operator()"),
        ("triton_poi_fused_add_mul_17", "triton_poi_fused_add_mul"),
        ("unbalanced)", "unbalanced)"),
        # Inductor's numbers, of every kind of its kernels, but no number of a user's kernel.
        ("triton_poi_fused_0", "triton_poi_fused"),
        ("triton_per_fused_native_layer_norm_12.kd", "triton_per_fused_native_layer_norm"),
        ("triton_red_fused__to_copy_mean_pow_view_0", "triton_red_fused__to_copy_mean_pow_view"),
        ("triton_tem_fused_mm_5", "triton_tem_fused_mm"),
        ("triton_for_fused_7", "triton_for_fused"),
        ("triton_split_scan_fused_cumsum_1", "triton_split_scan_fused_cumsum"),
        ("triton_poi_fused_expm1_2", "triton_poi_fused_expm1"),
        ("triton_flash_attention_128", "triton_flash_attention_128"),
        ("moe_gemm1_0", "moe_gemm1_0"),
        # Old Triton's signatures count arguments; what only looks like one stays.
        ("rope_fw_bw_kernel_0d1d2d3d4d5d6d", "rope_fw_bw_kernel"),
        ("bwd_kernel_dq_0d1d2d3d4d5d6d7d8d91011121314", "bwd_kernel_dq"),
        ("matmul_cache_kernel_0d1d2d3d4d5d6d7c8d9c10d11c", "matmul_cache_kernel"),
        ("_jagged_hstu_attn_fwd_0d1d2d3d4d5de", "_jagged_hstu_attn_fwd"),
        ("avg_pool_2d", "avg_pool_2d"),
        ("avg_pool_3d", "avg_pool_3d"),
        ("kernel_0d2d3d", "kernel_0d2d3d"),
        ("kernel_01", "kernel_01"),
        ("triton__0d1d2d3d", "triton__0d1d2d3d"),
        # Both spellings of a kernel that is no template.
        (
            "_ZN5aiter34fmha_bwd_hd128_bf16_causal_a32_rtzE",
            "aiter::fmha_bwd_hd128_bf16_causal_a32_rtz",
        ),
        (
            "_ZN5aiter26cross_device_reduce_2stageIDF16bLi8ELb0EEEvPNS_8RankDataES2_",
            "aiter::cross_device_reduce_2stage<DF16bLi8ELb0EEEvPNS_8RankDataES2_>",
        ),
        ("__amd_rocclr_copyBuffer.kd", "__amd_rocclr_copyBuffer"),
        ("", UNNAMED),
        ("  ", UNNAMED),
        (UNNAMED, UNNAMED),
    ],
)
def test_a_family_is_the_kernel_without_what_varies_between_its_launches(
    name: str, expected: str
) -> None:
    assert family(name) == expected


def test_elementwise_kernels_with_other_functors_are_other_families() -> None:
    assert family(MUL) != family(MUL.replace("MulFunctor", "AddFunctor"))
    assert family(MUL) != family(MUL.replace("MulFunctor<float>", "MulFunctor<double>"))


def test_long_names_are_cut_and_stay_apart() -> None:
    long = "Cijk_" + "x" * 500
    one, other = family(long + "_MT64"), family(long + "_MT128")
    assert one != other
    assert one[:LONGEST_NAME] == other[:LONGEST_NAME] == long[:LONGEST_NAME]
    assert len(one) == LONGEST_NAME + 9
    assert one == family(long + "_MT64")


def test_tiles_of_a_gemm_and_dtypes_of_a_lambda_are_families_of_their_own() -> None:
    tensile = "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x192x64_MI16x16x1_SN"
    assert family(tensile) != family(tensile.replace("MT256x192", "MT256x128"))
    cutlass = "void cutlass::Kernel2<cutlass_80_tensorop_s16816gemm_bf16_128x64_64x4_tn_align8>(P)"
    assert family(cutlass) != family(cutlass.replace("_64x4_", "_64x3_"))
    copy = "void at::native::elementwise_kernel<4, impl<c(at::Iterator&)::{lambda()#3}> >(int)"
    assert family(copy) != family(copy.replace("#3", "#7"))


def test_names_too_long_to_read_are_told_apart_by_their_ends() -> None:
    long = "k" * LONGEST_READ
    assert family(long + "a") != family(long + "b")
    assert len(family(long + "a")) == LONGEST_NAME + 9


@pytest.mark.parametrize("name", NAMES)
def test_the_family_of_a_real_kernels_family_is_itself(name: str) -> None:
    assert family(family(name)) == family(name)
    assert 0 < len(family(name)) <= LONGEST_NAME + 9


@settings(max_examples=100, deadline=None)
@given(
    st.one_of(
        st.text(max_size=80), st.lists(st.sampled_from(PIECES + MORE), max_size=12).map("".join)
    )
)
def test_any_text_has_a_family_that_is_its_own_family(text: str) -> None:
    found = family(text)
    assert found
    assert family(found) == found
