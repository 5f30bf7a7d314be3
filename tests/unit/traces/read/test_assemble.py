from collections.abc import Sequence

from chopperd.model.trace import SpanKind, Trace, TraceMeta
from chopperd.traces.read.assemble import assemble
from chopperd.traces.read.event_rows import EventRows
from chopperd.traces.read.json_text import ANY_VALUE
from chopperd.traces.read.rows import TraceRows
from tests.layouts import Event, complete_event, encode

BASE_NS = 1_700_000_000_000_000_000


def assembled(*blocks: Sequence[Event], base_ns: int | None = None) -> Trace:
    rows = TraceRows()
    for block in blocks:
        EventRows(rows).add(ANY_VALUE.decode(encode(list(block))))
    return assemble(rows, TraceMeta(path="", sha256="", base_time_unix_ns=base_ns))


def test_records_are_sorted_by_start_and_end() -> None:
    events = [
        complete_event("kernel", f"k{n}", *one) for n, one in enumerate([(5, 2), (5, 1), (1, 9)])
    ]
    found = assembled(events)
    assert found.records.start_ns.tolist() == [1000, 5000, 5000]
    assert [found.names[n] for n in found.records.name] == ["k2", "k1", "k0"]


def test_of_host_spans_that_start_together_the_outer_comes_first() -> None:
    events = [complete_event("cpu_op", name, 5, length) for name, length in (("in", 1), ("out", 3))]
    found = assembled(events)
    assert [found.names[n] for n in found.spans.name] == ["out", "in"]


def test_columns_do_not_depend_on_how_the_events_came_in_blocks() -> None:
    events = [
        complete_event(category, name, 5, 1) | {"pid": pid}
        for pid, (category, name) in enumerate(
            [("gpu_memcpy", "z"), ("kernel", "b"), ("cpu_op", "y"), ("kernel", "a")]
        )
    ]
    whole, parts = assembled(events), assembled(events[:1], events[1:3], events[3:])
    assert whole.names == parts.names == ("a", "b", "y", "z")
    assert whole.threads == parts.threads
    assert whole.records.name.tolist() == parts.records.name.tolist()
    assert whole.records.device.tolist() == parts.records.device.tolist() == [1, 3, 0]


def test_threads_are_numbers_or_texts_and_a_missing_one_is_empty() -> None:
    ids = [(5, 10), (5, 9.0), ("Spans", None), (None, 9)]
    events = [complete_event("cpu_op", "o", 1, 1) | {"pid": p, "tid": t} for p, t in ids]
    found = assembled(events)
    assert found.threads == ((5, 9), (5, 10), ("", 9), ("Spans", ""))
    assert [found.threads[n] for n in found.spans.thread] == [
        (5, 10),
        (5, 9),
        ("Spans", ""),
        ("", 9),
    ]


def test_a_base_moves_relative_times_to_unix_time() -> None:
    found = assembled([complete_event("kernel", "k", 100.5, 2)], base_ns=BASE_NS)
    assert found.meta.anchored
    assert found.records.start_ns.tolist() == [BASE_NS + 100_500]
    assert found.span_ns == (BASE_NS + 100_500, BASE_NS + 102_500)


def test_a_base_does_not_move_times_that_count_from_1970_already() -> None:
    found = assembled([complete_event("kernel", "k", 1_700_000_000_000_000, 2)], base_ns=BASE_NS)
    assert found.meta.anchored
    assert found.span_ns[0] == 1_700_000_000_000_000_000


def test_small_times_without_a_base_have_no_anchor() -> None:
    found = assembled([complete_event("kernel", "k", 5_000_000, 2)])
    assert not found.meta.anchored
    assert found.span_ns == (5_000_000_000, 5_000_002_000)


def test_records_far_outside_the_capture_are_left_out_and_counted() -> None:
    far = 4_954_520_007_100
    found = assembled(
        [
            complete_event("cpu_op", "o", far, 100),
            complete_event("kernel", "k", far + 10, 20),
            complete_event("kernel", "lost", 0, 0),
            complete_event("gpu_user_annotation", "lost", 0, 0.002),
        ],
        base_ns=BASE_NS,
    )
    assert (found.damage.invalid_records, found.damage.undecodable_events) == (1, 1)
    assert len(found.records) == 1
    assert found.span_ns[1] - found.span_ns[0] == 100_000


def test_a_trace_without_rows_is_empty() -> None:
    found = assembled([])
    assert (len(found.records), len(found.calls), len(found.spans), len(found.device_spans)) == (
        0,
    ) * 4
    assert (found.span_ns, found.meta.anchored) == ((0, 0), False)


def test_steps_of_2021_are_annotations_though_operators_by_category() -> None:
    events = [complete_event("Operator", name, 1, 2) for name in ("ProfilerStep#1", "aten::mm")]
    found = assembled(events)
    kinds = {
        found.names[n]: kind for n, kind in zip(found.spans.name, found.spans.kind, strict=True)
    }
    assert kinds == {"ProfilerStep#1": SpanKind.ANNOTATION, "aten::mm": SpanKind.OP}


def test_sizes_that_no_machine_has_room_for_are_unknown() -> None:
    """Their sums would not fit: a damaged size made a negative one of all."""
    sizes = (2**63 - 1, 2**44 + 1, 2**44, 5)
    events = [
        complete_event("gpu_memcpy", "Memcpy HtoD", n, 1, bytes=size)
        for n, size in enumerate(sizes)
    ]
    calls = [
        complete_event("cuda_runtime", "hipMalloc", n, 1, bytes=s) for n, s in enumerate(sizes)
    ]
    found = assembled([*events, *calls])
    assert found.records.copied_bytes.tolist() == [-1, -1, 2**44, 5]
    assert found.calls.size_bytes.tolist() == [-1, -1, 2**44, 5]


def frame(name: str, ts: float, dur: float, tid: int = 1) -> Event:
    return complete_event("python_function", name, ts, dur) | {"pid": 1, "tid": tid}


def test_frames_are_those_of_threads_with_calls_the_outer_first() -> None:
    call = complete_event("cuda_runtime", "c", 1, 1) | {"pid": 1, "tid": 1}
    frames = [frame("in", 5, 1), frame("out", 5, 3), frame("other thread", 5, 9, tid=2)]
    far = [frame("too late", 5, 4e12), frame("too early", -4e12, 1)]
    found = assembled([call, *frames, *far])
    assert [found.functions[n] for n in found.frames.function] == ["out", "in"]
    assert found.functions == ("in", "out")
    assert found.frames.start_ns.tolist() == [5000, 5000]
    assert found.frames.end_ns.tolist() == [8000, 6000]
    assert found.span_ns == (1000, 2000)


def test_no_frames_are_left_where_nothing_else_has_a_time() -> None:
    found = assembled([frame("alone", 5, 3)])
    assert (len(found.frames), found.functions) == (0, ())


def test_a_record_gets_its_numbers_from_the_operator_of_its_external_id() -> None:
    """A record's own numbers go before its operator's; of two operators the lower is taken."""

    def record(**args: int) -> Event:
        return complete_event("kernel", "ncclDevKernel", 1, 2) | {"args": args}

    def operator(**args: int) -> Event:
        named = {"External id": args["id"], "Seq": args["Seq"], "Comms Id": args["comms"]}
        return complete_event("cpu_op", "record_param_comms", 1, 2) | {"args": named}

    events = [
        record(correlation=1) | {"args": {"External id": 7}, "ts": 10},
        record(correlation=2) | {"args": {"External id": 7, "Seq": 1, "Comms Id": 2}, "ts": 20},
        record(correlation=3) | {"args": {"External id": 8}, "ts": 30},
        record(correlation=4) | {"args": {}, "ts": 40},
        operator(id=7, Seq=5, comms=2**64 - 3),
        operator(id=7, Seq=6, comms=4),
        operator(id=0, Seq=6, comms=4),
        operator(id=9, Seq=6, comms=4),
    ]
    for order in (events, events[::-1]):
        found = assembled(order).records
        assert found.seq.tolist() == [5, 1, -1, -1]
        assert found.comms_id.tolist() == [-3, 2, -1, -1]
