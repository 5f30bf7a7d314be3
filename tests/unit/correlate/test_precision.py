"""Standard errors against the formula written out sample by sample, and timing bias by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chopperd.correlate.precision import MIN_RESIDUALS, misplaced_ratio, standard_error_mhz
from chopperd.correlate.signal import LabelledSamples
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
    return float(
        standard_error_mhz(
            samples,
            COMPUTE,
            np.array([start_ns], np.int64),
            np.array([end_ns], np.int64),
            np.array([end_ns - start_ns if covered_ns is None else covered_ns], np.int64),
        )[0]
    )


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
    ("window_ms", "first"),
    [((60, 70), 50), ((0, 5), 0), ((97, 100), 70), ((300, 310), 70)],
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
