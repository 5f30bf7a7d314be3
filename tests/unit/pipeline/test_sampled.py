"""Reports on samples alone: figures by hand on constant clocks, verdicts on known truth."""

import json

import numpy as np
import pytest
from msgspec.structs import replace

from chopperd.model.arrays import Float64s
from chopperd.model.devices import GpuInfo, Vendor
from chopperd.model.kinds import Cause
from chopperd.model.samples import VALUE_COLUMNS, GpuSamples, ProcessRow, SampleSet, SamplesReport
from chopperd.pipeline.sampled import report_samples
from chopperd.report.text.page import page_text
from chopperd.report.text.samples_page import encode_samples_report, samples_page

T0_NS = 1_790_000_000_000_000_000
NS = 1_000_000_000
HZ = 10
NAN = np.nan


def gpu(
    index: int,
    clock_mhz: float | Float64s,
    *,
    seconds: float = 30.0,
    power_w: float | Float64s = NAN,
    energy: bool = False,
    temperature_c: float = 60.0,
    causes: Cause | None = Cause.POWER_CAP,
    idle_from_s: float = np.inf,
    reference_mhz: float | None = 2000.0,
    parent: str | None = None,
) -> GpuSamples:
    """A GPU that is busy until `idle_from_s`, sampled ten times a second."""
    t_ns = T0_NS + np.arange(round(seconds * HZ) + 1) * (NS // HZ)
    n = len(t_ns)
    power = np.broadcast_to(np.asarray(power_w, np.float64), n).copy()
    counter = np.cumsum(np.concatenate([[0.0], (power[1:] + power[:-1]) / 2 / HZ]))
    bits = np.full(n, 0 if causes is None else causes.bit, np.int64)
    bits[t_ns >= T0_NS + min(idle_from_s, 1e6) * NS] = Cause.LOW_UTILIZATION.bit
    return GpuSamples(
        gpu=GpuInfo(
            gpu=str(index),
            index=index,
            uuid=f"GPU-{index}",
            name="H100",
            vendor=Vendor.NVIDIA,
            sm_clock_max_mhz=reference_mhz,
            parent=parent,
        ),
        t_unix_ns=t_ns,
        sm_clock_mhz=np.broadcast_to(np.asarray(clock_mhz, np.float64), n).copy(),
        read_span_ns=np.zeros(n, np.int64),
        causes=bits,
        mem_clock_mhz=np.full(n, NAN),
        power_w=power,
        energy_j=counter if energy else np.full(n, NAN),
        temperature_c=np.full(n, temperature_c),
        memory_used_bytes=np.full(n, NAN),
        activity_ratio=np.full(n, NAN),
    )


def reported(*gpus: GpuSamples, **changes: object) -> SamplesReport:
    samples = SampleSet(gpus=gpus, asked_hz=float(HZ), node="n1", backend="nvml")
    return report_samples(replace(samples, **changes), unix_ns=T0_NS)


def codes(report: SamplesReport) -> list[str]:
    return [note.code for note in report.notes]


def text(report: SamplesReport) -> str:
    return page_text(samples_page(report), width=100)


def test_the_figures_of_a_constant_clock_are_those_of_hand() -> None:
    """1500 of 2000 MHz for 20 s of 30: a quarter of the busy time, 400 W for 30 s are 12 kJ."""
    report = reported(gpu(0, 1500.0, power_w=400.0, energy=True, idle_from_s=20.05))
    (one,) = report.gpus
    # Between the last busy sample and the first idle one each holds for half.
    assert one.busy_s == pytest.approx(20.05)
    assert one.clocked_s == pytest.approx(20.05)
    assert one.sampled_s == pytest.approx(30.0)
    assert one.busy_ratio == pytest.approx(20.05 / 30)
    assert one.busy_mhz == pytest.approx(1500.0)
    assert one.lost_ratio == pytest.approx(0.25)
    assert one.lost_s == pytest.approx(20.05 / 4)
    assert one.lost_by_cause_s["power_cap"] == pytest.approx(20.05 / 4, rel=0.01)
    assert (one.power_w, one.temperature_c, one.hottest_c) == (400.0, 60.0, 60.0)
    assert one.energy_j == pytest.approx(12_000.0)
    assert one.energy_source == "counter"
    assert one.kept_hz == pytest.approx(10.0)
    assert one.samples == 301
    assert report.length_s == 30.0
    assert one.peers is None
    assert codes(report) == ["no_peers"]


def test_without_a_counter_energy_is_the_integral_of_known_power() -> None:
    """From 100 to 700 W in a straight line, 30 s: 12 kJ; half of it not read: not known."""
    ramp = np.linspace(100.0, 700.0, 301)
    (one,) = reported(gpu(0, 1500.0, power_w=ramp)).gpus
    assert one.energy_j == pytest.approx(12_000.0)
    assert one.energy_source == "power"
    ramp[150:] = NAN
    (one,) = reported(gpu(0, 1500.0, power_w=ramp)).gpus
    assert (one.energy_j, one.energy_source) == (None, None)


def test_what_is_not_known_is_none_and_never_0() -> None:
    blind = replace(gpu(0, NAN, reference_mhz=None), causes=np.full(301, Cause.UNKNOWN.bit))
    blind = replace(blind, temperature_c=np.full(301, NAN))
    for one in (blind, gpu(1, 1500.0, reference_mhz=None)):
        found = reported(one).gpus[0]
        assert (found.lost_s, found.lost_ratio) == (None, None)
        assert (found.energy_j, found.power_w) == (None, None)
    found = reported(blind).gpus[0]
    assert (found.busy_s, found.busy_ratio, found.busy_mhz, found.clocked_s) == (None,) * 4
    assert (found.temperature_c, found.hottest_c) == (None, None)
    assert {"busy_unknown", "no_reference"} <= set(codes(reported(blind)))
    page = text(reported(blind))
    (line,) = [line for line in page.splitlines() if line.startswith("0 ")]
    assert line.split() == ["0", "-", "-", "-", "-", "-", "-", "-", "10.0", "-"]
    assert "its cost is unknown" in page


def test_a_recording_without_samples_is_empty_and_says_so() -> None:
    none = {
        name: getattr(gpu(0, 1.0), name)[:0]
        for name in (*VALUE_COLUMNS, "t_unix_ns", "read_span_ns", "causes")
    }
    report = reported(replace(gpu(0, 1.0), **none))
    assert (report.start_unix_ns, report.length_s) == (None, None)
    assert report.gpus[0].kept_hz is None
    assert "no two samples" in text(report)
    assert reported().gpus == ()


def test_a_hot_gpu_is_named_with_its_distance_interval_and_cause() -> None:
    """Seven at 1500 MHz, one at 1380: 120 below their median; constant, so half a step of 0."""
    cool = [gpu(i, 1500.0, power_w=690.0) for i in range(7)]
    hot = gpu(7, 1380.0, power_w=620.0, temperature_c=88.0, causes=Cause.THERMAL)
    report = reported(*cool, hot)
    assert report.look_at == "7"
    peers = report.gpus[7].peers
    assert peers is not None
    assert (peers.n, peers.median_mhz) == (8, 1500.0)
    for value_mhz in (peers.below_mhz, peers.below_low_mhz, peers.below_high_mhz):
        assert value_mhz == pytest.approx(120.0)
    assert peers.own_mhz == pytest.approx(1380.0)
    assert [each.peers.stands_out for each in report.gpus if each.peers] == [False] * 7 + [True]
    first = text(report).splitlines()[0]
    assert first.startswith(" GPU 7 IS SLOW   it runs 120 MHz [120, 120] below its 7 peers")
    assert "at 88 C (peers 60)" in text(report)
    assert "its loss: thermal 100 %" in " ".join(text(report).split())


def test_two_percent_below_is_not_named() -> None:
    """A trace would name it; busy clocks are 1.2 to 1.5 points off, as peers that wait are fast."""
    clocks = [1500.0] * 7 + [1470.0]
    report = reported(*(gpu(i, mhz, power_w=690.0) for i, mhz in enumerate(clocks)))
    assert report.look_at is None
    assert "no GPU stands out: 8 GPUs at 1470-1500 MHz" in text(report)


@pytest.mark.parametrize(("power_w", "said"), [(760.0, "draws more power"), (NAN, "no known")])
def test_a_gpu_that_may_have_more_work_is_not_named(power_w: float, said: str) -> None:
    report = reported(
        *(gpu(i, 1500.0, power_w=690.0) for i in range(7)), gpu(7, 1350.0, power_w=power_w)
    )
    assert report.look_at is None
    assert codes(report) == ["more_work"]
    assert said in report.notes[0].text


def test_two_groups_may_be_two_jobs_and_nobody_is_named() -> None:
    report = reported(*(gpu(i, 1500.0 if i < 5 else 1300.0, power_w=690.0) for i in range(8)))
    assert report.look_at is None
    assert codes(report) == ["peers_disagree"]


@pytest.mark.parametrize(
    ("gpus", "why"),
    [
        ([gpu(i, 1500.0) for i in range(3)], "3 of one model"),
        ([gpu(i, 1500.0, seconds=5.0) for i in range(8)], "in 2 windows"),
        ([gpu(i, 1500.0, idle_from_s=0.0) for i in range(8)], "no GPU was busy"),
    ],
)
def test_where_there_is_no_comparison_it_is_said_why(gpus: list[GpuSamples], why: str) -> None:
    report = reported(*gpus)
    assert all(each.peers is None for each in report.gpus)
    assert why in text(report)


def test_gpus_that_take_no_part_and_parts_of_others_are_no_peers() -> None:
    busy = [gpu(i, 1500.0, power_w=690.0) for i in range(4)]
    others = [gpu(4, 300.0, idle_from_s=3.0), gpu(5, 300.0, parent="0")]
    report = reported(*busy, *others)
    assert [each.peers is not None for each in report.gpus] == [True] * 4 + [False] * 2
    assert report.look_at is None


def test_only_the_gpus_of_the_recorded_command_are_compared() -> None:
    """GPU 7 runs another job, which was there before."""
    gpus = [gpu(i, 1500.0 if i < 7 else 1200.0, power_w=690.0) for i in range(8)]
    row = ProcessRow(pid=1, started_unix_ns=T0_NS + 1, gpus={f"GPU-{i}": None for i in range(7)})
    other = ProcessRow(pid=2, started_unix_ns=T0_NS - 1, gpus={"GPU-7": None})
    assert reported(*gpus).look_at == "7"
    with_processes = reported(*gpus, started_unix_ns=T0_NS, processes=(row, other))
    assert with_processes.look_at is None
    assert with_processes.gpus[7].peers is None


def test_a_drop_is_found_and_printed() -> None:
    """12 % below for 10 s after a minute."""
    clock = np.full(1001, 1500.0)
    clock[600:700] = 1320.0
    report = reported(gpu(0, clock, seconds=100.0))
    (drop,) = report.drops
    assert drop.depth_ratio == pytest.approx(0.12, abs=0.005)
    assert drop.lost_s == pytest.approx(1.2, abs=0.05)
    assert (drop.begin_unix_ns - T0_NS) / NS == pytest.approx(60.0, abs=0.2)
    assert "1 drop of the busy clock on GPU 0, 1.2 s lost" in text(report)


def test_a_reference_that_is_given_goes_before_the_highest_clock() -> None:
    samples = SampleSet(gpus=(gpu(0, 1500.0, reference_mhz=None),), asked_hz=10.0)
    (one,) = report_samples(samples, unix_ns=T0_NS, reference_mhz=1600.0).gpus
    assert one.lost_ratio == pytest.approx(1 / 16)
    assert one.reference_mhz == 1600.0


def test_the_document_has_null_for_what_is_not_known() -> None:
    document = json.loads(encode_samples_report(reported(gpu(0, 1500.0))))
    assert document["schema"] == "chopperd.samples-report/1"
    assert document["gpus"][0]["energy_j"] is None
    assert document["look_at"] is None
    assert document["gpus"][0]["lost_by_cause_s"] == {"power_cap": pytest.approx(7.5)}


def wandering(rng: np.random.Generator, mean_mhz: float, seconds: float) -> Float64s:
    """A clock that wanders by 3 % over a second about its mean, in steps of 15 MHz."""
    n = round(seconds * HZ) + 1
    noise, value = np.zeros(n), 0.0
    for i, shock in enumerate(rng.normal(0.0, 0.03 * np.sqrt(1 - 0.9**2), n)):
        value = 0.9 * value + shock
        noise[i] = value
    clock_mhz: Float64s = np.round(mean_mhz * (1 + noise) / 15) * 15
    return clock_mhz


@pytest.mark.parametrize(("seconds", "at_least"), [(8.0, 4), (30.0, 9)])
def test_equal_gpus_are_not_accused_and_a_hot_one_is(seconds: float, at_least: int) -> None:
    """Ten nodes of eight GPUs that differ by up to 1 % either way: known truth.

    Over 8 s, four windows, the clock's own wandering hides every second hot GPU: that is safe.
    """
    accused = found = 0
    for seed in range(10):
        rng = np.random.default_rng(seed)
        means = 1600.0 * rng.uniform(0.99, 1.01, 8)
        gpus = [
            gpu(i, wandering(rng, mhz, seconds), seconds=seconds, power_w=690.0)
            for i, mhz in enumerate(means)
        ]
        accused += reported(*gpus).look_at is not None
        hot = wandering(rng, 1600.0 * 0.9, seconds)
        gpus[3] = gpu(3, hot, seconds=seconds, power_w=600.0, causes=Cause.THERMAL)
        found += reported(*gpus).look_at == "3"
    assert accused == 0
    assert found >= at_least
