"""Steps by annotations of serving engines and by a job's own markers, by hand."""

import re

import numpy as np
import pytest

from chopperd.model.timeline import StepSource
from chopperd.model.trace import SpanKind
from chopperd.traces.timeline.iterations import ENGINE_ITERATION, repeating_annotation
from chopperd.traces.timeline.layout import LayoutOptions, lay_out
from chopperd.traces.timeline.steps import MarkedSteps, mark_steps
from tests.trace_building import MAIN, Thread, TraceBuilder

PREFILL, DECODE = "execute_context_1(512)_generation_0(0)", "execute_context_0(0)_generation_1(1)"
OTHER_PROCESS: Thread = (200, 200)


def marked(built: TraceBuilder, marker: str | None = None) -> MarkedSteps:
    return mark_steps(built.build(), marker=None if marker is None else re.compile(marker))


def numbered(found: MarkedSteps) -> list[tuple[int, int, int]]:
    return [(step.step, step.start_ns, step.end_ns) for step in found.steps]


def named(*names: str, thread: Thread = MAIN) -> TraceBuilder:
    """Annotations of 80 ns, one every 100 ns."""
    built = TraceBuilder()
    for at, name in enumerate(names):
        built.span(name, 100 * at, 80, thread=thread)
    return built


@pytest.mark.parametrize(
    "name",
    [
        PREFILL,
        "execute_context_1(888_788544)_generation_0(0)",
        "execute_new_2_cached_14",
        "step[14]",
        "step[DECODE bs=8]",
        "step[EXTEND bs=1 toks=512]",
        "[Executor] _forward_step 12: 1 ctx reqs, 0 ctx tokens, 3 gen reqs",
    ],
)
def test_iterations_of_engines_are_recognised(name: str) -> None:
    assert ENGINE_ITERATION.search(name)


@pytest.mark.parametrize("name", ["step", "my step[14]", "executed_context_1", "step[i]"])
def test_other_names_are_no_iterations(name: str) -> None:
    assert not ENGINE_ITERATION.search(name)


def test_iterations_without_numbers_count_from_0_and_keep_their_names() -> None:
    found = marked(named(PREFILL, DECODE, DECODE))
    assert found.source is StepSource.STEP_MARKER
    assert numbered(found) == [(0, 0, 80), (1, 100, 180), (2, 200, 280)]
    assert [step.name for step in found.steps] == [PREFILL, DECODE, DECODE]
    assert [len(step.markers) for step in found.steps] == [1, 1, 1]


def test_numbers_that_rise_are_the_steps_numbers() -> None:
    assert numbered(marked(named("step[14]", "step[15]", "step[20]"))) == [
        (14, 0, 80),
        (15, 100, 180),
        (20, 200, 280),
    ]


@pytest.mark.parametrize("last", ["step[14]", "step[13]", "step[DECODE bs=1]"])
def test_a_number_that_comes_twice_never_merges_two_steps(last: str) -> None:
    assert numbered(marked(named("step[13]", "step[14]", last))) == [
        (0, 0, 80),
        (1, 100, 180),
        (2, 200, 280),
    ]


def test_an_annotation_that_starts_inside_a_step_is_part_of_it() -> None:
    built = named(DECODE, DECODE)
    built.span(DECODE, 110, 20)
    built.span(DECODE, 170, 20, thread=(100, 101))
    assert numbered(marked(built)) == [(0, 0, 80), (1, 100, 180)]


def test_two_processes_have_their_own_steps() -> None:
    built = named("step[3]", "step[4]")
    for number in (3, 4):
        built.span(f"step[{number}]", 100 * number - 290, 80, thread=OTHER_PROCESS)
    found = marked(built)
    assert [
        (step.process, *row) for step, row in zip(found.steps, numbered(found), strict=True)
    ] == [(100, 3, 0, 80), (200, 3, 10, 90), (100, 4, 100, 180), (200, 4, 110, 190)]


def test_marks_of_training_come_before_engines_and_the_jobs_own_before_both() -> None:
    built = named("step[3]", "step[4]", "micro batch 7")
    built.span("ProfilerStep#9", 0, 300)
    assert marked(built).source is StepSource.PROFILER_STEP
    found = marked(built, r"^micro batch (\d+)")
    assert found.source is StepSource.STEP_MARKER
    assert numbered(found) == [(7, 200, 280)]
    assert marked(built, "nothing of that name").source is StepSource.PROFILER_STEP


def test_a_group_that_is_no_number_does_not_number_steps() -> None:
    assert numbered(marked(named("turn a", "turn b"), r"turn (\w)")) == [(0, 0, 80), (1, 100, 180)]


def test_an_operator_may_mark_steps_and_a_module_does_not() -> None:
    built = TraceBuilder()
    built.span("my::step", 0, 10, kind=SpanKind.OP)
    built.span("nn.Module: my::step", 20, 10, kind=SpanKind.MODULE)
    assert numbered(marked(built, "my::step")) == [(0, 0, 10)]


def test_a_marker_of_steps_is_no_annotation_and_one_without_a_match_is_said() -> None:
    built = named("turn 1", "turn 2")
    built.span("attn_fa", 10, 20)
    built.kernel("k", 15, 20, 5)
    built.kernel("k", 50, 55, 5)
    timeline = lay_out(built.build(), LayoutOptions(step_marker="^turn"))
    assert timeline.annotations == ("attn_fa",)
    assert timeline.devices[0].annotation.tolist() == [0, -1]
    assert timeline.unmatched_marker is None
    assert lay_out(built.build()).annotations == ("turn 1", "attn_fa")
    unmatched = lay_out(built.build(), LayoutOptions(step_marker="^turm"))
    assert unmatched.unmatched_marker == "^turm"
    assert unmatched.step_source is StepSource.NONE


def test_the_annotation_that_comes_most_is_named_with_its_numbers_folded() -> None:
    built = TraceBuilder()
    for number in range(3):
        built.span(f"run_context_{number}(512)", 100 * number, 80)
        built.span("short", 100 * number, 10)
        built.span("aten::mm", 100 * number, 90, kind=SpanKind.OP)
    built.span("once", 0, 900)
    found = repeating_annotation(built.build())
    assert found is not None
    assert (found.name, found.times) == ("run_context_#(#)", 3)
    assert found.marker == r"^run_context_(\d+)\(\d+\)$"
    assert numbered(marked(built, found.marker)) == [(0, 0, 80), (1, 100, 180), (2, 200, 280)]


def test_the_expression_for_a_long_name_or_one_of_many_numbers_ends_early() -> None:
    expressions = {
        "a 1 b 2 c 3 d 4": r"^a (\d+) b \d+ c \d+ d ",
        "plain # step": "^plain # step$",
        "x" * 130: "^" + "x" * 120,
        "42": r"^(\d+)$",
    }
    for name, expression in expressions.items():
        built = named(name, name, name)
        found = repeating_annotation(built.build())
        assert found is not None
        assert found.marker == expression
        assert len(marked(built, found.marker).steps) == 3


def test_what_comes_twice_may_be_by_chance() -> None:
    assert repeating_annotation(named("turn 0", "turn 1").build()) is None
    assert repeating_annotation(TraceBuilder().build()) is None


def test_records_are_of_the_iteration_that_launched_them() -> None:
    built = named(PREFILL, DECODE)
    built.kernel("k", 10, 20, 150)
    built.kernel("k", 90, 170, 5)
    built.kernel("k", 110, 200, 30)
    (device,) = lay_out(built.build()).devices
    assert np.array_equal(device.step, [0, -1, 1])
    assert [(each.start_ns, each.end_ns, each.tail) for each in device.windows] == [
        (20, 200, False),
        (200, 230, True),
    ]
