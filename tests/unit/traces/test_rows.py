from collections.abc import Sequence

import numpy as np
import pytest

from chopperd.model.trace import RecordKind, SpanKind
from chopperd.traces.blocks import Batch
from chopperd.traces.decode import Complete, EventArgs, Refusal, exact_events, quick_events
from chopperd.traces.rows import TraceRows, annotation_names
from tests.layouts import Event, complete_event, encode


def rows_of(events: Sequence[Event]) -> TraceRows:
    rows = TraceRows()
    text = encode(list(events))
    quick = quick_events(text)
    if not isinstance(quick, Refusal):
        rows.add(Batch(quick, exact=False))
        return rows
    exact = exact_events(text)
    assert not isinstance(exact, Refusal)
    rows.add(Batch(exact, exact=True))
    return rows


@pytest.mark.parametrize(
    ("category", "kind"),
    [
        ("kernel", RecordKind.KERNEL),
        ("Kernel", RecordKind.KERNEL),
        ("gpu_memcpy", RecordKind.MEMCPY),
        ("Memcpy", RecordKind.MEMCPY),
        ("gpu_memset", RecordKind.MEMSET),
        ("Memset", RecordKind.MEMSET),
    ],
)
def test_device_work_of_every_age_becomes_a_record(category: str, kind: RecordKind) -> None:
    rows = rows_of([complete_event(category, "k", 1.5, 2, correlation=9, bytes=64)])
    records = rows.records()
    assert records.take("kind", np.int8).tolist() == [kind]
    assert records.take("start_ns", np.int64).tolist() == [1500]
    assert records.take("end_ns", np.int64).tolist() == [3500]
    assert records.take("correlation", np.int64).tolist() == [9]
    expected_bytes = -1 if kind is RecordKind.KERNEL else 64
    assert records.take("copied_bytes", np.int64).tolist() == [expected_bytes]
    assert records.take("comm", np.int8).tolist() == [0]


@pytest.mark.parametrize(
    "category",
    ["cuda_sync", "mtia_ccp_events", "overhead", "python_function", "Trace", "xpu_driver", None],
)
def test_other_categories_are_only_counted(category: str) -> None:
    rows = rows_of([complete_event(category, "x", 1, 2)])
    for table in (rows.records(), rows.calls(), rows.spans(), rows.device_spans()):
        assert len(table.take("start_ns", np.int64)) == 0
    assert rows.counts == {category or "": 1}


def test_flows_of_a_kept_category_are_no_rows() -> None:
    rows = rows_of([{"ph": "s", "cat": "kernel", "name": "k", "ts": 1, "dur": 1}])
    assert len(rows.records().take("start_ns", np.int64)) == 0
    assert rows.counts == {"kernel": 1}


def test_device_and_stream_come_from_args_else_from_process_and_thread() -> None:
    events = [
        complete_event("kernel", "k", 1, 2, device=3, stream=20),
        complete_event("kernel", "k", 1, 2, device="3", stream="0x14"),
        complete_event("Kernel", "k", 1, 2) | {"pid": 3, "tid": "stream 20"},
        complete_event("kernel", "k", 1, 2) | {"pid": 3, "tid": 20, "args": None},
    ]
    for event in events:
        records = rows_of([event]).records()
        assert records.take("device", np.int32).tolist() == [3]
        assert records.take("stream", np.int64).tolist() == [20]


def test_a_record_without_a_device_or_a_start_is_undecodable() -> None:
    rows = rows_of(
        [
            complete_event("kernel", "k", 1, 2) | {"pid": "Spans"},
            complete_event("kernel", "k", None, 2),
            complete_event("kernel", "k", 1e15, 2),
            complete_event("kernel", "good", 1, 2),
        ]
    )
    assert (rows.undecodable, rows.invalid_records) == (2, 0)
    assert len(rows.records().take("start_ns", np.int64)) == 2


def test_a_negative_or_missing_duration_makes_a_record_invalid_and_a_host_row_undecodable() -> None:
    times = [(1, -1), (1, None)]
    rows = rows_of([complete_event("kernel", "k", *one) for one in times])
    assert (rows.undecodable, rows.invalid_records) == (0, 2)
    rows = rows_of([complete_event("cpu_op", "o", *one) for one in times])
    assert (rows.undecodable, rows.invalid_records) == (2, 0)


def test_collective_metadata_mark_a_record() -> None:
    event = complete_event("kernel", "ncclDevKernel_Generic", 1, 2)
    event["args"] = {"Collective name": "allreduce"}
    rows = rows_of([event, complete_event("kernel", "k", 1, 2)])
    records = rows.records()
    assert records.take("comm", np.int8).tolist() == [1, 0]
    told = records.take("collective", np.int32).tolist()
    assert [list(rows.names)[told[0]], told[1]] == ["allreduce", -1]


@pytest.mark.parametrize("time", [1.5, 1234567890123456.789])
def test_queues_that_records_name_are_noticed(time: float) -> None:
    assert not rows_of([complete_event("kernel", "k", time, 2)]).has_queues
    plain, named = complete_event("kernel", "k", time, 2), complete_event("kernel", "k", time, 2)
    named["args"] = {"device": 0, "hsa_queue": 0}
    assert rows_of([plain, named]).has_queues


@pytest.mark.parametrize("category", ["cuda_runtime", "cuda_driver", "Runtime"])
def test_runtime_calls_keep_their_correlation_and_thread(category: str) -> None:
    event = complete_event(category, "hipLaunchKernel", 1, 2, correlation=0, stream="0x0")
    event |= {"pid": 100, "tid": "main"}
    rows = rows_of([event])
    calls = rows.calls()
    assert calls.take("correlation", np.int64).tolist() == [-1]
    assert calls.take("thread", np.int32).tolist() == [0]
    assert list(rows.threads) == [(100, "main")]


def test_host_spans_are_operators_or_annotations() -> None:
    categories = ["cpu_op", "Operator", "user_annotation"]
    rows = rows_of([complete_event(category, "x", 1, 2) for category in categories])
    kinds = rows.spans().take("kind", np.int8).tolist()
    assert sorted(kinds) == [SpanKind.OP, SpanKind.OP, SpanKind.ANNOTATION]


def test_gpu_annotations_are_device_spans() -> None:
    rows = rows_of([complete_event("gpu_user_annotation", "ProfilerStep#1", 1, 2)])
    assert rows.device_spans().take("stream", np.int64).tolist() == [7]


def test_profiler_and_optimizer_names_are_annotations_whatever_their_category() -> None:
    names = ["ProfilerStep#16", "Iteration<3>", "Optimizer.step#SGD.step", "aten::mm", "Iteration"]
    assert annotation_names(names).tolist() == [True, True, True, False, False]


def test_a_row_without_args_has_neither_correlation_nor_bytes() -> None:
    rows = TraceRows()
    row = Complete[float | None](cat="gpu_memcpy", name="m", pid=0, tid=7, ts=1.0, dur=1.0)
    assert EventArgs() == EventArgs(device=None)
    rows.add(Batch([row], exact=False))
    records = rows.records()
    assert records.take("correlation", np.int64).tolist() == [-1]
    assert records.take("copied_bytes", np.int64).tolist() == [-1]
