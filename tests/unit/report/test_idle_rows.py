"""Why a device was idle, from the calls and spans of a trace to the rows of its report."""

from chopperd.model.report_rows import Waterfall
from chopperd.report.build.clocked_device import JoinOptions
from chopperd.report.build.trace_report import report_trace
from chopperd.traces.timeline.layout import lay_out
from tests.trace_building import Thread, TraceBuilder

LOADER: Thread = (100, 200)


def waterfall(made: TraceBuilder) -> Waterfall:
    trace = made.build()
    (total,) = report_trace(trace, lay_out(trace), None, JoinOptions()).totals
    assert total.row.waterfall_ns is not None
    return total.row.waterfall_ns


def test_an_idle_device_waits_for_what_the_thread_that_launches_next_does() -> None:
    """Idle on [100, 1000), next launch called at 900; the main thread: data, malloc in it, sync."""
    made = TraceBuilder()
    made.kernel("gemm", 0, 50, 50)
    made.span("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 150, 250)
    made.call("cudaMalloc", 300, 40)
    made.call("cudaStreamSynchronize", 500, 200)
    made.kernel("gemm", 900, 1000, 50)
    made.span("enumerate(DataLoader)#_Other.__next__", 0, 1000, thread=LOADER)
    made.call("cudaFree", 0, 1000, thread=LOADER)
    found = waterfall(made)
    assert found.idle_data == 250 - 40
    assert found.idle_allocator == 40
    assert found.idle_sync == 200
    assert found.idle_launch_call == 100
    assert found.idle_launch_prep == 800 - 250 - 200
    assert found.idle_other == 0


def test_a_copy_that_the_host_waits_for_is_waiting_once_its_record_has_ended() -> None:
    """ROCm's `hipMemcpyWithStream` returns 60 after the copy's end; then the host prepares."""
    made = TraceBuilder()
    made.kernel("gemm", 0, 10, 90)
    made.call("hipMemcpyWithStream", 50, 150, correlation=77)
    made.record("Memcpy DtoH", 120, 20, correlation=77)
    made.kernel("gemm", 250, 300, 50)
    found = waterfall(made)
    assert found.idle_launch_call == (120 - 100) + (300 - 250)
    assert found.idle_sync == 200 - 140
    assert found.idle_launch_prep == 250 - 200
