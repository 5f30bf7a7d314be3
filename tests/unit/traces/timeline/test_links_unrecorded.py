"""Time that dropped launches leave unknown; every interval is worked out by hand."""

from collections.abc import Mapping

from chopperd.model.timeline import Intervals
from chopperd.traces.timeline.links import link, unrecorded
from tests.trace_building import Thread, TraceBuilder

BACKWARD: Thread = (100, 101)


def dropped(built: TraceBuilder, call_ns: int, thread: Thread = (100, 100)) -> None:
    """A launch whose record the profiler lost."""
    built.call("cudaLaunchKernel", call_ns, correlation=9_000 + call_ns, thread=thread)


def unknown(built: TraceBuilder) -> dict[int, list[tuple[int, int]]]:
    trace = built.build()
    found: Mapping[int, Intervals] = unrecorded(
        trace.records, trace.calls, link(trace.records, trace.calls, trace.names, trace.threads)
    )
    return {
        device: list(zip(gaps.start_ns.tolist(), gaps.end_ns.tolist(), strict=True))
        for device, gaps in found.items()
    }


def test_complete_traces_have_none() -> None:
    built = TraceBuilder()
    built.kernel("a", 10, 100, 50)
    assert unknown(built) == {}
    assert unknown(TraceBuilder()) == {}


def test_a_dropped_launch_is_unknown_between_its_neighbours_in_launch_order() -> None:
    built = TraceBuilder()
    built.kernel("a", 10, 100, 50)
    dropped(built, 20)
    dropped(built, 25)
    built.kernel("b", 30, 300, 50)
    built.kernel("c", 40, 400, 50)
    assert unknown(built) == {0: [(150, 300)]}


def test_the_order_is_that_of_launches_not_of_starts() -> None:
    built = TraceBuilder()
    built.kernel("first", 10, 500, 50, stream=20)
    dropped(built, 20)
    built.kernel("after", 30, 700, 50)
    built.kernel("starts between", 40, 600, 50, stream=20)
    assert unknown(built) == {0: [(550, 700)]}


def test_before_the_first_record_it_is_unknown_from_the_call_on() -> None:
    built = TraceBuilder()
    dropped(built, 5)
    built.kernel("a", 10, 100, 50)
    assert unknown(built) == {0: [(5, 100)]}


def test_behind_the_last_launch_it_is_unknown_up_to_the_devices_last_record() -> None:
    built = TraceBuilder()
    built.kernel("long", 5, 90, 500, stream=20)
    built.kernel("a", 10, 100, 50)
    dropped(built, 20)
    assert unknown(built) == {0: [(150, 590)]}


def test_a_graph_counts_from_its_first_to_its_last_record() -> None:
    built = TraceBuilder()
    built.call("cudaGraphLaunch", 10, correlation=500)
    built.record("n0", 100, 50, correlation=500)
    built.record("n1", 200, 50, correlation=500)
    dropped(built, 20)
    built.call("cudaGraphLaunch", 30, correlation=501)
    built.record("n0", 400, 50, correlation=501)
    built.record("n1", 500, 50, correlation=501)
    assert unknown(built) == {0: [(250, 400)]}


def test_a_dropped_launch_is_on_the_device_that_its_thread_launches_on() -> None:
    built = TraceBuilder()
    built.kernel("a", 10, 100, 50, device=0)
    built.kernel("b", 11, 100, 60, device=1, thread=BACKWARD)
    dropped(built, 20, thread=BACKWARD)
    built.kernel("c", 30, 300, 50, device=0)
    built.kernel("d", 31, 400, 50, device=1, thread=BACKWARD)
    assert unknown(built) == {1: [(160, 400)]}


def test_a_thread_that_has_no_record_takes_the_device_of_the_launch_before() -> None:
    built = TraceBuilder()
    built.kernel("a", 10, 100, 50, device=1)
    dropped(built, 20, thread=BACKWARD)
    built.kernel("b", 30, 300, 50, device=0)
    built.kernel("c", 40, 400, 50, device=1)
    assert unknown(built) == {1: [(150, 400)]}
