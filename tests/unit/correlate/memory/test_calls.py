"""Retries and calls of allocators, by hand; sequences as torch's allocator makes them."""

import numpy as np
import pytest

from chopperd.correlate.memory.calls import host_calls
from tests.trace_building import MAIN, TraceBuilder
from tests.unit.correlate.memory.building import calls, joined_rows, rows

LETTERS = {
    "M": "cudaMalloc",
    "S": "cudaEventSynchronize",
    "F": "cudaFree",
    "L": "cudaLaunchKernel",
    "Q": "cudaEventQuery",
    "C": "cuMemCreate",
    "P": "cuMemMap",
    "U": "cuMemUnmap",
    "R": "cuMemRelease",
}


def retries(text: str, *, in_operator: tuple[int, int] | None = None) -> list[int]:
    """Starts of the retries of calls, one a us; `in_operator`: from when to when one runs."""
    spans = (
        [("aten::empty", in_operator[0], in_operator[1] - in_operator[0])] if in_operator else []
    )
    found = calls(*((at, LETTERS[letter]) for at, letter in enumerate(text)), operators=spans)
    return [*(found.start_ns[found.is_retry] // 1000).tolist()]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("MFFM", [3]),  # failed, gave back, worked
        ("MSSFFM", [5]),  # waited for blocks of other streams first
        ("MQFQM", [4]),  # asking for events is none of it
        ("MFMFM", [2, 4]),
        ("CSSSURSURCPL", [9]),  # expandable: the first page could not be had
        ("MFL", []),
        ("MLFFM", []),  # a launch between
        ("FFM", []),  # garbage collection, or a cache that was emptied
        ("SFF", []),  # empty_cache() alone
        ("MMMM", []),
        ("SFM", []),  # outside an operator: empty_cache(), then a request
    ],
)
def test_a_retry_is_a_failed_call_and_what_follows(text: str, expected: list[int]) -> None:
    assert retries(text) == expected


def test_without_the_first_call_it_must_be_inside_one_operator() -> None:
    assert retries("LSSFM", in_operator=(1, 9)) == [4]
    assert retries("LSSFM", in_operator=(2, 9)) == []  # begins before the operator
    assert retries("LSSFM", in_operator=(1, 4)) == []  # ends in it
    assert retries("LSLFM", in_operator=(0, 9)) == []


def test_calls_of_different_threads_are_no_retry() -> None:
    other = (100, 200)
    apart = calls((0, "cudaMalloc"), (1, "cudaFree", other), (2, "cudaMalloc"))
    assert not apart.is_retry.any()
    both = calls((0, "hipMalloc", other), (1, "hipFree", other), (2, "hipMalloc", other))
    assert both.start_ns[both.is_retry].tolist() == [2000]


@pytest.mark.parametrize(
    "name", ["cudaMallocHost", "cudaHostAlloc", "cudaFreeHost", "cudaFreeAsync", "cuMemFreeHost"]
)
def test_memory_of_the_host_and_of_other_allocators_is_left_out(name: str) -> None:
    assert not calls((0, name)).is_any("MFCO").any()


def test_only_threads_of_the_process_count() -> None:
    builder, other = TraceBuilder(), (7, 7)
    builder.call("cudaMalloc", 0, thread=MAIN)
    builder.call("cuMemMap", 0, thread=other)
    builder.span("aten::record_stream", 0, 5, thread=other)
    trace = builder.build()
    columns = trace.names, trace.calls, trace.spans
    mine = host_calls(*columns, np.array([thread == MAIN for thread in trace.threads]))
    assert (mine.letter.tolist(), mine.has_spans, mine.is_expandable) == ([ord("M")], False, False)
    every = host_calls(*columns)
    assert (len(every.letter), every.has_spans, every.is_expandable) == (2, True, True)


def test_a_trace_without_calls_knows_nothing() -> None:
    empty = calls()
    assert (empty.is_recorded, empty.has_spans, len(empty.is_retry)) == (False, False, 0)
    assert not calls((0, "somethingElse")).is_recorded
    assert calls((0, "cudaStreamBeginCapture")).is_recorded


def test_calls_are_of_the_device_whose_row_their_thread_writes_next() -> None:
    other = (100, 200)
    made = calls(
        *((0, "cudaMalloc"), (10, "cudaMalloc"), (11, "cudaFree"), (12, "cudaMalloc")),
        *((10, "cudaEventQuery", other), (30, "cudaFree")),
        operators=[("aten::record_stream", 0, 1)],
    )
    first = rows((1, 512, 1, 512, 512), (14, 512, 2, 512, 512), device=0)
    second = rows((13, 512, 3, 512, 512), (20, 512, 3, 512, 512), device=1)
    elsewhere = rows((11, 512, 5, 512, 512), device=0, thread=1)
    table = joined_rows(first, second, elsewhere)
    found = [made.of_device(table, device) for device in (0, 1)]
    assert [bytes(each.letter).decode() for each in found] == ["MQ", "MFM"]  # nobody's: the last F
    assert [int(each.is_retry.sum()) for each in found] == [0, 1]
    assert [each.has_spans for each in found] == [False, False]
