"""The clock between samples, by hand, and its integrals against exact fractions."""

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chopperd.correlate.clock.integrals import ClockPieces, MaskedWindows, Primitive
from chopperd.correlate.clock.signal import (
    LabelledSamples,
    RunningClass,
    achieved_period_ns,
    class_clock,
)
from chopperd.model.arrays import Float64s, Int64s
from chopperd.model.timeline import Intervals
from tests.unit.correlate.builders import COMM, COMPUTE, COPY, IDLE, MS, labelled, spans


def clock_at(samples: LabelledSamples, running: RunningClass | None, t_ns: int) -> float:
    """The class's clock at an instant, from its pieces' ends."""
    clock = class_clock(samples, running)
    piece = int(np.searchsorted(clock.edges_ns, t_ns, "right")) - 1
    start_ns, end_ns = clock.edges_ns[piece], clock.edges_ns[piece + 1]
    share = (t_ns - start_ns) / (end_ns - start_ns)
    rise_mhz = clock.right_mhz[piece] - clock.left_mhz[piece]
    return float(clock.left_mhz[piece] + share * rise_mhz)


def over_windows(
    pieces: ClockPieces, g: Primitive, mask: Intervals, start_ns: Int64s, end_ns: Int64s
) -> Float64s:
    located = pieces.locate_spans(mask.start_ns, mask.end_ns)
    return MaskedWindows.of(g, mask, located, start_ns, end_ns).integral(g)


def integral(samples: LabelledSamples, running: RunningClass | None, mask: Intervals) -> float:
    """MHz ns over all of the mask."""
    pieces = ClockPieces.of(class_clock(samples, running), ())
    whole = mask.start_ns[:1], mask.end_ns[-1:]
    return float(over_windows(pieces, pieces.clock(), mask, *whole)[0])


def test_the_compute_clock_passes_under_a_stretch_of_communication() -> None:
    """Compute at 1400 MHz up to 300 ms and from 500 ms; communication at 1950 between."""
    samples = labelled(
        [100 * MS, 200 * MS, 300 * MS, 400 * MS, 500 * MS, 600 * MS],
        [1400, 1400, 1950, 1950, 1400, 1400],
        [COMPUTE, COMPUTE, COMM, COMM, COMPUTE, COMPUTE],
    )
    compute = spans((100 * MS, 260 * MS), (450 * MS, 600 * MS))
    assert integral(samples, COMPUTE, compute) == pytest.approx(1400 * 310 * MS, rel=1e-12)
    clock = class_clock(samples, COMPUTE)
    assert clock.in_class.all()
    assert clock.left_sample.tolist() == [0, 1, 1, 1, 4]
    assert clock.right_sample.tolist() == [1, 4, 4, 4, 5]


def test_the_line_in_class_is_straight_over_samples_of_other_classes() -> None:
    """1400 at 0 ms, 1500 at 200 ms, communication at 1950 between: 1425 at 50, 1475 at 150 ms."""
    samples = labelled([0, 100 * MS, 200 * MS], [1400, 1950, 1500], [COMPUTE, COMM, COMPUTE])
    assert clock_at(samples, COMPUTE, 50 * MS) == 1425
    assert clock_at(samples, COMPUTE, 150 * MS) == 1475
    assert clock_at(samples, None, 50 * MS) == 1675


def test_without_a_sample_of_the_class_on_either_side_the_line_is_of_all_samples() -> None:
    samples = labelled([0, 100 * MS, 200 * MS], [1900, 1400, 1500], [IDLE, COMPUTE, COMPUTE])
    clock = class_clock(samples, COMPUTE)
    assert clock.in_class.tolist() == [False, True]
    assert clock.covered.tolist() == [True, True]
    assert clock_at(samples, COMPUTE, 50 * MS) == 1650
    assert class_clock(samples, COPY).in_class.tolist() == [False, False]


@pytest.mark.parametrize(("spacing_ms", "in_class"), [(500, True), (501, False)])
def test_samples_of_a_class_more_than_a_second_apart_hang_no_line(
    spacing_ms: int, in_class: bool
) -> None:
    """At 10 Hz three periods are 300 ms, so one second decides: 2 x 500 ms is just near enough."""
    samples = labelled(
        [0, spacing_ms * MS, 2 * spacing_ms * MS],
        [1400, 1950, 1400],
        [COMPUTE, COMM, COMPUTE],
        period_ns=300 * MS,
    )
    assert class_clock(samples, COMPUTE).in_class.tolist() == [in_class, in_class]


def test_at_low_rates_three_periods_decide_instead_of_a_second() -> None:
    samples = labelled(
        [0, 1000 * MS, 2000 * MS, 3000 * MS],
        [1400, 1950, 1950, 1400],
        [COMPUTE, COMM, COMM, COMPUTE],
    )
    assert class_clock(samples, COMPUTE).in_class.all()


def test_nothing_is_covered_outside_the_samples_nor_in_gaps_over_three_periods() -> None:
    """Spacings 10, 10, 31, 10, 30 ms: the period is 10, so only the 31 is not covered."""
    edges_ms = [100, 110, 120, 151, 161, 191]
    samples = labelled([t * MS for t in edges_ms], [1400.0] * 6)
    clock = class_clock(samples, COMPUTE)
    covered = clock.covered_intervals()
    assert covered.start_ns.tolist() == [100 * MS, 151 * MS]
    assert covered.end_ns.tolist() == [120 * MS, 191 * MS]
    assert np.isnan(clock.left_mhz).tolist() == [False, False, True, False, False]
    pieces = ClockPieces.of(clock, ())
    everything = spans((0, 500 * MS))
    window = everything.start_ns, everything.end_ns
    whole = over_windows(pieces, pieces.coverage(), everything, *window)
    assert whole[0] == pytest.approx(60 * MS)


def test_in_class_time_is_the_covered_time_on_lines_of_the_class() -> None:
    samples = labelled([0, 10, 20, 30], [1.0] * 4, [IDLE, COMPUTE, COMPUTE, COMPUTE])
    clock = class_clock(samples, COMPUTE)
    assert clock.in_class_intervals().start_ns.tolist() == [10]
    assert clock.in_class_intervals().end_ns.tolist() == [30]
    assert len(class_clock(samples, None).in_class_intervals()) == 0


def test_the_period_as_achieved_is_the_median_spacing() -> None:
    assert achieved_period_ns(np.array([0, 10, 20, 30, 500], np.int64)) == 10
    assert achieved_period_ns(np.array([7], np.int64)) == 0


def test_the_integral_over_nothing_is_nothing() -> None:
    pieces = ClockPieces.of(class_clock(labelled([0, 10], [1400, 1400]), COMPUTE), ())
    window = np.array([0], np.int64), np.array([10], np.int64)
    assert over_windows(pieces, pieces.clock(), spans(), *window).tolist() == [0.0]


def test_the_number_of_samples_is_their_length() -> None:
    assert len(labelled([0, 10], [1400, 1400])) == 2


T0_NS = 1_753_400_000_000_000_000
times = st.lists(st.integers(0, 1000), min_size=2, max_size=9, unique=True).map(sorted)


@st.composite
def sampled(draw: st.DrawFn) -> LabelledSamples:
    t = draw(times)
    clocks = draw(st.lists(st.integers(345, 2100), min_size=len(t), max_size=len(t)))
    labels = draw(st.lists(st.sampled_from(RunningClass), min_size=len(t), max_size=len(t)))
    return labelled(
        [T0_NS + each for each in t], [float(clock) for clock in clocks], labels, period_ns=70
    )


@st.composite
def masks(draw: st.DrawFn) -> Intervals:
    edges = sorted(draw(st.sets(st.integers(0, 1000), min_size=2, max_size=8)))
    return spans(*((T0_NS + a, T0_NS + b) for a, b in zip(edges[::2], edges[1::2], strict=False)))


def brute_force(samples: LabelledSamples, mask: Intervals, start: int, end: int) -> Fraction:
    """∫ f dt over mask and window: every piece's trapezium, in fractions.

    The in-class rule is written out again here: for each pair of neighbouring samples, search
    both ways for the class's.
    """
    t, f = samples.t_ns.tolist(), samples.clock_mhz.tolist()
    total = Fraction(0)
    for j in range(len(t) - 1):
        if t[j + 1] - t[j] > 3 * samples.period_ns:
            continue
        before = [i for i in range(j + 1) if samples.label[i] == COMPUTE]
        after = [i for i in range(j + 1, len(t)) if samples.label[i] == COMPUTE]
        a, b = j, j + 1
        if before and after and t[after[0]] - t[before[-1]] <= 1_000_000_000:
            a, b = before[-1], after[0]

        def line(at: int, a: int = a, b: int = b) -> Fraction:
            return Fraction(f[a]) + Fraction(at - t[a], t[b] - t[a]) * (
                Fraction(f[b]) - Fraction(f[a])
            )

        for low, high in zip(mask.start_ns.tolist(), mask.end_ns.tolist(), strict=True):
            x, y = max(low, t[j], start), min(high, t[j + 1], end)
            if x < y:
                total += (line(x) + line(y)) / 2 * (y - x)
    return total


@settings(max_examples=20, deadline=None)
@given(samples=sampled(), mask=masks(), cuts=st.sets(st.integers(0, 1000), max_size=3))
def test_integrals_equal_exact_fractions_and_abutting_windows_sum_to_the_whole(
    samples: LabelledSamples, mask: Intervals, cuts: set[int]
) -> None:
    edges = [T0_NS + cut for cut in sorted({0, *cuts, 1000})]
    pieces = ClockPieces.of(class_clock(samples, COMPUTE), ())
    bounds = np.array(edges, np.int64)
    found = over_windows(pieces, pieces.clock(), mask, bounds[:-1], bounds[1:])
    exact = [float(brute_force(samples, mask, start, end)) for start, end in pairwise(edges)]
    scale = 1e-9 * 2100 * 1000
    assert found == pytest.approx(exact, rel=1e-9, abs=scale)
    whole = over_windows(pieces, pieces.clock(), mask, bounds[:1], bounds[-1:])
    assert found.sum() == pytest.approx(whole[0], rel=1e-9, abs=scale)
