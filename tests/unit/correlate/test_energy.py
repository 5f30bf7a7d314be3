"""Energy between change points of a counter, by hand."""

import numpy as np
import pytest

from chopperd.correlate.energy import WindowEnergy, window_energy
from tests.unit.correlate.builders import MS


def energy(
    times_ms: list[float],
    counter_j: list[float],
    window_ms: tuple[float, float],
    *,
    is_sum: bool = False,
) -> tuple[float, float]:
    found: WindowEnergy = window_energy(
        np.array([t * MS for t in times_ms], np.int64),
        np.array(counter_j),
        np.array([window_ms[0] * MS], np.int64),
        np.array([window_ms[1] * MS], np.int64),
        is_sum=np.array([is_sum]),
    )
    return float(found.energy_j[0]), float(found.energy_error_j[0])


#: Read each 10 ms, changed by 50 J each 100 ms: seen at 0, 100, ..., 1000 ms, so changed at -5,
#: 95, ..., 995 ms.
FAST_MS = [float(t) for t in range(-10, 1010, 10)]
FAST_J = [50.0 * (t // 100) for t in range(-10, 1010, 10)]


def test_energy_is_linear_between_the_counters_changes() -> None:
    """95 to 995 ms are nine changes: 450 J, and edges on change points err by nothing."""
    assert energy(FAST_MS, FAST_J, (95, 995)) == pytest.approx((450.0, 0.0))


def test_an_edge_inside_a_change_interval_errs_by_twice_a_times_one_less_a() -> None:
    """115 ms lies at a = 0.2 of 95..195, 945 ms at a = 0.5 of 895..995; E = 50 J each.

    Errors 2 x 0.2 x 0.8 x 50 = 16 J and 2 x 0.5 x 0.5 x 50 = 25 J add to sqrt(881) J; the energy
    is 50 J per 100 ms over 830 ms.
    """
    assert energy(FAST_MS, FAST_J, (115, 945)) == pytest.approx((415.0, 881**0.5))


def test_a_step_whose_error_passes_15_percent_has_no_energy_but_a_sum_always_has() -> None:
    """145 to 345 ms: 100 J, error sqrt(2) x 25 = 35.4 J."""
    assert np.isnan(energy(FAST_MS, FAST_J, (145, 345))).all()
    always = energy(FAST_MS, FAST_J, (145, 345), is_sum=True)
    assert always == pytest.approx((100.0, 25 * 2**0.5))


def test_a_counter_read_more_rarely_than_it_changes_is_as_of_its_reads() -> None:
    """Read each second, 100 W up to 2000 ms and 700 W after: 1000 to 3000 ms are 800 J.

    Values laid half-way between reads would put the rise half a second early: 1100 J.
    """
    times_ms = [float(t) for t in range(0, 7000, 1000)]
    counter_j = [0.0, 100.0, 200.0, 900.0, 1600.0, 2300.0, 3000.0]
    assert energy(times_ms, counter_j, (1000, 3000)) == pytest.approx((800.0, 0.0))


def test_outside_the_changes_energy_is_not_known() -> None:
    assert np.isnan(energy(FAST_MS, FAST_J, (-100, 500), is_sum=True)).all()
    assert np.isnan(energy(FAST_MS, FAST_J, (500, 1000), is_sum=True)).all()


def test_a_counter_that_fell_gives_no_energy() -> None:
    """The driver was loaded anew at 500 ms."""
    fallen = [j if t < 500 else j - 200 for t, j in zip(FAST_MS, FAST_J, strict=True)]
    assert np.isnan(energy(FAST_MS, fallen, (95, 295), is_sum=True)).all()


def test_a_counter_that_never_changed_gives_no_energy() -> None:
    assert np.isnan(energy([0, 10, 20], [5, 5, 5], (0, 20), is_sum=True)).all()
    assert np.isnan(energy([0, 10], [np.nan, np.nan], (0, 10), is_sum=True)).all()


def test_ticks_that_did_not_read_the_counter_are_skipped() -> None:
    sparse = [j if t % 50 == 0 else np.nan for t, j in zip(FAST_MS, FAST_J, strict=True)]
    found, _ = energy(FAST_MS, sparse, (175, 975))
    assert found == pytest.approx(400.0)
