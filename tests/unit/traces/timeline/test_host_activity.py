"""What host threads were doing, on rows written by hand."""

import pytest

from chopperd.model.timeline import Intervals
from chopperd.model.trace import SpanKind
from chopperd.traces.kernels.names import any_of
from chopperd.traces.timeline.host import (
    ALLOCATOR_CALL,
    DATA_WAIT_PATTERNS,
    SYNC_CALL,
    host_activity,
)
from tests.trace_building import Thread, TraceBuilder

OTHER: Thread = (100, 200)


def pairs(a: Intervals) -> list[tuple[int, int]]:
    return list(zip(a.start_ns.tolist(), a.end_ns.tolist(), strict=True))


def test_each_thread_has_its_own_allocator_data_and_sync_time() -> None:
    built = TraceBuilder()
    built.call("cudaMalloc", 0, 10)
    built.call("cudaFree", 10, 5)
    built.call("cudaLaunchKernel", 20, 5)
    built.call("cudaStreamSynchronize", 30, 50, thread=OTHER)
    built.span("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 40, 9)
    built.span("aten::add", 60, 9, kind=SpanKind.OP)
    main, other = host_activity(built.build(), DATA_WAIT_PATTERNS)
    assert (pairs(main.allocator), pairs(main.data), pairs(main.sync)) == (
        [(0, 15)],
        [(40, 49)],
        [],
    )
    assert (pairs(other.allocator), pairs(other.sync)) == ([], [(30, 80)])


def test_a_site_names_its_own_data_waits() -> None:
    built = TraceBuilder()
    built.span("MyReader.fetch", 0, 10)
    built.span("enumerate(DataLoader)#x", 20, 10)
    (main,) = host_activity(built.build(), (r"myreader\.fetch",))
    assert pairs(main.data) == [(0, 10)]
    (nothing,) = host_activity(built.build(), ())
    assert pairs(nothing.data) == []


def test_a_trace_without_threads_has_no_activity() -> None:
    assert host_activity(TraceBuilder().build(), DATA_WAIT_PATTERNS) == ()


@pytest.mark.parametrize(
    ("name", "is_it"),
    [
        ("cudaMalloc", True),
        ("cudaMallocAsync", True),
        ("cudaFree", True),
        ("hipMalloc", True),
        ("hipExtMallocWithFlags", True),
        ("cuMemCreate", True),
        ("cuMemMap", True),
        ("cuMemUnmap", True),
        ("cuMemRelease", True),
        ("hipMemAddressReserve", True),
        ("cudaFreeAsync", True),
        ("cudaMallocFromPoolAsync", True),
        ("cudaMallocManaged", True),
        ("hipMallocAsync", True),
        ("cuMemAllocAsync", True),
        ("cuMemFree_v2", True),
        ("cuMemSetAccess", True),
        ("cudaMemPoolTrimTo", True),
        ("hipMemPoolDestroy", True),
        ("hipMallocHost", False),
        ("cuMemFreeHost", False),
        ("cudaMemPoolGetAttribute", False),
        ("cudaMallocHost", False),
        ("cudaFreeHost", False),
        ("hipHostMalloc", False),
        ("cuMemAllocHost", False),
        ("cuMemcpyAsync", False),
    ],
)
def test_allocator_calls_are_those_for_device_memory(name: str, is_it: bool) -> None:
    assert bool(ALLOCATOR_CALL.search(name)) is is_it


@pytest.mark.parametrize(
    ("name", "is_it"),
    [
        ("cudaDeviceSynchronize", True),
        ("cudaStreamSynchronize", True),
        ("cudaEventSynchronize", True),
        ("cuCtxSynchronize", True),
        ("hipDeviceSynchronize", True),
        ("hipEventSynchronize", True),
        ("cuStreamSynchronize", True),
        ("cudaMemcpy", True),
        ("cudaMemcpy2D", True),
        ("cuMemcpyDtoH_v2", True),
        ("hipMemcpyWithStream", True),
        ("cudaMemcpyAsync", False),
        ("cuMemcpyDtoHAsync_v2", False),
        ("hipMemcpyDtoD", False),
        ("cudaMemcpyPeer", False),
        ("cudaMemset", False),
        ("cudaStreamWaitEvent", False),
        ("cudaEventQuery", False),
    ],
)
def test_synchronise_calls_are_those_in_which_the_host_waits(name: str, is_it: bool) -> None:
    assert bool(SYNC_CALL.search(name)) is is_it


@pytest.mark.parametrize(
    ("name", "is_it"),
    [
        ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", True),
        ("[pl][profile][_TrainingEpochLoop].train_dataloader_next", True),
        ("DALIGenericIterator.__next__", True),
        ("webdataset.pipeline.next", True),
        ("## load_batch ##", True),
        ("## next_batch ##", True),
        ("## copy_batch_to_gpu ##", False),
        ("aten::medali", False),
        ("DistributedDataParallel.forward", False),
    ],
)
def test_data_waits_are_known_by_name(name: str, is_it: bool) -> None:
    assert bool(any_of(DATA_WAIT_PATTERNS).search(name)) is is_it
