"""Statistics of compared runs: tables of Student's t, cases by hand, draws of known truth."""

from math import isnan, nan, sqrt

import numpy as np
import pytest

from bench.compare import KINDS, Kind, pair
from chopperd.correlate.comparison import (
    correlation_time,
    differences,
    estimate,
    holm,
    knee,
    student_p,
    student_t,
    warm_up_steps,
)
from chopperd.model.comparison import STEP


@pytest.mark.parametrize(
    ("freedom", "t_975"),
    [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (9, 2.262), (18, 2.101), (30, 2.042)],
)
def test_student_s_t_is_that_of_tables(freedom: int, t_975: float) -> None:
    assert student_t(0.05, freedom) == pytest.approx(t_975, abs=0.0006)
    assert student_p(-t_975, freedom) == pytest.approx(0.05, abs=0.0001)


def test_holm_corrects_the_smallest_most_and_never_falls() -> None:
    """0.01 x 3, then 0.02 x 2, then the larger of 0.04 and 0.03: of three that are known."""
    assert holm([0.03, nan, 0.01, 0.02])[2:] == [pytest.approx(0.03), pytest.approx(0.04)]
    first, unknown, *_ = holm([0.03, nan, 0.01, 0.02])
    assert first == pytest.approx(0.04)
    assert isnan(unknown)
    assert holm([0.7, 0.6]) == [1.0, 1.0]


def test_ten_batches_of_two_steps_by_hand() -> None:
    """Batch means 1 to 10: mean 5.5, standard deviation sqrt(55 / 6), halves 3 and 8."""
    steps = np.repeat(np.arange(1.0, 11.0), 2) + np.tile([-0.5, 0.5], 10)
    found = estimate([np.append(steps, nan)])
    assert found.mean == 5.5
    assert found.error == pytest.approx(sqrt(55 / 6 / 10))
    assert (found.freedom, found.halves) == (9, 5.0)


def test_of_three_runs_the_unit_is_the_run() -> None:
    """Means 1, 2, 6: their mean is 3, not that of all steps, with an error of sqrt(7 / 3)."""
    found = estimate([np.full(9, 1.0), np.full(3, 2.0), np.full(3, 6.0)], by_runs=True)
    assert (found.mean, found.freedom, found.effective) == (3.0, 2, 15.0)
    assert found.error == pytest.approx(sqrt(7 / 3))


def test_one_step_has_no_error_and_no_step_no_mean() -> None:
    one, none = estimate([np.array([4.0])]), estimate([np.array([nan])])
    assert (one.mean, one.effective) == (4.0, 1.0)
    assert isnan(one.error)
    assert isnan(none.mean)


def test_correlation_time_is_that_of_an_autoregressive_process() -> None:
    """(1 + r) / (1 - r) of AR(1): 3 at 0.5 and 9 at 0.8; 1 of independent and of constant values.

    A line, which is all trend, is a few independent values at most.
    """
    rng = np.random.default_rng(4)
    for rho, truth in ((0.0, 1.0), (0.5, 3.0), (0.8, 9.0)):
        values = [0.0]
        for noise in rng.standard_normal(20_000):
            values.append(rho * values[-1] + noise)
        assert correlation_time(np.array(values)) == pytest.approx(truth, rel=0.15)
    assert correlation_time(np.full(50, 0.1)) == 1.0
    assert correlation_time(np.array([1.0, 2.0])) == 1.0
    assert len(range(100)) / correlation_time(np.arange(100.0)) < 5
    assert correlation_time(np.tile([1.0, -1.0], 50)) == 1.0
    assert correlation_time(np.array([1.0, 1.0, 1.0, 5.0])) >= 1.0


def test_the_interval_of_a_ratio_by_hand() -> None:
    """Batch means 100 ± 3 of A, 110 ± 3 of B, five of each sign: both errors are 1.

    The ratio 1.1 has an error of sqrt(1.1² + 1²) / 100; Welch's freedom is 9 x 2.21² / 2.46 = 17.8.
    """
    noise = np.tile(np.repeat([3.0, -3.0], 10), 5)
    step, others = differences([{STEP: 100 + noise}], [{STEP: 110 + noise}])
    assert others == ()
    assert step.change == pytest.approx(0.1)
    assert step.low is not None
    assert 0.1 - step.low == pytest.approx(student_t(0.05, 17) * sqrt(1.1**2 + 1) / 100)
    assert step.floor == pytest.approx(0.012)


STEADY = np.tile([99.0, 101.0], 40)


def test_verdicts() -> None:
    """Of 80 steps that alternate about 100: what differs, is the same, too few or unknown."""
    a = {STEP: STEADY, "waterfall_ns/x": STEADY / 10, "busy_mhz": STEADY, "none": STEADY}
    b = {STEP: STEADY * 1.02, "waterfall_ns/x": STEADY / 10 + 1.5, "busy_mhz": STEADY[:40]}
    step, (part, clock) = differences([a], [b])
    assert (step.verdict, step.differs) == ("higher", True)
    assert part.verdict == "higher"
    assert part.change == pytest.approx(0.015)
    assert (clock.verdict, clock.change, clock.differs) == ("too_few", 0.0, False)
    back, _ = differences([b], [a])
    assert back.verdict == "lower"
    same, _ = differences([a], [{STEP: STEADY * 1.002}])
    assert (same.verdict, same.p) == ("same", 0.0)
    noisy = 100 + 10 * np.random.default_rng(1).standard_normal((2, 100))
    unsure, _ = differences([{STEP: noisy[0]}], [{STEP: noisy[1]}])
    assert (unsure.verdict, unsure.differs) == ("unresolved", False)


def test_no_difference_below_what_halves_of_a_differ_by() -> None:
    """A's two runs take 100 and 103: 2 % more than their mean is within that."""
    stepped = np.concatenate([np.tile([99.0, 101.0], 100), np.tile([102.0, 104.0], 100)])
    ones = [stepped[:200], stepped[200:]]
    step, _ = differences([{STEP: each} for each in ones], [{STEP: np.tile([102.6, 104.6], 200)}])
    assert step.floor == pytest.approx(3 / 101.5)
    assert step.verdict == "unresolved"


def test_what_is_constant_and_what_begins_at_nothing() -> None:
    """A constant differs exactly; a figure that was 0 has no change in percent, yet it differs."""
    a = {STEP: STEADY, "retries": np.zeros(80), "bytes": np.full(80, 5.0), "zero": np.zeros(80)}
    b = {STEP: STEADY, "retries": np.ones(80), "bytes": np.full(80, 6.0), "zero": np.zeros(80)}
    _, (retries, held, zero) = differences([a], [b])
    assert (retries.verdict, retries.change, retries.low) == ("higher", None, None)
    assert (held.verdict, held.change, held.low) == ("higher", 0.2, 0.2)
    assert (zero.verdict, zero.change) == ("same", 0.0)


def test_a_figure_of_one_value_has_no_interval() -> None:
    a, b = ({STEP: STEADY, "energy_j": np.array([value])} for value in (100.0, 90.0))
    _, (energy,) = differences([a], [b])
    assert (energy.change, energy.low, energy.p, energy.verdict) == (-0.1, None, None, "too_few")


def test_warm_up_is_only_at_the_start_and_at_most_a_tenth() -> None:
    steps = np.tile([100.0, 101.0], 20)
    assert warm_up_steps(steps) == 0
    assert warm_up_steps(np.concatenate([[300.0, 120.0], steps])) == 2
    assert warm_up_steps(np.concatenate([steps, [300.0]])) == 0
    assert warm_up_steps(np.concatenate([[300.0] * 9, steps])) == 4
    assert warm_up_steps(np.array([300.0, 100.0, 100.0, 100.0])) == 0


def test_the_knee_lies_farthest_below_the_line() -> None:
    """700, 600, 500, 400 W at 100, 101, 104, 130 ms: 500 W lies 16 ms below the line, 600 W 9."""
    assert knee([700, 600, 500, 400], [100, 101, 104, 130]) == 2
    assert knee([700, None, 600], [100, 1, 101]) is None
    assert knee([700, 600, 500], [100, 110, 120]) is None


@pytest.mark.parametrize("kind", KINDS[1:4:2], ids=lambda kind: kind.name)
def test_equal_runs_seldom_differ_and_two_percent_is_found(kind: Kind) -> None:
    """Of 40 pairs of equal runs at most 6 (mean 2, chance of more 0.4 %); of 20 with 2 % most."""
    equal = [pair(kind, seed) for seed in range(40)]
    assert sum(step.differs for step, _ in equal) <= 6
    assert sum(any(row.differs for row in rows) for _, rows in equal) <= 6
    found = sum(pair(kind, seed, 0.02)[0].verdict == "higher" for seed in range(40, 60))
    assert found >= 16
