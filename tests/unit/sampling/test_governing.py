"""The governing die as a writer finds it, against an independent brute force."""

from math import isnan, nan

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chopperd.sampling.governing import GoverningDie
from chopperd.sampling.memory.layout import NO_DIE, RECORD, Records
from tests.fakes import dies

MS = 1_000_000


class Ring:
    """A ring of records, and one that follows it."""

    def __init__(self, capacity: int) -> None:
        self.records: Records = np.zeros(capacity, RECORD)
        self.written = 0
        self.governing = GoverningDie()

    def clock_mhz(self, t_ns: int, clocks_mhz: list[int]) -> float:
        return self.governing.clock_mhz(self.records, self.written, clocks_mhz, t_ns)

    def write(self, t_ns: int, clocks_mhz: list[int]) -> None:
        slot = self.records[self.written % len(self.records)]
        slot["t_mono_ns"] = t_ns
        slot["die_clocks_mhz"] = clocks_mhz
        self.written += 1


def eight(*clocks_mhz: int) -> list[int]:
    return [*clocks_mhz, *[NO_DIE] * 8][:8]


def found(*looks: tuple[int, list[int]]) -> float:
    """The clock at the last of some looks: when, in ms, and the dies."""
    ring = Ring(64)
    for t_ms, clocks_mhz in looks[:-1]:
        ring.write(t_ms * MS, clocks_mhz)
    t_ms, clocks_mhz = looks[-1]
    return ring.clock_mhz(t_ms * MS, clocks_mhz)


def test_the_die_with_the_lowest_mean_governs_though_another_is_lower_now() -> None:
    """By hand: means (1000 + 1500) / 2 = 1250 and (1400 + 1300) / 2 = 1350."""
    assert found((0, eight(1000, 1400)), (100, eight(1500, 1300))) == 1500


def test_what_is_two_seconds_old_counts_no_more() -> None:
    assert found((0, eight(1000, 1400)), (2000, eight(1500, 1300))) == 1300
    assert found((0, eight(1000, 1400)), (1999, eight(1500, 1300))) == 1500


def test_a_die_that_sleeps_now_does_not_govern_and_its_sleep_lowers_no_mean() -> None:
    """By hand: the first has slept and its mean is 1400; the second sleeps now."""
    assert found((0, eight(140, 900, 1450)), (9, eight(1400, 140, 1350))) == 1400
    assert found((0, eight(0, 900, 1450)), (9, eight(1400, 0, 1390))) == 1400


def test_of_equal_means_the_first_die_governs() -> None:
    assert found((0, eight(1500, 1400)), (9, eight(1400, 1500))) == 1400


@pytest.mark.parametrize(
    ("clocks_mhz", "lowest_mhz"), [((0, 132, NO_DIE, 95), 95), ((0, 0), nan), ((), nan)]
)
def test_where_none_runs_the_lowest_that_is_on_tells(
    clocks_mhz: tuple[int, ...], lowest_mhz: float
) -> None:
    clock_mhz = found((0, eight(1500, 1400)), (9, eight(*clocks_mhz)))
    assert clock_mhz == lowest_mhz or (isnan(clock_mhz) and isnan(lowest_mhz))


@given(
    seed=st.integers(0, 2**32),
    capacity=st.integers(2, 40),
    own_ratio=st.sampled_from([0.1, 0.5, 1.0]),
)
@settings(max_examples=60, deadline=None)
def test_it_is_the_one_by_brute_force_whoever_wrote_the_records(
    seed: int, capacity: int, own_ratio: float
) -> None:
    """Some records are written by another; the ring wraps, and may be shorter than 2 s."""
    random = np.random.default_rng(seed)
    ring, looks, t_ns = Ring(capacity), [], 0
    values = [0, 95, 140, 141, NO_DIE, *random.integers(141, 2101, 6).tolist()]
    for _ in range(100):
        t_ns += int(random.choice([1, 10, 90, 500, 2000])) * MS
        clocks_mhz = random.choice(values, 8).tolist()
        looks.append((t_ns, clocks_mhz))
        if random.random() < own_ratio:
            expected = dies.governing_mhz(looks[-capacity:])
            assert ring.clock_mhz(t_ns, clocks_mhz) == pytest.approx(expected, nan_ok=True, abs=0)
        ring.write(t_ns, clocks_mhz)
