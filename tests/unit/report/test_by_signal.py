"""Ranks that say nothing of their GPU, told by samples, confirmed over all files of their time."""

from itertools import pairwise

import pytest
from msgspec.structs import replace

from chopperd.correlate.identity.by_signal import Agreement
from chopperd.model.run import DeviceMap
from chopperd.model.samples import SampleSet
from chopperd.model.trace import Trace, TraceDevice
from chopperd.report.build.clocked_device import JoinOptions, fits_by_signal
from chopperd.report.build.processes import unconfirmed
from chopperd.report.build.trace_report import TraceReport, report_trace
from chopperd.traces.timeline.layout import lay_out
from tests.fakes.lockstep_node import Node, drawn
from tests.trace_building import TraceBuilder
from tests.unit.report.traced import H100

NODE = Node(seed=1, ranks=3, seconds=12.0, step_s=0.6, power_window_s=0.0)


def traces() -> tuple[list[Trace], SampleSet, list[int]]:
    """The ranks' traces as a reader would give them, the samples, and the true GPUs."""
    traced, gpus, order = drawn(NODE)
    made = []
    for rank, device in enumerate(traced):
        built = TraceBuilder()
        starts = device.step_start_ns.tolist()
        for step, (start_ns, end_ns) in enumerate(pairwise(starts)):
            built.span(f"ProfilerStep#{step}", start_ns, end_ns - start_ns)
        for start_ns, end_ns in zip(
            device.compute.start_ns.tolist(), device.compute.end_ns.tolist(), strict=True
        ):
            built.kernel("gemm", start_ns, start_ns, end_ns - start_ns)
        for start_ns, end_ns in zip(
            device.busy.start_ns.tolist(), device.busy.end_ns.tolist(), strict=True
        ):
            if start_ns not in device.compute.start_ns:
                name = "ncclDevKernel_AllReduce"
                built.kernel(name, start_ns, start_ns, end_ns - start_ns)
        trace = built.build()
        said = (TraceDevice(device=0, name=H100),)
        meta = replace(trace.meta, path=f"r{rank}", rank=rank, anchored=True, devices=said)
        made.append(replace(trace, meta=meta))
    return made, SampleSet(gpus=tuple(gpus), asked_hz=10.0, backend="nvml"), order


def reported(
    trace: Trace, samples: SampleSet, options: JoinOptions | None = None
) -> tuple[TraceReport, dict[int, Agreement]]:
    """The report with the GPU that fits best, as each file is first reported on."""
    timeline, options = lay_out(trace), options or JoinOptions()
    fits = fits_by_signal(timeline, trace, samples, options)
    best = {device: (each.best, each.why_not) for device, each in fits.items()}
    return report_trace(trace, timeline, samples, replace(options, by_signal=best)), fits


def test_ranks_find_their_gpus_and_say_by_which_rule() -> None:
    made, samples, order = traces()
    reports = [reported(trace, samples) for trace in made]
    devices = [report.devices[0] for report, _ in reports]
    assert [device.gpu for device in devices] == [str(gpu) for gpu in order]
    assert {device.mapping for device in devices} == {"signal"}
    assert unconfirmed([each for each, _ in reports], [fits for _, fits in reports]) == []
    assert all(row.row.clock is not None for report, _ in reports for row in report.totals)


def test_what_another_trace_had_or_all_together_contradict_is_not_confirmed() -> None:
    made, samples, order = traces()
    first, fits = reported(made[0], samples)
    said = TraceDevice(device=0, name=H100, uuid=f"GPU-{order[0]}")
    named = replace(made[1], meta=replace(made[1].meta, devices=(said,)))
    other, none = reported(named, samples)
    assert none == {}
    assert other.devices[0].mapping == "chopperd_devices"
    assert unconfirmed([first, other], [fits, none]) == [0]
    twin = replace(made[0], meta=replace(made[0].meta, rank=7, path="twin"))
    again, twins = reported(twin, samples)
    assert unconfirmed([first, again], [fits, twins]) == [0, 1], "two ranks, one GPU"


def later(report: TraceReport) -> TraceReport:
    """The same 1000 s later."""
    moved = tuple(
        replace(each, row=replace(each.row, start_unix_ns=each.row.start_unix_ns + 10**12))
        for each in report.totals
        if each.row.start_unix_ns is not None
    )
    return replace(report, totals=moved)


def test_traces_of_other_times_may_have_the_same_gpu() -> None:
    made, samples, _ = traces()
    found = [reported(trace, samples) for trace in made]
    reports, fits = [each for each, _ in found], [each for _, each in found]
    assert unconfirmed([*reports, *map(later, reports)], fits * 2) == []
    assert unconfirmed(reports * 2, fits * 2) == list(range(6)), "six ranks on three GPUs"


@pytest.mark.parametrize(
    ("model", "options", "anchored"),
    [
        ("Another GPU", JoinOptions(), True),
        (H100, JoinOptions(device_map=DeviceMap(entries=((None, 0, "9"),))), True),
        (H100, JoinOptions(), False),
    ],
)
def test_samples_are_not_asked_where_they_cannot_tell(
    model: str, options: JoinOptions, anchored: bool
) -> None:
    """Of another model, of a device that the user maps, of a trace on no wall clock."""
    made, samples, _ = traces()
    said = (TraceDevice(device=0, name=model),)
    trace = replace(made[0], meta=replace(made[0].meta, devices=said, anchored=anchored))
    report, fits = reported(trace, samples, options)
    assert report.devices[0].gpu is None
    assert all(each.best is None for each in fits.values())
    assert fits_by_signal(lay_out(trace), trace, None, options) == {}
    elsewhere = replace(trace, meta=replace(trace.meta, host_name="gpu-17"))
    of_node = replace(samples, node="gpu-18")
    assert fits_by_signal(lay_out(trace), elsewhere, of_node, options) == {}


def test_the_note_says_why_samples_do_not_tell() -> None:
    made, samples, _ = traces()
    few = replace(
        samples, gpus=tuple(replace(each, power_w=each.power_w * 0) for each in samples.gpus)
    )
    trace = made[0]
    timeline = lay_out(trace)
    why = {0: (None, "no GPU's samples follow it clearly better than those of other GPUs")}
    report = report_trace(trace, timeline, few, JoinOptions(by_signal=why))
    (note,) = [each for each in report.notes if each.code == "device_unmapped"]
    assert "no GPU's samples follow it clearly better" in note.text
    assert "--device-map" in note.text
