"""Expected rows by hand; which are kept is told by their correlation ids."""

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from chopperd.model.trace import DeviceRecords, Trace
from chopperd.traces.read.cleaning import overrun_count, without_copies, without_far_overruns
from tests.trace_building import TraceBuilder

OTHER = (100, 101)


def kept(trace: Trace) -> tuple[list[int], int]:
    table, copies = without_copies(trace.records)
    return table.correlation.tolist(), copies


def test_a_record_written_twice_is_kept_once() -> None:
    built = TraceBuilder()
    for correlation in (1, 2, 1, 1):
        built.record("k", 100 * correlation, 50, correlation=correlation)
    assert kept(built.build()) == ([1, 2], 2)


def test_copies_need_not_follow_one_another() -> None:
    built = TraceBuilder()
    for correlation, stream in ((1, 7), (2, 8), (1, 7), (2, 8), (3, 9)):
        built.record("k", 100, 50, correlation=correlation, stream=stream)
    assert kept(built.build()) == ([1, 2, 3], 2)


def test_kernels_of_one_graph_launch_differ_in_their_times_or_streams() -> None:
    built = TraceBuilder()
    for start_ns, stream in ((100, 7), (130, 7), (160, 7), (160, 8)):
        built.record("k", start_ns, 20, correlation=500, stream=stream)
    assert kept(built.build()) == ([500] * 4, 0)


def test_records_that_differ_in_any_column_are_no_copies() -> None:
    built = TraceBuilder()
    built.record("k", 100, 50, correlation=1)
    built.record("k", 100, 50, correlation=2)
    built.record("other", 100, 50, correlation=1)
    built.record("k", 100, 50, correlation=1, device=1)
    built.record("k", 100, 50, correlation=1, copied_bytes=8)
    assert kept(built.build())[1] == 0


def test_records_of_no_length_may_be_alike() -> None:
    """In whole microseconds kernels of a graph may have none, as 639 of the 2021 file do."""
    built = TraceBuilder()
    for _ in range(3):
        built.record("k", 100, 0, correlation=500)
    assert kept(built.build()) == ([500] * 3, 0)


def test_records_without_a_correlation_can_be_copies() -> None:
    built = TraceBuilder()
    built.record("k", 100, 50)
    built.record("k", 100, 50)
    assert kept(built.build()) == ([-1], 1)


def test_a_call_written_twice_is_kept_once_even_without_length() -> None:
    built = TraceBuilder()
    built.call("cudaLaunchKernel", 5, 0, correlation=1)
    built.call("cudaLaunchKernel", 5, 0, correlation=1)
    built.call("cudaEventQuery", 5, 0)
    built.call("cudaEventQuery", 5, 0)
    built.call("cudaLaunchKernel", 5, 0, correlation=1, thread=OTHER)
    calls, copies = without_copies(built.build().calls)
    assert (len(calls), copies) == (4, 1)


def test_spans_and_rows_and_arrows_written_twice_are_kept_once() -> None:
    built = TraceBuilder()
    for _ in range(2):
        built.span("ProfilerStep#1", 0, 1000)
        built.span("aten::mm", 10, 0, external_id=4)
        built.device_span("ProfilerStep#1", 20, 900)
        built.arrow(3, 10, 50, OTHER)
    trace = built.build()
    assert without_copies(trace.spans)[1] == 2
    assert without_copies(trace.device_spans)[1] == 1
    flows, copies = without_copies(trace.flows)
    assert (flows.t_ns.tolist(), copies) == ([10, 50], 2)


def test_an_empty_table_has_no_copies() -> None:
    trace = TraceBuilder().build()
    assert without_copies(trace.records)[1] == 0
    assert overrun_count(trace.records) == 0


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(1, 2), st.integers(7, 8)),
        max_size=30,
    )
)
def test_copies_and_overruns_are_those_of_a_loop(rows: list[tuple[int, int, int, int]]) -> None:
    built = TraceBuilder()
    for start_ns, length_ns, correlation, stream in rows:
        built.record("k", start_ns, length_ns, correlation=correlation, stream=stream)
    table, copies = without_copies(built.build().records)
    long = [row for row in rows if row[1]]
    assert copies == len(long) - len(set(long))
    assert np.all(np.diff(table.start_ns) >= 0)
    assert overrun_count(table) == sum(
        one[1] > next_[0]
        for stream in (7, 8)
        for one, next_ in _neighbours(table.start_ns, table.end_ns, table.stream == stream)
    )


def cut(built: TraceBuilder) -> tuple[list[tuple[int, int]], int]:
    """Starts and ends in order, and how many were cut."""
    table, count = without_far_overruns(built.build().records)
    return list(zip(table.start_ns.tolist(), table.end_ns.tolist(), strict=True)), count


def kernels(*lengths_ns: int, every_ns: int = 10_000) -> TraceBuilder:
    """Kernels of these lengths, launched one by one, one each 10 us."""
    built = TraceBuilder()
    for nth, length_ns in enumerate(lengths_ns):
        built.record("k", nth * every_ns, length_ns, correlation=nth + 1)
    return built


def test_a_record_that_lasts_a_ms_past_the_next_ended_before_that_started() -> None:
    times, count = cut(kernels(9_000, 3_400_000_000, 9_000))
    assert times == [(0, 9_000), (10_000, 20_000), (20_000, 29_000)]
    assert count == 1
    assert cut(kernels(9_000, 1_010_000, 9_000))[1] == 0  # a ms past it, not more


def test_a_record_past_the_starts_of_several_is_cut_and_past_two_it_stays() -> None:
    several, two = [1_000, 30_001, *[1_000] * 6], [1_000, 30_000, *[1_000] * 6]
    times, count = cut(kernels(*several))
    assert (times[1], count) == ((10_000, 20_000), 1)
    assert cut(kernels(*two))[1] == 0


def test_kernels_that_the_program_lets_start_early_stay_as_they_are() -> None:
    """A B200 has them, by up to 3.7 us; here past the starts of four."""
    assert cut(kernels(*[5_000] * 8, every_ns=1_000))[1] == 0


def test_parallel_branches_of_one_graph_launch_overlap_and_what_outlasts_the_graph_is_cut() -> None:
    built = TraceBuilder()
    for start_ns, length_ns in ((0, 5_000_000), (1_000, 10), (2_000, 10), (3_000, 10), (9_000, 10)):
        built.record("node", start_ns, length_ns, correlation=500)
    assert cut(built)[1] == 0
    built.record("next", 6_000_000, 10, correlation=501)
    assert cut(built)[1] == 0
    built.record("node", 4_000, 9_000_000, correlation=500)
    times, count = cut(built)
    assert (times[4], count) == ((4_000, 6_000_000), 1)


def test_records_of_other_streams_and_devices_cut_nothing() -> None:
    built = kernels(9_000_000)
    for stream, device in ((8, 0), (7, 1)):
        for nth in range(5):
            start_ns, correlation = 10_000 * nth + 5, 100 * stream + 10 * device + nth
            built.record(
                "other", start_ns, 10, correlation=correlation, stream=stream, device=device
            )
    assert cut(built)[1] == 0


def test_a_stream_of_which_more_than_a_quarter_overlap_is_not_run_one_by_one() -> None:
    lengths = [2_000_000 if nth % 3 == 0 else 9_000 for nth in range(30)]
    assert cut(kernels(*lengths))[1] == 0
    lengths = [2_000_000 if nth % 5 == 0 else 9_000 for nth in range(30)]
    assert cut(kernels(*lengths))[1] == 6


def test_records_that_start_together_are_in_order_of_their_ends_also_when_cut() -> None:
    built = kernels(9_000, 5_000_000, 9_000)
    built.record("other", 10_000, 20_000, correlation=99, stream=8)
    times, count = cut(built)
    assert (times, count) == ([(0, 9_000), (10_000, 20_000), (10_000, 30_000), (20_000, 29_000)], 1)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 12), st.sampled_from([0, 1, 2, 8, 900, 1_100]), st.integers(1, 9)),
        max_size=12,
    )
)
def test_what_is_cut_is_that_of_a_loop(rows: list[tuple[int, int, int]]) -> None:
    """Times in us; launches of 1 to 9 on one stream."""
    built = TraceBuilder()
    for start_us, length_us, launch in rows:
        built.record("k", 1_000 * start_us, 1_000 * length_us, correlation=launch)
    table = built.build().records
    last = len(table) - 1
    ends = {}
    for nth, (start, end) in enumerate(zip(table.start_ns, table.end_ns, strict=True)):
        own = table.correlation[nth]
        after = next((n for n in range(nth + 1, last + 1) if table.correlation[n] != own), None)
        if after is None or not end > table.start_ns[nth + 1] or table.start_ns[after] <= start:
            continue
        past = end - table.start_ns[after]
        several = after + 2 <= last and end > table.start_ns[after + 2]
        if past > 1_000_000 or (several and past > 5_000):
            ends[nth] = int(table.start_ns[after])
    if len(ends) > max(len(table) / 4, 1):
        ends = {}
    found, count = without_far_overruns(table)
    expected = [(int(s), ends.get(n, int(e))) for n, (s, e) in enumerate(_rows(table))]
    assert count == len(ends)
    assert list(_rows(found)) == sorted(expected)


def _rows(table: DeviceRecords) -> list[tuple[int, int]]:
    return list(zip(table.start_ns.tolist(), table.end_ns.tolist(), strict=True))


def _neighbours(
    start_ns: np.ndarray[tuple[int], np.dtype[np.int64]],
    end_ns: np.ndarray[tuple[int], np.dtype[np.int64]],
    chosen: np.ndarray[tuple[int], np.dtype[np.bool_]],
) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    rows = list(zip(start_ns[chosen].tolist(), end_ns[chosen].tolist(), strict=True))
    return list(pairwise(rows))
