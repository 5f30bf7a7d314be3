"""The self-test's ratio and interval on simulated jobs whose true ratio is known."""

from dataclasses import dataclass

import numpy as np
import pytest

from chopperd.live.self_test import block_log_ratios, step_time_ratio
from chopperd.model.arrays import Float64s
from chopperd.units import NS_PER_S as SECOND


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Runs of a job whose steps take longer by `ratio` while sampling goes on.

    A step's log length is a slow AR(1) noise, a drift over the run, and a pattern that repeats
    (gradient accumulation: some steps are marked that do less). Blocks of 5 s come once in 25 s, at
    a point that is drawn: closer together than in the product, and so more alike.
    """

    ratio: float
    noise_ratio: float = 0.02
    correlation: float = 0.6
    drift_ratio: float = 0.0
    pattern: tuple[float, ...] = (1.0,)

    BLOCK_S = 5.0
    CYCLE_S = 25.0
    STEP_S = 0.25

    def log_ratios(self, runs: int, blocks: int, seed: int) -> list[Float64s]:
        """What each run gives, for (runs,) simulated side by side."""
        draw = np.random.default_rng(seed)
        span_s = self.CYCLE_S - 3 * self.BLOCK_S
        cycles_s = np.arange(blocks) * self.CYCLE_S
        starts_s = cycles_s + self.BLOCK_S + draw.uniform(0, span_s, (runs, blocks))
        total_s = blocks * self.CYCLE_S
        count = round(1.3 * total_s / (self.STEP_S * float(np.mean(self.pattern))))
        noise = draw.normal(0.0, 1.0, (count, runs))
        now_s, level = np.zeros(runs), noise[0]
        ends_s, lengths_s = np.zeros((count, runs)), np.zeros((count, runs))
        for n in range(count):
            level = self.correlation * level + (1 - self.correlation**2) ** 0.5 * noise[n]
            block = np.minimum(now_s // self.CYCLE_S, blocks - 1).astype(np.int64)
            into_s = now_s - starts_s[np.arange(runs), block]
            is_quiet = (into_s >= 0) & (into_s < self.BLOCK_S)
            drift = self.drift_ratio * (now_s / total_s + np.sin(now_s / 60.0))
            length_s = self.STEP_S * self.pattern[n % len(self.pattern)]
            lengths_s[n] = length_s * np.exp(self.noise_ratio * level + drift)
            lengths_s[n] *= np.where(is_quiet, 1.0, self.ratio)
            now_s = ends_s[n] = now_s + lengths_s[n]
        return [
            block_log_ratios(
                (ends_s[:, run] * SECOND).astype(np.int64),
                (lengths_s[:, run] * SECOND).astype(np.int64),
                (starts_s[run] * SECOND).astype(np.int64),
                ((starts_s[run] + self.BLOCK_S) * SECOND).astype(np.int64),
                round(0.5 * SECOND),
            )
            for run in range(runs)
        ]


JOBS = {
    "even": Job(ratio=1.0),
    "slowed by 2 %": Job(ratio=1.02),
    "drifting": Job(ratio=1.0, drift_ratio=0.05),
    "drifting, slowed": Job(ratio=1.02, drift_ratio=0.05),
    "accumulating": Job(ratio=1.0, pattern=(0.5, 0.5, 0.5, 2.5)),
    "accumulating, slowed": Job(ratio=1.02, pattern=(0.5, 0.5, 0.5, 2.5)),
    "slow noise": Job(ratio=1.0, correlation=0.97, noise_ratio=0.03),
}


@pytest.mark.parametrize("name", JOBS)
def test_the_interval_holds_the_true_ratio(name: str) -> None:
    """In at least 90 % of 200 runs; a job that is not slowed is called slowed in at most 7 %."""
    job = JOBS[name]
    found = [step_time_ratio(each) for each in job.log_ratios(200, 20, seed=11)]
    held = sum(each is not None and each.low <= job.ratio <= each.high for each in found)
    assert held >= 180
    if job.ratio == 1.0:
        assert held >= 186
    centre = np.median([each.ratio for each in found if each is not None])
    assert centre == pytest.approx(job.ratio, abs=0.003)


def test_a_slowing_of_2_percent_is_found() -> None:
    found = [step_time_ratio(each) for each in JOBS["slowed by 2 %"].log_ratios(200, 20, seed=3)]
    assert sum(each is not None and each.low > 1.0 for each in found) >= 160
