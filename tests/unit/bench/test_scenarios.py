import numpy as np
import pytest

from bench.scenarios import SCENARIO_PRESETS, Scenario, observe, scenario, step_truth
from chopperd.model.kinds import Cause, KernelClass

START_NS = 1_790_857_026_000_000_000


@pytest.fixture(params=SCENARIO_PRESETS)
def known(request: pytest.FixtureRequest) -> Scenario:
    return scenario(request.param, seed=3, step_s=0.5, steps=12, start_unix_ns=START_NS)


def test_equal_arguments_give_equal_scenarios_and_another_seed_another(known: Scenario) -> None:
    again, other = (
        scenario(known.preset, seed=seed, step_s=0.5, steps=12, start_unix_ns=START_NS)
        for seed in (3, 4)
    )
    assert np.array_equal(known.records.start_ns, again.records.start_ns)
    assert np.array_equal(known.truth.clock.value, again.truth.clock.value)
    assert not np.array_equal(known.records.start_ns, other.records.start_ns)


def test_windows_abut_and_hold_their_own_compute(known: Scenario) -> None:
    windows, records = known.windows, known.records
    assert np.array_equal(windows.start_ns[1:], windows.end_ns[:-1])
    assert np.diff(windows.start_ns) == pytest.approx(5e8, rel=0.06)
    compute = records.stream == 7
    for step, (start, end) in enumerate(zip(windows.start_ns, windows.end_ns, strict=True)):
        own = compute & (records.step == step)
        assert records.start_ns[own].min() == start
        assert records.end_ns[own].max() <= end
    assert windows.end_ns[-1] == records.end_ns.max()


def test_records_of_a_stream_never_overlap(known: Scenario) -> None:
    for stream in np.unique(known.records.stream):
        rows = known.records.stream == stream
        starts, ends = known.records.start_ns[rows], known.records.end_ns[rows]
        assert (starts < ends).all()
        assert (ends[:-1] <= starts[1:]).all()


def test_some_communication_is_hidden_and_some_exposed(known: Scenario) -> None:
    comm = known.records.kernel_class == KernelClass.COMM
    compute = known.compute
    for start, end in zip(known.records.start_ns[comm], known.records.end_ns[comm], strict=True):
        overlap = np.minimum(compute.end_ns, end) - np.maximum(compute.start_ns, start)
        hidden = np.clip(overlap, 0, None).sum() / (end - start)
        assert hidden > 0.95 or 0 < hidden < 0.5


def test_a_steps_truth_equals_a_sum_over_fine_slices(known: Scenario) -> None:
    truth = step_truth(known)
    window = slice(int(known.windows.start_ns[2]), int(known.windows.end_ns[2]))
    middles = np.arange(window.start, window.stop, 10_000) + 5_000
    kernel = np.searchsorted(known.compute.start_ns, middles, side="right") - 1
    busy = middles < known.compute.end_ns[kernel]
    clock = known.truth.clock.at(middles[busy])
    # brute force on 10 us slices
    assert truth.mean_mhz[2] == pytest.approx(clock.mean(), rel=1e-3)
    assert truth.gap_ratio[2] == pytest.approx((1 - clock / 1980).mean(), abs=1e-3)
    assert sum(each[2] for each in truth.by_cause_ns.values()) == pytest.approx(truth.lost_ns[2])


def test_presets_have_the_clocks_that_the_budgets_name() -> None:
    clocks = {
        preset: scenario(preset, seed=1, step_s=1.0, steps=60).truth.clock
        for preset in SCENARIO_PRESETS
    }
    assert clocks["steady"].value.mean() == pytest.approx(1600, abs=20)
    assert clocks["steady"].value.std() == pytest.approx(60, rel=0.15)
    hops = clocks["hopping"]
    assert set((hops.value - 1200) % 15) == {0.0}
    assert 20e6 <= np.diff(hops.edges_ns).min() <= np.diff(hops.edges_ns).max() < 200e6


def test_a_steady_clock_has_the_correlation_time_asked_for() -> None:
    known = scenario("steady", seed=1, step_s=1.0, steps=200, correlation_s=1.0)
    clock = known.truth.clock.value[::20]  # each 10 ms
    # an exponential correlation falls to 1/e in its correlation time
    assert np.corrcoef(clock[:-100], clock[100:])[0, 1] == pytest.approx(np.exp(-1), abs=0.12)


def test_the_phase_locked_clock_is_300_mhz_apart_and_follows_within_5_ms() -> None:
    known = scenario("phase-locked", seed=2, step_s=1.0, steps=4)
    begin = known.windows.start_ns[1]
    at = known.truth.clock.at(begin + np.array([-1_000_000, 5_000_000, 40_000_000]))
    assert at[0] - at[2] > 300
    # first order: after one time constant about 63 % of the way is done
    assert (at[0] - at[1]) / (at[0] - at[2]) == pytest.approx(0.63, abs=0.1)


def test_an_observation_is_the_lagged_truth(known: Scenario) -> None:
    seen = observe(known, hz=100, lag_ns=20_000_000, seed=9)
    expected = known.truth.clock.at(seen.t_unix_ns - 20_000_000)
    assert np.array_equal(seen.sm_clock_mhz, expected)
    assert set(seen.sm_clock_mhz % 15) == {0.0}
    coarse = observe(known, hz=100, lag_ns=20_000_000, seed=9, quantum_mhz=30)
    assert np.abs(coarse.sm_clock_mhz - expected).max() == 15
    assert np.diff(seen.t_unix_ns).min() > 0
    assert seen.t_unix_ns[0] < known.windows.start_ns[0] < known.windows.end_ns[-1]
    assert seen.t_unix_ns[-1] > known.windows.end_ns[-1]


def test_counters_rise_exactly_while_their_reason_is_set(known: Scenario) -> None:
    seen = observe(known, hz=100, seed=9)
    for cause, counter in seen.limited_ns.items():
        both = (seen.causes[:-1] & seen.causes[1:] & cause.bit) != 0
        gained, spacing = np.diff(counter), np.diff(seen.t_unix_ns)
        assert (gained >= 0).all()
        assert (gained <= spacing + 1).all()
        if known.preset == "steady":
            assert gained[both].sum() == pytest.approx(spacing[both].sum(), rel=0.01)
    assert Cause.POWER_CAP in seen.limited_ns


def test_an_unknown_preset_is_refused() -> None:
    with pytest.raises(KeyError, match="wobbly"):
        scenario("wobbly", seed=1, step_s=1.0, steps=1)
