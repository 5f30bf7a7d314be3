"""Excess over peers and who is named, by hand."""

from math import hypot, nan, pi, sqrt

import numpy as np
import pytest

from chopperd.correlate.peers import Excess, Peers, peers_of
from chopperd.model.arrays import Float64s


def peers(clocks_mhz: list[float], half_mhz: float = 0.0) -> Peers:
    found = peers_of(np.array(clocks_mhz), np.full(len(clocks_mhz), half_mhz))
    assert found is not None
    return found


def compared(clocks_mhz: list[float], half_mhz: float = 0.0) -> Excess:
    clocks = np.array(clocks_mhz)
    return peers(clocks_mhz, half_mhz).excess(clocks, np.full(len(clocks), half_mhz))


def named(clocks_mhz: list[float], half_mhz: float = 0.0) -> list[int]:
    return np.flatnonzero(compared(clocks_mhz, half_mhz).is_named).tolist()


def test_the_median_of_four_known_clocks_or_more() -> None:
    assert peers([1400.0, 1500.0, 1510.0, 1520.0]).reference_mhz == 1505.0
    found = peers([1400.0, 1500.0, nan, 1510.0, 1520.0])
    assert (found.count, found.reference_mhz, found.disagree) == (4, 1505.0, False)


def test_three_known_clocks_are_no_peers() -> None:
    clocks = np.array([1400.0, 1500.0, 1510.0, nan])
    assert peers_of(clocks, np.zeros(4)) is None


def test_excess_is_the_share_below_the_median() -> None:
    """1350 of 1500 MHz: 0.1; faster GPUs have none, and of an unknown clock it is unknown."""
    found = compared([1350.0, 1500.0, 1500.0, 1500.0, 1600.0, nan])
    assert found.ratio[:5].tolist() == [pytest.approx(0.1), 0, 0, 0, 0]
    assert np.isnan([found.ratio[5], found.low[5], found.high[5]]).all()
    assert found.is_named.tolist() == [True, False, False, False, False, False]


def test_the_interval_is_this_gpus_and_the_medians() -> None:
    """Half widths of 15 MHz: the median of five is uncertain by sqrt(pi / 2 / 5) of that."""
    found = compared([1350.0, 1500.0, 1500.0, 1500.0, 1500.0], 15.0)
    median_mhz = 15 * sqrt(pi / 2) / sqrt(5)
    for nth, share in ((0, 0.9), (1, 1.0)):
        half = hypot(15.0, share * median_mhz) / 1500
        assert found.low[nth] == pytest.approx(max(1 - share - half, 0))
        assert found.high[nth] == pytest.approx(1 - share + half)


def test_without_an_interval_nobody_is_named() -> None:
    assert named([1350.0, 1500.0, 1500.0, 1500.0], nan) == []
    widths: Float64s = np.array([0.0, nan, nan, 15.0])
    found = peers_of(np.array([1350.0, 1500.0, 1500.0, 1500.0]), widths)
    assert found is not None  # the others' intervals stand for those that are not known
    assert found.error_mhz == pytest.approx(7.5 * sqrt(pi / 2) / 2)


def test_a_gpu_is_named_from_one_and_a_half_percent_on_with_its_low_end() -> None:
    assert named([985.1, 1000.0, 1000.0, 1000.0, 1000.0]) == []
    assert named([984.9, 1000.0, 1000.0, 1000.0, 1000.0]) == [0]
    assert named([984.9, 1000.0, 1000.0, 1000.0, 1000.0], 1.0) == []
    assert named([980.0, 1000.0, 1000.0, 1000.0, 1000.0], 4.0) == [0]


def test_a_gpu_is_not_named_within_three_deviations_of_its_peers() -> None:
    """990, 995, 1000, 1005, 1010 and it: the median is 997.5, deviations 2.5, 2.5, 7.5, 7.5, 12.5.

    The median of all six is 7.5 MHz: 3 x 7.5 below 997.5 is 975.
    """
    others = [990.0, 995.0, 1000.0, 1005.0, 1010.0]
    assert named([975.1, *others]) == []
    assert named([974.9, *others]) == [0]


def test_peers_in_two_groups_are_compared_with_the_upper_one() -> None:
    """Two of four at a brake: against the median of all, 1410, they would have half as much."""
    clocks = [1815.0, 1005.0, 1815.0, 1005.0]
    found = peers(clocks, 2.0)
    assert (found.reference_mhz, found.disagree, found.margin_ratio) == (1815.0, True, 0.015)
    assert compared(clocks, 2.0).ratio[1] == pytest.approx(1 - 1005 / 1815)
    assert named(clocks, 2.0) == [1, 3]


@pytest.mark.parametrize(
    ("clocks_mhz", "half_mhz", "disagree"),
    [
        ([1000.0, 1000.0, 940.0, 940.0, 940.0, 940.0], 0.0, True),
        ([1000.0, 1000.0, 951.0, 951.0], 0.0, False),  # 4.9 %
        ([1000.0, 1000.0, 1000.0, 600.0], 0.0, False),  # one GPU is no group
        ([1000.0, 600.0, 600.0, 600.0], 0.0, False),
        ([1000.0, 1000.0, 940.0, 940.0], 20.0, False),  # within the intervals
        ([1000.0, 1000.0, 940.0, 940.0], nan, True),
    ],
)
def test_groups_are_of_two_gpus_and_more_than_five_percent_apart(
    clocks_mhz: list[float], half_mhz: float, disagree: bool
) -> None:
    assert peers(clocks_mhz, half_mhz).disagree == disagree


def test_equal_gpus_have_no_excess() -> None:
    found = compared([1432.1] * 8)
    assert not found.ratio.any()
    assert not found.is_named.any()
