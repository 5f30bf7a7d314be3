"""Names of kernels without what compilers and profilers put around them, written out by hand."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chopperd.traces.kernels.names import LONGEST_READ, bare_name, own_name

PIECES = ("_ZN", "2at", "6native", "12_GLOBAL__N_1", "St", "I", "E", "Li4E", "v", "a::b", "<", ">")
MORE = ("(", ")", " ", "void ", ".kd", "[clone x]", "(anonymous namespace)::", "operator()", "_3")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("attn_fwd", "attn_fwd"),
        ("attn_fwd.kd", "attn_fwd"),
        ("ncclDevKernel_Generic_1(ArgsStorage<4096ul>) [clone .kd]", "ncclDevKernel_Generic_1"),
        ("k.constprop.0", "k"),
        ("k.isra.0.llvm.1234", "k"),
        ("void k<int>(int) const", "k<int>"),
        ("void k<(a)1, &(silu(float const&))>(float*)", "k<(a)1, &(silu(float const&))>"),
        ("at::native::k(char**, char**)", "at::native::k"),
        ("void (anonymous namespace)::k<f, 8>(f*)", "k<f, 8>"),
        ("void <unnamed>::k<(bool)1>(<unnamed>::Params)", "k<(bool)1>"),
        ("at::native::_GLOBAL__N__13f0_22_Shape_cu_1::k(int)", "at::native::k"),
        ("std::enable_if<!(v<t>), void>::type ck_tile::kentry<1>(int)", "ck_tile::kentry<1>"),
        ("_ZN5aiter19fmha_fwd_hd128_bf16E.kd", "aiter::fmha_fwd_hd128_bf16"),
        ("_Z19kn_mla_reduce_v1_psI6TraitsfEvT_", "kn_mla_reduce_v1_ps<6TraitsfEvT_>"),
        ("_Z4copyPKfPf", "copy"),
        ("_ZL4copyPKfPf", "copy"),
        ("_ZN2at6native12_GLOBAL__N_19CatKernelIfEEvv", "at::native::CatKernel<fEEvv>"),
        (
            "_ZN2at40_GLOBAL__N__73da4bea_8_Shape_cu_49f7391c9CatKernelIfEEvv",
            "at::CatKernel<fEEvv>",
        ),
        ("_ZNSt3foo3barEv", "std::foo::bar"),
        ("_ZN99short", "_ZN99short"),
        ("_Zero", "_Zero"),
        ("_ZN12_GLOBAL__N_1E", "_ZN12_GLOBAL__N_1E"),
        ("_Z999999999999k", "_Z999999999999k"),
    ],
)
def test_a_bare_name_is_what_the_kernels_author_called_it(name: str, expected: str) -> None:
    assert bare_name(name) == expected


@pytest.mark.parametrize(
    ("bare", "expected"),
    [
        ("a::b::k<c::d<e>>", "k"),
        ("k", "k"),
        ("f()::{lambda()#1}::operator()", "f"),
        ("<odd>", "<odd>"),
        ("a::", "a::"),
    ],
)
def test_the_own_name_has_no_namespace_and_no_arguments(bare: str, expected: str) -> None:
    assert own_name(bare) == expected


def test_of_a_very_long_name_only_the_beginning_is_read() -> None:
    assert len(bare_name("k" * (2 * LONGEST_READ))) == LONGEST_READ


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(PIECES + MORE), max_size=12).map("".join))
def test_any_text_has_a_bare_name_no_longer_than_it_and_two_characters_a_part(text: str) -> None:
    bare = bare_name(text)
    assert len(bare) <= 2 * len(text)
    assert own_name(bare) or not bare
