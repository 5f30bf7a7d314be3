"""Links between launches and records, on rows written by hand."""

import pytest

from chopperd.model.trace import RecordKind
from chopperd.traces.timeline.links import KERNEL_LAUNCH, Links, link
from tests.trace_building import TraceBuilder


def linked(built: TraceBuilder) -> Links:
    trace = built.build()
    return link(trace.records, trace.calls, trace.names, trace.threads)


def test_a_record_is_tied_to_the_call_with_its_correlation_id() -> None:
    built = TraceBuilder()
    built.call("cudaLaunchKernel", 10, correlation=7)
    built.call("cudaLaunchKernel", 20, correlation=9)
    built.record("b", 40, 5, correlation=9)
    built.record("a", 50, 5, correlation=7)
    links = linked(built)
    assert links.call.tolist() == [1, 0]
    assert links.missing.tolist() == []


def test_a_graph_launch_owns_all_records_with_its_id() -> None:
    built = TraceBuilder()
    built.call("cudaGraphLaunch", 10, correlation=7)
    for start_ns in (20, 30, 40):
        built.record("node", start_ns, 5, correlation=7)
    links = linked(built)
    assert links.call.tolist() == [0, 0, 0]
    assert links.launch.tolist() == links.recorded.tolist() == [True]


def test_a_record_without_id_or_with_an_unknown_one_is_unlinked() -> None:
    built = TraceBuilder()
    built.call("cudaLaunchKernel", 10, correlation=7)
    built.call("cudaDeviceSynchronize", 15)
    built.record("no id", 20, 5)
    built.record("launched before the window", 30, 5, correlation=3)
    links = linked(built)
    assert links.call.tolist() == [-1, -1]
    assert links.missing.tolist() == [0]


def test_a_record_that_starts_long_before_its_call_is_unlinked_and_its_launch_has_no_record() -> (
    None
):
    built = TraceBuilder()
    built.call("cudaLaunchKernel", 100_000, correlation=7)
    built.record("impossible", 100_000 - 10_001, 5, correlation=7)
    links = linked(built)
    assert links.call.tolist() == [-1]
    assert links.missing.tolist() == [0]


@pytest.mark.parametrize("early_ns", [1, 1_000, 10_000])
def test_a_record_up_to_ten_us_before_its_call_is_linked_as_clocks_join_no_better(
    early_ns: int,
) -> None:
    built = TraceBuilder()
    built.call("hipLaunchKernel", 100_000, correlation=7)
    built.record("k", 100_000 - early_ns, 5, correlation=7)
    links = linked(built)
    assert links.call.tolist() == links.by_id.tolist() == [0]
    assert links.missing.tolist() == []


def test_a_launch_goes_before_another_call_with_the_same_id() -> None:
    built = TraceBuilder()
    built.call("cudaLaunchKernel", 10, correlation=7)
    built.call("cudaEventRecord", 12, correlation=7)
    built.record("a", 20, 5, correlation=7)
    assert linked(built).call.tolist() == [0]


def test_an_empty_fill_and_a_host_function_miss_no_record_but_a_copy_does() -> None:
    built = TraceBuilder()
    built.call("cudaMemsetAsync", 10, correlation=1)
    built.call("cudaLaunchHostFunc", 20, correlation=2)
    built.call("cudaMemcpyAsync", 30, correlation=3)
    built.call("cudaStreamWaitEvent", 40, correlation=4)
    assert linked(built).missing.tolist() == [2]


def test_launches_inside_a_graph_capture_miss_no_record() -> None:
    built = TraceBuilder()
    built.call("cudaStreamBeginCapture", 10)
    built.call("cudaLaunchKernel", 20, correlation=1)
    built.call("cudaStreamEndCapture", 30)
    built.call("cudaLaunchKernel", 40, correlation=2)
    assert linked(built).missing.tolist() == [3]


def test_a_call_of_unknown_name_with_a_kernel_is_a_launch_and_one_with_a_fill_is_not() -> None:
    built = TraceBuilder()
    built.call("INVALID", 10, correlation=1)
    built.call("cudaMemsetAsync", 20, correlation=2)
    built.record("k", 30, 5, correlation=1)
    built.record("Memset (Device)", 40, 5, correlation=2, kind=RecordKind.MEMSET)
    links = linked(built)
    assert links.launch.tolist() == [True, False]
    assert links.recorded.tolist() == [True, True]


def test_a_trace_without_calls_or_without_records_links_nothing() -> None:
    only_records, only_calls = TraceBuilder(), TraceBuilder()
    only_records.record("k", 0, 5, correlation=1)
    only_calls.call("cudaLaunchKernel", 0, correlation=1)
    assert linked(only_records).call.tolist() == [-1]
    assert linked(only_calls).missing.tolist() == [0]
    assert linked(TraceBuilder()).missing.tolist() == []


@pytest.mark.parametrize(
    ("name", "launches"),
    [
        ("cudaLaunchKernel", True),
        ("cudaLaunchKernelExC", True),
        ("cudaLaunchCooperativeKernel", True),
        ("cuLaunchKernelEx", True),
        ("cudaGraphLaunch", True),
        ("hipGraphLaunch", True),
        ("hipExtModuleLaunchKernel", True),
        ("hipExtLaunchKernel", True),
        ("urEnqueueKernelLaunch", True),
        ("musaLaunchKernel", True),
        ("hipLaunchHostFunc", False),
        ("cudaGraphInstantiate", False),
        ("cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags", False),
    ],
)
def test_launches_are_known_by_name(name: str, launches: bool) -> None:
    assert bool(KERNEL_LAUNCH.search(name)) is launches


def test_an_id_that_calls_of_two_processes_share_links_nothing_and_misses_nothing() -> None:
    built = TraceBuilder()
    built.call("cudaLaunchKernel", 10, correlation=7, thread=(100, 100))
    built.call("cudaMemsetAsync", 20, correlation=7, thread=(200, 200))
    built.call("cudaLaunchKernel", 30, correlation=8, thread=(200, 201))
    built.record("of either", 40, 5, correlation=7)
    built.record("of the second", 50, 5, correlation=8)
    links = linked(built)
    assert links.call.tolist() == [-1, 2]
    assert links.missing.tolist() == []


def test_calls_of_one_process_may_share_an_id_across_its_threads() -> None:
    built = TraceBuilder()
    built.call("cudaLaunchKernel", 10, correlation=7, thread=(100, 100))
    built.call("cuLaunchKernel", 11, correlation=7, thread=(100, 101))
    built.record("k", 40, 5, correlation=7)
    assert linked(built).call.tolist() == [1]
