"""Step times with and without sampling, by hand; `test_self_test_accuracy` has simulated jobs."""

import numpy as np
import pytest

from chopperd.live.self_test import LEAST_BLOCKS, block_log_ratios, step_time_ratio
from chopperd.model.arrays import Int64s

MS = 1_000_000
SECOND = 1_000_000_000


def steps(*lengths_ms: int, start_ms: int = 0) -> tuple[Int64s, Int64s]:
    """Ends and lengths, ns, of steps that follow on one another."""
    duration_ns = np.array(lengths_ms) * MS
    return start_ms * MS + np.cumsum(duration_ns), duration_ns


def ratio_of(end_ns: Int64s, duration_ns: Int64s, settle_ns: int = 0) -> float:
    """Of one quiet block from 1000 to 2000 ms."""
    start, end = np.array([1000 * MS]), np.array([2000 * MS])
    return float(np.exp(block_log_ratios(end_ns, duration_ns, start, end, settle_ns)[0]))


def test_a_block_is_compared_with_the_time_on_either_side() -> None:
    """Steps of 110 and 121 ms around a block of steps of 100 ms; the sides' geometric mean counts.

    Nine of 110 ms fill 10 to 1000 ms, ten of 100 ms the block, eight of 121 ms 2000 to 2968 ms.
    """
    marks = steps(*[110] * 9, *[100] * 10, *[121] * 8, start_ms=10)
    assert ratio_of(*marks) == pytest.approx((1.10 * 1.21) ** 0.5)


def test_a_drift_at_an_even_rate_cancels() -> None:
    """Each step is 0.1 % longer than the one before it: no quiet block makes any difference."""
    end_ns, duration_ns = steps(*[round(10_000 * 1.001**n) for n in range(300)])
    block_ns = 1000 * SECOND
    start_ns, stop_ns = np.array([block_ns]), np.array([2 * block_ns])
    log_ratio = block_log_ratios(end_ns, duration_ns, start_ns, stop_ns, 0)
    assert abs(log_ratio[0]) < 0.01  # the drift over one block is 0.1
    naive = np.log(duration_ns[:80].mean() / duration_ns[80:140].mean())
    assert abs(naive) > 0.05


def test_a_step_that_straddles_a_switch_counts_nowhere() -> None:
    """The steps of 150 and 190 ms lie from 960 to 1110 and from 1965 to 2155 ms."""
    marks = steps(*[90] * 10, 150, *[95] * 9, 190, *[90] * 9, start_ms=60)
    assert ratio_of(*marks) == pytest.approx(90 / 95)


def test_what_a_switch_takes_is_left_out_of_all_three() -> None:
    """The first 200 ms of each second hold a step of 200 ms that is none of its kind."""
    marks = steps(*[200, *[80] * 10], *[200, *[100] * 8], *[200, *[80] * 10])
    assert ratio_of(*marks, settle_ns=200 * MS) == pytest.approx(0.8)


def test_with_too_few_steps_on_a_side_a_block_says_nothing() -> None:
    whole = steps(*[100] * 30)
    assert ratio_of(*whole) == pytest.approx(1.0)
    assert np.isnan(ratio_of(*steps(*[100] * 2, start_ms=1000)))
    assert np.isnan(ratio_of(*steps(*[100] * 22)))  # two steps after the block
    assert np.isnan(ratio_of(*steps(*[100] * 20, start_ms=1000)))  # none before it
    assert np.isnan(ratio_of(np.zeros(0, np.int64), np.zeros(0, np.int64)))


def test_with_too_few_blocks_there_is_no_ratio() -> None:
    few = np.concatenate([np.zeros(LEAST_BLOCKS - 1), np.full(50, np.nan)])
    assert step_time_ratio(few) is None
    found = step_time_ratio(np.append(few, 0.0))
    assert found is not None
    assert (found.ratio, found.low, found.high) == (1.0, 1.0, 1.0)
    assert found.block_count == LEAST_BLOCKS


def test_the_interval_is_that_of_the_signed_rank_test() -> None:
    """For n = 10 the tables give 8 as the critical value at 5 %, two-sided: the 9th of 55 means."""
    values = np.log(np.array([1.01, 1.02, 1.04, 1.08, 1.16, 1.32, 1.64, 2.28, 3.56, 6.12]))
    means = sorted((a + b) / 2 for k, a in enumerate(values) for b in values[k:])
    found = step_time_ratio(values)
    assert found is not None
    assert (found.low, found.high) == pytest.approx((np.exp(means[8]), np.exp(means[-9])))
    assert found.ratio == pytest.approx(np.exp(means[27]))


def test_one_checkpoint_in_a_block_does_not_hide_what_sampling_costs() -> None:
    drawn = np.random.default_rng(5).normal(0.02, 0.004, 30)
    disturbed = np.append(drawn, [-2.0, 1.0])
    found = step_time_ratio(disturbed)
    assert found is not None
    assert 1.015 < found.low < 1.02 < found.high < 1.025
