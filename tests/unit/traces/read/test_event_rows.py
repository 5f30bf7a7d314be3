from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chopperd.model.trace import RecordKind, SpanKind
from chopperd.traces.read.event_rows import NO_TIME, EventRows, ns_from_us
from chopperd.traces.read.json_text import ANY_VALUE, decimal_of
from chopperd.traces.read.rows import TraceRows, annotation_names
from tests.layouts import Event, complete_event, encode


def rows_of(events: Sequence[Event]) -> TraceRows:
    rows = TraceRows()
    EventRows(rows).add(ANY_VALUE.decode(encode(list(events))))
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
    records = rows.records
    assert records.take("kind", np.int8).tolist() == [kind]
    assert records.take("start_ns", np.int64).tolist() == [1500]
    assert records.take("end_ns", np.int64).tolist() == [3500]
    assert records.take("correlation", np.int64).tolist() == [9]
    expected_bytes = -1 if kind is RecordKind.KERNEL else 64
    assert records.take("copied_bytes", np.int64).tolist() == [expected_bytes]
    assert records.take("collective", np.int32).tolist() == [-1]


@pytest.mark.parametrize(
    "category", ["cuda_sync", "mtia_ccp_events", "overhead", "Trace", "xpu_op", None]
)
def test_other_categories_are_only_counted(category: str) -> None:
    rows = rows_of([complete_event(category, "x", 1, 2)])
    for table in (rows.records, rows.calls, rows.spans, rows.device_spans):
        assert len(table.take("start_ns", np.int64)) == 0
    assert rows.counts == {category or "": 1}


def test_flows_of_a_kept_category_are_no_rows() -> None:
    rows = rows_of([{"ph": "s", "cat": "kernel", "name": "k", "ts": 1, "dur": 1}])
    assert len(rows.records.take("start_ns", np.int64)) == 0
    assert rows.counts == {"kernel": 1}


def test_device_and_stream_come_from_args_else_from_process_and_thread() -> None:
    events = [
        complete_event("kernel", "k", 1, 2, device=3, stream=20),
        complete_event("kernel", "k", 1, 2, device="3", stream="0x14"),
        complete_event("Kernel", "k", 1, 2) | {"pid": 3, "tid": "stream 20"},
        complete_event("kernel", "k", 1, 2) | {"pid": 3, "tid": 20, "args": None},
    ]
    for event in events:
        records = rows_of([event]).records
        assert records.take("device", np.int32).tolist() == [3]
        assert records.take("stream", np.int64).tolist() == [20]


def test_a_record_without_a_device_or_a_start_is_undecodable() -> None:
    rows = rows_of(
        [
            complete_event("kernel", "k", 1, 2) | {"pid": "Spans"},
            complete_event("kernel", "k", None, 2),
            complete_event("kernel", "k", 5e15, 2),
            complete_event("kernel", "good", 1, 2),
        ]
    )
    assert (rows.undecodable, rows.invalid_records) == (3, 0)
    assert len(rows.records.take("start_ns", np.int64)) == 1


def test_a_negative_or_missing_duration_makes_a_record_invalid_and_a_host_row_undecodable() -> None:
    times = [(1, -1), (1, None)]
    rows = rows_of([complete_event("kernel", "k", *one) for one in times])
    assert (rows.undecodable, rows.invalid_records) == (0, 2)
    rows = rows_of([complete_event("cpu_op", "o", *one) for one in times])
    assert (rows.undecodable, rows.invalid_records) == (2, 0)


def test_collective_metadata_of_records_and_operators_are_kept_once() -> None:
    told = {
        "Collective name": "allreduce",
        "dtype": "Float",
        "In msg nelems": 4,
        "Group size": 2,
        "Process Group Ranks": "[0, 1]",
    }
    kernel = complete_event("kernel", "ncclDevKernel_Generic", 1, 2) | {"args": told}
    operator = complete_event("cpu_op", "record_param_comms", 1, 2) | {"args": told}
    rows = rows_of([kernel, complete_event("kernel", "k", 1, 2), operator])
    assert rows.records.take("collective", np.int32).tolist() == [0, -1]
    assert rows.spans.take("collective", np.int32).tolist() == [0]
    assert list(rows.collectives) == [("allreduce", "Float", 4, None, None, None, 2, "[0, 1]")]


def test_shapes_are_kept_of_operators_that_flops_are_counted_of() -> None:
    shaped = {"Input Dims": [[2, 3], [3, 4]], "Input type": ["float", "float"]}
    product = complete_event("cpu_op", "aten::mm", 1, 2) | {"args": shaped}
    other = complete_event("cpu_op", "aten::add", 1, 2) | {"args": shaped}
    bare = complete_event("cpu_op", "aten::mm", 1, 2)
    annotation = complete_event("user_annotation", "mm", 1, 2) | {"args": shaped}
    rows = rows_of([product, other, bare, product, annotation])
    spans = rows.spans
    kinds = spans.take("kind", np.int8).tolist()
    found = dict(zip(kinds, spans.take("shapes", np.int32).tolist(), strict=True))
    assert found == {SpanKind.OP: 0, SpanKind.ANNOTATION: -1}
    assert list(rows.shapes) == [(b"[[2,3],[3,4]]", b'["float","float"]', b"")]


def test_sequence_numbers_and_ids_of_operators_are_kept() -> None:
    ids = {"External id": 7, "Sequence number": 0, "Fwd thread id": 1}
    events = [
        complete_event("cpu_op", "MmBackward0", 1, 2) | {"args": ids},
        complete_event("cpu_op", "aten::mm", 1, 2) | {"args": {"external id": 8}},
        complete_event("cpu_op", "aten::mm", 1, 2) | {"args": {"Sequence number": -1}},
    ]
    spans = rows_of(events).spans
    assert spans.take("external_id", np.int64).tolist() == [7, 8, -1]
    assert spans.take("sequence", np.int64).tolist() == [0, -1, -1]
    assert spans.take("forward_thread", np.int64).tolist() == [1, -1, -1]


@pytest.mark.parametrize(("args", "expected"), [({"bytes": "5"}, 5), ({"size": "6"}, 6), ({}, -1)])
def test_what_a_call_copies_is_kept(args: dict[str, str], expected: int) -> None:
    rows = rows_of([complete_event("cuda_runtime", "hipMemcpyAsync", 1, 2) | {"args": args}])
    assert rows.calls.take("size_bytes", np.int64).tolist() == [expected]


def test_python_functions_that_are_no_modules_are_frames_with_names_of_their_own() -> None:
    names = ("train.py(3): step", "nn.Module: Linear_0")
    rows = rows_of([complete_event("python_function", name, 1, 2) for name in names])
    assert rows.frames.take("function", np.int32).tolist() == [0]
    assert rows.frames.take("end_ns", np.int64).tolist() == [3000]
    assert list(rows.functions) == ["train.py(3): step"]
    assert list(rows.names) == ["nn.Module: Linear_0"]


@pytest.mark.parametrize(
    ("written", "bits"),
    [
        (7, 7), (-7, -7), (2**64 - 2, -2), (2**63, -(2**63)), (2**64, -1), (-(2**63) - 1, -1),
        ("7", 7), (" +7 ", 7), ("0xfffffffffffffffe", -2), ("0x1ffffffffffffffff", -1),
        ("x", -1), ("7" * 70, -1), (7.0, -1), (True, -1), (None, -1), ([], -1),
        (11529215046068469761, 11529215046068469761 - 2**64),
    ],
)  # fmt: skip
def test_all_64_bits_of_a_communicator_are_kept(written: object, bits: int) -> None:
    """By hand: two's complement; 11529215046068469761 is odd, and no double holds it."""
    args = {"Comms Id": written, "Seq": 3}
    rows = rows_of([complete_event("kernel", "ncclDevKernel", 1, 2) | {"args": args}])
    assert rows.records.take("comms_id", np.int64).tolist() == [bits]
    assert rows.records.take("seq", np.int64).tolist() == [3]


def test_of_python_functions_only_calls_of_modules_are_spans() -> None:
    names = ("train.py(3): step", "nn.Module: Linear_0")
    rows = rows_of([complete_event("python_function", name, 1, 2) for name in names])
    spans = rows.spans
    assert spans.take("kind", np.int8).tolist() == [SpanKind.MODULE]
    assert list(rows.names) == ["nn.Module: Linear_0"]


@pytest.mark.parametrize(("time", "t_ns"), [(1.5, 1500), (1234567890123456.8, 1234567890123456800)])
def test_arrows_between_forward_and_backward_operators_are_kept(time: float, t_ns: int) -> None:
    base = {"cat": "fwdbwd", "name": "fwdbwd", "id": 3, "pid": 1, "ts": time}
    events: list[Event] = [
        base | {"ph": "s", "tid": 1},
        base | {"ph": "f", "tid": 2},
        base | {"ph": "f", "tid": 2, "ts": None},
        base | {"ph": "s", "tid": 1, "cat": "ac2g"},
    ]
    rows = rows_of(events)
    flows = rows.flows
    assert flows.take("flow", np.int64).tolist() == [3, 3]
    assert flows.take("is_end", np.int8).tolist() == [0, 1]
    assert flows.take("thread", np.int32).tolist() == [0, 1]
    assert flows.take("t_ns", np.int64).tolist() == [t_ns] * 2
    assert rows.undecodable == 1
    assert rows.counts == {"fwdbwd": 3, "ac2g": 1}


@pytest.mark.parametrize("time", [1.5, 1234567890123456.789])
def test_queues_that_records_name_are_noticed(time: float) -> None:
    assert not rows_of([complete_event("kernel", "k", time, 2)]).has_queues
    plain, named = complete_event("kernel", "k", time, 2), complete_event("kernel", "k", time, 2)
    named["args"] = {"device": 0, "hsa_queue": 0}
    assert rows_of([plain, named]).has_queues


CALLS = (
    *("cuda_runtime", "cuda_driver", "Runtime", "xpu_runtime", "xpu_driver", "mtia_runtime"),
    *("privateuse1_runtime", "privateuse1_driver", "musa_runtime", "musa_driver"),
)


@pytest.mark.parametrize("category", CALLS)
def test_runtime_calls_keep_their_correlation_and_thread(category: str) -> None:
    event = complete_event(category, "hipLaunchKernel", 1, 2, correlation=0, stream="0x0")
    event |= {"pid": 100, "tid": "main"}
    rows = rows_of([event])
    calls = rows.calls
    assert calls.take("correlation", np.int64).tolist() == [-1]
    assert calls.take("thread", np.int32).tolist() == [0]
    assert list(rows.threads) == [(100, "main")]


def test_host_spans_are_operators_or_annotations() -> None:
    categories = ["cpu_op", "Operator", "user_annotation"]
    rows = rows_of([complete_event(category, "x", 1, 2) for category in categories])
    kinds = rows.spans.take("kind", np.int8).tolist()
    assert sorted(kinds) == [SpanKind.OP, SpanKind.OP, SpanKind.ANNOTATION]


def test_gpu_annotations_are_device_spans() -> None:
    rows = rows_of([complete_event("gpu_user_annotation", "ProfilerStep#1", 1, 2)])
    assert rows.device_spans.take("stream", np.int64).tolist() == [7]


def test_profiler_and_optimizer_names_are_annotations_whatever_their_category() -> None:
    names = ["Iteration", "Iteration<3>", "Optimizer.step#SGD.step", "ProfilerStep#16", "aten::mm"]
    assert annotation_names(names).tolist() == [False, True, True, True, False]


def test_a_row_without_args_has_neither_correlation_nor_bytes() -> None:
    row = {"ph": "X", "cat": "gpu_memcpy", "name": "m", "pid": 0, "tid": 7, "ts": 1, "dur": 1}
    records = rows_of([row]).records
    assert records.take("correlation", np.int64).tolist() == [-1]
    assert records.take("copied_bytes", np.int64).tolist() == [-1]


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("0.0005", 0), ("0.0015", 2), ("0.00051", 1), ("-0.0015", -2), ("1000.0005", 1000000),
        ("1000.00050000000000000000000000000000000001", 1000001), ("15e-4", 2), ("5E-4", 0),
        ("1000.0004999999999999999999999999999999999", 1000000), ("0.0004", 0), ("0.00009", 0),
        ("4000000000000000.0004", 4 * 10**18), ("4000000000000000.0005", 4 * 10**18),
        ("4000000000000000.001", NO_TIME), ("0e99999999999999999999", 0), ("1e-99999999999", 0),
        ("0." + "0" * 400 + "1e400", 100), ("1" + "0" * 400 + "e-400", 1000), ("1.5e3", 1500000),
    ],
)  # fmt: skip
def test_times_of_any_length_go_to_the_nearest_ns_halves_to_even(text: str, ns: int) -> None:
    """By hand."""
    texts = [text] if len(text) <= 64 else []
    assert set(ns_from_us([decimal_of(text), *texts]).tolist()) == {ns}


@settings(max_examples=100, deadline=None)
@given(st.integers(-(10**9), 10**9), st.integers(-12, 6))
def test_whatever_the_exponent_the_nearest_ns_is_found(digits: int, exponent: int) -> None:
    """Against fractions."""
    expected = round(Fraction(digits) * Fraction(10) ** exponent * 1000)
    assert ns_from_us([decimal_of(f"{digits}e{exponent}")]).tolist() == [expected]


def test_a_text_is_a_time_where_it_is_a_number_as_json_writes_them() -> None:
    assert ns_from_us(["12.5", "1e1", "7"]).tolist() == [12500, 10000, 7000]
    others = (" 7", "7 ", "+7", ".5", "5.", "1_0", "07", "inf", "0x7", "", "\u0667", "0" * 70 + "7")
    assert ns_from_us(others).tolist() == [NO_TIME] * len(others)


def test_what_is_no_number_or_too_far_away_is_no_time() -> None:
    others: list[object] = [None, True, [7], {}, "x", 5 * 10**15, -(10**16)]
    others += [Decimal("1e400"), Decimal("-inf")]
    assert ns_from_us(others).tolist() == [NO_TIME] * len(others)


def test_two_farthest_times_and_a_base_fit_int64() -> None:
    farthest = ns_from_us([4 * 10**15]).tolist()[0]
    assert farthest == 4 * 10**18
    assert 2 * farthest < 2**63


@settings(max_examples=25, deadline=None)
@given(st.integers(-(4 * 10**15), 4 * 10**15 - 1), st.integers(0, 999))
def test_times_of_three_decimals_are_exact(whole_us: int, thousandths: int) -> None:
    value = Decimal(whole_us) + Decimal(thousandths).scaleb(-3)
    assert ns_from_us([value, whole_us]).tolist() == [
        whole_us * 1000 + thousandths,
        whole_us * 1000,
    ]
