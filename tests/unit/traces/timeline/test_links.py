"""Links between launches and records, on rows written by hand."""

import pytest

from chopperd.model.trace import RecordKind
from chopperd.traces.timeline.links import KERNEL_LAUNCH, Links, link, merged_devices
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


def merged(built: TraceBuilder) -> list[int]:
    trace = built.build()
    return merged_devices(trace.records, trace.calls, trace.threads)


def two_ranks(*, ids: tuple[int, int], devices: tuple[int, int]) -> TraceBuilder:
    """Three launches a process, on the threads of (100, 100) and (200, 200)."""
    built = TraceBuilder()
    for pid, first, device in zip((100, 200), ids, devices, strict=True):
        for n in range(3):
            built.call("cudaLaunchKernel", 10 * n, correlation=first + n, thread=(pid, pid))
            built.record("k", 100 * n + pid, 90, correlation=first + n, device=device)
    return built


def test_records_of_two_processes_on_one_device_are_a_merged_file() -> None:
    assert merged(two_ranks(ids=(1, 1), devices=(0, 0))) == [0]
    assert merged(two_ranks(ids=(1, 11), devices=(0, 0))) == [0]


def test_two_processes_with_devices_of_their_own_are_told_apart_by_ids_that_are() -> None:
    assert merged(two_ranks(ids=(1, 11), devices=(0, 1))) == []
    assert merged(two_ranks(ids=(1, 1), devices=(0, 1))) == [0, 1]  # whose is not known


def test_one_process_with_several_devices_and_none_at_all_are_no_merged_file() -> None:
    built = TraceBuilder()
    built.record("k", 0, 5, correlation=1)
    assert merged(built) == []
    for device in (0, 1):
        built.kernel("k", 10, 20, 5, device=device)
    assert merged(built) == []


def test_a_damaged_process_id_of_one_call_is_no_other_rank() -> None:
    built = TraceBuilder()
    for n in range(1, 4):
        built.call("hipLaunchKernel", n, correlation=n, thread=(4242 if n < 3 else "424", 1))
        built.record("k", 10 * n, 1, correlation=n)
    assert merged(built) == []


def test_one_record_in_a_thousand_with_the_id_of_another_process_is_chance() -> None:
    built = two_ranks(ids=(10_001, 20_001), devices=(0, 1))
    for n in range(1, 1000):
        built.call("cudaLaunchKernel", n, correlation=n, thread=(100, 100))
        built.record("k", 1000 + n, 1, correlation=n)
    built.record("k", 9_999, 1, correlation=20_001)
    assert merged(built) == []
