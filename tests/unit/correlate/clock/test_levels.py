"""Which classes share one clock level: shown equal, shown different, and not shown."""

import numpy as np
import pytest

from chopperd.correlate.clock.precision import TimingUncertainty
from chopperd.correlate.clock.signal import (
    MIN_LEVEL_SAMPLES,
    LabelledSamples,
    RunningClass,
    is_one_level,
    pooled_by_level,
)
from chopperd.correlate.losses import mean_clock
from chopperd.correlate.waterfall import Windows
from tests.unit.correlate.builders import COMM, COMPUTE, IDLE, MS, labelled, spans

EXACT = TimingUncertainty(join_ns=0.0, lag_ns=0)
PERIODS = 50


def job(
    comm_mhz: float, *, noise_mhz: float = 0.0, idle_mhz: float | None = None
) -> LabelledSamples:
    """Fifty times 80 ms of compute at 1500 MHz and 20 ms of communication, sampled at 100 Hz.

    With `idle_mhz` the second of the two samples in communication is idle instead. The noise
    alternates between samples of the same kind.
    """
    clock_mhz, label = [], []
    for n in range(PERIODS):
        noise = noise_mhz * (-1) ** n
        clock_mhz += [1500.0] * 8 + [comm_mhz + noise, idle_mhz or comm_mhz + noise]
        label += [COMPUTE] * 8 + [COMM, COMM if idle_mhz is None else IDLE]
    return labelled([t * 10 * MS for t in range(10 * PERIODS)], clock_mhz, label)


def one_level(samples: LabelledSamples, other: RunningClass = COMM) -> bool:
    member = np.flatnonzero(samples.label == COMPUTE)
    return is_one_level(samples, member, samples.label == other)


@pytest.mark.parametrize(
    ("comm_mhz", "expected"), [(1500.0, True), (1507.0, True), (1493.0, True), (1508.0, False)]
)
def test_a_difference_below_half_a_percent_is_one_level(comm_mhz: float, expected: bool) -> None:
    """0.5 % of 1500 MHz is 7.5 MHz; without noise the difference is known exactly."""
    assert one_level(job(comm_mhz)) is expected


def test_equal_means_are_not_one_level_while_noise_leaves_a_difference_open() -> None:
    """+-100 MHz by turns of period: blocks of 4 or 6 samples of two periods mean about 0 +- 20."""
    assert one_level(job(1500.0, noise_mhz=4.0))
    assert not one_level(job(1500.0, noise_mhz=200.0))


def test_a_class_with_few_samples_between_lines_is_not_shown_to_be_equal() -> None:
    """The last communication has no line: 2 x 10 samples less 2 are fewer than 20."""
    whole = job(1500.0)
    few = labelled(
        whole.t_ns[:100].tolist(),
        whole.clock_mhz[:100].tolist(),
        [RunningClass(label) for label in whole.label[:100].tolist()],
    )
    assert np.count_nonzero(few.label == COMM) == MIN_LEVEL_SAMPLES
    assert not one_level(few)
    assert one_level(whole, COMM)


def test_lines_longer_than_a_second_tell_nothing() -> None:
    """Compute sampled each 2 s, communication between: no line in class is used there."""
    samples = labelled(
        [t * 1000 * MS for t in range(200)],
        [1500.0] * 200,
        [COMPUTE, COMM] * 100,
        period_ns=300 * MS,
    )
    assert not one_level(samples)


def test_classes_of_one_level_are_pooled_and_others_are_not() -> None:
    """Communication as compute, idle time at 345 MHz: their mean would differ, each alone not."""
    samples = job(1502.0, idle_mhz=345.0)
    pooled = pooled_by_level(samples, COMPUTE)
    assert np.array_equal(pooled.label == COMPUTE, samples.label != IDLE)
    assert np.array_equal(pooled.label == IDLE, samples.label == IDLE)


def test_levels_that_cancel_in_the_mean_are_not_pooled() -> None:
    """Communication 200 MHz above and idle time 200 MHz below compute."""
    samples = job(1700.0, idle_mhz=1300.0)
    assert pooled_by_level(samples, COMPUTE) is samples


def test_a_pooled_clock_goes_through_all_samples_but_causes_stay_with_the_class() -> None:
    """Communication at 1504 MHz: the line rises to it, and no time counts as in class."""
    samples = job(1504.0)
    compute = spans(*((n * 100 * MS, (n * 100 + 80) * MS) for n in range(PERIODS)))
    where = Windows(start_ns=np.array([70 * MS], np.int64), end_ns=np.array([80 * MS], np.int64))
    mean = mean_clock(samples, COMPUTE, compute, where, EXACT)
    assert mean.mean_mhz[0] == pytest.approx(1502.0)
    assert mean.covered_ns.tolist() == [10 * MS]
    assert mean.in_class_ns.tolist() == [0]
    assert mean.clock.left_sample[7:10].tolist() == [7, 7, 7]
    assert mean.clock.right_sample[7:10].tolist() == [10, 10, 10]
