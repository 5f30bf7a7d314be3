"""Who held a device: by hand, and against plain Python that walks stacks (`reference_holders`)."""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chopperd.correlate import holding
from chopperd.correlate.holding import HELD_ROWS, HeldTotals
from chopperd.correlate.join import JoinedDevice, join_device
from chopperd.model.timeline import Timeline
from chopperd.model.trace import SpanKind, Trace, TraceMeta
from chopperd.traces.read.assemble import assemble
from chopperd.traces.read.event_rows import EventRows
from chopperd.traces.read.json_text import ANY_VALUE
from chopperd.traces.read.rows import TraceRows
from chopperd.traces.timeline import host_stacks
from chopperd.traces.timeline.layout import lay_out
from tests.integration.reference_holders import Answer, answers_of
from tests.layouts import Event, encode
from tests.trace_building import MAIN, Thread, TraceBuilder
from tests.unit.correlate.builders import Rec, device

AUTOGRAD: Thread = (100, 200)
OTHER_PROCESS: Thread = (300, 300)
US = 1000


def joined(trace: Trace) -> tuple[JoinedDevice, Timeline]:
    timeline = lay_out(trace)
    one = timeline.devices[0]
    return join_device(
        one, timeline.host_activity, None, None, timeline.collectives, stacks=timeline.stacks
    ), timeline


def totals(trace: Trace) -> HeldTotals:
    found = joined(trace)[0].held
    assert found is not None
    return found


def names(trace: Trace) -> dict[tuple[str, str], int]:
    """The ns of each row and name over the whole file."""
    found = totals(trace)
    last = int(found.window.max(initial=-1))
    sums: Counter[tuple[str, str]] = Counter()
    columns = (found.window, found.row, found.holder, found.time_ns)
    for window, row, holder, time_ns in zip(*(each.tolist() for each in columns), strict=True):
        if window == last:
            sums[HELD_ROWS[row], found.holders[holder].name] += time_ns
    return dict(sums)


def whole(trace: Trace, field: str) -> int:
    found = totals(trace)
    values: list[int] = getattr(found, field)[found.window == found.window.max()].tolist()
    return sum(values)


def launched(made: TraceBuilder, name: str, call_ns: int, start_ns: int, end_ns: int) -> None:
    made.kernel(name, call_ns, start_ns, end_ns - start_ns)


def test_time_before_in_and_after_the_call_is_told_apart() -> None:
    """The call is 1000..1005 in aten::mm 900..1100; the record starts 40 us later, then 60 us."""
    made = TraceBuilder()
    launched(made, "gemm", 10, 20, 100)
    made.span("aten::mm", 900, 200, kind=SpanKind.OP)
    launched(made, "gemm", 1000, 41_005, 41_100)
    launched(made, "gemm", 41_000, 101_101, 101_200)
    assert names(made.build()) == {
        ("idle_launch_prep", "(nothing open) before aten::mm"): 800,
        ("idle_launch_prep", "aten::mm"): 100,
        ("idle_launch_call", "aten::mm"): 5,
        ("idle_launch_call", "(launch latency)"): 40_000,
        ("idle_launch_call", "(device waits)"): 60_001,
    }
    assert whole(made.build(), "in_call_ns") == 5


def test_a_record_without_launch_is_nobodys_and_lost_records_time_neither() -> None:
    made = TraceBuilder()
    launched(made, "gemm", 10, 20, 100)
    made.record("gemm", 200, 50)
    assert names(made.build()) == {("idle_other", "(no launch)"): 100}
    made.call("cudaLaunchKernel", 300)
    launched(made, "gemm", 400, 450, 500)
    # Between 100 and 450 the lost kernel may have run: idle are 100 and 200 of it.
    assert names(made.build()) == {("unknown", "(launch without record)"): 300}


def test_a_file_without_host_spans_names_nobody() -> None:
    made = TraceBuilder()
    made.span("ProfilerStep#3", 0, 5000)
    launched(made, "gemm", 10, 20, 100)
    launched(made, "gemm", 1000, 1010, 1100)
    assert names(made.build()) == {
        ("idle_launch_prep", "(no host spans)"): 900,
        ("idle_launch_call", "(no host spans)"): 5,
        ("idle_launch_call", "(launch latency)"): 5,
    }


def test_while_it_communicates_the_host_is_late_or_waits_or_is_done() -> None:
    """All-reduce 100..1000, the next GEMM is launched at 600..605; a synchronise call 200..300.

    By hand: before the call 500 ns, of which 100 wait; 5 in the call; 395 after it.
    """
    made = TraceBuilder()
    launched(made, "ncclDevKernel_AllReduce", 10, 100, 1000)
    made.call("cudaStreamSynchronize", 200, 100)
    made.span("step", 50, 1000)
    launched(made, "gemm", 600, 1000, 1100)
    found = {("exposed_comm", "step"): 505, ("exposed_comm", "(the collective)"): 395}
    assert names(made.build()) == found
    assert whole(made.build(), "late_host_ns") == 405
    assert whole(made.build(), "host_waits_ns") == 100
    assert whole(made.build(), "in_call_ns") == 5


def test_communication_that_no_compute_follows_is_the_collectives() -> None:
    made = TraceBuilder()
    launched(made, "ncclDevKernel_AllReduce", 10, 100, 1000)
    assert names(made.build()) == {("exposed_comm", "(the collective)"): 900}
    made.record("gemm", 2000, 10)
    found = names(made.build())
    assert found["exposed_comm", "(no launch)"] == 900


def test_of_records_that_start_together_a_linked_one_comes_next() -> None:
    made = TraceBuilder()
    launched(made, "gemm", 10, 20, 100)
    made.record("gemm", 1000, 10, stream=9)
    made.span("aten::mm", 200, 900, kind=SpanKind.OP)
    launched(made, "gemm", 900, 1000, 1100)
    assert ("idle_other", "(no launch)") not in names(made.build())


def test_stretches_are_counted_by_name_once_over_rows_and_what_is_inside() -> None:
    """aten::copy_ holds 100..900 (aten::empty inside it), the call, and later 2000..2500."""
    made = TraceBuilder()
    launched(made, "gemm", 10, 20, 100)
    made.span("aten::copy_", 50, 1000, kind=SpanKind.OP)
    made.span("aten::empty", 300, 100, kind=SpanKind.OP)
    launched(made, "gemm", 900, 910, 2000)
    made.span("aten::copy_", 1900, 900, kind=SpanKind.OP)
    launched(made, "gemm", 2500, 2510, 2600)
    found = totals(made.build())
    name = [found.holders[holder].name for holder in found.holder]
    here = np.array([each == "aten::copy_" for each in name])
    assert found.count[here & (found.window == found.window.max())].sum() == 2


def test_no_device_time_has_no_holders() -> None:
    made = TraceBuilder()
    made.record("gemm", 0, 0)
    assert len(totals(made.build()).time_ns) == 0


def test_without_stacks_holders_are_not_looked_for() -> None:
    assert join_device(device([Rec(0, 10)]), (), None, None).held is None


def test_many_pieces_add_up_as_few_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums with any size of parts, and with keys that are looked up or sorted, are the same."""
    made = TraceBuilder()
    for step in range(10):
        made.span(f"ProfilerStep#{step}", 10_000 * step, 10_000)
    for at in range(100):
        made.span(f"aten::op{at % 7}", 1000 * at + 100, 700, kind=SpanKind.OP)
        launched(made, "gemm", 1000 * at + 500, 1000 * at + 600, 1000 * at + 900)
    trace = made.build()
    usual = totals(trace)
    for at_once, most_dense in ((1, 1), (3, 1 << 20), (1 << 15, 1)):
        monkeypatch.setattr(holding, "_AT_ONCE", at_once)
        monkeypatch.setattr(holding, "_MOST_DENSE", most_dense)
        other = totals(trace)
        for name in ("window", "row", "holder", "time_ns", "in_call_ns", "count"):
            assert getattr(other, name).tolist() == getattr(usual, name).tolist(), name


THREADS = (MAIN, AUTOGRAD, OTHER_PROCESS)
NAMES = {
    "cpu_op": ("aten::mm", "autograd::engine::evaluate_function: X", "record_param_comms"),
    "user_annotation": ("Layer3", "nccl:all_reduce", "ProfilerStep#1", "Optimizer.step#SGD.step"),
    "python_function": (
        *("train.py(3): f", "torch/x.py(1): g", "<built-in function h>", "json/d.py(1): i"),
        *("nn.Module: Linear_0", "nn.Module: Block_1"),
    ),
    "cuda_runtime": ("cudaStreamSynchronize", "cudaMalloc", "cudaEventQuery"),
}
things = st.tuples(
    st.sampled_from(sorted(NAMES)),
    st.integers(0, 11),
    st.sampled_from(THREADS),
    st.integers(1, 120),
    st.integers(0, 60),
)
works = st.tuples(
    st.sampled_from(("gemm", "gemm", "ncclDevKernel_AllReduce", "Memcpy HtoD")),
    st.sampled_from((*THREADS, None)),
    st.integers(1, 120),
    st.integers(0, 12),
    st.integers(0, 40),
    st.integers(0, 30),
)


Thing = tuple[str, int, Thread, int, int]
Work = tuple[str, Thread | None, int, int, int, int]


def events_of(drawn: Sequence[Thing], done: Sequence[Work]) -> list[Event]:
    # Without any row of a length a file covers no time, and has no frames.
    events: list[Event] = [_event("cpu_op", "elsewhere", 300, 301, 1, 1)]
    for category, which, (pid, tid), ts, dur in drawn:
        name = NAMES[category][which % len(NAMES[category])]
        events.append(_event(category, name, pid, tid, ts, dur))
    for number, (name, thread, ts, called, wait, dur) in enumerate(done, 1):
        copies = name.startswith("Memcpy")
        call = "cudaMemcpyAsync" if copies else "cudaLaunchKernel"
        category = "gpu_memcpy" if copies else "kernel"
        args = {"device": 0, "stream": number, "correlation": number if thread else 0}
        if thread is not None:
            launch = _event("cuda_runtime", call, thread[0], thread[1], ts, called)
            events.append(launch | {"args": {"correlation": number}})
        events.append(_event(category, name, 0, number, ts + wait, dur) | {"args": args})
    return events


def _event(category: str, name: str, pid: object, tid: object, ts: int, dur: int) -> Event:
    named = {"cat": category, "name": name, "pid": pid, "tid": tid}
    return {"ph": "X", "ts": ts, "dur": dur, **named}


@settings(max_examples=100, deadline=None)
@given(
    st.lists(things, max_size=25),
    st.lists(works, min_size=1, max_size=8),
    st.sampled_from((1, 7, 1 << 15)),
)
def test_holders_are_those_of_a_walk_over_the_stacks(
    drawn: list[Thing], done: list[Work], block: int
) -> None:
    """Times overlap in any way; one process or two; the sums are those of the waterfall's rows.

    Stacks are read in blocks of any size.
    """
    events = events_of(drawn, done)
    rows = TraceRows()
    EventRows(rows).add(ANY_VALUE.decode(encode(events)))
    trace = assemble(rows, TraceMeta(path="", sha256=""))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(host_stacks, "_BLOCK", block)
        device_, timeline = joined(trace)
    found = device_.held
    assert found is not None
    answers: Counter[Answer] = Counter()
    columns = (found.window, found.row, found.holder, found.time_ns)
    by_row: Counter[tuple[int, str]] = Counter()
    last = len(timeline.devices[0].windows)
    for window, row, holder, ns in zip(*(each.tolist() for each in columns), strict=True):
        by_row[window, HELD_ROWS[row]] += ns
        if window == last:
            name, _, inner, quiet, region = found.holders[holder]
            answers[HELD_ROWS[row], name, inner, quiet, region] += ns
    assert +answers == +answers_of(events)[0]
    times = device_.times
    for window in range(last + 1):
        assert by_row[window, "exposed_comm"] == times.exposed_comm_ns[window]
        for name, ns in times.idle_ns.items():
            assert by_row[window, name] == ns[window]
    order = list(zip(found.window, found.row, found.holder, strict=True))
    assert all(a < b for a, b in pairwise(order))


def test_a_gap_without_time_before_its_call_is_not_made_longer() -> None:
    """The next GEMM, of no length, is launched long before; a synchronise call begins there."""
    made = TraceBuilder()
    launched(made, "gemm", 1, 24, 54)
    launched(made, "gemm", 15, 55, 55)
    launched(made, "ncclDevKernel_AllReduce", 2, 25, 55)
    made.call("cudaStreamSynchronize", 54, 1)
    assert names(made.build()) == {("exposed_comm", "(the collective)"): 1}
