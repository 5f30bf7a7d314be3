"""FSDP2's annotations and the stretches between its hooks, by hand."""

from chopperd.model.trace import SpanKind
from chopperd.traces.timeline.layers import ROOT, Sharding, Stretches, sharding
from tests.trace_building import Thread, TraceBuilder

OTHER: Thread = (100, 101)


def told(made: TraceBuilder) -> list[str | None]:
    trace = made.build()
    found = sharding(trace)
    return [found.modules[index] if index >= 0 else None for index in found.module.tolist()]


def stretches(found: Sharding, of: Stretches) -> list[tuple[str, int, int, int]]:
    columns = (of.module.tolist(), of.thread.tolist(), of.start_ns.tolist(), of.end_ns.tolist())
    return [(found.modules[one[0]], *one[1:]) for one in zip(*columns, strict=True)]


def test_annotations_name_the_module_they_are_about_and_the_roots_none() -> None:
    made = TraceBuilder()
    names = {
        "FSDP::all_gather (layers.0)": "layers.0",
        "FSDP::all_gather": ROOT,
        "FSDP::post_backward_rs_wait ()": ROOT,
        "FSDP::backward_prefetch for layers.2": "layers.2",
        "FSDP::pre_forward (layers.1.mlp, layers.1.norm)": "layers.1.mlp, layers.1.norm",
        "FSDP::root_pre_forward": None,
        "FSDP::root_post_backward_callback": None,
        "FSDP::cast_forward_inputs": None,
        "FullyShardedDataParallel._pre_forward": None,
    }
    for index, name in enumerate(names):
        made.span(name, 10 * index, 5)
    assert told(made) == list(names.values())


def test_operators_of_such_a_name_are_no_annotations() -> None:
    made = TraceBuilder()
    made.span("FSDP::all_gather (layers.0)", 0, 5, kind=SpanKind.OP)
    assert told(made) == [None]


def test_a_stretch_goes_from_the_hook_before_to_the_last_hook_after() -> None:
    made = TraceBuilder()
    made.span("FSDP::pre_forward", 0, 10)
    made.span("FSDP::pre_forward (a)", 20, 10)
    made.span("FSDP::post_forward (a)", 50, 10)
    made.span("FSDP::post_forward", 70, 10)
    made.span("FSDP::pre_backward (a)", 100, 10)
    made.span("FSDP::post_backward_accumulate (a)", 120, 10)
    made.span("FSDP::post_backward_reduce (a)", 140, 10)
    made.span("FSDP::pre_backward (a)", 200, 10)
    made.span("FSDP::post_backward_reshard (a)", 240, 10)
    found = sharding(made.build())
    assert stretches(found, found.forward) == [(ROOT, 0, 0, 80), ("a", 0, 20, 60)]
    assert stretches(found, found.backward) == [("a", 0, 100, 150), ("a", 0, 200, 250)]


def test_what_is_not_closed_on_its_thread_is_no_stretch() -> None:
    made = TraceBuilder()
    made.span("FSDP::post_forward (b)", 0, 5)
    made.span("FSDP::pre_forward (a)", 10, 5)
    made.span("FSDP::post_forward (a)", 20, 5)
    made.span("FSDP::pre_forward (a)", 30, 5)
    made.span("FSDP::post_forward (a)", 40, 5, thread=OTHER)
    made.span("FSDP::pre_forward (b)", 50, 5)
    found = sharding(made.build())
    assert stretches(found, found.forward) == [("a", 0, 10, 25)]
    assert stretches(found, found.backward) == []


def test_without_annotations_there_is_nothing() -> None:
    found = sharding(TraceBuilder().build())
    assert found.modules == ()
    assert stretches(found, found.forward) == []
