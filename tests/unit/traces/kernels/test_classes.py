"""Classes by name: kernels as real jobs and libraries name them, classed by hand."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chopperd.model.kinds import KERNEL_CLASSES, CopyDirection, KernelClass
from chopperd.model.trace import RecordKind
from chopperd.traces.kernels.classes import (
    COMMUNICATION,
    LIBRARIES,
    MATCHED_LENGTH,
    WORDS,
    ClassRule,
    class_by_operation,
    copy_directions,
    kernel_class,
    record_classes,
)
from tests.trace_building import TraceBuilder
from tests.unit.traces.kernels.named import NAMED

CLASSED = [(name, named.kernel_class) for named in NAMED for name in named.names]


@pytest.mark.parametrize(("name", "expected"), CLASSED)
def test_a_kernel_is_classed_by_its_name(name: str, expected: KernelClass) -> None:
    assert kernel_class(name).label == expected.label


def test_copies_and_fills_are_classed_by_kind_and_metadata_makes_communication() -> None:
    built = TraceBuilder()
    built.record("gemm of ours", 0, 5)
    built.record("strange", 10, 5, collective="allreduce")
    built.record("Memcpy HtoD (Pinned -> Device)", 20, 5, kind=RecordKind.MEMCPY)
    built.record("Memset (Device)", 30, 5, kind=RecordKind.MEMSET)
    trace = built.build()
    assert record_classes(trace.records, trace.names)[0].tolist() == [
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
    assert record_classes(trace.records, trace.names, rules)[0].tolist() == [KernelClass.COMM]


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


def test_a_kernel_that_the_runtime_copies_with_is_a_copy_of_unknown_direction() -> None:
    built = TraceBuilder()
    built.record("__amd_rocclr_copyBuffer.kd", 0, 5)
    built.record("__amd_rocclr_fillBufferAligned.kd", 10, 5)
    trace = built.build()
    classes, by_site = record_classes(trace.records, trace.names)
    assert classes.tolist() == [KernelClass.MEMCPY, KernelClass.MEMSET]
    assert not by_site.any()
    assert copy_directions(trace.records, trace.names).tolist() == [CopyDirection.NONE] * 2


def test_a_sites_own_rule_wins_over_collective_metadata_but_not_over_a_copy() -> None:
    built = TraceBuilder()
    built.record("ours::gemm_and_reduce", 0, 5, collective="allreduce")
    built.record("ours HtoD", 10, 5, kind=RecordKind.MEMCPY)
    trace = built.build()
    rules = (ClassRule(KernelClass.FUSED_COMM, "OURS"), ClassRule(KernelClass.GEMM, "gemm"))
    classes, by_site = record_classes(trace.records, trace.names, rules)
    assert classes.tolist() == [KernelClass.FUSED_COMM, KernelClass.MEMCPY]
    assert by_site.tolist() == [True, False]


def test_a_sites_own_rule_sees_the_qualified_name_up_to_a_length() -> None:
    built = TraceBuilder()
    built.record("void ours::k<float>(int, marked)", 0, 5)
    built.record("ours" + "x" * (MATCHED_LENGTH - 4) + "marked", 10, 5)
    built.record("ours" + "x" * (MATCHED_LENGTH - 10) + "marked", 20, 5)
    trace = built.build()
    rules = (ClassRule(KernelClass.NORM, "marked"),)
    classes, by_site = record_classes(trace.records, trace.names, rules)
    assert classes.tolist() == [KernelClass.OTHER, KernelClass.OTHER, KernelClass.NORM]
    assert by_site.tolist() == [False, False, True]


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        ("fsdp::all_gather_copy_in", KernelClass.COMM_PACK),
        ("fsdp::split_with_sizes_copy", KernelClass.COMM_PACK),
        ("fsdp::chunk_cat", KernelClass.COMM_PACK),
        ("FSDP::all_gather_copy_out (layers.3)", KernelClass.COMM_PACK),
        ("FSDP::all_gather (layers.3)", None),
        ("FSDP::pre_forward (layers.3)", None),
        ("aten::_foreach_copy_", None),
        ("aten::split_with_sizes_copy", None),
        ("c10d::_allgather_base_", None),
        ("", None),
    ],
)
def test_fsdps_copies_are_told_by_their_operator(
    operation: str, expected: KernelClass | None
) -> None:
    assert class_by_operation(operation) is expected


def test_every_class_that_a_name_can_tell_has_names_from_more_than_one_program() -> None:
    told = {named.kernel_class for named in NAMED}
    assert told == set(KERNEL_CLASSES)
    names = [name for name, _ in CLASSED]
    assert len(names) == len(set(names)) >= 400


def test_each_rule_of_the_table_is_the_reason_for_at_least_one_known_name() -> None:
    lowered = [name.lower() for name, _ in CLASSED]
    for rule in (*LIBRARIES, *COMMUNICATION, *WORDS):
        assert rule.pattern == rule.pattern.lower() or "\\" in rule.pattern
        if rule.pattern.startswith("^"):
            continue  # asked of the bare name
        assert any(re.search(rule.pattern, name) for name in lowered), rule.pattern


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=60), st.sampled_from([name for name, _ in CLASSED]))
def test_any_text_has_a_class_and_numbers_in_a_name_change_nothing(text: str, name: str) -> None:
    assert kernel_class(text) in KERNEL_CLASSES
    longer = re.sub(r"\d{2,}", lambda found: found.group() + "7", name)
    assert name.startswith("_Z") or kernel_class(longer) == kernel_class(name)
