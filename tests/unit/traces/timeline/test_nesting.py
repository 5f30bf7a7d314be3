"""The innermost span around a moment, by hand and by plain search."""

from collections.abc import Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from chopperd.model.arrays import Int64s
from chopperd.model.trace import HostSpans
from chopperd.traces.timeline.nesting import Moments, Nesting, beginnings
from tests.trace_building import MAIN, Thread, TraceBuilder

OTHER: Thread = (100, 101)
Drawn = tuple[int, int, bool]

lengths = st.integers(0, 12)
overlapping = st.lists(st.tuples(st.integers(0, 40), lengths, st.booleans()), max_size=30)


def whole(spans: HostSpans) -> Nesting:
    return Nesting(spans, np.arange(len(spans)))


def at(made: TraceBuilder, *instants: int, thread: int = 0) -> list[int]:
    on = np.full(len(instants), thread, np.int32)
    moments = Moments(thread=on, at_ns=np.array(instants, np.int64))
    found: list[int] = whole(made.build().spans).innermost(moments).tolist()
    return found


def built(drawn: Sequence[Drawn]) -> HostSpans:
    made = TraceBuilder()
    for start, length, elsewhere in drawn:
        made.span("s", start, length, thread=OTHER if elsewhere else MAIN)
    return made.build().spans


def plainly(spans: HostSpans, chosen: Int64s, thread: int, at_ns: int, before: int) -> int:
    """The last chosen row in front of `before` that has begun and not ended."""
    holds = [
        row
        for row in chosen.tolist()
        if row < before
        and spans.thread[row] == thread
        and spans.start_ns[row] <= at_ns < spans.end_ns[row]
    ]
    return max(holds, default=-1)


def test_of_nested_spans_the_innermost_counts_and_ends_are_outside() -> None:
    made = TraceBuilder()
    made.span("outer", 0, 100)
    made.span("inner", 20, 30)
    assert at(made, -1, 0, 19, 20, 49, 50, 99, 100) == [-1, 0, 0, 1, 1, 0, 0, -1]


def test_spans_of_other_threads_hold_nothing() -> None:
    made = TraceBuilder()
    made.span("here", 0, 10)
    made.span("there", 5, 100, thread=OTHER)
    assert at(made, 7, 50) == [0, -1]
    assert at(made, 7, 50, 2, thread=1) == [1, 1, -1]
    assert at(made, 7, 50, thread=-1) == [-1, -1]
    assert at(made, 7, 50, thread=2) == [-1, -1]


def test_spans_of_no_length_hold_nothing_and_of_equal_starts_the_shorter_is_inside() -> None:
    made = TraceBuilder()
    made.span("long", 10, 20)
    made.span("short", 10, 5)
    made.span("empty", 10, 0)
    assert at(made, 10, 14, 15) == [1, 1, 0]


def test_a_span_that_ends_after_the_one_it_began_in_is_inside_it_until_then_and_alone_after() -> (
    None
):
    made = TraceBuilder()
    made.span("first", 0, 10)
    made.span("second", 5, 10)
    assert at(made, 4, 5, 9, 10, 14, 15) == [0, 1, 1, 1, 1, -1]
    assert whole(made.build().spans).parents().tolist() == [-1, 0]


def test_an_ended_span_is_around_nothing_though_one_that_began_in_it_goes_on() -> None:
    made = TraceBuilder()
    made.span("first", 0, 10)
    made.span("endless", 5, 100)
    made.span("late", 20, 5)
    assert whole(made.build().spans).parents().tolist() == [-1, 0, 1]
    only_first_and_late = Nesting(made.build().spans, np.array([0, 2]))
    assert only_first_and_late.parents().tolist() == [-1, -1]


def test_a_span_that_starts_at_a_moment_is_found_by_it_the_outermost_of_several() -> None:
    made = TraceBuilder()
    made.span("outer", 10, 50)
    made.span("inner", 10, 20)
    made.span("there", 20, 5, thread=OTHER)
    made.span("empty", 60, 0)
    for thread, wanted in ((0, [-1, 0, -1, -1, 3, -1]), (1, [-1, -1, -1, 2, -1, -1])):
        times_ns = np.array([9, 10, 11, 20, 60, 61], np.int64)
        moments = Moments(thread=np.full(6, thread, np.int32), at_ns=times_ns)
        assert whole(made.build().spans).starting(moments).tolist() == wanted


def test_without_spans_or_instants_nothing_is_found() -> None:
    nowhere = whole(TraceBuilder().build().spans)
    assert nowhere.innermost(
        Moments(thread=np.zeros(2, np.int32), at_ns=np.arange(2))
    ).tolist() == [-1, -1]
    assert nowhere.parents().tolist() == []
    made = TraceBuilder()
    made.span("x", 0, 5)
    assert at(made) == []


def test_times_so_far_apart_that_the_threads_do_not_fit_on_one_axis_are_still_told_apart() -> None:
    made = TraceBuilder()
    made.span("here", 0, 2**61)
    made.span("there", 2**61 - 5, 10, thread=OTHER)
    made.span("inner", 100, 10)
    assert at(made, -1, 0, 100, 110, 2**61 - 1, 2**61, 2**62) == [-1, 0, 1, 0, 0, -1, -1]
    assert at(made, 0, 2**61 - 5, 2**61 + 4, 2**61 + 5, thread=1) == [-1, 2, 2, -1]


@given(overlapping, st.lists(st.integers(-2, 55), min_size=1, max_size=20), st.data())
@settings(max_examples=60, deadline=None)
def test_it_finds_what_a_plain_search_finds_however_spans_overlap(
    drawn: list[Drawn], instants: list[int], data: st.DataObject
) -> None:
    spans = built(drawn)
    mask = data.draw(st.lists(st.booleans(), min_size=len(spans), max_size=len(spans)))
    chosen = np.flatnonzero(np.array(mask, np.bool_))
    nesting = Nesting(spans, chosen)
    for thread in (0, 1):
        on = np.full(len(instants), thread, np.int32)
        moments = Moments(thread=on, at_ns=np.array(instants, np.int64))
        found = nesting.innermost(moments).tolist()
        wanted = [plainly(spans, chosen, thread, each, len(spans)) for each in instants]
        assert found == wanted
        many = Moments(thread=np.tile(on, 50), at_ns=np.tile(moments.at_ns, 50))
        assert nesting.innermost(many).tolist() == 50 * wanted


@given(overlapping)
@settings(max_examples=60, deadline=None)
def test_a_parent_is_the_innermost_other_span_around_the_start(drawn: list[Drawn]) -> None:
    spans = built(drawn)
    every = np.arange(len(spans))
    wanted = [
        plainly(spans, every, int(spans.thread[row]), int(spans.start_ns[row]), row)
        for row in range(len(spans))
    ]
    assert whole(spans).parents().tolist() == wanted


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3)), min_size=1, max_size=60))
@settings(max_examples=60, deadline=None)
def test_of_nested_spans_it_is_what_a_stack_holds(moves: list[tuple[bool, int]]) -> None:
    """A stack is opened and closed at random; at every moment its top is the innermost span."""
    stack: list[int] = []
    opened: list[list[int]] = []
    now, tops = 0, []
    for opens, wait in [*moves, *[(False, 1)] * len(moves)]:
        if opens:
            stack.append(len(opened))
            opened.append([now, -1])
        elif stack:
            opened[stack.pop()][1] = now
        now += 1 + wait
        tops.append((now - 1, stack[-1] if stack else -1))
    made = TraceBuilder()
    for start, end in opened:
        made.span("s", start, end - start)
    assert at(made, *(when for when, _ in tops)) == [top for _, top in tops]


def test_calls_begin_on_their_threads_and_no_call_is_on_none() -> None:
    made = TraceBuilder()
    made.span("outer", 0, 100)
    made.call("cudaLaunchKernel", 10, 5)
    made.call("cudaLaunchKernel", 20, 5, thread=OTHER)
    trace = made.build()
    moments = beginnings(trace.calls, np.array([1, -1, 0]))
    assert moments.at_ns[moments.thread >= 0].tolist() == [20, 10]
    assert whole(trace.spans).innermost(moments).tolist() == [-1, -1, 0]


def test_in_a_file_without_calls_no_call_begins() -> None:
    moments = beginnings(TraceBuilder().build().calls, np.array([-1]))
    assert moments.thread.tolist() == [-1]


@settings(max_examples=300, deadline=None)
@given(overlapping, st.integers(0, 3), st.integers(-1, 45), st.integers(-1, 30))
def test_the_outermost_span_that_comes_after_another_is_that_of_a_plain_search(
    drawn: list[Drawn], every: int, at_ns: int, inside: int
) -> None:
    spans = built(drawn)
    chosen = np.flatnonzero(np.arange(len(spans)) % (every + 1) == 0)
    for thread in (0, 1):
        own = inside if 0 <= inside < len(spans) and spans.thread[inside] == thread else -1
        moment = Moments(thread=np.array([thread], np.int32), at_ns=np.array([at_ns], np.int64))
        nesting = Nesting(spans, chosen)
        found = int(nesting.outermost(moment, np.array([own]))[0])
        holds = [
            row
            for row in chosen.tolist()
            if row > own
            and spans.thread[row] == thread
            and spans.start_ns[row] <= at_ns < spans.end_ns[row]
        ]
        assert found == min(holds, default=-1)
        if own < 0:
            assert nesting.outermost(moment).tolist() == [found]
