"""Layers of moments by each kind of evidence, by hand."""

import numpy as np

from chopperd.model.timeline import Phase
from chopperd.model.trace import SpanKind
from chopperd.traces.timeline.layers import layers
from chopperd.traces.timeline.nesting import Moments
from tests.trace_building import MAIN, Thread, TraceBuilder

ENGINE: Thread = (100, 101)


def at(
    made: TraceBuilder, *times_ns: int, thread: Thread = MAIN, phase: Phase = Phase.FORWARD
) -> list[str | None]:
    count = len(times_ns)
    on = np.full(count, made.threads[thread], np.int32)
    moments = Moments(thread=on, at_ns=np.array(times_ns, np.int64))
    names, column = layers(made.build(), moments, np.full(count, phase, np.int8))
    return [names[index] if index >= 0 else None for index in column.tolist()]


def backward(made: TraceBuilder, *times_ns: int) -> list[str | None]:
    return at(made, *times_ns, thread=ENGINE, phase=Phase.BACKWARD)


def two_blocks() -> TraceBuilder:
    """Net_0 from 0 to 100, with Block_0 from 10 to 40 and Block_1 from 50 to 80."""
    made = TraceBuilder()
    made.span("nn.Module: Net_0", 0, 100, kind=SpanKind.MODULE)
    made.span("nn.Module: Block_0", 10, 30, kind=SpanKind.MODULE)
    made.span("nn.Module: Block_1", 50, 30, kind=SpanKind.MODULE)
    return made


def node(made: TraceBuilder, start_ns: int, *, sequence: int = -1) -> None:
    """A node that runs for 20 ns on the engine's thread."""
    made.span(
        "autograd::engine::evaluate_function: MmBackward0",
        start_ns,
        20,
        kind=SpanKind.OP,
        thread=ENGINE,
        sequence=sequence,
        forward_thread=1 if sequence >= 0 else -1,
    )


def operator(made: TraceBuilder, start_ns: int, sequence: int, thread: Thread = MAIN) -> None:
    made.span(
        "aten::mm",
        start_ns,
        5,
        kind=SpanKind.OP,
        sequence=sequence,
        forward_thread=0,
        thread=thread,
    )


def test_forward_goes_by_the_module_around_it() -> None:
    assert at(two_blocks(), 5, 10, 45, 79, 100) == [
        "Net_0",
        "Net_0/Block_0",
        "Net_0",
        "Net_0/Block_1",
        None,
    ]


def test_backward_has_the_layer_of_the_operator_its_arrow_comes_from() -> None:
    made = two_blocks()
    operator(made, 20, 1)
    node(made, 200)
    node(made, 300)
    made.arrow(1, 20, 200, ENGINE)
    assert backward(made, 205, 305) == ["Net_0/Block_0", None]


def test_without_an_arrow_the_sequence_number_leads_to_the_last_operator_that_has_it() -> None:
    made = two_blocks()
    operator(made, 20, 7)
    operator(made, 60, 7)
    node(made, 200, sequence=7)
    node(made, 300, sequence=8)
    assert backward(made, 205, 305) == ["Net_0/Block_1", None]


def test_an_arrow_goes_before_a_sequence_number() -> None:
    made = two_blocks()
    operator(made, 20, 7)
    operator(made, 60, 7)
    node(made, 200, sequence=7)
    made.arrow(1, 20, 200, ENGINE)
    assert backward(made, 205) == ["Net_0/Block_0"]


def test_a_sequence_number_of_two_threads_or_of_a_later_operator_says_nothing() -> None:
    made = two_blocks()
    operator(made, 20, 7)
    operator(made, 30, 7, thread=(100, 102))
    node(made, 200, sequence=7)
    node(made, 300, sequence=9)
    operator(made, 400, 9)
    assert backward(made, 205, 305) == [None, None]


def test_an_arrow_with_two_starts_says_nothing() -> None:
    made = two_blocks()
    operator(made, 20, -1)
    node(made, 200)
    made.arrow(1, 20, 200, ENGINE)
    made.arrow(1, 60, 300, ENGINE)
    assert backward(made, 205) == [None]


def test_recomputation_has_the_layer_of_the_module_called_again() -> None:
    made = two_blocks()
    operator(made, 60, 7)
    node(made, 200, sequence=7)
    made.span("nn.Module: Block_0", 205, 10, kind=SpanKind.MODULE, thread=ENGINE)
    assert backward(made, 202, 207, 217) == ["Net_0/Block_1", "Net_0/Block_0", "Net_0/Block_1"]


def test_a_module_around_the_whole_backward_pass_says_nothing_of_its_work() -> None:
    made = two_blocks()
    made.span("nn.Module: Trainer_0", 190, 200, kind=SpanKind.MODULE, thread=ENGINE)
    node(made, 200)
    assert backward(made, 205) == [None]


def sharded() -> TraceBuilder:
    """Forward of layers.0 from 10 to 60 in the root's 0 to 100; backward from 210 to 260."""
    made = TraceBuilder()
    made.span("FSDP::pre_forward", 0, 5)
    made.span("FSDP::pre_forward (layers.0)", 10, 10)
    made.span("FSDP::all_gather (layers.1)", 15, 4)
    made.span("FSDP::post_forward (layers.0)", 50, 10)
    made.span("FSDP::post_forward", 95, 5)
    made.span("FSDP::pre_backward (layers.0)", 210, 5, thread=ENGINE)
    made.span("FSDP::post_backward_reduce (layers.0)", 250, 10, thread=ENGINE)
    return made


def test_between_the_hooks_of_fsdp_work_is_for_their_module() -> None:
    made = sharded()
    assert at(made, 7, 12, 30, 55, 70, 99, 100) == [
        *("(root)", "layers.0", "layers.0", "layers.0"),
        *("(root)", "(root)", None),
    ]
    assert backward(made, 205, 212, 230, 255, 260) == [
        *(None, "layers.0", "layers.0", "layers.0", None)
    ]


def test_gathering_for_another_module_is_that_ones() -> None:
    assert at(sharded(), 16, 19) == ["layers.1", "layers.0"]


def test_an_arrow_goes_before_the_stretch_but_not_before_the_annotation_around() -> None:
    made = sharded()
    operator(made, 70, 7)
    node(made, 212, sequence=7)
    assert backward(made, 213, 220, 240) == ["layers.0", "(root)", "layers.0"]


def test_where_modules_are_recorded_fsdps_names_give_way_to_the_paths_of_modules() -> None:
    made = two_blocks()
    made.span("FSDP::pre_forward (layers.0)", 11, 2)
    made.span("FSDP::pre_forward (layers.1)", 51, 2)
    made.span("FSDP::all_gather (layers.1)", 12, 1)
    made.span("FSDP::all_gather (elsewhere)", 200, 5)
    assert at(made, 11, 12, 51, 202) == [
        "Net_0/Block_0",
        "Net_0/Block_1",
        "Net_0/Block_1",
        "elsewhere",
    ]


def test_without_evidence_there_are_no_layers() -> None:
    made = TraceBuilder()
    made.span("aten::mm", 0, 5, kind=SpanKind.OP)
    assert at(made, 1, 2) == [None, None]
    assert at(made, 1, 2, phase=Phase.BACKWARD) == [None, None]


def test_an_annotation_of_a_layer_names_it_also_around_modules() -> None:
    made = two_blocks()
    made.span("Layer0", 5, 40)
    made.span("Layer1", 45, 40)
    made.span("Layers of the model", 0, 100)
    assert at(made, 20, 60, 90) == ["Layer0", "Layer1", "Net_0"]


def test_backward_inherits_the_annotated_layer_and_recomputation_has_its_own() -> None:
    made = TraceBuilder()
    made.span("Layer7", 0, 50)
    operator(made, 10, 3)
    node(made, 200, sequence=3)
    made.span("Layer7", 300, 10, thread=ENGINE)
    node(made, 299)
    made.span("Layer9", 195, 200, thread=ENGINE)
    assert backward(made, 210, 305, 315) == ["Layer7", "Layer7", None]


def test_fsdps_name_of_a_module_is_replaced_by_the_annotated_layer_of_its_hook() -> None:
    made = TraceBuilder()
    made.span("Layer2", 0, 50)
    made.span("FSDP::pre_forward (layers.2)", 10, 5)
    made.span("FSDP::all_gather (layers.2)", 60, 5)
    assert at(made, 12, 62) == ["Layer2", "Layer2"]
