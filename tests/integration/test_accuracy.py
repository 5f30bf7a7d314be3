"""The accuracy budgets on a few simulated runs of known truth, through the product's join.

Truths come from the simulation's own step functions. `bench/accuracy.py` does the same over all
settings and many seeds; the limits here are those of DESIGN.md section 10.
"""

import numpy as np
import pytest

from bench.accuracy import Setting, outcome

SEEDS = range(4)
STEPS = 60


@pytest.mark.parametrize(
    ("preset", "hz", "max_bias_points"),
    [
        ("steady", 10.0, 0.3),
        ("steady", 100.0, 0.15),
        ("phase-locked", 10.0, 0.3),
        ("phase-locked", 100.0, 0.15),
        ("hopping", 10.0, 1.0),
        ("hopping", 100.0, 0.15),
    ],
)
@pytest.mark.parametrize("lag_ms", [0, 20])
def test_gaps_are_unbiased_their_intervals_hold_and_causes_fit(
    preset: str, hz: float, max_bias_points: float, lag_ms: int
) -> None:
    setting = Setting(preset=preset, step_s=1.0, hz=hz, lag_ms=lag_ms, steps=STEPS)
    runs = [outcome(setting, seed) for seed in SEEDS]
    held = np.concatenate([run.held for run in runs])
    assert abs(np.mean([run.bias_points for run in runs])) <= max_bias_points
    assert 0.85 <= held.mean() <= 1.0
    assert max(run.cause_points for run in runs) <= 2.0
