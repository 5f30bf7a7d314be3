"""Sensors that move in steps, from the compiled fake driver to the figures of steps.

The way is that of `chopperd record`: the real binding, a sampler process, its recording, the join.
What is true follows from the driver's segments and is worked out here by other means.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from chopperd.cli.recording import sampler_command
from chopperd.clock import SystemClock
from chopperd.correlate.join import RowClocks, join_device
from chopperd.model.kinds import CAUSES
from chopperd.model.samples import GpuSamples, SampleSet
from chopperd.sampling.memory.slow_state import with_findings
from chopperd.sampling.recording import Recorder
from chopperd.sampling.settings import SamplerSettings
from chopperd.sampling.supervisor import SamplerSupervisor
from chopperd.store.samples.files import read_samples, write_samples
from chopperd.units import NS_PER_MS, NS_PER_S
from tests.fakes.nvml.fixtures import FakeNvml, MakeFakeNvml
from tests.fakes.nvml.scenario import Segment
from tests.unit.correlate.builders import Rec, device
from tests.waiting import wait_for

CLOCK = SystemClock()
PERIOD_NS = 100 * NS_PER_MS
#: Steps of 200 ms at 700 W and 100 W by turns; 37 ms off the beat of the sensors.
STEP_NS = 200 * NS_PER_MS
STEPS = 20
EDGE_NS = 37 * NS_PER_MS
POWER_W = (700.0, 100.0)
#: The clock moves four times a step, so that each look of its sensor shows another value.
CLOCKS_MHZ = ((1400, 1415, 1430, 1445), (1900, 1885, 1870, 1855))

#: (ms, MHz, NVML's limit bits) of the other GPU, round and round.
CAUSE_LAP = ((310, 1400, 0x4), (190, 1600, 0x20), (97, 1200, 0x4C), (153, 1700, 0x0))
REFERENCE_MHZ = 1980.0


def play(fake: FakeNvml, start_ns: int) -> None:
    """Steps on GPU 0, changing limits on GPU 1, from a time on."""
    steps, limits = fake.scenario.gpus
    steps.counter_period_ns = steps.clock_period_ns = steps.power_period_ns = PERIOD_NS
    steps.plays(
        *(
            Segment(length_ns=STEP_NS // 4, power_mw=round(1000 * power_w), sm_clock_mhz=clock_mhz)
            for power_w, clocks_mhz in zip(POWER_W, CLOCKS_MHZ, strict=True)
            for clock_mhz in clocks_mhz
        ),
        origin_unix_ns=start_ns,
        repeats=True,
    )
    limits.plays(
        *(
            Segment(length_ns=ms * NS_PER_MS, sm_clock_mhz=clock_mhz, reasons=reasons)
            for ms, clock_mhz, reasons in CAUSE_LAP
        ),
        origin_unix_ns=start_ns,
        repeats=True,
    )


def record(until: Sequence[str], least_ns: int) -> SampleSet:
    """Samples of everything at 100 Hz, until sensors of GPU 0 are known and so long was sampled."""
    settings = SamplerSettings(hz=100.0, slow_hz=100.0, budget_ratio=1.0, sensors_every_s=2.0)
    supervisor = SamplerSupervisor(sampler_command("nvml"), settings, CLOCK)
    recorder = Recorder(supervisor, CLOCK)
    begun_ns = CLOCK.mono_ns()

    def is_enough() -> bool:
        reader = supervisor.reader
        gpu = with_findings(reader.description().gpus[0], reader.slow_state(0))
        known = all(getattr(gpu, name) is not None for name in until)
        last_ns = reader.status(0).last_mono_ns or begun_ns
        return known and last_ns - begun_ns > least_ns

    recorder.start()
    begun_ns = CLOCK.mono_ns()
    try:
        wait_for(is_enough, "the sensors of GPU 0 are known")
    finally:
        samples = recorder.finish()
    return samples


def rows(samples: GpuSamples, start_ns: int, step_ns: int, count: int) -> RowClocks:
    """The join with a trace of steps of one kernel each, from end to end."""
    windows = [(start_ns + n * step_ns, start_ns + (n + 1) * step_ns) for n in range(count)]
    timeline = device([Rec(start, end, step=n) for n, (start, end) in enumerate(windows)], windows)
    clocks = join_device(timeline, (), samples, REFERENCE_MHZ).clocks
    assert clocks is not None
    return clocks


@pytest.fixture
def recorded(
    make_fake_nvml: MakeFakeNvml, monkeypatch: pytest.MonkeyPatch
) -> tuple[SampleSet, int]:
    """A recording of some 10 s (energy is believed after 3), and when steps and limits begin."""
    fake = make_fake_nvml(2)
    start_ns = CLOCK.unix_ns() // NS_PER_S * NS_PER_S + EDGE_NS
    play(fake, start_ns)
    for name, value in fake.environment().items():
        monkeypatch.setenv(name, value)
    periods = ("sm_clock_period_ns", "energy_period_ns")
    return record(periods, least_ns=10 * NS_PER_S), start_ns


def first_at_or_after(t_ns: int, start_ns: int, lap_ns: int) -> int:
    """When a lap begins next."""
    return start_ns + -((start_ns - t_ns) // lap_ns) * lap_ns


def test_sensor_periods_reach_the_figures_of_steps(
    recorded: tuple[SampleSet, int], tmp_path: Path
) -> None:
    """Known truth, one recording: periods, energy of steps, labels of looks, causes."""
    samples, start_ns = recorded
    steps, limits = samples.gpus
    assert steps.gpu.sm_clock_period_ns == pytest.approx(PERIOD_NS, rel=0.02)
    assert steps.gpu.energy_period_ns == pytest.approx(PERIOD_NS, rel=0.02)

    counted = steps.t_unix_ns[np.isfinite(steps.energy_j)]  # once it agrees with the power
    first_ns = first_at_or_after(int(counted[1]), start_ns, 2 * STEP_NS)
    clocks = rows(steps, first_ns, STEP_NS, STEPS)
    check_energy(clocks)
    check_looks(clocks, first_ns)
    check_causes(limits, start_ns)

    path = tmp_path / "samples.csv"
    write_samples(path, samples)
    again = read_samples(path).gpus[0].gpu
    assert again.sm_clock_period_ns == steps.gpu.sm_clock_period_ns
    assert again.power_period_ns == steps.gpu.power_period_ns
    assert again.energy_period_ns == steps.gpu.energy_period_ns
    assert again.power_source == steps.gpu.power_source == "instant"


def check_energy(clocks: RowClocks) -> None:
    """140 J and 20 J a step by turns: unknown for a step, 80 J on average to 2 %."""
    assert np.isnan(clocks.energy.energy_j[:-1]).all()
    assert clocks.energy.energy_j[-1] / STEPS == pytest.approx(sum(POWER_W) / 10, rel=0.02)
    assert clocks.energy.energy_error_j[-1] / clocks.energy.energy_j[-1] < 0.025


def check_looks(clocks: RowClocks, first_ns: int) -> None:
    """A look each 100 ms, laid within the distance of two reads of the sensor's own beat.

    By what the clock shows, it is the look's own step that it is laid into.
    """
    looked_ns = clocks.samples.t_ns + clocks.subtracted_ns
    inside = (looked_ns >= first_ns) & (looked_ns < first_ns + STEPS * STEP_NS)
    assert np.count_nonzero(inside) == pytest.approx(STEPS * STEP_NS / PERIOD_NS, abs=3)
    off_ns = (looked_ns[inside] + PERIOD_NS // 2) % PERIOD_NS - PERIOD_NS // 2
    assert np.median(np.abs(off_ns)) < 10 * NS_PER_MS
    step = (looked_ns[inside] - first_ns) // STEP_NS % 2
    shown = np.isin(clocks.samples.clock_mhz[inside], CLOCKS_MHZ[1]).astype(int)
    assert np.mean(step == shown) > 0.9


def check_causes(limits: GpuSamples, start_ns: int) -> None:
    """The loss of each segment goes to the limits in force, by their counters.

    0x4C: power cap, thermal hardware slowdown, and the generic bit beside it, which has no counter;
    the hardware's protection outranks the other two.
    """
    lap_ns = sum(ms for ms, _, _ in CAUSE_LAP) * NS_PER_MS
    first_ns = first_at_or_after(int(limits.t_unix_ns[20]), start_ns, lap_ns)
    clocks = rows(limits, first_ns, 5 * lap_ns, 1)
    loss = clocks.loss
    assert loss is not None
    lost = [ms * (1 - clock_mhz / REFERENCE_MHZ) for ms, clock_mhz, _ in CAUSE_LAP]
    expected = {
        "power_cap": lost[0],
        "thermal": lost[1],
        "hw_thermal": lost[2],
        "unexplained": lost[3],
    }
    by_cause = loss.by_cause_ns[-1] / loss.lost_ns[-1]
    for cause in CAUSES:
        share = expected.get(cause.label, 0.0) / sum(lost)
        assert by_cause[cause] == pytest.approx(share, abs=0.02), cause.label
    gap_ratio = loss.lost_ns[-1] / clocks.compute.covered_ns[-1]
    assert gap_ratio == pytest.approx(sum(lost) * NS_PER_MS / lap_ns, abs=0.01)
    assert not loss.coarse[-1]
