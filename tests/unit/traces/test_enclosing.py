"""The innermost span around an instant, by hand and by plain search."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from chopperd.traces.enclosing import innermost
from tests.trace_building import MAIN, Thread, TraceBuilder

OTHER: Thread = (100, 101)


def at(made: TraceBuilder, *instants: int, thread: int = 0) -> list[int]:
    spans = made.build().spans
    found: list[int] = innermost(
        spans,
        np.arange(len(spans)),
        np.full(len(instants), thread, np.int32),
        np.array(instants, np.int64),
    ).tolist()
    return found


def test_of_nested_spans_the_innermost_counts_and_ends_are_outside() -> None:
    made = TraceBuilder()
    made.span("outer", 0, 100)
    made.span("inner", 20, 30)
    assert at(made, 0, 19, 20, 49, 50, 99, 100) == [0, 0, 1, 1, 0, 0, -1]


def test_spans_of_other_threads_hold_nothing() -> None:
    made = TraceBuilder()
    made.span("here", 0, 10)
    made.span("there", 5, 100, thread=OTHER)
    assert at(made, 7, 50) == [0, -1]
    assert at(made, 7, 50, 2, thread=1) == [1, 1, -1]


def test_spans_of_no_length_hold_nothing_and_of_equal_starts_the_shorter_is_inside() -> None:
    made = TraceBuilder()
    made.span("long", 10, 20)
    made.span("short", 10, 5)
    made.span("empty", 10, 0)
    assert at(made, 10, 14, 15) == [1, 1, 0]


def test_without_spans_or_instants_nothing_is_found() -> None:
    spans = TraceBuilder().build().spans
    nowhere = innermost(spans, np.arange(0), np.zeros(2, np.int32), np.arange(2))
    assert nowhere.tolist() == [-1, -1]
    made = TraceBuilder()
    made.span("x", 0, 5)
    assert at(made) == []


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 8), st.booleans()), max_size=12),
    st.lists(st.integers(-2, 70), min_size=1, max_size=20),
)
@settings(max_examples=80, deadline=None)
def test_it_is_what_a_plain_search_finds(
    blocks: list[tuple[int, int, bool]], instants: list[int]
) -> None:
    """Blocks one after another, each of some spans that shrink towards its middle."""
    made, start = TraceBuilder(), 0
    for depth, length, gap in blocks:
        for level in range(depth):
            made.span("s", start + level, max(length - 2 * level, 0), thread=MAIN)
        start += length + gap
    spans = made.build().spans
    for instant, found in zip(instants, at(made, *instants), strict=True):
        holds = np.flatnonzero((spans.start_ns <= instant) & (instant < spans.end_ns))
        assert found == (holds[-1] if len(holds) else -1)
