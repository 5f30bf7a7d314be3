"""What is open on a thread, and what it is called; the rules as a whole are in `test_holding`."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chopperd.model.timeline import NO_HOLDERS, Holder, HostStacks, NoHolder
from chopperd.model.trace import SpanKind
from chopperd.traces.native.scanner import scanner_library
from chopperd.traces.timeline import holders, host_stacks
from chopperd.traces.timeline.holders import FRAME_KIND, Instants, Things
from chopperd.traces.timeline.host_stacks import walk, walk_natively
from chopperd.traces.timeline.layout import lay_out
from chopperd.traces.timeline.nesting import Moments
from tests.trace_building import MAIN, Thread, TraceBuilder

OTHER: Thread = (100, 101)


def stacks_of(made: TraceBuilder) -> HostStacks:
    found = lay_out(made.build()).stacks
    assert found is not None
    return found


def at(found: HostStacks, thread: int, at_ns: int) -> Holder:
    """Who would hold the device at a moment, by plain search."""
    edges = range(int(found.first[thread]), int(found.first[thread + 1]))
    edge = max(each for each in edges if found.at_ns[each] <= at_ns)
    return found.holders[int(found.holder[edge])]


def working() -> TraceBuilder:
    """A trace whose one kernel is launched at 10 on the main thread."""
    made = TraceBuilder()
    made.kernel("gemm", 10, 20, 10)
    return made


def test_the_outermost_operator_in_the_innermost_annotation_is_named() -> None:
    made = working()
    made.span("aten::around", 90, 900, kind=SpanKind.OP)
    made.span("Layer3", 100, 800)
    made.span("aten::linear", 200, 300, kind=SpanKind.OP)
    made.span("aten::addmm", 250, 100, kind=SpanKind.OP)
    found = stacks_of(made)
    region = {"whole": "aten::around", "region": "Layer3"}
    assert at(found, 0, 300) == Holder("aten::linear", "operator", "aten::addmm", **region)
    assert at(found, 0, 150) == Holder("Layer3", "annotation", "Layer3", **region)
    assert at(found, 0, 95) == Holder(
        "aten::around", "operator", "aten::around", "aten::around", None
    )
    assert at(found, 0, 0).name == "(nothing open) before aten::around"
    assert at(found, 0, 990) == Holder("(nothing open)", "none")


def test_without_an_operator_the_innermost_frame_of_the_user_is_named() -> None:
    made = working()
    made.span("nn.Module: Block_0", 80, 900, kind=SpanKind.MODULE)
    made.frame("train.py(1): step", 100, 800)
    made.frame("torch/x.py(1): save", 200, 300)
    made.frame("<built-in method write of file object at 0x7f>", 250, 100)
    found = stacks_of(made)
    inner = "<built-in method write of file>"
    block = "nn.Module: Block_0"
    assert at(found, 0, 300) == Holder("train.py(1): step", "frame", inner, block, block)
    # Only a module: nothing that is named.
    before = "(nothing open) before train.py(1): step"
    assert at(found, 0, 90) == Holder(before, "none", block, block, block)


def test_what_launches_is_not_wholly_a_wait_and_autograd_is_backward() -> None:
    made = TraceBuilder()
    made.span("autograd::engine::evaluate_function: Mm", 5, 100, kind=SpanKind.OP)
    made.span("aten::zeros", 50, 20, kind=SpanKind.OP)
    made.kernel("gemm", 10, 20, 10)
    found = stacks_of(made)
    assert at(found, 0, 60) == Holder(
        "autograd::engine::evaluate_function: Mm", "operator", "aten::zeros", "aten::zeros",
        "backward",
    )  # fmt: skip
    assert at(found, 0, 40).whole is None


def test_a_launch_that_begins_when_a_thing_ends_is_not_in_it() -> None:
    made = TraceBuilder()
    made.span("before", 5, 5)
    made.span("after", 10, 5)
    made.kernel("gemm", 10, 20, 10)
    found = stacks_of(made)
    assert (at(found, 0, 6).whole, at(found, 0, 12).whole) == ("before", None)


def test_a_collectives_operator_gives_way_to_its_annotation() -> None:
    made = working()
    made.span("record_param_comms", 100, 50, kind=SpanKind.OP)
    made.span("nccl:all_reduce", 110, 20)
    made.span("record_param_comms", 200, 50, kind=SpanKind.OP)
    found = stacks_of(made)
    for moment in (105, 120, 140):
        assert at(found, 0, moment).name == "nccl:all_reduce"
        assert at(found, 0, moment).kind == "annotation"
    assert at(found, 0, 210).name == "record_param_comms"


def test_markers_things_of_no_length_and_threads_that_launch_nothing_are_left_out() -> None:
    made = working()
    made.span("ProfilerStep#3", 0, 1000)
    made.span("empty", 100, 0)
    made.span("loader", 100, 100, thread=OTHER)
    found = stacks_of(made)
    assert at(found, 0, 150) == Holder("(nothing open)", "none")
    assert found.first[2] - found.first[1] == 1


def test_a_thing_that_outlives_what_it_began_in_is_searched_for() -> None:
    """First 100..200, second 150..300 began inside it: from 200 on it is alone."""
    made = working()
    made.span("aten::first", 100, 100, kind=SpanKind.OP)
    made.span("aten::second", 150, 150, kind=SpanKind.OP)
    found = stacks_of(made)
    assert [at(found, 0, moment).name for moment in (160, 250)] == ["aten::first", "aten::second"]


def test_stacks_deeper_than_are_followed_are_searched() -> None:
    made, depth = working(), holders._DEEPEST + 40
    made.span("Layer", 100, 10_000)
    for level in range(depth):
        made.span(f"aten::op{level % 3}", 101 + level, 9000 - 2 * level, kind=SpanKind.OP)
    found = at(stacks_of(made), 0, 101 + depth)
    assert (found.name, found.inner) == ("aten::op0", f"aten::op{(depth - 1) % 3}")
    assert found.region == found.whole == "Layer"


def test_holders_of_no_thread_come_first_and_files_without_spans_have_one_more() -> None:
    found = stacks_of(working())
    assert tuple(each.name for each in found.holders[: len(NO_HOLDERS)]) == NO_HOLDERS
    assert at(found, 0, 50) == Holder(NoHolder.NO_SPANS.label, "none")


def test_many_names_are_numbered_as_few_are(monkeypatch: pytest.MonkeyPatch) -> None:
    made = working()
    for number in range(30):
        made.span(f"aten::op{number}", 100 * number, 50, kind=SpanKind.OP)
    usual = stacks_of(made)
    monkeypatch.setattr(holders, "_MOST_DENSE", 4)
    other = stacks_of(made)
    assert [at(usual, 0, ns) for ns in range(0, 3000, 50)] == [
        at(other, 0, ns) for ns in range(0, 3000, 50)
    ]


def test_without_device_records_no_stacks_are_read() -> None:
    made = TraceBuilder()
    made.span("aten::mm", 0, 10, kind=SpanKind.OP, thread=MAIN)
    assert lay_out(made.build()).stacks is None


Drawn = tuple[int, int, int, int, bool]
#: Start, length, thread, kind, and whether it is the user's or autograd's.
drawn_things = st.lists(
    st.tuples(
        st.integers(0, 40),
        st.integers(1, 15),
        st.integers(0, 2),
        st.integers(0, FRAME_KIND),
        st.booleans(),
    ),
    max_size=25,
)
drawn_launches = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 60)), max_size=6)


def things_of(drawn: Sequence[Drawn], launches: Sequence[tuple[int, int]] = ()) -> Things:
    def column(values: Sequence[int], kind: type[np.generic]) -> np.ndarray:
        return np.array(values, kind)

    drawn = sorted(drawn, key=lambda each: (each[0], -each[1], -each[3]))
    start, length, thread, kind, flag = zip(*drawn, strict=True) if drawn else ((),) * 5
    called = Moments(
        thread=column([each for each, _ in launches], np.int32),
        at_ns=column([each for _, each in launches], np.int64),
    )
    flags, kinds = column(flag, np.bool_), column(kind, np.int8)
    return Things(
        thread=column(thread, np.int32),
        start_ns=column(start, np.int64),
        end_ns=column(start, np.int64) + column(length, np.int64),
        kind=kinds,
        said=kinds,
        text=np.arange(len(drawn), dtype=np.int32),
        user=flags & (kinds == FRAME_KIND),
        backward=flags & (kinds == SpanKind.OP),
        backward_text=len(drawn),
        launches=Instants(called),
    )


needs_library = pytest.mark.skipif(scanner_library() is None, reason="it was not built")


@needs_library
@given(drawn_things, drawn_launches, st.integers(-1, 30), st.integers(1, 60))
def test_the_library_finds_what_numpy_does_however_things_overlap(
    drawn: list[Drawn], launches: list[tuple[int, int]], from_ns: int, lasts_ns: int
) -> None:
    things = things_of(drawn, launches)
    block = (3, from_ns if from_ns >= 0 else host_stacks._ALWAYS_NS, from_ns + lasts_ns)
    found = walk_natively(things, *block)
    assert found is not None
    (moments, inner, stacks), (same_moments, same_inner, same_stacks) = found, walk(things, *block)
    assert moments.thread.tolist() == same_moments.thread.tolist()
    assert moments.at_ns.tolist() == same_moments.at_ns.tolist()
    assert inner.tolist() == same_inner.tolist()
    for name in stacks.__struct_fields__:
        same = getattr(same_stacks, name)
        assert getattr(stacks, name).tolist() == same.tolist(), name


@needs_library
def test_what_overlaps_too_much_is_left_to_numpy() -> None:
    """Each of 2000 operators begins before any ends, and they end in the order of their begin."""
    count = 2000
    things = things_of([(each, count, 0, int(SpanKind.OP), False) for each in range(count)])
    block = (1, host_stacks._ALWAYS_NS, 2 * count)
    assert walk_natively(things, *block) is None
    moments, inner, _ = walk(things, *block)
    assert inner[moments.at_ns == 2 * count - 2].tolist() == [count - 1]


def test_without_the_library_stacks_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    made = working()
    made.span("Layer", 100, 300)
    made.span("aten::mm", 200, 100, kind=SpanKind.OP)
    usual = stacks_of(made)
    monkeypatch.setattr(host_stacks, "scanner_library", lambda: None)
    other = stacks_of(made)
    assert usual.holders == other.holders
    for column in ("first", "at_ns", "holder", "is_open"):
        assert getattr(usual, column).tolist() == getattr(other, column).tolist()
