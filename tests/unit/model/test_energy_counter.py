"""A counter of energy over dips, torn numbers and restarts, against what was really used."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chopperd.plausible import EnergyCounter
from chopperd.units import NS_PER_MS, NS_PER_S

#: What one read shows in place of the counter: of 64 bits the lower half was new and the upper old,
#: or the other way round; zeros of a GPU that is being reset; a little less.
TORN_J = (65_536.0, -65_536.0, 1e12, -0.5)


def total_j(readings_j: list[float], period_ms: int) -> float:
    counter = EnergyCounter()
    return sum(
        counter.increment_j(energy_j, NS_PER_S + number * period_ms * NS_PER_MS)
        for number, energy_j in enumerate(readings_j)
    )


def test_a_dip_adds_nothing_and_a_restart_counts_from_where_it_began() -> None:
    """The readings of public case 30 (counts of 15.259 uJ); its right answer is 62.5619 J."""
    counts = [1_000_000, 3_000_000, 2_900_000, 5_000_000, 1_000, 101_000]
    assert total_j([count * 15.259e-6 for count in counts], 1000) == pytest.approx(62.5619, 1e-6)


@pytest.mark.parametrize("torn_j", [*TORN_J, None])
@pytest.mark.parametrize("torn_count", [1, 2, 7])
def test_no_torn_number_or_dip_invents_energy_however_often_it_is_read(
    torn_j: float | None, torn_count: int
) -> None:
    """500 W read each 10 ms for 2 s are 995 J from first to last read; None reads 0."""
    true_j = [100_000 + 5.0 * number for number in range(200)]
    shown_j = list(true_j)
    for number in range(50, 50 + torn_count):
        shown_j[number] = 0.0 if torn_j is None else true_j[number] + torn_j
    assert total_j(shown_j, 10) == pytest.approx(995)


def test_a_number_that_stands_torn_for_a_while_invents_no_energy() -> None:
    """The firmware's table is as it was for ten reads."""
    true_j = [100_000 + 5.0 * number for number in range(200)]
    shown_j = [*true_j[:50], *[true_j[49] - 1] * 10, *true_j[60:]]
    assert total_j(shown_j, 10) == pytest.approx(995)


@given(
    used_j=st.lists(st.floats(0, 30), min_size=60, max_size=200),
    restart=st.integers(1, 59),
    first_j=st.floats(0, 1e6),
    low_j=st.floats(0, 100),
)
@settings(max_examples=100, deadline=None)
def test_a_restart_loses_one_interval_and_never_invents(
    used_j: list[float], restart: int, first_j: float, low_j: float
) -> None:
    """Read each 100 ms; a restart shows a lower counter or, where it can't, is none."""
    shown_j = [first_j]
    for number, energy_j in enumerate(used_j, 1):
        before_j = low_j if number == restart and low_j < shown_j[-1] else shown_j[-1]
        shown_j.append(before_j + energy_j)
    assert total_j(shown_j, 100) <= sum(used_j) + 1e-6 * (1 + first_j)
