"""Phases of a report's rows, from a trace whose times are round."""

from chopperd.model.report_rows import Phases
from chopperd.report.build.clocked_device import JoinOptions
from chopperd.report.build.trace_report import report_trace
from chopperd.traces.timeline.layout import lay_out
from tests.trace_building import TraceBuilder


def row_phases(*, foreign_work: bool) -> list[Phases | None]:
    """Two steps of 1000: both go forward and backward, the first has an optimizer, too.

    Kernels take 50, 100 and 20. Foreign work of 30 in the second step has no launch in the file.
    """
    made = TraceBuilder()
    for number, began in ((1, 0), (2, 1000)):
        made.span(f"ProfilerStep#{number}", began, 1000)
        made.kernel("gemm", began + 100, began + 110, 50)
        made.span("MmBackward0", began + 200, 200)
        made.kernel("gemm", began + 250, began + 260, 100)
    made.span("Optimizer.step#SGD.step", 500, 200)
    made.kernel("adam", 550, 560, 20)
    if foreign_work:
        made.record("gemm", 1200, 30)
    trace = made.build()
    return [
        step.row.phases for step in report_trace(trace, lay_out(trace), None, JoinOptions()).steps
    ]


def test_a_phase_that_did_nothing_took_no_time() -> None:
    assert row_phases(foreign_work=False) == [
        Phases(forward=50, backward=100, optimizer=20),
        Phases(forward=50, backward=100, optimizer=0),
    ]


def test_a_phase_that_work_of_unknown_phase_may_be_of_is_unknown_not_0() -> None:
    assert row_phases(foreign_work=True) == [
        Phases(forward=50, backward=100, optimizer=20),
        Phases(forward=50, backward=100, optimizer=None),
    ]
