"""Energy between change points of a counter, by hand."""

import numpy as np
import pytest

from chopperd.correlate.losses import WindowEnergy, window_energy
from tests.unit.correlate.builders import MS


def energy(
    times_ms: list[float],
    counter_j: list[float],
    window_ms: tuple[float, float],
    *,
    is_sum: bool = False,
    period_ms: int | None = None,
) -> tuple[float, float]:
    found: WindowEnergy = window_energy(
        np.array([t * MS for t in times_ms], np.int64),
        np.array(counter_j),
        np.array([window_ms[0] * MS], np.int64),
        np.array([window_ms[1] * MS], np.int64),
        is_sum=np.array([is_sum]),
        period_ns=None if period_ms is None else period_ms * MS,
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


def test_a_counter_of_known_period_changed_at_most_one_ago() -> None:
    """Read each second and updated each 100 ms: as of 50 ms before each read.

    100 W up to 2000 ms and 700 W after, as above: the read at 3000 ms shows what was at 2950.
    1950 to 2950 ms are then 700 J, the difference of the reads at 2000 and 3000 ms.
    """
    times_ms = [float(t) for t in range(0, 7000, 1000)]
    counter_j = [0.0, 100.0, 200.0, 900.0, 1600.0, 2300.0, 3000.0]
    found = energy(times_ms, counter_j, (1950, 2950), period_ms=100)
    assert found == pytest.approx((700.0, 0.0))
    assert energy(FAST_MS, FAST_J, (95, 995), period_ms=100) == pytest.approx((450.0, 0.0))


def test_a_counter_read_once_a_second_gives_no_energy_of_steps_of_some_seconds() -> None:
    """500 W, read each 1000 ms: a step of 2 s is 1000 J, edges in the middle of 500 J each.

    Errors of 250 J each add to 354 J, 35 %; 5 s are 2500 J and 14 %.
    """
    times_ms = [float(t) for t in range(0, 20_000, 1000)]
    counter_j = [t / 2 for t in times_ms]
    assert np.isnan(energy(times_ms, counter_j, (2500, 4500))).all()
    assert energy(times_ms, counter_j, (2500, 7500)) == pytest.approx((2500.0, 250 * 2**0.5))


def test_twenty_steps_of_200_ms_are_right_to_2_percent_where_one_is_unknown() -> None:
    """700 W and 100 W by turns, 200 ms each from 37 ms on: 140 J and 20 J a step, 80 J on average.

    The counter updates each 100 ms and is read each 10 ms. Every step's edges lie inside change
    intervals, so its error passes 15 %; 20 steps together are 1600 J, and their edges err by less
    than 2 %.
    """
    edge_ms = 37.0
    times_ms = [float(t) for t in range(-1000, 6000, 10)]

    def true_j(t_ms: float) -> float:
        turns, rest_ms = divmod(t_ms - edge_ms, 400.0)
        return 160.0 * turns + 0.7 * min(rest_ms, 200.0) + 0.1 * max(rest_ms - 200.0, 0.0)

    counter_j = [true_j(100.0 * (t // 100.0)) for t in times_ms]
    for step in range(20):
        start_ms = edge_ms + 200.0 * step
        window_ms = start_ms, start_ms + 200.0
        assert np.isnan(energy(times_ms, counter_j, window_ms, period_ms=100)).all()
    all_ms = edge_ms, edge_ms + 4000.0
    total_j, error_j = energy(times_ms, counter_j, all_ms, is_sum=True, period_ms=100)
    assert total_j / 20 == pytest.approx(80.0, rel=0.02)
    assert error_j / total_j < 0.025


def test_outside_the_changes_energy_is_not_known() -> None:
    assert np.isnan(energy(FAST_MS, FAST_J, (-100, 500), is_sum=True)).all()
    assert np.isnan(energy(FAST_MS, FAST_J, (500, 1000), is_sum=True)).all()


def test_a_restart_costs_the_steps_around_it_their_energy_and_no_others() -> None:
    """The driver was loaded anew at 500 ms: from 450 J to 0, read each 10 ms, 50 J each 100 ms.

    By 1000 ms the counter has gone on for half a second and is believed. 95 to 295 ms are two
    changes, 1095 to 1295 ms as well; 95 to 1295 ms were 600 J, of which 50 J, those of the change
    at 495 ms, were never seen. The time in doubt lasts 490 to 1000 ms.
    """
    times_ms = [float(t) for t in range(-10, 1510, 10)]
    fallen = [200.0 + 50 * (t // 100) if t < 500 else 50.0 * (t // 100 - 5) for t in times_ms]
    assert energy(times_ms, fallen, (95, 295)) == pytest.approx((100.0, 0.0))
    assert energy(times_ms, fallen, (1095, 1295)) == pytest.approx((100.0, 0.0))
    assert np.isnan(energy(times_ms, fallen, (295, 595))).all()
    assert np.isnan(energy(times_ms, fallen, (595, 795))).all()
    total_j, error_j = energy(times_ms, fallen, (95, 1295), is_sum=True)
    assert total_j == pytest.approx(550.0)
    assert 50 < error_j < 300


def test_a_dip_costs_only_the_steps_in_which_it_lies() -> None:
    dipped = [j - 100 if t in (500.0, 510.0) else j for t, j in zip(FAST_MS, FAST_J, strict=True)]
    assert energy(FAST_MS, dipped, (95, 295)) == pytest.approx((100.0, 0.0))
    assert energy(FAST_MS, dipped, (595, 995)) == pytest.approx((200.0, 0.0))
    assert np.isnan(energy(FAST_MS, dipped, (295, 595))).all()
    total_j, error_j = energy(FAST_MS, dipped, (95, 995), is_sum=True)
    assert total_j == pytest.approx(450.0)
    assert error_j == pytest.approx(15, abs=1)  # 30 ms at 500 W


def test_a_torn_number_is_no_energy() -> None:
    """The upper half of a counter of 64 bits read before the lower one wrapped, 65,536 J more."""
    torn = [j + 65_536 if t == 500.0 else j for t, j in zip(FAST_MS, FAST_J, strict=True)]
    total_j, _ = energy(FAST_MS, torn, (95, 995), is_sum=True)
    assert total_j == pytest.approx(450.0)


def test_the_sum_over_a_dip_and_a_restart_is_that_of_case_30() -> None:
    """Read each second: 62.5619 J by the case; the first change is not an edge, so 32.0439 J."""
    counts = [1_000_000, 3_000_000, 2_900_000, 5_000_000, 1_000, 101_000]
    times_ms = [1000.0 * number for number in range(6)]
    total_j, _ = energy(times_ms, [c * 15.259e-6 for c in counts], (1000, 5000), is_sum=True)
    assert total_j == pytest.approx(62.5619 - 30.518, rel=1e-5)


def test_a_counter_that_never_changed_gives_no_energy() -> None:
    assert np.isnan(energy([0, 10, 20], [5, 5, 5], (0, 20), is_sum=True)).all()
    assert np.isnan(energy([0, 10], [np.nan, np.nan], (0, 10), is_sum=True)).all()


def test_ticks_that_did_not_read_the_counter_are_skipped() -> None:
    sparse = [j if t % 50 == 0 else np.nan for t, j in zip(FAST_MS, FAST_J, strict=True)]
    found, _ = energy(FAST_MS, sparse, (175, 975))
    assert found == pytest.approx(400.0)


def test_a_counter_that_jumped_says_nothing() -> None:
    """1 MJ within 10 ms would be 100 MW; a counter that read 0 at first shows that."""
    jumped_j = [0.0 if t < 500 else 1e6 + joule for t, joule in zip(FAST_MS, FAST_J, strict=True)]
    assert np.isnan(energy(FAST_MS, jumped_j, (95, 995), is_sum=True)).all()
