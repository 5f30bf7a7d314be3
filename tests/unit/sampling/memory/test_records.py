"""Records out of a ring, and their governing die against an independent brute force."""

from math import isnan, nan

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chopperd.sampling.memory.layout import NO_DIE, RECORD, Records
from chopperd.sampling.memory.ring_reader import whole_records
from tests.fakes import dies

MS = 1_000_000


class Ring:
    """A ring of records as its writer leaves it: numbered, without a clock of the governing die."""

    def __init__(self, capacity: int) -> None:
        self.records: Records = np.zeros(capacity, RECORD)
        self.written = 0

    def write(self, t_ns: int, clocks_mhz: list[int]) -> None:
        slot = self.records[self.written % len(self.records)]
        slot["t_mono_ns"] = t_ns
        slot["sm_clock_mhz"] = nan
        slot["die_clocks_mhz"] = clocks_mhz
        self.written += 1
        slot["sequence"] = self.written

    def clocks_mhz(self, position: int) -> list[float]:
        """The governing clocks of the records from a position on."""
        found = whole_records(self.records, position, self.written)["sm_clock_mhz"]
        return [float(clock_mhz) for clock_mhz in found]


def eight(*clocks_mhz: int) -> list[int]:
    return [*clocks_mhz, *[NO_DIE] * 8][:8]


def found(*looks: tuple[int, list[int]]) -> float:
    """The clock at the last of some looks: when, in ms, and the dies."""
    ring = Ring(64)
    for t_ms, clocks_mhz in looks:
        ring.write(t_ms * MS, clocks_mhz)
    return ring.clocks_mhz(len(looks) - 1)[0]


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


@given(seed=st.integers(0, 2**32), capacity=st.integers(2, 40), batch=st.sampled_from([1, 3, 20]))
@settings(max_examples=60, deadline=None)
def test_it_is_the_one_by_brute_force_in_any_batches(seed: int, capacity: int, batch: int) -> None:
    """The ring wraps, and may be shorter than 2 s."""
    random = np.random.default_rng(seed)
    ring, looks, t_ns = Ring(capacity), [], 0
    values = [0, 95, 140, 141, NO_DIE, *random.integers(141, 2101, 6).tolist()]
    for _ in range(100):
        t_ns += int(random.choice([1, 10, 90, 500, 2000])) * MS
        clocks_mhz = random.choice(values, 8).tolist()
        looks.append((t_ns, clocks_mhz))
        ring.write(t_ns, clocks_mhz)
        if len(looks) % batch == 0:
            position = max(len(looks) - min(batch, capacity), 0)
            oldest = max(len(looks) - capacity, 0)
            expected = [
                dies.governing_mhz(looks[oldest : number + 1])
                for number in range(position, len(looks))
            ]
            clocks = ring.clocks_mhz(position)
            assert clocks == pytest.approx(expected, nan_ok=True, abs=0)


def test_a_record_that_is_being_written_again_is_left_out() -> None:
    """Of six records in a ring of four the last four are left; one of them is marked unfinished."""
    ring = Ring(4)
    for number in range(6):
        ring.write(number * MS, eight(1500))
    ring.records[3]["sequence"] = 0
    assert whole_records(ring.records, 0, 6)["t_mono_ns"].tolist() == [2 * MS, 4 * MS, 5 * MS]


def test_without_dies_the_clock_is_the_one_that_was_read() -> None:
    ring = Ring(4)
    ring.write(MS, eight())
    ring.records["sm_clock_mhz"] = 1234.0
    assert ring.clocks_mhz(0) == [1234.0]
