"""Time by clock bucket, by hand and against the live integrals."""

from math import inf, nan

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from chopperd.live.integrals import LiveIntegrals
from chopperd.live.readings import ClockResidency
from chopperd.sampling.memory.layout import Records
from chopperd.units import NS_PER_MS
from tests.fakes.records import records
from tests.fakes.samples import gpu_info

PERIOD_NS = 100 * NS_PER_MS
GPU = replace(gpu_info(), sm_clock_max_mhz=2000.0)


def clocks(*clocks_mhz: float) -> Records:
    return records([{"sm_clock_mhz": clock} for clock in clocks_mhz])


def dwelt(made: Records) -> dict[float, float]:
    """The buckets that are not empty."""
    residency = ClockResidency(GPU)
    residency.add(made, PERIOD_NS)
    return {edge: seconds for edge, seconds in residency.seconds().items() if seconds}


def test_a_sample_stands_for_the_halves_of_the_intervals_beside_it() -> None:
    # By hand: 50 ms at 1500, 100 ms at 900, 50 ms at 1999 of 2000 MHz; edges each 200 MHz.
    found = dwelt(clocks(1500, 900, 1999))
    assert found == {1600.0: pytest.approx(0.05), 1000.0: pytest.approx(0.1), 2000.0: 0.05}


def test_an_edge_belongs_to_the_bucket_below_it_and_more_than_the_top_to_the_last() -> None:
    assert dwelt(clocks(1000, 1000)) == {1000.0: pytest.approx(0.1)}
    assert dwelt(clocks(2000, 2000)) == {2000.0: pytest.approx(0.1)}
    assert dwelt(clocks(2010, 2010)) == {inf: pytest.approx(0.1)}
    assert dwelt(clocks(0, 0)) == {200.0: pytest.approx(0.1)}


def test_unknown_clocks_and_gaps_are_left_out() -> None:
    assert dwelt(clocks(1000, nan, 1000)) == {}
    made = clocks(*[1000] * 5)
    made["t_mono_ns"][3:] += 1000 * NS_PER_MS
    assert dwelt(made) == {1000.0: pytest.approx(0.3)}


def test_without_a_highest_clock_there_are_no_buckets() -> None:
    residency = ClockResidency(replace(GPU, sm_clock_max_mhz=None))
    residency.add(clocks(1000, 1000), PERIOD_NS)
    assert residency.seconds() == {}


def test_buckets_are_there_all_once_a_clock_was_known_for_some_time() -> None:
    residency = ClockResidency(GPU)
    for before in (clocks(), clocks(nan, nan), clocks(1000)):
        residency.add(before, PERIOD_NS)
        assert residency.seconds() == {}
    later = clocks(1000)
    later["t_mono_ns"] += PERIOD_NS
    residency.add(later, PERIOD_NS)
    assert list(residency.seconds()) == [*(200.0 * n for n in range(1, 11)), inf]


@given(
    clocks_mhz=st.lists(st.just(nan) | st.floats(0, 2500), min_size=1, max_size=30),
    spacings_ms=st.lists(st.integers(1, 500), min_size=30, max_size=30),
    cut=st.integers(0, 30),
)
@settings(max_examples=50, deadline=None)
def test_buckets_sum_to_the_sampled_time_of_the_integrals(
    clocks_mhz: list[float], spacings_ms: list[int], cut: int
) -> None:
    made = clocks(*clocks_mhz)
    made["t_mono_ns"] = np.cumsum(np.array(spacings_ms[: len(made)]) * NS_PER_MS)
    residency, integrals = ClockResidency(GPU), LiveIntegrals(GPU)
    for part in (made[:cut], made[cut:]):
        residency.add(part, PERIOD_NS)
        integrals.add(part, PERIOD_NS)
    sampled_s = integrals.totals().sampled_s or 0.0
    assert sum(residency.seconds().values()) == pytest.approx(sampled_s)
