"""What is open on a thread, and what it is called; the rules as a whole are in `test_holding`."""

import pytest

from chopperd.model.timeline import NO_HOLDERS, Holder, HostStacks, NoHolder
from chopperd.model.trace import SpanKind
from chopperd.traces.timeline import holders
from chopperd.traces.timeline.layout import lay_out
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
