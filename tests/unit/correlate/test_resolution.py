"""The sensor's resolution in the interval, by hand and against simulated rounding."""

import numpy as np
import pytest

from chopperd.correlate.clock.precision import resolution_mhz
from chopperd.correlate.clock.signal import LabelledSamples, RunningClass

WINDOW = (np.array([0], np.int64), np.array([10_000], np.int64))


def samples(clock_mhz: list[float]) -> LabelledSamples:
    return LabelledSamples(
        t_ns=np.arange(len(clock_mhz), dtype=np.int64) * 10,
        clock_mhz=np.array(clock_mhz),
        label=np.full(len(clock_mhz), RunningClass.COMPUTE, np.int8),
        period_ns=10,
    )


def off_mhz(clock_mhz: list[float]) -> float:
    return float(resolution_mhz(samples(clock_mhz), RunningClass.COMPUTE, *WINDOW)[0])


def test_a_clock_that_stands_still_may_be_off_by_half_a_step() -> None:
    """Steps of 15 MHz are seen elsewhere in the recording; in the window all is 1500."""
    still = [1500.0] * 1000 + [1515.0] * 40
    assert off_mhz(still) == pytest.approx(7.5)


def test_the_step_is_what_the_sensor_shows_and_at_most_15_mhz() -> None:
    assert off_mhz([1500.0] * 1000 + [1501.0] * 40) == pytest.approx(0.5)
    assert off_mhz([1500.0] * 1000 + [1950.0] * 40) == pytest.approx(7.5)


def test_a_clock_that_wanders_over_several_steps_averages_its_rounding_out() -> None:
    rng = np.random.default_rng(5)
    wandering = (np.round(rng.normal(1500, 30, 1000) / 15) * 15).tolist()
    assert off_mhz(wandering) < 1e-9


def test_a_sensor_that_never_changed_tells_nothing_of_its_step() -> None:
    assert off_mhz([1500.0] * 100) == 0.0


@pytest.mark.parametrize("spread_mhz", [0.0, 2.0, 4.0, 6.0, 10.0])
def test_the_bound_holds_for_a_rounded_clock_at_any_place_between_two_steps(
    spread_mhz: float,
) -> None:
    """Known truth: the mean of a rounded normal clock against its unrounded mean."""
    rng = np.random.default_rng(7)
    noise = rng.normal(0.0, spread_mhz, 1000)
    noise -= noise.mean()
    for place in np.linspace(0, 15, 16, endpoint=False):
        true_mhz = 1500.0 + place
        shown = np.round((true_mhz + noise) / 15) * 15
        error = abs(shown.mean() - true_mhz)
        assert error <= off_mhz([*shown.tolist(), 1200.0, 1215.0]) + 0.05
