"""Excess over peers and who is named, by hand."""

from math import hypot, nan, pi, sqrt

import numpy as np
import pytest

from chopperd.correlate.ranks.comparing import Excess, Peers, peers_of, wander_ratio
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


def test_what_clocks_wander_widens_the_margin() -> None:
    """2 % of wander beside the 1.5 % of natural spread: 2.5 %."""
    clocks = np.array([974.9, 1000.0, 1000.0, 1000.0, 1000.0])
    for wander, named in ((0.0, True), (0.02, True), (0.021, False)):
        found = peers_of(clocks, np.zeros(5), wander)
        assert found is not None
        assert found.margin_ratio == pytest.approx(hypot(0.015, wander))
        assert found.excess(clocks, np.zeros(5)).is_named[0] == named


@pytest.mark.parametrize(
    ("steps", "half"),
    [
        ([0.99, 1.01], 12.71 * 0.01),  # s = 0.01 sqrt(2), over sqrt(2)
        ([0.99, 1.02, 0.99], 4.303 * 0.01),  # s = 0.01 sqrt(3), over sqrt(3)
        ([0.99, 1.01] * 5, 2.262 * 0.01 * sqrt(10 / 9 / 10)),
        ([0.99, 0.99, 1.01, 1.01] * 5, 2.262 * 0.01 * sqrt(10 / 9 / 10)),  # ten parts of two
    ],
)
def test_wander_is_half_a_95_percent_interval_of_the_mean_of_parts(
    steps: list[float], half: float
) -> None:
    """Neighbours that differ more than by chance count as independent."""
    assert wander_ratio([np.array(steps)]) == pytest.approx(half)
    still = np.ones(len(steps))
    assert wander_ratio([np.array(steps), still]) == pytest.approx(half / sqrt(2))


def test_wander_is_not_known_of_one_step_and_none_where_clocks_are_constant() -> None:
    assert wander_ratio([]) == 0
    assert wander_ratio([np.array([0.9]), np.array([1.1])]) == 0
    assert wander_ratio([np.full(3, 0.9), np.full(3, 1.1)]) == 0
    short = np.array([0.5])  # a GPU with fewer steps than the others tells nothing
    assert wander_ratio([np.full(3, 0.9), short]) == 0


@pytest.mark.parametrize(
    ("steps", "deviation", "correlation"), [(3, 0.032, 0.54), (10, 0.0245, 0.16), (10, 0.02, 0.5)]
)
def test_equal_gpus_whose_clocks_wander_are_accused_on_one_of_twenty_nodes_at_most(
    steps: int, deviation: float, correlation: float
) -> None:
    """Known truth: steps' means of an autoregression beside a spread of 1 % either way.

    The first two are steps of 0.3 and 1 s of a clock that wanders by 60 of 1600 MHz over 0.3 s.
    """
    rng, nodes = np.random.default_rng(7), 400
    accused = {True: 0, False: 0}
    for _ in range(nodes):
        noise = rng.normal(0, deviation, (8, steps))
        for step in range(1, steps):
            own = sqrt(1 - correlation**2) * noise[:, step]
            noise[:, step] = correlation * noise[:, step - 1] + own
        shares = 1 + noise + rng.uniform(-0.01, 0.01, (8, 1))
        mean = shares.mean(axis=1)
        for heeded in (True, False):
            found = peers_of(mean, np.full(8, 0.003), wander_ratio(list(shares)) * heeded)
            assert found is not None
            accused[heeded] += bool(found.excess(mean, np.full(8, 0.003)).is_named.any())
    assert accused[True] <= nodes / 20
    assert accused[False] >= nodes / 10


def test_a_gpu_that_is_slow_in_some_steps_only_does_not_hide_itself() -> None:
    """Three GPUs wander by 0.1 %; the fourth loses 14 % and 7 % in two of four steps."""
    rng = np.random.default_rng(5)
    steady = [1 + 0.001 * rng.standard_normal(4) for _ in range(3)]
    assert wander_ratio([*steady, np.array([1.0, 0.86, 0.93, 1.0])]) < 0.005
