"""The verdict on simulated products of known truth: cycles a product x clock = time."""

import numpy as np
import pytest

from chopperd.model.arrays import Float64s, Int64s
from chopperd.selftest.findings import Outcome, verdict
from chopperd.selftest.protocol import Phase
from chopperd.units import NS_PER_MS, NS_PER_S

CYCLES: float = 2e6
PHASE_NS = 5 * NS_PER_S
PERIOD_NS = 10 * NS_PER_MS


class Simulated:
    """Four phases by turns, zeros at one mean clock and random data at another.

    Times come from the true clock, which wanders with a correlation of 0.2 s; samples see it in
    steps of 15 MHz. `more` makes random data need so much more cycles.
    """

    def __init__(
        self, zeros_mhz: float, random_mhz: float, more: float = 1.0, seed: int = 0
    ) -> None:
        draw = np.random.default_rng(seed)
        self.phases: list[Phase] = []
        times, clocks = [], []
        for number, operand in enumerate(("zeros", "random") * 2):
            start_ns = number * (PHASE_NS + NS_PER_S)
            t_ns = start_ns + np.arange(0, PHASE_NS, PERIOD_NS)
            level = zeros_mhz if operand == "zeros" else random_mhz
            true_mhz = level + _wander(draw, len(t_ns))
            cycles = CYCLES * (more if operand == "random" else 1.0)
            # Ten products a sampling period would take cycles / f each: batches of equal work.
            done = np.concatenate(([0.0], np.cumsum(true_mhz * 1e6 * PERIOD_NS / 1e9 / cycles)))
            whole = np.arange(0, done[-1], 50)
            edges_ns = start_ns + np.interp(whole, done, np.arange(len(done)) * PERIOD_NS)
            self.phases.append(
                Phase(
                    operand=operand,
                    round=number // 2,
                    products_a_batch=50,
                    edge_mono_ns=np.rint(edges_ns).astype(int).tolist(),
                )
            )
            times.append(t_ns + PERIOD_NS // 2)
            clocks.append(np.rint(true_mhz / 15) * 15)
        self.t_ns: Int64s = np.concatenate(times)
        self.clock_mhz: Float64s = np.concatenate(clocks)


def _wander(draw: np.random.Generator, count: int) -> Float64s:
    keep = np.exp(-PERIOD_NS / (0.2 * NS_PER_S))
    values = np.zeros(count)
    for i in range(1, count):
        values[i] = keep * values[i - 1] + draw.normal(0, 15 * np.sqrt(1 - keep**2))
    return values


def test_products_that_follow_the_clock_agree_with_it() -> None:
    simulated = Simulated(1980, 1722)
    found = verdict(simulated.phases, simulated.t_ns, simulated.clock_mhz)
    assert found.outcome is Outcome.AGREES
    # 1980 / 1722: the shape that was published for the A100 (1.15).
    assert found.time is not None
    assert found.time.value_ratio == pytest.approx(1980 / 1722, rel=0.01)
    assert found.clock is not None
    assert found.clock.value_ratio == pytest.approx(1980 / 1722, rel=0.01)


def test_the_intervals_hold_the_truth_of_many_courses() -> None:
    held = {"time": 0, "cycles": 0}
    for seed in range(20):
        simulated = Simulated(1980, 1722, seed=seed)
        found = verdict(simulated.phases, simulated.t_ns, simulated.clock_mhz)
        assert found.time is not None
        assert found.cycles is not None
        held["time"] += found.time.low_ratio <= 1980 / 1722 <= found.time.high_ratio
        held["cycles"] += found.cycles.holds_one
    assert held["time"] >= 17
    assert held["cycles"] == 20  # the clock's step makes this interval a wide one


@pytest.mark.parametrize(
    ("more", "words"), [(1.05, "took longer"), (1 / 1.05, "fell by more than the time rose")]
)
def test_time_that_the_clock_does_not_explain_disagrees(more: float, words: str) -> None:
    simulated = Simulated(1980, 1722, more=more)
    found = verdict(simulated.phases, simulated.t_ns, simulated.clock_mhz)
    assert found.outcome is Outcome.DISAGREES
    assert found.cycles is not None
    assert found.cycles.value_ratio == pytest.approx(more, rel=0.01)
    assert words in found.meaning


def test_agreement_over_no_difference_is_said_to_show_nothing() -> None:
    simulated = Simulated(1500, 1500)
    found = verdict(simulated.phases, simulated.t_ns, simulated.clock_mhz)
    assert found.outcome is Outcome.TRIVIAL


def test_a_clock_that_was_not_sampled_is_no_agreement() -> None:
    simulated = Simulated(1980, 1722)
    simulated.clock_mhz[simulated.t_ns < 2 * NS_PER_S] = np.nan
    found = verdict(simulated.phases, simulated.t_ns, simulated.clock_mhz)
    assert found.outcome is Outcome.UNKNOWN
    assert (found.clock, found.cycles) == (None, None)
    assert found.time is not None


def test_no_products_are_no_agreement() -> None:
    found = verdict([], np.zeros(0, np.int64), np.zeros(0))
    assert (found.outcome, found.time) == (Outcome.UNKNOWN, None)
