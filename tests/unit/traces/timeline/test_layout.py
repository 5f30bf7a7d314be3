"""Whole traces laid out: small ones by hand, random ones against plain Python."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from chopperd.correlate import intervals
from chopperd.model.kinds import CopyDirection, KernelClass
from chopperd.model.timeline import DeviceTimeline, Marker, StepSource
from chopperd.model.trace import Damage, RecordKind, SpanKind, Trace
from chopperd.traces.kernels.classes import ClassRule
from chopperd.traces.timeline.layout import LayoutOptions, computes, lay_out
from tests.trace_building import Thread, TraceBuilder

BACKWARD: Thread = (100, 101)


def busy_ns(device: DeviceTimeline, step: int) -> int:
    own = device.step == step
    return intervals.length_ns(intervals.union(device.start_ns[own], device.end_ns[own]))


def window_bounds(device: DeviceTimeline) -> list[tuple[int, int, int]]:
    return [(window.step, window.start_ns, window.end_ns) for window in device.windows]


def lagging() -> TraceBuilder:
    """Three markers of 100 ns; the device runs up to 150 ns behind."""
    built = TraceBuilder()
    for number in (1, 2, 3):
        built.span(f"ProfilerStep#{number}", 100 * number - 100, 100)
    built.kernel("k1", 10, 50, 100)
    built.kernel("k2", 20, 150, 100)
    built.kernel("k3", 110, 250, 80, thread=BACKWARD)
    built.kernel("k4", 210, 330, 70)
    return built


def test_work_belongs_to_the_step_that_launched_it_on_any_thread() -> None:
    timeline = lay_out(lagging().build())
    (device,) = timeline.devices
    assert device.step.tolist() == [0, 0, 1, 2]
    assert [busy_ns(device, step) for step in range(3)] == [200, 80, 70]
    assert window_bounds(device) == [(0, 50, 250), (1, 250, 330), (2, 330, 400)]
    assert device.call_start_ns.tolist() == [10, 20, 110, 210]
    assert device.call_thread.tolist() == [0, 0, 1, 0]
    assert (timeline.launch_count, timeline.recorded_launch_count) == (4, 4)
    assert all(not step.partial_reasons for step in timeline.steps)


def test_an_unlinked_record_has_a_time_but_no_step_and_no_thread() -> None:
    built = lagging()
    built.record("launched before the window", 0, 45, correlation=900)
    timeline = lay_out(built.build())
    (device,) = timeline.devices
    assert (device.step[0], device.call_thread[0]) == (-1, -1)
    assert timeline.unlinked_records == 1
    assert window_bounds(device)[0] == (0, 50, 250)


def test_launches_outside_all_markers_have_no_step() -> None:
    built = lagging()
    built.kernel("after the last marker", 300, 410, 5)
    (device,) = lay_out(built.build()).devices
    assert device.step.tolist() == [0, 0, 1, 2, -1]
    assert device.windows[-1].end_ns == 400


def test_a_launch_without_record_makes_its_step_partial_and_its_time_unknown() -> None:
    built = lagging()
    built.call("cudaLaunchKernel", 30, correlation=700)
    timeline = lay_out(built.build())
    reasons = [step.partial_reasons for step in timeline.steps]
    assert reasons == [("launches_without_record",), (), ()]
    assert (timeline.launch_count, timeline.recorded_launch_count) == (5, 4)
    assert len(timeline.devices[0].unrecorded) == 0  # k3 starts where k2 ends: no time between

    late = lagging()
    late.call("cudaLaunchKernel", 220, correlation=700)
    late.kernel("k5", 230, 450, 10)
    (device,) = lay_out(late.build()).devices
    assert device.unrecorded.start_ns.tolist() == [400]
    assert device.unrecorded.end_ns.tolist() == [450]


def test_a_cut_file_leaves_its_last_step_partial() -> None:
    timeline = lay_out(lagging().build(Damage(truncated=True)))
    assert [step.partial_reasons for step in timeline.steps] == [(), (), ("trace_ends",)]


def test_a_file_that_only_lacks_its_brackets_keeps_its_last_step_whole() -> None:
    """Case 03: "no-closing-bracket.json: all 9 events intact ... accepted"."""
    timeline = lay_out(lagging().build(Damage(unclosed=True)))
    assert [step.partial_reasons for step in timeline.steps] == [(), (), ()]


def test_streams_are_keyed_by_device_and_stream() -> None:
    built = TraceBuilder()
    built.span("ProfilerStep#1", 0, 200)
    built.kernel("a", 1, 10, 100)
    built.kernel("b", 2, 60, 100, stream=20)
    built.kernel("c", 3, 10, 160, device=1)
    first, second = lay_out(built.build()).devices
    assert (first.device, busy_ns(first, 0)) == (0, 150)
    assert (second.device, busy_ns(second, 0)) == (1, 160)
    assert first.stream.tolist() == [7, 20]


def test_columns_hold_class_direction_and_family_of_each_record() -> None:
    built = TraceBuilder()
    built.kernel("void gemm_k<float>(float*)", 0, 10, 5)
    built.kernel("void gemm_k<float>(float*, int)", 1, 20, 5)
    built.record("Memcpy HtoD (Pinned -> Device)", 30, 5, kind=RecordKind.MEMCPY)
    timeline = lay_out(built.build())
    (device,) = timeline.devices
    assert timeline.families == ("gemm_k<float>", "Memcpy HtoD (Pinned -> Device)")
    assert device.family.tolist() == [0, 0, 1]
    gemm, copy = KernelClass.GEMM, KernelClass.MEMCPY
    assert device.kernel_class.tolist() == [gemm, gemm, copy]
    none = CopyDirection.NONE
    assert device.copy_direction.tolist() == [none, none, CopyDirection.H2D]


def test_where_only_device_rows_mark_steps_a_record_belongs_to_the_row_it_starts_in() -> None:
    built = TraceBuilder()
    built.device_span("ProfilerStep#6", 0, 100)
    built.device_span("ProfilerStep#7", 100, 50)
    built.record("no launch in the file", 10, 95)
    built.kernel("launched in the first, run in the second", 20, 110, 10)
    built.call("cudaLaunchKernel", 30, correlation=700)
    timeline = lay_out(built.build())
    assert timeline.step_source is StepSource.GPU_ROWS
    assert timeline.devices[0].step.tolist() == [0, 1]
    assert [step.partial_reasons for step in timeline.steps] == [(), ()]


def test_options_name_the_jobs_marks_and_the_sites_classes() -> None:
    built = TraceBuilder()
    built.kernel("ours", 10, 20, 5)
    options = LayoutOptions(
        class_rules=(ClassRule(KernelClass.ATTENTION, "ours"),),
        job_marks=(Marker(step=1200, start_ns=10, end_ns=20),),
    )
    timeline = lay_out(built.build(), options)
    assert [step.step for step in timeline.steps] == [1200]
    assert timeline.devices[0].kernel_class.tolist() == [KernelClass.ATTENTION]


def test_a_trace_with_nothing_on_a_device_has_steps_and_no_devices() -> None:
    built = TraceBuilder()
    built.span("ProfilerStep#1", 0, 200)
    timeline = lay_out(built.build())
    assert [step.step for step in timeline.steps] == [1]
    assert timeline.devices == ()
    empty = lay_out(TraceBuilder().build())
    assert (empty.steps, empty.devices, empty.families) == ((), (), ())


#: (call_ns, lag_ns, length_ns, device, stream, name, has a record)
Launch = tuple[int, int, int, int, int, str, bool]
launches = st.lists(
    st.tuples(
        st.integers(0, 320),
        st.integers(0, 60),
        st.integers(0, 30),
        st.integers(0, 1),
        st.sampled_from([7, 20]),
        st.sampled_from(["gemm", "ncclKernel_AllReduce", "k"]),
        st.booleans(),
    ),
    max_size=25,
)


def traced(of: list[Launch]) -> Trace:
    built = TraceBuilder()
    for number in range(3):
        built.span(f"ProfilerStep#{number}", 100 * number, 100)
    for nth, (call_ns, lag_ns, length_ns, device, stream, name, recorded) in enumerate(of):
        built.call("cudaLaunchKernel", call_ns, correlation=nth + 1)
        if recorded:
            start_ns = call_ns + lag_ns
            built.record(
                name, start_ns, length_ns, correlation=nth + 1, device=device, stream=stream
            )
    return built.build()


@settings(max_examples=25, deadline=None)
@given(launches)
def test_laws_of_a_laid_out_trace(of: list[Launch]) -> None:
    timeline = lay_out(traced(of))
    recorded = [launch for launch in of if launch[6]]
    assert sum(len(device) for device in timeline.devices) == len(recorded)
    dropped_in = {launch[0] // 100 for launch in of if not launch[6] and launch[0] < 300}
    assert {i for i, step in enumerate(timeline.steps) if step.partial_reasons} == dropped_in
    for device in timeline.devices:
        own = [launch for launch in recorded if launch[3] == device.device]
        expected = sorted(
            (call_ns + lag_ns, call_ns + lag_ns + length_ns, min(call_ns // 100, 3))
            for call_ns, lag_ns, length_ns, *_ in own
        )
        steps = [3 if step < 0 else step for step in device.step.tolist()]
        got = zip(device.start_ns.tolist(), device.end_ns.tolist(), steps, strict=True)
        assert sorted(got) == expected
        check_unions(device, own)
        assert [w.step for w in device.windows] == sorted({step for step in steps if step < 3})
        assert [w.end_ns for w in device.windows[:-1]] == [w.start_ns for w in device.windows[1:]]


def check_unions(device: DeviceTimeline, own: list[Launch]) -> None:
    """Union lengths of compute and the rest equal counting ns by ns."""
    compute = computes(device.kernel_class)
    for rows, is_comm in ((compute, False), (~compute, True)):
        counted = {
            t
            for call_ns, lag_ns, length_ns, _, _, name, _ in own
            if name.startswith("nccl") is is_comm
            for t in range(call_ns + lag_ns, call_ns + lag_ns + length_ns)
        }
        union = intervals.union(device.start_ns[rows], device.end_ns[rows])
        assert intervals.length_ns(union) == len(counted)


def drifting(runtime: str) -> DeviceTimeline:
    """Kernels of 5 us each 50 ms: the device gains 1 us on each, from 100 us too early on."""
    built = TraceBuilder()
    for n in range(200):
        call_ns = n * 50_000_000
        built.kernel("k", call_ns, call_ns + (n - 100) * 1_000, 5_000)
    trace = built.build()
    (device,) = lay_out(replace(trace, meta=replace(trace.meta, runtime=runtime))).devices
    return device


def test_drift_is_told_of_rocm_traces_also_by_records_before_their_launch() -> None:
    device = drifting("rocm")
    assert device.early_count == 100
    assert (device.call_thread[:90] == -1).all()  # by more than 10 us: nothing is corrected
    assert (device.call_thread[90:] >= 0).all()
    assert device.drift is not None
    assert device.drift.ratio == pytest.approx(1_000 / 50_000_000, rel=0.01)
    assert device.drift.misleads
    assert drifting("cuda").drift is None
    assert drifting("cuda").early_count == 100


def test_a_site_s_own_class_stays_inside_a_copy_of_fsdp() -> None:
    made = TraceBuilder()
    made.span("fsdp::chunk_cat", 0, 100, kind=SpanKind.OP)
    made.kernel("cat_array", 10, 200, 10)
    made.kernel("my_cat", 20, 220, 10)
    rules = (ClassRule(KernelClass.ELEMENTWISE, "^my_"),)
    (device,) = lay_out(made.build(), LayoutOptions(class_rules=rules)).devices
    assert device.kernel_class.tolist() == [KernelClass.COMM_PACK, KernelClass.ELEMENTWISE]


def test_records_of_unknown_layer_that_were_launched_together_are_counted() -> None:
    built = TraceBuilder()
    built.kernel("alone", 0, 10, 5)
    built.call("cudaGraphLaunch", 20, correlation=900)
    for start_ns in (40, 50, 60):
        built.record("node", start_ns, 5, correlation=900)
    built.record("unlinked", 70, 5)
    assert lay_out(built.build()).graph_records == 3
    assert lay_out(TraceBuilder().build()).graph_records == 0
