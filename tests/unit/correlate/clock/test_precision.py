"""Standard errors against the formula written out sample by sample, and timing bias by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chopperd.correlate.clock.lag import LagEstimate
from chopperd.correlate.clock.precision import (
    MIN_RESIDUALS,
    distinct_reads,
    half_step_mhz,
    is_regular,
    known_lag_ns,
    misplaced_ratio,
    mixed_ratio,
    standard_errors_mhz,
    timing_of,
)
from chopperd.correlate.clock.signal import LabelledSamples
from chopperd.model.arrays import Float64s, Int64s
from chopperd.model.devices import GpuInfo, Vendor
from tests.unit.correlate.builders import COMM, COMPUTE, MS, labelled, spans


def literal_error_mhz(clock_mhz: list[float], first: int, last: int, n: float) -> float:
    """The page's formula over samples first..last - 1 of a class, in plain loops."""
    f, residuals, doubles = clock_mhz, [], []
    for i in range(first, last):
        if 1 <= i < len(f) - 1:
            residuals.append(f[i] - (f[i - 1] + f[i + 1]) / 2)
        if 2 <= i < len(f) - 2:
            doubles.append(f[i] - (f[i - 2] + f[i + 2]) / 2)
    v1 = sum(r * r for r in residuals) / len(residuals)
    v2 = sum(r * r for r in doubles) / len(doubles)
    k = min(max(2 / 3 - (v2 / v1 - 1) / 2, 1 / 6), 2 / 3)
    return float((k * v1 / n) ** 0.5)


def error_mhz(
    samples: LabelledSamples, start_ns: int, end_ns: int, covered_ns: int | None = None
) -> float:
    covered = end_ns - start_ns if covered_ns is None else covered_ns
    windows = np.array([start_ns], np.int64), np.array([end_ns], np.int64)
    counts = np.array([covered / samples.period_ns])
    return float(standard_errors_mhz(samples, COMPUTE, windows, counts)[0][0])


clocks = st.lists(st.integers(345, 1980), min_size=40, max_size=60)


@settings(max_examples=20, deadline=None)
@given(clock_mhz=clocks, first=st.integers(0, 9))
def test_the_error_of_a_window_of_30_samples_or_more_is_the_pages_formula(
    clock_mhz: list[int], first: int
) -> None:
    if len(set(clock_mhz)) == 1:
        return
    samples = labelled([n * MS for n in range(len(clock_mhz))], [float(f) for f in clock_mhz])
    found = error_mhz(samples, first * MS, (first + 31) * MS)
    expected = literal_error_mhz(samples.clock_mhz.tolist(), first, first + 31, 31.0)
    assert found == pytest.approx(expected)


def rising_noise(count: int) -> list[float]:
    """Alternates with an amplitude that grows with time, so that every choice of samples shows."""
    return [1400.0 + (-1) ** n * n for n in range(count)]


@pytest.mark.parametrize(
    ("window_ms", "first"), [((60, 70), 50), ((0, 5), 0), ((97, 100), 70), ((300, 310), 70)]
)
def test_a_window_of_few_samples_takes_the_nearest_30(
    window_ms: tuple[int, int], first: int
) -> None:
    """Of 100 samples at 0..99 ms: ten each side of 60..69; the first; the last; the last."""
    samples = labelled([n * MS for n in range(100)], rising_noise(100))
    start, end = window_ms
    expected = literal_error_mhz(rising_noise(100), first, first + MIN_RESIDUALS, end - start)
    assert error_mhz(samples, start * MS, end * MS) == pytest.approx(expected)


def test_only_samples_of_the_class_count_and_n_is_covered_time_times_rate() -> None:
    """Every second sample is communication at 345 MHz; half the window is covered: n = 20."""
    noise = rising_noise(40)
    clock_mhz = [f for pair in zip(noise, [345.0] * 40, strict=True) for f in pair]
    samples = labelled([n * MS for n in range(80)], clock_mhz, [COMPUTE, COMM] * 40)
    expected = literal_error_mhz(noise, 0, 40, 20.0)
    assert error_mhz(samples, 0, 80 * MS, covered_ns=20 * MS) == pytest.approx(expected)


def test_fewer_than_three_samples_in_all_have_no_known_error() -> None:
    samples = labelled([0, MS], [1400.0, 1410.0], [COMPUTE, COMPUTE])
    assert np.isnan(error_mhz(samples, 0, 3 * MS))


def test_three_samples_count_as_uncorrelated() -> None:
    """One residual of 60 MHz and none at double spacing: k = 2/3, se = sqrt(2/3 / 3) x 60."""
    samples = labelled([0, MS, 2 * MS], [1400, 1460, 1400])
    assert error_mhz(samples, 0, 3 * MS) == pytest.approx((2 / 9) ** 0.5 * 60)


def test_a_constant_clock_has_no_error_and_a_window_not_covered_no_known_one() -> None:
    samples = labelled([n * MS for n in range(40)], [1400.0] * 40)
    assert error_mhz(samples, 0, 40 * MS) == 0.0
    assert np.isnan(error_mhz(samples, 0, 40 * MS, covered_ns=0))


def test_a_sensor_that_may_average_is_not_believed_to_be_as_smooth_as_it_looks() -> None:
    """F = t^2 / 2 at t = 0..199: residuals 1/2 at single spacing, 2 at double: V2/V1 is 16.

    Of an instant k is 1/6; else 2/3, and borders count: 3 % of the clock's spread.
    """
    samples = labelled([n * MS for n in range(200)], [n * n / 2 for n in range(200)])
    windows = np.array([0], np.int64), np.array([200 * MS], np.int64)
    count, borders = np.array([200.0]), np.array([0.03])
    instant = standard_errors_mhz(samples, COMPUTE, windows, count)
    unknown = standard_errors_mhz(samples, COMPUTE, windows, count, borders)
    assert instant[0][0] == pytest.approx((1 / 6 * 0.5**2 / 200) ** 0.5)
    mixed = 0.03 * float(np.std([n * n / 2 for n in range(200)]))
    assert unknown[0][0] == pytest.approx(np.hypot((2 / 3 * 0.5**2 / 200) ** 0.5, mixed))


def test_borders_of_a_clock_that_jumps_do_not_count() -> None:
    """Uncorrelated levels: residuals do not grow with the spacing."""
    rng = np.random.default_rng(4)
    samples = labelled([n * MS for n in range(200)], rng.normal(1500, 50, 200).tolist())
    windows = np.array([0], np.int64), np.array([200 * MS], np.int64)
    count, borders = np.array([200.0]), np.array([0.5])
    instant = standard_errors_mhz(samples, COMPUTE, windows, count)
    unknown = standard_errors_mhz(samples, COMPUTE, windows, count, borders)
    assert np.array_equal(instant, unknown)


def test_the_pooled_error_is_that_of_all_samples_whichever_the_window() -> None:
    """Residuals of n at n: the pooled one is the same in a calm and a wild window."""
    samples = labelled([n * MS for n in range(200)], rising_noise(200))
    windows = np.array([0, 150 * MS], np.int64), np.array([50 * MS, 200 * MS], np.int64)
    own, pooled = standard_errors_mhz(samples, COMPUTE, windows, np.array([50.0, 50.0]))
    assert own[0] < own[1] / 3
    assert pooled[0] == pooled[1] == pytest.approx(literal_error_mhz(rising_noise(200), 0, 200, 50))


def test_half_a_step_is_nvidias_or_the_least_that_was_seen_but_a_megahertz() -> None:
    seen = np.array([1400.0, 1406.0, 1500.0])
    assert half_step_mhz(Vendor.NVIDIA, seen) == 7.5
    assert half_step_mhz(Vendor.AMD, seen) == 3.0
    assert half_step_mhz(Vendor.AMD, np.array([1400.0, 1401.0])) == 1.0
    assert half_step_mhz(Vendor.AMD, np.array([1400.0])) == 1.0


def test_reads_are_regular_if_their_spacings_spread_by_less_than_a_twentieth() -> None:
    """Jitter of 2 % of the period is regular, also with a stall; of 20 % and drawn ones are not."""
    rng = np.random.default_rng(3)

    def at(into: Float64s) -> Int64s:
        return ((np.arange(200) + into) * 100 * MS).astype(np.int64)

    assert is_regular(at(rng.normal(0, 0.02, 200)))
    assert is_regular(np.delete(at(rng.normal(0, 0.01, 200)), [50, 51, 52]))
    assert not is_regular(at(rng.uniform(-0.1, 0.1, 200)))
    assert not is_regular(at(rng.random(200)))
    assert not is_regular(at(np.zeros(200))[:20])  # too few to tell


def test_regular_reads_count_as_many_as_they_find_points_of_the_step() -> None:
    """100 steps of 1 s read each 200 ms: 5 points, and 5 / (1 - 1/e) as of 5 cells of 500."""
    steps = np.arange(100, dtype=np.int64) * 1000 * MS
    reads = labelled([n * 200 * MS + 7 for n in range(500)], [1400.0] * 500)
    found = distinct_reads(reads, steps, steps + 1000 * MS)
    assert found == pytest.approx(5 / (1 - np.exp(-1)))


def test_reads_that_find_another_point_each_time_count_as_they_are() -> None:
    """A period of 0.2 steps times the golden ratio never comes back to where it was."""
    steps = np.arange(100, dtype=np.int64) * 1000 * MS
    reads = labelled([int(n * 323.606798e6) for n in range(300)], [1400.0] * 300)
    assert distinct_reads(reads, steps, steps + 1000 * MS) == pytest.approx(300, rel=0.02)


def test_reads_outside_the_steps_and_of_other_classes_are_not_counted() -> None:
    reads = labelled([-5, 5, 15], [1400.0] * 3, [COMPUTE, COMM, COMPUTE])
    one_step = np.array([0], np.int64), np.array([10], np.int64)
    assert distinct_reads(reads, *one_step) == np.inf


def gpu(**known: int | None) -> GpuInfo:
    return GpuInfo(
        gpu="0",
        index=0,
        uuid="",
        name="",
        vendor=Vendor.NVIDIA,
        sensor_lag_ns=known.get("lag_ns"),
        sm_clock_average_ns=known.get("average_ns"),
    )


def test_what_the_fit_says_of_blur_counts_unless_the_sensor_shows_instants() -> None:
    lag = LagEstimate(
        lag_ns=30 * MS, low_ns=28 * MS, high_ns=33 * MS, settling_ns=12 * MS, swing_mhz=550.0
    )
    clock_mhz = np.array([1400.0, 1950.0])

    def timing(**known: int | None) -> tuple[int, int, float, bool]:
        sensor = gpu(**known)
        found = timing_of(sensor, lag, known_lag_ns(sensor), 1e5, clock_mhz, np.inf)
        return found.lag_ns, found.settling_ns, found.swing_mhz, found.instant

    assert timing() == (3 * MS, 12 * MS, 550.0, False)
    assert timing(average_ns=50 * MS) == (3 * MS, 12 * MS, 550.0, False)
    assert timing(average_ns=0) == (3 * MS, 0, 0.0, True)
    # Known to lag by 10 ms only: the other 20 that were measured are time averaged over.
    assert timing(lag_ns=10 * MS) == (0, 32 * MS, 550.0, False)
    assert timing(lag_ns=40 * MS) == (0, 12 * MS, 550.0, False)


def test_two_borders_of_each_entry_err_independently() -> None:
    """Gaps of 3 and 400 before two entries in the window, at most 10 each.

    sqrt(2 (3^2 + 10^2)) of 200; nothing where the class does not run.
    """
    mask = spans((0, 50), (53, 113), (513, 653))
    windows = np.array([50, 700], np.int64), np.array([653, 800], np.int64)
    found = mixed_ratio(mask, 10.0, *windows, np.array([200, 0], np.int64))
    assert found.tolist() == pytest.approx([(2 * 109) ** 0.5 / 200, 0.0])


def test_each_entry_misplaces_at_most_the_uncertainty_or_its_gap() -> None:
    """U = 10: gaps before the class of 3, 10 and 400 misplace 3, 10 and 10; the first 10.

    Window [0, 600): 10 + 3 + 10 of 180 in class; [490, 1200): the entry at 1000 alone, of 210.
    """
    mask = spans((0, 50), (53, 103), (113, 600), (1000, 1100))
    found = misplaced_ratio(
        mask,
        10.0,
        np.array([0, 490, 1200], np.int64),
        np.array([600, 1200, 1300], np.int64),
        np.array([587, 210, 0], np.int64),
    )
    assert found.tolist() == pytest.approx([(10 + 3 + 10) / 587, 10 / 210, 0.0])


def test_never_more_than_all_of_the_class_is_misplaced() -> None:
    found = misplaced_ratio(
        spans((0, 5)), 10.0, np.array([0], np.int64), np.array([5], np.int64), np.array([5])
    )
    assert found.tolist() == [1.0]


def test_gaps_of_microseconds_between_kernels_hardly_matter() -> None:
    """1000 kernels of 1 ms, 2 us apart, u = 25 ms: 1 x 25 ms + 999 x 2 us of 1 s, not 25 s."""
    kernels = spans(*((n * 1_002_000, n * 1_002_000 + MS) for n in range(1000)))
    end = int(kernels.end_ns[-1])
    found = misplaced_ratio(
        kernels, 25e6, np.array([0], np.int64), np.array([end], np.int64), np.array([1000 * MS])
    )
    assert found[0] == pytest.approx(0.025 + 999 * 2e-6)


def test_a_class_with_two_samples_has_the_error_of_the_line_through_all() -> None:
    """All residuals are +-10 at single spacing and 0 at double: k = 2/3, V1 = 100, n = 4."""
    times = [t * MS for t in range(0, 800, 100)]
    samples = labelled(times, [1500.0, 1510.0] * 4, [COMPUTE, COMPUTE, *[COMM] * 6])
    found = error_mhz(samples, 0, 800 * MS, covered_ns=400 * MS)
    assert found == pytest.approx((2 / 3 * 100 / 4) ** 0.5)
