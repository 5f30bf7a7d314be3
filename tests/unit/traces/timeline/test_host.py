"""Operators' own time on the host, by hand and against a plain sweep."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from chopperd.model.timeline import HostWork, Phase
from chopperd.model.trace import SpanKind
from chopperd.traces.timeline.host import own_times
from chopperd.traces.timeline.layout import lay_out
from tests.trace_building import MAIN, Thread, TraceBuilder

OTHER: Thread = (100, 101)


def test_own_time_goes_to_the_layer_and_phase_that_each_operator_began_in() -> None:
    made = TraceBuilder()
    made.span("ProfilerStep#1", 0, 1000)
    made.span("nn.Module: Net_0", 0, 100, kind=SpanKind.MODULE)
    made.span("aten::linear", 10, 50, kind=SpanKind.OP, sequence=3, forward_thread=0)
    made.span("aten::addmm", 20, 30, kind=SpanKind.OP, sequence=3, forward_thread=0)
    made.span("aten::loss", 110, 10, kind=SpanKind.OP)
    name = "autograd::engine::evaluate_function: AddmmBackward0"
    made.span(name, 200, 40, kind=SpanKind.OP, sequence=3, forward_thread=1)
    made.span("aten::mm", 210, 25, kind=SpanKind.OP)
    made.span("aten::norm", 300, 7, kind=SpanKind.OP)
    made.span("Optimizer.step#SGD.step", 400, 100)
    made.span("aten::add_", 410, 5, kind=SpanKind.OP)
    work = lay_out(made.build()).host
    assert work is not None
    layers = [None if each < 0 else work.layers[each] for each in work.layer.tolist()]
    operations = [work.operations[each] for each in work.operation.tolist()]
    assert list(zip(operations, layers, work.phase, work.own_ns, strict=True)) == [
        ("aten::linear", "Net_0", Phase.FORWARD, 20),
        ("aten::addmm", "Net_0", Phase.FORWARD, 30),
        ("aten::loss", None, Phase.FORWARD, 10),
        (name, "Net_0", Phase.BACKWARD, 15),
        ("aten::mm", "Net_0", Phase.BACKWARD, 25),
        ("aten::norm", None, Phase.UNKNOWN, 7),
        ("aten::add_", None, Phase.OPTIMIZER, 5),
    ]


def test_without_operators_there_is_no_time() -> None:
    made = TraceBuilder()
    made.span("ProfilerStep#1", 0, 1000)
    work = lay_out(made.build()).host
    assert isinstance(work, HostWork)
    assert (len(work.own_ns), work.operations, work.layers) == (0, (), ())


def test_where_a_device_works_its_records_tell_and_not_the_host() -> None:
    made = TraceBuilder()
    made.span("aten::mm", 0, 10, kind=SpanKind.OP)
    made.kernel("gemm", 5, 20, 10)
    assert lay_out(made.build()).host is None


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12), st.booleans()), max_size=20))
@settings(max_examples=60, deadline=None)
def test_own_times_are_those_of_a_sweep_however_spans_overlap(
    drawn: list[tuple[int, int, bool]],
) -> None:
    """At each moment the last span to have begun, of those not ended, is given the time."""
    made = TraceBuilder()
    for start, length, elsewhere in drawn:
        made.span("s", start, length, thread=OTHER if elsewhere else MAIN)
    spans = made.build().spans
    wanted = [0] * len(spans)
    for thread in (0, 1):
        for moment in range(50):
            inside = (spans.start_ns <= moment) & (moment < spans.end_ns)
            holds = np.flatnonzero(inside & (spans.thread == thread))
            if len(holds):
                wanted[int(holds[-1])] += 1
    assert own_times(spans, np.arange(len(spans))).tolist() == wanted
