"""Collectives of kernels, and families of RCCL's one kernel, by metadata and by names around."""

import pytest
from msgspec.structs import replace

from chopperd.model.kinds import KERNEL_CLASSES, KernelClass
from chopperd.model.timeline import Timeline
from chopperd.model.trace import Collective, RecordKind, SpanKind
from chopperd.traces.timeline.layout import lay_out
from chopperd.traces.timeline.links import collective_name
from tests.trace_building import TraceBuilder

GENERIC = "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("allreduce", "allreduce"),
        ("nccl:all_reduce", "allreduce"),
        ("_allgather_base", "allgather"),
        ("nccl:_all_gather_base", "allgather"),
        ("_reduce_scatter_base", "reducescatter"),
        ("nccl:reduce_scatter_tensor_coalesced", "reducescatter"),
        ("allgather_into_tensor_coalesced", "allgather"),
        ("broadcast", "broadcast"),
        ("all_to_all", "alltoall"),
        ("all_to_allv", "alltoallv"),
        ("_broadcast_oop", "broadcast"),
        ("nccl:coalesced", "coalesced"),
        ("AllReduce", "allreduce"),
    ],
)
def test_a_collective_has_one_name_in_every_spelling(text: str, name: str) -> None:
    assert collective_name(text) == name


def family_of_each(timeline: Timeline) -> list[str]:
    (device,) = timeline.devices
    assert {KERNEL_CLASSES[code] for code in device.kernel_class} == {KernelClass.COMM}
    return [timeline.families[index] for index in device.family]


def test_the_kernel_s_own_metadata_names_its_family() -> None:
    made = TraceBuilder()
    made.record(GENERIC, 100, 10, collective="allreduce")
    made.record(GENERIC, 200, 10, collective="broadcast")
    made.record(GENERIC, 300, 10, collective="allreduce")
    assert family_of_each(lay_out(made.build())) == [
        "ncclDevKernel_Generic allreduce",
        "ncclDevKernel_Generic broadcast",
        "ncclDevKernel_Generic allreduce",
    ]


def test_without_it_the_annotation_around_the_launch_does_on_its_thread_only() -> None:
    made = TraceBuilder()
    made.span("nccl:all_reduce", 0, 100)
    made.span("nccl:_all_gather_base", 20, 30)
    made.kernel(GENERIC, 10, 200, 5)
    made.kernel(GENERIC, 30, 210, 5)
    made.kernel(GENERIC, 150, 220, 5)
    made.kernel(GENERIC, 30, 230, 5, thread=(100, 101))
    assert family_of_each(lay_out(made.build())) == [
        "ncclDevKernel_Generic allreduce",
        "ncclDevKernel_Generic allgather",
        "ncclDevKernel_Generic",
        "ncclDevKernel_Generic",
    ]


def test_one_launched_before_the_recording_is_of_no_collective() -> None:
    made = TraceBuilder()
    made.span("nccl:all_reduce", 0, 1_000)
    made.record(GENERIC, 100, 10)
    assert family_of_each(lay_out(made.build())) == ["ncclDevKernel_Generic"]


def test_kernels_that_name_their_collective_keep_their_names() -> None:
    made = TraceBuilder()
    made.record("ncclDevKernel_AllGather_RING_LL(x)", 100, 10, collective="_allgather_base")
    assert family_of_each(lay_out(made.build())) == ["ncclDevKernel_AllGather_RING_LL"]


GATHER = Collective(
    name="_allgather_base",
    dtype="BFloat16",
    in_elements=10,
    out_elements=80,
    group="1",
    group_size=8,
)
NAMED = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def collective_of_each(made: TraceBuilder) -> list[Collective | None]:
    timeline = lay_out(made.build())
    (device,) = timeline.devices
    return [None if at < 0 else timeline.collectives[at] for at in device.collective.tolist()]


def operator(made: TraceBuilder, start: int, length: int, told: Collective | str) -> None:
    made.span("record_param_comms", start, length, kind=SpanKind.OP, collective=told)


def test_metadata_is_taken_from_the_kernel_then_from_the_operator_around_its_launch() -> None:
    made = TraceBuilder()
    made.record(NAMED, 90, 5, collective=GATHER)
    operator(made, 0, 40, Collective(name="allreduce", group="2", group_size=4))
    made.span("nccl:broadcast", 5, 30)
    made.kernel(GENERIC, 10, 100, 5)
    assert collective_of_each(made) == [
        Collective(
            name="allgather",
            dtype="BFloat16",
            in_elements=10,
            out_elements=80,
            group="1",
            group_size=8,
        ),
        Collective(name="allreduce", group="2", group_size=4),
    ]
    assert family_of_each(lay_out(made.build()))[1] == "ncclDevKernel_Generic allreduce"


def test_without_metadata_names_tell_the_collective_and_no_more() -> None:
    """The annotation first: an all-to-all is sent by NCCL's kernel for sending and receiving."""
    made = TraceBuilder()
    made.span("nccl:all_to_all", 0, 30)
    made.kernel("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", 10, 100, 5)
    made.kernel("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", 50, 110, 5)
    made.kernel("void deep_ep::intranode::dispatch<8, 512>(int4*)", 60, 120, 5)
    made.kernel("deep_ep::intranode::notify_dispatch<8>(int*)", 70, 130, 5)
    made.kernel("_ZN7deep_ep9intranode7combineI13__nv_bfloat16EEvPS0_", 75, 135, 5)
    made.kernel(GENERIC, 80, 140, 5)
    made.kernel("void (anonymous namespace)::multimem_all_reduce_kernel<4>(char*)", 90, 150, 5)
    assert collective_of_each(made) == [
        Collective(name="alltoall"),
        Collective(name="allreduce"),
        Collective(name="dispatch"),
        None,
        Collective(name="combine"),
        None,
        Collective(name="allreduce"),
    ]


def test_a_group_that_is_called_nothing_has_no_description() -> None:
    made = TraceBuilder()
    made.record(NAMED, 0, 5, collective=replace(GATHER, group_description="undefined"))
    made.record(NAMED, 10, 5, collective=replace(GATHER, group_description="mesh_tp"))
    found = [each.group_description for each in collective_of_each(made) if each is not None]
    assert found == [None, "mesh_tp"]


def test_an_operator_that_waits_launches_no_collective() -> None:
    made = TraceBuilder()
    operator(made, 0, 50, "wait")
    made.kernel(GENERIC, 10, 100, 5)
    assert collective_of_each(made) == [None]


def test_what_computes_or_copies_beside_a_collective_is_none() -> None:
    made = TraceBuilder()
    operator(made, 0, 50, GATHER)
    made.kernel("at::native::CatArrayBatchedCopy", 10, 100, 5)
    made.call("cudaMemcpyAsync", 20, correlation=77)
    made.record("Memcpy DtoD", 110, 5, correlation=77, kind=RecordKind.MEMCPY)
    assert collective_of_each(made) == [None, None]


def test_where_one_operator_launches_several_kernels_their_sizes_are_not_known() -> None:
    made = TraceBuilder()
    operator(made, 0, 50, GATHER)
    made.kernel(NAMED, 10, 100, 5)
    made.kernel(NAMED, 20, 110, 5)
    operator(made, 60, 10, GATHER)
    made.kernel(NAMED, 65, 120, 5)
    first, second, alone = collective_of_each(made)
    assert (
        first == second == Collective(name="allgather", dtype="BFloat16", group="1", group_size=8)
    )
    assert alone is not None
    assert alone.out_elements == 80


def test_a_timeline_lists_each_collective_once_in_one_spelling() -> None:
    made = TraceBuilder()
    made.record(GENERIC, 0, 5, collective="allreduce")
    made.record(GENERIC, 10, 5, collective="allreduce_coalesced")
    made.record(GENERIC, 20, 5, collective="broadcast")
    timeline = lay_out(made.build())
    assert [each.name for each in timeline.collectives] == ["allreduce", "broadcast"]
    assert timeline.devices[0].collective.tolist() == [0, 0, 1]
