"""What launched each record: operators and annotations, worked out by hand."""

import numpy as np
import pytest

from chopperd.model.kinds import KernelClass
from chopperd.model.trace import RecordKind, SpanKind, Trace
from chopperd.traces.timeline.links import link
from chopperd.traces.timeline.operations import (
    Attribution,
    attribute,
    operation_names,
    with_operation_classes,
)
from tests.trace_building import Thread, TraceBuilder

OTHER: Thread = (100, 101)


def attributed(made: TraceBuilder) -> tuple[Trace, Attribution]:
    trace = made.build()
    call = link(trace.records, trace.calls, trace.names, trace.threads).call
    return trace, attribute(trace, call)


def named(trace: Trace, rows: list[int]) -> list[str | None]:
    return [trace.names[trace.spans.name[row]] if row >= 0 else None for row in rows]


def operations(made: TraceBuilder) -> list[str | None]:
    trace, found = attributed(made)
    names, column = operation_names(trace, found)
    return [names[index] if index >= 0 else None for index in column.tolist()]


def classes(made: TraceBuilder, by_name: KernelClass = KernelClass.ELEMENTWISE) -> list[int]:
    trace, found = attributed(made)
    column = np.full(len(trace.records), by_name, np.int8)
    settled = np.zeros(len(trace.records), np.bool_)
    changed: list[int] = with_operation_classes(trace, found, column, settled).tolist()
    return changed


def test_a_record_goes_to_the_innermost_of_each_kind_around_its_launch() -> None:
    made = TraceBuilder()
    made.span("nn.Module: Net_0", 0, 100, kind=SpanKind.MODULE)
    made.span("nn.Module: Linear_0", 10, 80, kind=SpanKind.MODULE)
    made.span("ProfilerStep#1", 0, 100)
    made.span("aten::linear", 20, 60, kind=SpanKind.OP)
    made.span("aten::addmm", 30, 40, kind=SpanKind.OP)
    made.kernel("gemm", 40, 200, 10)
    made.kernel("other", 75, 220, 10)
    trace, found = attributed(made)
    assert named(trace, found.op.tolist()) == ["aten::addmm", "aten::linear"]
    assert named(trace, found.annotation.tolist()) == ["ProfilerStep#1"] * 2
    assert found.launched.at_ns.tolist() == [40, 75]


def test_only_the_thread_of_the_call_counts() -> None:
    made = TraceBuilder()
    made.span("aten::mm", 0, 100, kind=SpanKind.OP)
    made.span("aten::add", 0, 100, kind=SpanKind.OP, thread=OTHER)
    made.kernel("k", 10, 200, 5, thread=OTHER)
    made.kernel("k", 10, 300, 5)
    assert operations(made) == ["aten::add", "aten::mm"]


def test_without_a_call_or_an_operator_around_it_the_operation_is_unknown() -> None:
    made = TraceBuilder()
    made.span("aten::mm", 0, 10, kind=SpanKind.OP)
    made.record("unlinked", 5, 3)
    made.kernel("outside", 20, 200, 5)
    assert operations(made) == [None, None]


def with_ids(shown: int, wrong: int) -> TraceBuilder:
    """Linked records whose External id is right, or wrong, and one with an id alone."""
    made = TraceBuilder()
    made.span("aten::alone", 0, 5, kind=SpanKind.OP, external_id=9000)
    for index in range(shown + wrong):
        start = 10 + 10 * index
        made.span("aten::mm", start, 8, kind=SpanKind.OP, external_id=100 + index)
        made.call("cudaLaunchKernel", start + 2, correlation=1 + index)
        external_id = 100 + index if index < shown else 20_000 + index
        at = 10**6 + index
        made.record("k", at, 1, correlation=1 + index, external_id=external_id)
    made.record("alone", 10**7, 1, external_id=9000)
    return made


def test_an_external_id_stands_in_for_the_call_where_such_ids_are_those_of_operators() -> None:
    trace, found = attributed(with_ids(268, 0))
    assert named(trace, found.op[-1:].tolist()) == ["aten::alone"]
    assert found.launched.at_ns[-1] == 0


@pytest.mark.parametrize(("shown", "wrong", "valid"), [(1000, 1, True), (400, 1, False)])
def test_a_wrong_id_is_forgiven_where_there_are_many(shown: int, wrong: int, valid: bool) -> None:
    """By hand with z = 1.645, z2 = 2.7055 / n: lower ends 0.9954 of 1000 of 1001, 0.9889 of 400."""
    _, found = attributed(with_ids(shown, wrong))
    assert (found.op[-1] >= 0) == valid


@pytest.mark.parametrize(("shown", "wrong"), [(0, 0), (1, 0), (100, 0), (267, 0), (990, 10)])
def test_external_ids_that_too_few_records_or_too_many_wrong_ones_show_say_nothing(
    shown: int, wrong: int
) -> None:
    _, found = attributed(with_ids(shown, wrong))
    assert found.op[-1] == -1
    assert found.launched.thread[-1] == -1


def test_many_records_of_one_operator_are_one_witness() -> None:
    made = with_ids(1, 0)
    for index in range(400):
        made.record("k", 10**6 + 500 + index, 1, correlation=1, external_id=100)
    _, found = attributed(made)
    assert found.op[-1] == -1


def test_an_external_id_of_several_operators_says_nothing() -> None:
    made = with_ids(300, 0)
    made.span("aten::again", 5000, 5, kind=SpanKind.OP, external_id=9000)
    _, found = attributed(made)
    assert found.op[-1] == -1


def test_a_collective_goes_by_the_annotation_that_says_which_it_is() -> None:
    made = TraceBuilder()
    made.span("record_param_comms", 0, 100, kind=SpanKind.OP)
    made.span("nccl:all_reduce", 10, 80)
    made.kernel("ncclDevKernel_Generic(...)", 20, 200, 10)
    made.span("nccl:broadcast", 300, 100)
    made.span("record_param_comms", 310, 80, kind=SpanKind.OP)
    made.kernel("ncclDevKernel_Generic(...)", 320, 500, 10)
    made.span("nccl:all_gather", 600, 100, kind=SpanKind.ANNOTATION)
    made.span("aten::copy_", 610, 80, kind=SpanKind.OP)
    made.kernel("copy", 620, 800, 10)
    assert operations(made) == ["nccl:all_reduce", "record_param_comms", "aten::copy_"]


def test_kernels_launched_anywhere_in_copies_of_fsdp_pack() -> None:
    made = TraceBuilder()
    made.span("fsdp::all_gather_copy_in", 0, 100, kind=SpanKind.OP)
    made.span("aten::_foreach_copy_", 10, 80, kind=SpanKind.OP)
    made.kernel("vectorized_elementwise_kernel", 20, 200, 10)
    made.kernel("vectorized_elementwise_kernel", 120, 300, 10)
    assert classes(made) == [KernelClass.COMM_PACK, KernelClass.ELEMENTWISE]


def test_communication_and_copies_launched_there_keep_their_class() -> None:
    made = TraceBuilder()
    made.span("fsdp::all_gather_copy_in", 0, 100, kind=SpanKind.OP)
    made.kernel("k", 20, 200, 10)
    for kept in (KernelClass.COMM, KernelClass.FUSED_COMM, KernelClass.MEMCPY, KernelClass.MEMSET):
        assert classes(made, kept) == [kept]
    assert classes(made, KernelClass.GEMM) == [KernelClass.COMM_PACK]


def test_a_trace_without_spans_or_records_attributes_nothing() -> None:
    assert operations(TraceBuilder()) == []
    made = TraceBuilder()
    made.call("cudaMemcpyAsync", 5, correlation=1)
    made.record("Memcpy HtoD", 10, 5, correlation=1, kind=RecordKind.MEMCPY)
    assert operations(made) == [None]
    assert classes(made) == [KernelClass.ELEMENTWISE]


def test_an_external_id_without_any_operator_says_nothing() -> None:
    made = TraceBuilder()
    made.call("cudaLaunchKernel", 5, correlation=1)
    made.record("linked", 10, 5, correlation=1, external_id=3)
    made.record("alone", 20, 5, external_id=4)
    assert operations(made) == [None, None]
