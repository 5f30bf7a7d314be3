"""Drops in a traced time: what ran, power, cause and size, worked out by hand on constant clocks.

Thirty steps of a second each. In steps 20 to 25 another kernel runs for half of the time, and the
clock is a fifth lower: 1200 instead of 1500 MHz, by the power supply.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from chopperd.model.answers import TracedDrop
from chopperd.model.devices import GpuInfo, Vendor
from chopperd.model.kinds import Cause
from chopperd.model.run import device_map_of
from chopperd.model.samples import GpuSamples, SampleSet
from chopperd.model.trace import Trace
from chopperd.pipeline.reports import drops_between
from chopperd.report.build.clocked_device import JoinOptions
from chopperd.report.build.document import StepSelection, build_document
from chopperd.report.build.privacy import trace_with_names
from chopperd.report.build.trace_report import TraceReport, report_trace
from chopperd.traces.timeline.layout import lay_out
from chopperd.units import NS_PER_MS, NS_PER_S, TimeTriple
from tests.trace_building import TraceBuilder

T0_NS = 1_790_000_000 * NS_PER_S
PERIOD_NS = 100 * NS_PER_MS
GEMM, NORM, COMM = "sm90_xmma_gemm", "layer_norm_kernel", "ncclDevKernel_AllReduce"
#: What a step runs, in ms: shares inside are 0.3, 0.5, 0.2, outside 0.9, 0, 0.1.
USUAL, OTHER = ((GEMM, 900), (COMM, 100)), ((GEMM, 300), (NORM, 500), (COMM, 200))


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A traced time and its samples; times in s after T0, the clock is low in `[low[0], low[1])`.

    Attributes:
        steps: First and last step in the trace, each at the second of its number.
        low: When the clock is low.
        sampled: First and last time of the samples.
        lag_ms: By how much the sensor lags, as its driver is known to.
        step_s: Length of a step.
        untold: Whether the samples say that the GPU is idle.
    """

    steps: tuple[int, int] = (0, 29)
    low: tuple[float, float] = (20.0, 26.0)
    sampled: tuple[float, float] = (-5.0, 40.0)
    lag_ms: int = 0
    step_s: int = 1
    untold: bool = False
    triples: tuple[TimeTriple, ...] = ()

    def report(self, *, finds: bool = True, anchored: bool = True) -> TraceReport:
        """The report on the trace."""
        trace = self._trace()
        trace = replace(trace, meta=replace(trace.meta, rank=3, anchored=anchored))
        samples = SampleSet(
            gpus=(self._samples(),), asked_hz=10.0, backend="nvml", triples=self.triples
        )
        options = JoinOptions(device_map=device_map_of("0=0", ""))
        find = drops_between if finds else None
        return report_trace(trace, lay_out(trace), samples, options, find)

    def drops(self) -> tuple[TracedDrop, ...]:
        """The drops in it."""
        return self.report().drops

    def _trace(self) -> Trace:
        built = TraceBuilder()
        for step in range(self.steps[0], self.steps[1] + 1, self.step_s):
            at_ns = T0_NS + step * NS_PER_S
            built.span(f"ProfilerStep#{step}", at_ns, self.step_s * NS_PER_S)
            for name, length_ms in OTHER if 20 <= step < 26 else USUAL:
                length_ns = length_ms * NS_PER_MS * self.step_s
                built.kernel(name, at_ns, at_ns, length_ns)
                at_ns += length_ns
        return built.build()

    def _samples(self) -> GpuSamples:
        first, last = (round(each * 10) for each in self.sampled)
        t_ns = T0_NS + np.arange(first, last + 1) * PERIOD_NS
        low_ns = [T0_NS + round(each * NS_PER_S) for each in self.low]
        is_low = (t_ns >= low_ns[0]) & (t_ns < low_ns[1])
        absent = np.full(len(t_ns), np.nan)
        info = GpuInfo(
            gpu="0",
            index=0,
            uuid="GPU-0",
            name="H100",
            vendor=Vendor.NVIDIA,
            sm_clock_max_mhz=2000.0,
            sensor_lag_ns=self.lag_ms * NS_PER_MS,
        )
        return GpuSamples(
            gpu=info,
            t_unix_ns=t_ns,
            sm_clock_mhz=np.where(is_low, 1200.0, 1500.0),
            read_span_ns=np.zeros(len(t_ns), np.int64),
            causes=np.where(is_low, Cause.POWER_BRAKE.bit, Cause.POWER_CAP.bit),
            mem_clock_mhz=absent,
            power_w=np.where(is_low, 400.0, 690.0),
            energy_j=absent,
            temperature_c=np.where(is_low, 55.0, 65.0),
            memory_used_bytes=absent,
            activity_ratio=np.full(len(t_ns), 0.0 if self.untold else 1.0),
        )


def at_ns(second: float) -> int:
    return T0_NS + round(second * NS_PER_S)


def test_a_drop_says_when_how_deep_why_and_what_ran() -> None:
    """A fifth of 6 s lost: 1.2 s. Differences: gemm 0.6, norm 0.5, communication 0.1."""
    (drop,) = Run().drops()
    ran = ((0.3, 0.9), (0.5, 0.0), (0.2, 0.1))
    assert msgspec.to_builtins(drop) == {
        "gpu": "0",
        "rank": 3,
        "device": 0,
        "start_unix_ns": at_ns(20.0),
        "end_unix_ns": at_ns(26.0),
        "duration_ns": 6 * NS_PER_S,
        "reference_mhz": 1500.0,
        "mean_mhz": pytest.approx(1200.0),
        "lowest_mhz": pytest.approx(1200.0),
        "lost_ns": pytest.approx(1_200_000_000, abs=1),
        "by_cause_ns": {"power_brake": drop.lost_ns},
        "power_w": pytest.approx(400.0),
        "temperature_c": pytest.approx(55.0),
        "steps": (20, 25),
        "classes": shares(("gemm", "norm", "comm"), ran),
        "families": shares((GEMM, NORM, COMM), ran),
    }


def shares(names: Sequence[str], ratios: Sequence[tuple[float, float]]) -> tuple[object, ...]:
    return tuple(
        {
            "name": name,
            "inside_ratio": pytest.approx(inside),
            "outside_ratio": pytest.approx(outside),
        }
        for name, (inside, outside) in zip(names, ratios, strict=True)
    )


def test_the_sensors_lag_is_subtracted() -> None:
    """The samples are 400 ms late: their drop of 20.4 to 26.4 s is the trace's of 20 to 26 s."""
    (drop,) = Run(low=(20.4, 26.4), lag_ms=400).drops()
    assert (drop.start_unix_ns, drop.end_unix_ns) == (at_ns(20.0), at_ns(26.0))
    assert drop.families == Run().drops()[0].families


def test_work_is_split_where_a_drop_begins_inside_a_kernel() -> None:
    """From 20.2 to 26 s: of the kernel of 20 to 20.3 s a third is inside, two thirds outside.

    Inside 0.1 + 5 x 0.3 = 1.6 s of gemm in 5.8 s, outside 24 x 0.9 + 0.2 = 21.8 in 24.2 s.
    """
    (drop,) = Run(low=(20.2, 26.0)).drops()
    gemm = next(each for each in drop.classes if each.name == "gemm")
    assert gemm.inside_ratio == pytest.approx(1.6 / 5.8)
    assert gemm.outside_ratio == pytest.approx(21.8 / 24.2)


def test_a_drop_that_began_before_the_trace_counts_whole_and_has_no_outside() -> None:
    """Traced are steps 21 to 23, all of them in the drop: there is nothing to compare with."""
    (drop,) = Run(steps=(21, 23)).drops()
    assert (drop.start_unix_ns, drop.end_unix_ns) == (at_ns(20.0), at_ns(26.0))
    assert drop.lost_ns == pytest.approx(1_200_000_000, abs=1)
    assert drop.steps == (21, 23)
    assert [(each.name, each.outside_ratio) for each in drop.classes] == [
        ("norm", None),
        ("gemm", None),
        ("comm", None),
    ]


def test_a_drop_that_has_not_ended_has_no_end_and_its_work_is_to_the_end_of_the_trace() -> None:
    """The samples end 2.1 s after it began; the trace at 30 s: all after 20 s is inside.

    Of 10 s are 6 x 0.3 + 4 x 0.9 = 5.4 s gemm.
    """
    (drop,) = Run(sampled=(-5.0, 22.2), low=(20.0, 99.0)).drops()
    assert drop.end_unix_ns is None
    # 22.2 s lies in a slot that is not complete; 22.1 s is the last sample of the one before.
    assert drop.duration_ns == 2_100_000_000
    assert drop.steps == (20, 29)
    gemm = next(each for each in drop.classes if each.name == "gemm")
    assert gemm.inside_ratio == pytest.approx(0.54)


@pytest.mark.parametrize(
    ("why", "run"),
    [
        ("over before the trace", Run(steps=(27, 29))),
        ("begins after the trace", Run(steps=(0, 18))),
        ("no ten seconds of busy clock before it", Run(sampled=(12.0, 40.0))),
        ("too shallow", Run(low=(20.0, 20.0))),
        ("no longer than a fifth of a step", Run(steps=(0, 28), step_s=4, low=(20.0, 20.8))),
        ("samples that are not of this GPU", Run(untold=True)),
        ("longer ago than samples are used", Run(steps=(200, 203), sampled=(-5.0, 203.0))),
    ],
)
def test_what_is_no_drop_of_the_trace(why: str, run: Run) -> None:
    assert run.drops() == (), why


def test_a_dip_of_a_step_is_a_drop_where_steps_are_short() -> None:
    """0.8 s of a fifth are 16 % of a second, and 4 % of a step of 4 s."""
    assert len(Run(steps=(0, 28), low=(20.0, 20.8)).drops()) == 1


def test_without_a_common_time_no_drops_are_told() -> None:
    steps = (
        TimeTriple(unix_ns=at_ns(0), mono_ns=0, boot_ns=0),
        TimeTriple(unix_ns=at_ns(10) + NS_PER_S, mono_ns=10 * NS_PER_S, boot_ns=10 * NS_PER_S),
    )
    stepped = Run(triples=steps).report()
    assert stepped.realtime_step
    assert stepped.drops == ()
    assert Run().report(anchored=False).drops == ()
    assert Run().report(finds=False).drops == ()


def test_the_document_has_the_drops_of_all_traces_by_time() -> None:
    reports = [Run(low=(24.0, 26.0)).report(), Run().report()]
    document = build_document(
        [replace(each, trace=replace(each.trace, path=str(i))) for i, each in enumerate(reports)],
        version="0",
        time="2026-01-01T00:00:00Z",
        selection=StepSelection(),
    )
    assert [each.start_unix_ns for each in document.drops] == [at_ns(20.0), at_ns(24.0)]


def test_names_of_families_are_shown_as_the_site_wants() -> None:
    report = Run().report()
    names = {
        each: [share.name for share in trace_with_names(report, each).drops[0].families]
        for each in ("full", "hashed", "classes")
    }
    rows = trace_with_names(report, "hashed").totals[0].row.families
    assert names["full"] == [GEMM, NORM, COMM]
    assert set(names["hashed"]) == {each.name for each in rows}
    assert [each.split("-")[0] for each in names["hashed"]] == ["gemm", "norm", "comm"]
    assert names["classes"] == []
    assert trace_with_names(report, "classes").drops[0].classes == report.drops[0].classes
