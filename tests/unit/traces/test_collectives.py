"""Families of RCCL's one kernel: by its own metadata, else by the annotation around its launch."""

import pytest

from chopperd.model.classes import KERNEL_CLASSES, KernelClass
from chopperd.model.timeline import Timeline
from chopperd.traces.collectives import collective_name
from chopperd.traces.timeline import lay_out
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
