import numpy as np
import pytest
from msgspec.structs import asdict

from bench.truth import limited_ns, mean_mhz
from chopperd.model.devices import STATE_FIELDS, ReadScope
from chopperd.model.kinds import Cause
from chopperd.model.timeline import Intervals
from chopperd.simulation.node import SimulatedNode
from chopperd.simulation.presets import Brake, SimulationSpec
from tests.unit.simulation.conftest import START_NS, simulated

NS_PER_S = 1_000_000_000


def span(start_s: float, end_s: float) -> Intervals:
    start, end = (START_NS + int(t * NS_PER_S) for t in (start_s, end_s))
    return Intervals(start_ns=np.array([start]), end_ns=np.array([end]))


@pytest.mark.parametrize(
    ("preset", "times_s"),
    # the longer one goes back behind what is kept, and over checkpoints
    [("fsdp1-h100", (0.3, 3.0, 0.31, 2.0)), ("idle", (3.0, 600.0, 5.0, 530.0, 3.1))],
)
def test_readings_do_not_depend_on_the_order_of_reading(
    preset: str, times_s: tuple[float, ...]
) -> None:
    times = [START_NS + int(t * NS_PER_S) for t in times_s]
    forwards, mixed = simulated(preset), simulated(preset)
    in_order = {t: forwards.reading(5, t) for t in sorted(times)}
    assert {t: mixed.reading(5, t) for t in times} == in_order


def test_what_is_kept_stays_bounded() -> None:
    node = simulated("idle")
    for t_s in range(0, 120, 7):
        node.reading(0, START_NS + t_s * NS_PER_S)
    assert len(node._stored) <= 32


def test_another_seed_gives_another_node(fsdp2: SimulatedNode) -> None:
    other = simulated("fsdp2-h100", seed=1)
    t_ns = START_NS + NS_PER_S
    assert fsdp2.reading(0, t_ns) != other.reading(0, t_ns)
    assert {gpu.uuid for gpu in fsdp2.gpus}.isdisjoint({gpu.uuid for gpu in other.gpus})


def test_power_passes_its_limit_for_the_governors_reaction_at_most(fsdp2: SimulatedNode) -> None:
    limit_w, longest_ns = fsdp2.preset.gpu.power_limit_w, []
    for index in range(8):
        power = fsdp2.track(index, START_NS).power
        over = (power.value > 1.01 * limit_w).astype(int)
        edges = power.edges_ns[np.flatnonzero(np.diff(over, prepend=0, append=0))]
        longest_ns.append((edges[1::2] - edges[::2]).max(initial=0))
        mean_w = power.until(power.edges_ns[-1:])[0] / (power.edges_ns[-1] - power.edges_ns[0])
        assert mean_w < limit_w
    # the governor follows with a time constant of 8 ms: three of them
    assert 1_000_000 < max(longest_ns) < 25_000_000


def test_the_energy_counter_is_the_integral_of_power(fsdp2: SimulatedNode) -> None:
    first, last = (fsdp2.reading(2, START_NS + t * NS_PER_S) for t in (2, 8))
    assert first.energy_j is not None
    assert last.energy_j is not None
    # a Riemann sum of the true power over the same 6 s
    grid = range(START_NS + 2 * NS_PER_S, START_NS + 8 * NS_PER_S, 1_300_000)
    power = [fsdp2.track(2, t_ns).power.at(np.array([t_ns]))[0] for t_ns in grid]
    assert last.energy_j - first.energy_j == pytest.approx(6 * np.mean(power), rel=0.02)


def test_limit_counters_grow_as_the_truth_says(fsdp2: SimulatedNode) -> None:
    lag_ns = fsdp2.preset.gpu.sensors.clock_lag_ns + fsdp2.preset.gpu.sensors.clock_period_ns
    for index in (0, 5):
        first, last = (fsdp2.reading(index, START_NS + t * NS_PER_S) for t in (1, 7))
        truth = fsdp2.truth(index, START_NS, START_NS + 8 * NS_PER_S)
        for cause, counted in last.limited_ns.items():
            ends = START_NS + np.array([1, 7]) * NS_PER_S
            expected = np.diff(limited_ns(truth, cause, ends))[0]
            assert counted - first.limited_ns[cause] == pytest.approx(expected, abs=2 * lag_ns)
    assert fsdp2.reading(5, START_NS + 9 * NS_PER_S).causes == frozenset({Cause.THERMAL})


def test_the_clock_reading_is_the_truth_a_known_lag_ago(fsdp2: SimulatedNode) -> None:
    gpu = fsdp2.gpus[3]
    assert gpu.sensor_lag_ns == 5_000_000
    truth = fsdp2.truth(3, START_NS, START_NS + 3 * NS_PER_S)
    for t_ns in range(START_NS + NS_PER_S, START_NS + 3 * NS_PER_S, 37_000_000):
        clock = fsdp2.reading(3, t_ns, ReadScope.FAST).sm_clock_mhz
        assert clock is not None
        assert clock % 15 == 0
        seen = truth.clock.at(t_ns - np.arange(4_000_000, 6_000_001, 250_000))
        assert clock in seen


def test_a_fast_look_has_clock_and_limits_only(fsdp2: SimulatedNode) -> None:
    fast = asdict(fsdp2.reading(0, START_NS + NS_PER_S, ReadScope.FAST))
    full = asdict(fsdp2.reading(0, START_NS + NS_PER_S))
    given = {name for name, value in fast.items() if value is not None and value != ()}
    assert given == {"sm_clock_mhz", "causes", "limited_ns"}
    assert all(fast[name] == full[name] for name in given)
    assert {name for name, value in full.items() if value is None} == set(STATE_FIELDS)


def test_the_hot_gpu_is_hot_and_slow_and_its_peers_are_held_by_power(fsdp2: SimulatedNode) -> None:
    readings = [fsdp2.reading(gpu.index, START_NS + 10 * NS_PER_S) for gpu in fsdp2.gpus]
    temperatures = [reading.temperature_c or 0.0 for reading in readings]
    assert temperatures[5] == max(temperatures) >= 86
    assert sorted(temperatures)[-2] < 75
    means = [
        mean_mhz(fsdp2.truth(gpu.index, START_NS, START_NS + 4 * NS_PER_S), span(0.5, 4))
        for gpu in fsdp2.gpus
    ]
    assert np.argmin(means) == 5


def test_the_governing_die_is_the_lowest_in_the_mean_and_its_clock_the_truth(
    amd: SimulatedNode,
) -> None:
    times = START_NS + np.arange(500, 2500, 10) * 1_000_000
    readings = [amd.reading(2, t_ns, ReadScope.FAST) for t_ns in times.tolist()]
    dies = np.array([reading.die_clocks_mhz for reading in readings], np.float64)
    assert dies.shape == (200, 8)
    # It is read 1 ms late and at most 1 ms before, on whole MHz.
    truth = amd.truth(2, START_NS, START_NS + 3 * NS_PER_S).clock
    governing = dies[:, dies.mean(axis=0).argmin()]
    seen = np.stack([truth.at(times - back_ns) for back_ns in range(1_000_000, 2_000_001, 50_000)])
    assert (np.abs(seen - governing).min(axis=0) <= 0.5).all()
    # The lowest of the moment, which the driver's clock is, is often another and lower.
    lowest = np.array([reading.sm_clock_mhz for reading in readings], np.float64)
    assert lowest.tolist() == dies.min(axis=1).tolist()
    assert lowest.mean() < governing.mean()


def test_an_idle_node_says_so() -> None:
    node = simulated("idle")
    reading = node.reading(0, START_NS + 30 * NS_PER_S)
    assert reading.causes == frozenset({Cause.LOW_UTILIZATION})
    assert reading.activity_ratio == 0.0
    assert reading.sm_clock_mhz == 345
    assert reading.power_w == pytest.approx(100, abs=15)


def test_before_the_start_everything_is_as_at_the_start(fsdp2: SimulatedNode) -> None:
    assert fsdp2.reading(0, START_NS - NS_PER_S) == fsdp2.reading(0, START_NS)


def test_memory_in_use_stands_still_in_fsdp2_and_churns_in_fsdp1(
    fsdp1: SimulatedNode, fsdp2: SimulatedNode
) -> None:
    times = [START_NS + int(t * NS_PER_S) for t in np.arange(1, 6, 0.5)]
    used = [{node.reading(1, t_ns).memory_used_bytes for t_ns in times} for node in (fsdp1, fsdp2)]
    assert len(used[0]) > 5
    assert len(used[1]) == 1


def test_the_step_of_a_time_is_the_one_whose_span_holds_it(fsdp2: SimulatedNode) -> None:
    for run in fsdp2.steps(0, 5):
        begin_ns = int(run.before.free_ns[0])
        assert fsdp2.step_at(begin_ns) == run.before.step
        assert fsdp2.step_at(begin_ns - 1) == max(run.before.step - 1, 0)


@pytest.mark.parametrize(
    ("preset", "cause", "clock_mhz"),
    [("fsdp2-h100", Cause.POWER_BRAKE, 990.0), ("fsdp2-mi300x", Cause.POWER_CAP, 1050.0)],
)
def test_a_brake_halves_one_gpus_clock_for_the_steps_that_begin_in_it(
    preset: str, cause: Cause, clock_mhz: float
) -> None:
    """Of 1980 MHz the half is 990, of 2100 it is 1050; the power falls, and others' does not."""
    begin_ns, end_ns = (START_NS + each * NS_PER_S for each in (2, 4))
    brake = Brake(gpu=2, start_unix_ns=begin_ns, end_unix_ns=end_ns)
    node = SimulatedNode(SimulationSpec(preset=preset, start_unix_ns=START_NS, brake=brake))
    runs = list(node.steps(0, 11))
    held = [begin_ns <= run.before.free_ns[2] < end_ns for run in runs]
    assert 2 < sum(held) < 10
    clocks = [np.nanmax(run.timing.clock_mhz[:, 2]) for run in runs if run.timing]
    # The governor follows within its time constant, so that the first kernels may be faster.
    ends = [np.nanmedian(run.timing.clock_mhz[:, 2]) for run in runs if run.timing]
    assert [each == clock_mhz for each in ends] == held
    assert max(clocks) > clock_mhz
    power_w = [np.average(r.cells.power_w, axis=0, weights=r.cells.length_ns) for r in runs]
    first, last = held.index(True), len(held) - 1 - held[::-1].index(True)
    assert power_w[first + 1][2] < 0.8 * power_w[first - 1][2]
    assert power_w[first + 1][5] > 0.8 * power_w[first - 1][5]
    bits = runs[last].cells.cause_bits
    assert (bits[len(bits) // 2 :, 2] & cause.bit).all()


def test_an_idle_node_knows_no_brake() -> None:
    brake = Brake(gpu=2, start_unix_ns=START_NS, end_unix_ns=START_NS + NS_PER_S)
    node = SimulatedNode(SimulationSpec(preset="idle", start_unix_ns=START_NS, brake=brake))
    assert node.reading(2, START_NS) == simulated("idle").reading(2, START_NS)
