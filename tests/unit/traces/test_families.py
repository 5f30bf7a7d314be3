"""Normalised kernel names, each expected name written by hand."""

import pytest

from chopperd.traces.families import LONGEST_NAME, family

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
