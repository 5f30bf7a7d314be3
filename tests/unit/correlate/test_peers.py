"""Excess over peers, by hand."""

import numpy as np
import pytest

from chopperd.correlate.peers import excess_ns, peers_median_mhz


def test_the_median_of_four_known_clocks_or_more() -> None:
    assert peers_median_mhz(np.array([1400.0, 1500.0, 1510.0, 1520.0])) == 1505.0
    assert peers_median_mhz(np.array([1400.0, 1500.0, np.nan, 1510.0, 1520.0])) == 1505.0


def test_three_known_clocks_are_no_peers() -> None:
    assert peers_median_mhz(np.array([1400.0, 1500.0, 1510.0, np.nan])) is None


def test_excess_is_what_lies_below_the_median_times_covered_compute() -> None:
    """1350 of 1500 MHz over 1 s: 0.1 s; faster GPUs and unknown clocks have none."""
    clocks = np.array([1350.0, 1500.0, 1600.0, np.nan])
    covered = np.full(4, 1_000_000_000, np.int64)
    assert excess_ns(clocks, 1500.0, covered).tolist() == [100_000_000, 0, 0, 0]


def test_equal_gpus_have_no_excess() -> None:
    clocks = np.full(8, 1432.1)
    median_mhz = peers_median_mhz(clocks)
    assert median_mhz == pytest.approx(1432.1)
    assert not excess_ns(clocks, 1432.1, np.full(8, 10**9, np.int64)).any()
