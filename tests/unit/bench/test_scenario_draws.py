import math

import numpy as np
import pytest

from bench.scenario_draws import (
    dwell_edges,
    exponential_filter,
    relaxation,
    stratified_ticks,
    wander,
)
from chopperd.simulation.presets import generator


@pytest.mark.parametrize("decay", [0.05, 0.9, 0.9995])
def test_the_blocked_filter_equals_the_plain_recursion(decay: float) -> None:
    drive = generator(4).normal(size=1000)
    expected, previous = [], 2.5
    for value in drive:
        previous = decay * previous + value
        expected.append(previous)
    assert exponential_filter(drive, decay, 2.5) == pytest.approx(np.array(expected), abs=1e-9)


def test_a_relaxation_covers_63_percent_of_a_step_in_its_time_constant() -> None:
    target = np.concatenate(([0.0], np.ones(100)))
    followed = relaxation(target, cell_ns=1_000_000, constant_ns=20_000_000)
    # closed form: 1 - exp(-t/tau) at 20 cells
    assert followed[20] == pytest.approx(1 - math.exp(-1), abs=1e-12)


def test_a_wander_has_the_deviation_and_correlation_asked_for() -> None:
    drift = wander(generator(5), count=200_000, cell_ns=1, deviation=60.0, correlation_ns=50.0)
    assert drift.std() == pytest.approx(60, rel=0.05)
    lagged = np.corrcoef(drift[:-50], drift[50:])[0, 1]
    assert lagged == pytest.approx(math.exp(-1), abs=0.05)


def test_dwells_stay_within_their_bounds_and_cover_the_span() -> None:
    edges = dwell_edges(generator(6), 10_000, 20, 200)
    assert edges[0] == 0
    assert edges[-1] >= 10_000 > edges[-2]
    assert 20 <= np.diff(edges).min() <= np.diff(edges).max() < 200


def test_each_period_has_one_tick_anywhere_in_it() -> None:
    """The least and the largest of 100 uniform numbers lie within 0.05 of the ends (99.4 %)."""
    ticks = stratified_ticks(generator(7), 1_000_000_000, 100.0)
    within = ticks / 1e7 - np.arange(100)
    assert len(ticks) == 100
    assert 0 <= within.min() < 0.05
    assert 0.95 < within.max() < 1
