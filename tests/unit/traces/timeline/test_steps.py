"""Steps by every source of marks, on rows written by hand."""

import numpy as np

from chopperd.model.timeline import Marker, Step, StepSource
from chopperd.model.trace import SpanKind
from chopperd.traces.timeline.steps import mark_steps, step_at
from tests.trace_building import TraceBuilder, column

BACKWARD = "autograd::engine::evaluate_function: AddmmBackward0"
ADAM = "Optimizer.step#AdamW.step"


def spans(steps: tuple[Step, ...]) -> list[tuple[int, int, int]]:
    return [(step.step, step.start_ns, step.end_ns) for step in steps]


def reasons(steps: tuple[Step, ...]) -> list[tuple[str, ...]]:
    return [step.partial_reasons for step in steps]


def with_markers(optimizer_in: set[int], numbers: range = range(8)) -> TraceBuilder:
    """Markers of 100 ns, back to back; those named hold an optimizer."""
    built = TraceBuilder()
    for number in numbers:
        built.span(f"ProfilerStep#{number}", 100 * number, 100)
        if number in optimizer_in:
            built.span(ADAM, 100 * number + 70, 20)
    return built


def test_each_profiler_step_is_a_step_where_each_holds_an_optimizer() -> None:
    marked = mark_steps(with_markers({4, 5, 6}, range(4, 7)).build())
    assert marked.source is StepSource.PROFILER_STEP
    assert spans(marked.steps) == [(4, 400, 500), (5, 500, 600), (6, 600, 700)]
    assert marked.accumulation == 1
    assert reasons(marked.steps) == [(), (), ()]


def test_without_optimizer_rows_markers_are_steps_and_accumulation_is_unknown() -> None:
    marked = mark_steps(with_markers(set(), range(3)).build())
    assert [step.step for step in marked.steps] == [0, 1, 2]
    assert marked.accumulation is None


def test_accumulated_markers_are_one_step_numbered_by_the_last() -> None:
    marked = mark_steps(with_markers({3, 7}).build())
    assert spans(marked.steps) == [(3, 0, 400), (7, 400, 800)]
    assert [marker.step for marker in marked.steps[1].markers] == [4, 5, 6, 7]
    assert marked.accumulation == 4


def test_a_short_first_run_began_before_the_trace_and_a_last_run_without_optimizer_is_cut() -> None:
    marked = mark_steps(with_markers({1, 4}).build())
    assert spans(marked.steps) == [(1, 0, 200), (4, 200, 500), (7, 500, 800)]
    assert reasons(marked.steps) == [("starts_before_trace",), (), ("accumulation_incomplete",)]
    assert marked.accumulation == 3


def test_a_run_longer_than_the_others_is_irregular_as_the_optimizer_was_skipped() -> None:
    """fp16 found an infinity in 3: markers 3 and 4 are one step, of twice the work."""
    marked = mark_steps(with_markers({1, 2, 4, 5, 6}, range(1, 7)).build())
    assert spans(marked.steps) == [
        *((1, 100, 200), (2, 200, 300), (4, 300, 500)),
        *((5, 500, 600), (6, 600, 700)),
    ]
    assert reasons(marked.steps) == [(), (), ("accumulation_irregular",), (), ()]
    assert marked.accumulation == 1


def test_numbers_that_come_again_are_another_cycle_and_count_on() -> None:
    built = with_markers(set(), range(1, 4))
    for number in (1, 2, 3):
        built.span(f"ProfilerStep#{number}", 1000 + 100 * number, 101 if number == 2 else 100)
    steps = mark_steps(built.build()).steps
    assert spans(steps) == [
        *((1, 100, 200), (2, 200, 300), (3, 300, 400)),
        *((4, 1100, 1200), (5, 1200, 1301), (6, 1300, 1400)),
    ]
    assert [step.cycle for step in steps] == [0, 0, 0, 1, 1, 1]


def test_a_cycle_of_one_number_that_comes_again_is_another_step() -> None:
    built = TraceBuilder()
    for start_ns in (0, 500, 900):
        built.span("ProfilerStep#7", start_ns, 100)
    assert [step.step for step in mark_steps(built.build()).steps] == [7, 8, 9]


def test_accumulation_begins_again_in_each_cycle() -> None:
    built = with_markers({1, 3}, range(4))
    for number in range(4):
        built.span(f"ProfilerStep#{number}", 2000 + 100 * number, 100)
        if number == 1:
            built.span(ADAM, 2150, 20)
    steps = mark_steps(built.build()).steps
    assert [(step.step, step.cycle) for step in steps] == [(1, 0), (3, 0), (5, 1), (7, 1)]
    assert reasons(steps) == [(), (), (), ("accumulation_incomplete",)]


def two_processes() -> TraceBuilder:
    """Steps 1 and 2 of 100 ns of process 100 from 0, of 110 of process 200 from 30."""
    built = TraceBuilder()
    for number in (1, 2):
        built.span(f"ProfilerStep#{number}", 100 * (number - 1), 100, thread=(100, 1))
        built.span(f"ProfilerStep#{number}", 30 + 110 * (number - 1), 110, thread=(200, 1))
    built.call("cudaLaunchKernel", 120, thread=(100, 2))
    built.call("cudaLaunchKernel", 130, thread=(200, 2))
    built.call("cudaLaunchKernel", 145, thread=(200, 2))
    return built


def test_steps_of_two_processes_stay_apart_and_times_are_in_their_own() -> None:
    trace = two_processes().build()
    steps = mark_steps(trace).steps
    assert [(step.process, step.step, step.start_ns) for step in steps] == [
        *((100, 1, 0), (200, 1, 30), (100, 2, 100), (200, 2, 140))
    ]
    calls = trace.calls
    at = step_at(steps, calls.start_ns, calls.thread, trace.threads)
    assert at.tolist() == [2, 1, 3]
    nowhere = np.full(3, -1, np.int32)
    assert step_at(steps, calls.start_ns, nowhere, trace.threads).tolist() == [-1, -1, -1]


def test_rounds_of_optimizers_of_two_processes_stay_apart() -> None:
    built = TraceBuilder()
    for start_ns in (100, 200):
        built.span(ADAM, start_ns, 10, thread=(100, 1))
        built.span(ADAM, start_ns + 30, 10, thread=(200, 1))
    steps = mark_steps(built.build()).steps
    assert [(step.process, step.step, step.end_ns) for step in steps] == [
        *((100, 0, 110), (200, 0, 140), (100, 1, 210), (200, 1, 240))
    ]


def test_device_rows_whose_numbers_come_again_are_of_two_cycles() -> None:
    built = TraceBuilder()
    for stream in (7, 20):
        for nth, number in enumerate((1, 2, 1, 2)):
            built.device_span(f"ProfilerStep#{number}", 100 * nth + stream, 80, stream=stream)
    steps = mark_steps(built.build()).steps
    assert spans(steps) == [(1, 7, 100), (2, 107, 200), (3, 207, 300), (4, 307, 400)]


def test_a_number_too_long_to_count_is_no_step() -> None:
    built = TraceBuilder()
    built.span("ProfilerStep#" + "9" * 5000, 0, 100)
    assert mark_steps(built.build()).steps == ()


def test_a_marker_behind_the_last_optimizer_is_a_partial_step_of_its_own() -> None:
    marked = mark_steps(with_markers({0, 1}, range(4)).build())
    assert [step.step for step in marked.steps] == [0, 1, 2, 3]
    assert reasons(marked.steps) == [(), (), ("optimizer_missing",), ("optimizer_missing",)]


def test_of_markers_with_one_number_the_longest_counts() -> None:
    built = TraceBuilder()
    built.span("ProfilerStep#5", 0, 100)
    built.span("ProfilerStep#5", 10, 20, thread=(100, 101))
    built.span("Iteration<6>", 100, 50)
    assert spans(mark_steps(built.build()).steps) == [(5, 0, 100), (6, 100, 150)]


def test_markers_of_2021_are_operators() -> None:
    built = TraceBuilder()
    built.span("ProfilerStep#16", 0, 100, kind=SpanKind.OP)
    assert spans(mark_steps(built.build()).steps) == [(16, 0, 100)]


def test_optimizers_end_steps_where_nothing_else_marks_them() -> None:
    built = TraceBuilder()
    for start_ns in (0, 100, 200):
        built.span(BACKWARD, start_ns + 20, 30, kind=SpanKind.OP)
        built.span(ADAM, start_ns + 60, 20)
    built.span("aten::zeros", 250 + 40, 10, kind=SpanKind.OP)
    marked = mark_steps(built.build())
    assert marked.source is StepSource.OPTIMIZER
    assert spans(marked.steps) == [(0, 20, 80), (1, 80, 180), (2, 180, 280)]
    assert reasons(marked.steps) == [("starts_before_trace",), (), ()]
    assert marked.accumulation is None


def test_optimizers_with_no_backward_work_between_them_are_one_round() -> None:
    built = TraceBuilder()
    for start_ns in (0, 100):
        built.span(BACKWARD, start_ns, 30, kind=SpanKind.OP)
        built.span(ADAM, start_ns + 40, 20)
        built.span(ADAM, start_ns + 70, 20)
    assert spans(mark_steps(built.build()).steps) == [(0, 0, 90), (1, 90, 190)]


def test_without_backward_rows_a_round_begins_where_an_optimizer_comes_again() -> None:
    built = TraceBuilder()
    for start_ns in (0, 100):
        built.span("Optimizer.step#Muon.step", start_ns + 40, 20)
        built.span(ADAM, start_ns + 70, 20)
    assert spans(mark_steps(built.build()).steps) == [(0, 40, 90), (1, 90, 190)]


def test_optimizers_run_by_hooks_inside_backward_mark_nothing() -> None:
    built = TraceBuilder()
    for start_ns in (0, 100, 200):
        built.span(BACKWARD, start_ns, 90, kind=SpanKind.OP)
        built.span(ADAM, start_ns + 10, 20)
    assert mark_steps(built.build()).source is StepSource.NONE


def test_job_marks_come_third_and_tell_what_the_trace_does_not_hold() -> None:
    built = TraceBuilder()
    built.kernel("k", 100, 110, 300)
    marks = [
        Marker(step=number, start_ns=start_ns, end_ns=start_ns + 100)
        for number, start_ns in ((8, -50), (11, 350), (9, 50), (10, 250), (12, 600))
    ]
    marked = mark_steps(built.build(), job_marks=marks)
    assert marked.source is StepSource.JOB_MARKS
    assert spans(marked.steps) == [(9, 50, 150), (10, 250, 350), (11, 350, 450)]
    assert reasons(marked.steps) == [("starts_before_trace",), (), ("trace_ends",)]


def test_device_rows_are_the_last_resort_and_span_all_streams() -> None:
    built = TraceBuilder()
    built.device_span("ProfilerStep#6", 100, 50, stream=7)
    built.device_span("ProfilerStep#6", 120, 60, stream=20)
    built.device_span("nccl:all_reduce", 0, 500, stream=20)
    marked = mark_steps(built.build())
    assert marked.source is StepSource.GPU_ROWS
    assert spans(marked.steps) == [(6, 100, 180)]


def test_a_chosen_source_is_the_only_one_tried() -> None:
    trace = with_markers({0, 1}, range(2)).build()
    by_rounds = mark_steps(trace, source=StepSource.OPTIMIZER)
    assert spans(by_rounds.steps) == [(0, 0, 90), (1, 90, 190)]
    assert mark_steps(trace, source=StepSource.GPU_ROWS).steps == ()
    assert mark_steps(trace, source=StepSource.NONE).source is StepSource.NONE


def test_nothing_is_invented_where_nothing_marks_steps() -> None:
    built = TraceBuilder()
    built.kernel("k", 0, 10, 5)
    assert mark_steps(built.build()).steps == ()
    assert mark_steps(TraceBuilder().build()).source is StepSource.NONE


def test_a_time_belongs_to_the_step_whose_marker_holds_it() -> None:
    steps = mark_steps(with_markers({3, 7}).build()).steps
    assert step_at(steps, column([-1, 0, 399, 400, 799, 800])).tolist() == [-1, 0, 0, 1, 1, -1]
    assert step_at((), column([5])).tolist() == [-1]
