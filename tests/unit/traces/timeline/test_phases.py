"""Which part of a step each moment belongs to, by hand."""

import numpy as np

from chopperd.model.timeline import Phase
from chopperd.model.trace import SpanKind
from chopperd.traces.timeline.nesting import Moments
from chopperd.traces.timeline.phases import phases
from chopperd.traces.timeline.steps import mark_steps
from tests.trace_building import MAIN, Thread, TraceBuilder

ENGINE: Thread = (100, 101)
LOADER: Thread = (100, 102)
MM = "autograd::engine::evaluate_function: MmBackward0"

FORWARD, BACKWARD, OPTIMIZER, UNKNOWN = (
    Phase.FORWARD,
    Phase.BACKWARD,
    Phase.OPTIMIZER,
    Phase.UNKNOWN,
)


def training(*, step_ns: int = 1000, steps: int = 2) -> TraceBuilder:
    """Steps of forward 0-300, backward 300-600 on another thread, optimizer 700-900."""
    made = TraceBuilder()
    for step in range(steps):
        start = step * step_ns
        made.span(f"ProfilerStep#{step}", start, step_ns)
        made.span("aten::mm", start + 100, 100, kind=SpanKind.OP, sequence=7, forward_thread=0)
        made.span(MM, start + 300, 140, kind=SpanKind.OP, thread=ENGINE)
        made.span(MM, start + 460, 140, kind=SpanKind.OP, thread=ENGINE)
        made.span("Optimizer.step#SGD.step", start + 700, 200)
    return made


def at(made: TraceBuilder, *times_ns: int, thread: Thread | None = MAIN) -> list[Phase]:
    trace = made.build()
    on = -1 if thread is None else made.threads[thread]
    moments = Moments(
        thread=np.full(len(times_ns), on, np.int32), at_ns=np.array(times_ns, np.int64)
    )
    return [Phase(one) for one in phases(trace, moments, mark_steps(trace).steps).tolist()]


def test_backward_and_optimizer_are_told_by_what_is_around_the_launch() -> None:
    made = training()
    assert at(made, 310, 500, 1310, thread=ENGINE) == [BACKWARD] * 3
    assert at(made, 700, 899, 1700) == [OPTIMIZER] * 3


def test_forward_is_what_leads_up_to_a_backward_of_the_same_step() -> None:
    assert at(training(), 0, 150, 299, 1000, 1150) == [FORWARD] * 5


def test_between_backward_and_optimizer_and_after_it_nothing_tells() -> None:
    assert at(training(), 620, 699, 950, 1950, 2500) == [UNKNOWN] * 5


def test_gradients_to_zero_are_the_optimizers_and_do_not_end_the_forward_before_them() -> None:
    made = training()
    made.span("Optimizer.zero_grad#SGD.zero_grad", 210, 30)
    assert at(made, 150, 220, 250) == [FORWARD, OPTIMIZER, FORWARD]


def test_between_nodes_of_one_pass_the_engine_works_for_backward() -> None:
    assert at(training(), 450, thread=ENGINE) == [BACKWARD]
    assert at(training(), 620, thread=ENGINE) == [UNKNOWN]


def test_with_accumulation_the_forward_between_two_passes_is_forward() -> None:
    made = TraceBuilder()
    made.span("ProfilerStep#1", 0, 1000)
    for start in (0, 300):
        made.span("aten::mm", start + 50, 20, kind=SpanKind.OP, sequence=7, forward_thread=0)
        made.span(MM, start + 100, 50, kind=SpanKind.OP)
        made.span(MM, start + 200, 50, kind=SpanKind.OP)
    made.span("Optimizer.step#SGD.step", 700, 200)
    assert at(made, 10, 110, 170, 220, 270, 360, 410, 470, 560) == [
        *(FORWARD, BACKWARD, BACKWARD, BACKWARD),
        *(FORWARD, FORWARD, BACKWARD, BACKWARD, UNKNOWN),
    ]


def test_other_threads_work_for_nobody_known() -> None:
    made = training()
    made.span("loader", 0, 2000, thread=LOADER)
    assert at(made, 100, 310, 750, thread=LOADER) == [UNKNOWN] * 3
    assert at(made, 100, 310, thread=None) == [UNKNOWN] * 2


def test_what_backward_computes_again_is_backward() -> None:
    made = training()
    made.span("nn.Module: Block_0", 310, 50, kind=SpanKind.MODULE, thread=ENGINE)
    made.span("aten::mm", 320, 30, kind=SpanKind.OP, thread=ENGINE, sequence=1, forward_thread=0)
    assert at(made, 330, thread=ENGINE) == [BACKWARD]


def test_an_optimizer_within_backward_and_a_backward_within_an_optimizer_count_as_the_inner() -> (
    None
):
    made = training()
    made.span("Optimizer.step#SGD.step", 320, 20, thread=ENGINE)
    made.span(MM, 720, 50, kind=SpanKind.OP)
    assert at(made, 315, 330, 350, thread=ENGINE) == [BACKWARD, OPTIMIZER, BACKWARD]
    assert at(made, 710, 730, 800) == [OPTIMIZER, BACKWARD, OPTIMIZER]


def test_without_a_backward_pass_nothing_is_forward() -> None:
    made = TraceBuilder()
    made.span("ProfilerStep#1", 0, 100)
    made.span("aten::mm", 10, 50, kind=SpanKind.OP)
    assert at(made, 20) == [UNKNOWN]
    made.span("Optimizer.step#SGD.step", 70, 20)
    assert at(made, 20, 75) == [UNKNOWN, OPTIMIZER]


def test_without_steps_nothing_is_forward_but_backward_still_tells() -> None:
    made = TraceBuilder()
    made.span("aten::mm", 10, 50, kind=SpanKind.OP)
    made.span("MmBackward0", 100, 50, kind=SpanKind.OP)
    assert at(made, 20, 110) == [UNKNOWN, BACKWARD]


def test_the_hooks_of_fsdp_and_ddp_are_backward() -> None:
    for name in (
        "FSDP::pre_backward (layers.3)",
        "FSDP::post_backward_reduce",
        "FSDP::backward_prefetch for layers.2",
        "FSDP::root_post_backward_callback",
        "FullyShardedDataParallel._pre_backward_hook",
        "FullyShardedDataParallel._post_backward_prefetch",
        "torch.distributed.ddp.reducer::copy_bucket_to_grad",
        "CheckpointFunctionBackward",
    ):
        made = TraceBuilder()
        made.span(name, 0, 10, kind=SpanKind.ANNOTATION)
        assert at(made, 5) == [BACKWARD], name
    for name in ("FSDP::pre_forward (layers.3)", "aten::convolution_backward", "BackwardNet"):
        made = TraceBuilder()
        made.span(name, 0, 10, kind=SpanKind.ANNOTATION)
        assert at(made, 5) == [UNKNOWN], name
