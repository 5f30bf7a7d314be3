"""Correlation ids of several processes, on rows written by hand."""

from chopperd.traces.correlation_ids import merged_devices
from tests.trace_building import TraceBuilder


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


def test_two_processes_with_devices_of_their_own_are_distinguished_by_ids_of_one_only() -> None:
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
