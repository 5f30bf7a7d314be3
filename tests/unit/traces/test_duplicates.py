"""Expected rows by hand; which are kept is told by their correlation ids."""

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from chopperd.model.trace import Trace
from chopperd.traces.duplicates import overrun_count, without_copies
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


def _neighbours(
    start_ns: np.ndarray[tuple[int], np.dtype[np.int64]],
    end_ns: np.ndarray[tuple[int], np.dtype[np.int64]],
    chosen: np.ndarray[tuple[int], np.dtype[np.bool_]],
) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    rows = list(zip(start_ns[chosen].tolist(), end_ns[chosen].tolist(), strict=True))
    return list(pairwise(rows))
