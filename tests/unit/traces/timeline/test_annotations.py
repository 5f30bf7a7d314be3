"""Annotations of moments, by hand."""

import numpy as np

from chopperd.model.timeline import Phase
from chopperd.model.trace import GraphMark, SpanKind
from chopperd.traces.kernels.names import names_matching
from chopperd.traces.timeline.annotations import annotations
from chopperd.traces.timeline.layout import lay_out
from chopperd.traces.timeline.nesting import Moments
from chopperd.traces.timeline.steps import STEP_MARKER
from tests.trace_building import MAIN, Thread, TraceBuilder

ENGINE: Thread = (100, 101)


def at(
    made: TraceBuilder, *times_ns: int, thread: Thread = MAIN, phase: Phase = Phase.FORWARD
) -> list[str | None]:
    trace, count = made.build(), len(times_ns)
    on = np.full(count, made.threads[thread], np.int32)
    moments = Moments(thread=on, at_ns=np.array(times_ns, np.int64))
    marks = names_matching(trace.names, STEP_MARKER)
    names, column = annotations(trace, moments, np.full(count, phase, np.int8), marks)
    return [names[index] if index >= 0 else None for index in column.tolist()]


def step() -> TraceBuilder:
    """A step of 0 to 100 with `outer` of 10 to 60, and in it `attn_fa` of 20 to 40."""
    made = TraceBuilder()
    made.span("ProfilerStep#3", 0, 100)
    made.span("outer", 10, 50)
    made.span("attn_fa", 20, 20)
    return made


def with_backward(of_ns: int) -> TraceBuilder:
    """The same, with a node of the forward operator at `of_ns`, 200 to 220 on the engine."""
    made = step()
    made.span("aten::mm", of_ns, 5, kind=SpanKind.OP, sequence=9, forward_thread=0)
    made.span(
        "autograd::engine::evaluate_function: MmBackward0",
        200,
        20,
        kind=SpanKind.OP,
        thread=ENGINE,
        sequence=9,
        forward_thread=1,
    )
    return made


def test_the_innermost_counts_and_steps_and_layers_do_not() -> None:
    made = step()
    made.span("Layer12", 45, 10)
    made.span("Iteration3", 46, 5)
    assert at(made, 5, 15, 25, 47) == [None, "outer", "attn_fa", "outer"]


def test_operators_and_modules_are_no_annotations() -> None:
    made = step()
    made.span("aten::mm", 25, 5, kind=SpanKind.OP)
    made.span("nn.Module: Linear_0", 24, 9, kind=SpanKind.MODULE)
    assert at(made, 26) == ["attn_fa"]


def test_a_collectives_own_annotation_counts_only_without_one_of_the_program() -> None:
    made = step()
    made.span("nccl:all_reduce", 30, 5)
    made.span("nccl:all_gather", 70, 5)
    assert at(made, 32, 72) == ["attn_fa", "nccl:all_gather"]


def test_backward_has_the_annotation_of_its_forward_operator() -> None:
    backward = Phase.BACKWARD
    assert at(with_backward(25), 210, thread=ENGINE, phase=backward) == ["b_attn_fa"]
    assert at(with_backward(15), 210, thread=ENGINE, phase=backward) == ["b_outer"]
    assert at(with_backward(70), 210, thread=ENGINE, phase=backward) == [None]


def test_forward_and_backward_of_a_prefixed_annotation_are_a_pair() -> None:
    made = with_backward(45)
    made.span("f_mlp_up", 44, 8)
    assert at(made, 46) == ["f_mlp_up"]
    assert at(made, 210, thread=ENGINE, phase=Phase.BACKWARD) == ["b_mlp_up"]


def test_an_annotation_inside_a_backward_operator_comes_before_that_of_its_forward() -> None:
    made = with_backward(25)
    made.span("all of backward", 190, 50, thread=ENGINE)
    made.span("my hook", 205, 10, thread=ENGINE)
    found = at(made, 202, 210, 230, thread=ENGINE, phase=Phase.BACKWARD)
    assert found == ["b_attn_fa", "my hook", "all of backward"]


def test_a_name_written_with_the_prefix_of_backward_is_the_same_annotation() -> None:
    made = with_backward(25)
    made.span("b_attn_fa", 300, 10, thread=ENGINE)
    found = at(made, 210, 305, thread=ENGINE, phase=Phase.BACKWARD)
    assert found == ["b_attn_fa", "b_attn_fa"]


def test_without_annotations_nothing_is_known() -> None:
    made = TraceBuilder()
    made.span("aten::mm", 0, 5, kind=SpanKind.OP)
    assert at(made, 2) == [None]
    assert at(made, 2, phase=Phase.BACKWARD) == [None]


def test_marks_on_kernels_of_a_graph_replace_what_is_around_its_launch() -> None:
    """A graph of three kernels, launched in Layer3 under `replay`; the last one has no mark."""
    made = TraceBuilder()
    made.span("Layer3", 0, 50)
    made.span("replay", 0, 50)
    made.call("cudaGraphLaunch", 10, correlation=1)
    marks = [
        GraphMark(module="layers.0.wq", name="wq of 0", phase="Backward"),
        GraphMark(name="no module"),
        None,
    ]
    for at, mark in enumerate(marks):
        made.record(f"k{at}", 100 + 10 * at, 5, correlation=1, mark=mark)
    timeline = lay_out(made.build())
    (device,) = timeline.devices
    assert [timeline.layers[at] for at in device.layer] == ["layers.0.wq", "Layer3", "Layer3"]
    assert [timeline.annotations[at] for at in device.annotation] == [
        "wq of 0",
        "no module",
        "replay",
    ]
    assert device.phase.tolist() == [Phase.BACKWARD, Phase.UNKNOWN, Phase.UNKNOWN]
