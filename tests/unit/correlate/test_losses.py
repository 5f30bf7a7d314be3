"""Ceiling loss, its causes, coverage and intervals: by hand and against exact fractions."""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chopperd.correlate.clock.precision import TimingUncertainty
from chopperd.correlate.clock.signal import ClassClock, LabelledSamples
from chopperd.correlate.losses import CeilingLoss, MeanClock, ceiling_loss, mean_clock
from chopperd.correlate.waterfall import Windows
from chopperd.model.arrays import Int64s
from chopperd.model.kinds import CAUSES, Cause
from chopperd.model.timeline import Intervals
from tests.unit.correlate.builders import COMM, COMPUTE, IDLE, MS, labelled, spans

EXACT = TimingUncertainty(join_ns=0.0, lag_ns=0)


def windows(*pairs: tuple[int, int]) -> Windows:
    cut = spans(*pairs)
    return Windows(start_ns=cut.start_ns, end_ns=cut.end_ns)


def loss_of(
    samples: LabelledSamples,
    mask: Intervals,
    where: Windows,
    *,
    reference_mhz: float = 1980.0,
    limit_mhz: float | None = None,
    causes: Sequence[int] | None = None,
    limited_ns: Mapping[Cause, Sequence[float]] | None = None,
) -> tuple[MeanClock, CeilingLoss]:
    mean = mean_clock(samples, COMPUTE, mask, where, EXACT)
    bits: Int64s = np.zeros(len(samples), np.int64) if causes is None else np.array(causes)
    counters = {cause: np.array(each) for cause, each in (limited_ns or {}).items()}
    return mean, ceiling_loss(mean, where, reference_mhz, limit_mhz, bits, counters)


def named(loss: CeilingLoss, window: int = 0) -> dict[str, int]:
    row = loss.by_cause_ns[window].tolist()
    return {CAUSES[i].label: ns for i, ns in enumerate(row) if ns}


def constant(clock_mhz: float, count: int = 11) -> LabelledSamples:
    """A steady clock, sampled each 100 ms from 0 on."""
    return labelled([n * 100 * MS for n in range(count)], [clock_mhz] * count)


def test_a_locked_and_capped_clock_loses_to_the_lock_first_and_to_power_below_it() -> None:
    """Locked to 1500, capped to 1400, of 1980: 0.2929 lost, 0.2424 to the lock, 0.0505 to power."""
    second = windows((0, 1000 * MS))
    _, loss = loss_of(
        constant(1400.0),
        spans((0, 1000 * MS)),
        second,
        limit_mhz=1500.0,
        causes=[Cause.POWER_CAP.bit] * 11,
    )
    assert loss.lost_ns.tolist() == [292_929_293]
    assert named(loss) == {"user_limit": 242_424_242, "power_cap": 50_505_051}


@pytest.mark.parametrize("limit_mhz", [1980.0, 2500.0, None])
def test_a_limit_at_or_above_the_reference_explains_nothing(limit_mhz: float | None) -> None:
    _, loss = loss_of(
        constant(990.0), spans((0, 1000 * MS)), windows((0, 1000 * MS)), limit_mhz=limit_mhz
    )
    assert named(loss) == {"unexplained": 500_000_000}


def test_a_clock_at_its_lock_loses_to_the_lock_alone() -> None:
    _, loss = loss_of(
        constant(1485.0),
        spans((0, 1000 * MS)),
        windows((0, 1000 * MS)),
        limit_mhz=1485.0,
        causes=[Cause.POWER_CAP.bit] * 11,
    )
    assert named(loss) == {"user_limit": 250_000_000}


def test_time_above_the_reference_wins_nothing_back() -> None:
    """From 1880 to 2080 MHz over 1 s of 1980: lost is the triangle 100 / 1980 x 0.5 s / 2."""
    samples = labelled([0, 1000 * MS], [1880.0, 2080.0])
    mean, loss = loss_of(samples, spans((0, 1000 * MS)), windows((0, 1000 * MS)))
    assert loss.lost_ns.tolist() == [round(100 / 1980 * 0.25e9)]
    assert mean.mean_mhz.tolist() == [pytest.approx(1980.0)]
    _, none = loss_of(constant(2100.0), spans((0, 1000 * MS)), windows((0, 1000 * MS)))
    assert none.lost_ns.tolist() == [0]
    assert named(none) == {}


def test_loss_counts_only_covered_compute() -> None:
    """Compute 0..1000 ms, samples from 200 ms to 600 ms: half of 400 ms is lost at 990 of 1980."""
    samples = labelled([t * 100 * MS for t in range(2, 7)], [990.0] * 5)
    mean, loss = loss_of(
        samples, spans((0, 1000 * MS)), windows((0, 1000 * MS), (700 * MS, 900 * MS))
    )
    assert mean.in_mask_ns.tolist() == [1000 * MS, 200 * MS]
    assert mean.covered_ns.tolist() == [400 * MS, 0]
    assert loss.lost_ns.tolist() == [200 * MS, 0]
    assert mean.mean_mhz[0] == 990.0
    assert np.isnan(mean.mean_mhz[1])
    assert np.isnan(mean.half_width_mhz[1])


def test_without_compute_nothing_is_lost() -> None:
    idle = labelled([0, 500 * MS, 1000 * MS], [990.0] * 3, IDLE)
    mean, loss = loss_of(idle, spans(), windows((0, 1000 * MS)))
    assert mean.covered_ns.tolist() == [0]
    assert loss.lost_ns.tolist() == [0]


def test_the_basis_is_the_covered_time_on_lines_of_the_class() -> None:
    """Communication up to 100 ms: compute [50, 100) hangs on it, [100, 300) does not."""
    samples = labelled(
        [0, 100 * MS, 200 * MS, 300 * MS],
        [1950, 1400, 1400, 1400],
        [COMM, COMPUTE, COMPUTE, COMPUTE],
    )
    mean, _ = loss_of(samples, spans((50 * MS, 300 * MS)), windows((0, 300 * MS)))
    assert mean.covered_ns.tolist() == [250 * MS]
    assert mean.in_class_ns.tolist() == [200 * MS]


def test_few_counter_updates_are_coarse_resolution() -> None:
    """A counter that moves at every one of 11 samples, then one that moves 4 times."""
    second = windows((0, 1000 * MS))
    compute = spans((0, 1000 * MS))
    _, fine = loss_of(
        constant(990.0), compute, second, limited_ns={Cause.THERMAL: [float(n) for n in range(11)]}
    )
    _, coarse = loss_of(
        constant(990.0),
        compute,
        second,
        limited_ns={Cause.THERMAL: [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 4]},
    )
    _, uncounted = loss_of(constant(990.0), compute, second)
    assert (fine.coarse.tolist(), coarse.coarse.tolist()) == ([False], [True])
    assert uncounted.coarse.tolist() == [False]


def test_a_lag_of_the_sensor_widens_the_interval_by_what_it_moves_the_mean() -> None:
    """A clock that rises by 1 MHz per ms, its sensor perhaps 3 ms late: the mean moves by 3 MHz."""
    samples = labelled([n * 10 * MS for n in range(101)], [1000.0 + 10 * n for n in range(101)])
    compute, middle = spans((0, 1000 * MS)), windows((200 * MS, 800 * MS))
    straight = mean_clock(samples, COMPUTE, compute, middle, EXACT)
    late = mean_clock(
        samples, COMPUTE, compute, middle, TimingUncertainty(join_ns=0.0, lag_ns=3 * MS)
    )
    assert straight.mean_mhz[0] == pytest.approx(1500.0)
    assert straight.half_width_mhz[0] == pytest.approx(0.0, abs=1e-6)
    assert late.half_width_mhz[0] == pytest.approx(3.0)
    assert late.bias_mhz[0] == pytest.approx(3.0)


def test_misplaced_samples_widen_the_interval_by_the_difference_of_levels() -> None:
    """Entries into compute each 100 ms, 50 ms long, u = 0.4 ms: 0.8 % of 1950 - 1400 MHz.

    A sensor that shows only two values may round to 15 MHz: 7.5 MHz come on top.
    """
    times = list(range(0, 1000 * MS, 10 * MS))
    in_compute = [t // (50 * MS) % 2 == 0 for t in times]
    samples = labelled(
        times,
        [1400.0 if inside else 1950.0 for inside in in_compute],
        [COMPUTE if inside else COMM for inside in in_compute],
    )
    compute = spans(*((t * MS, (t + 50) * MS) for t in range(0, 1000, 100)))
    late = TimingUncertainty(join_ns=0.4 * MS, lag_ns=0)
    inner = windows((100 * MS, 900 * MS))
    mean = mean_clock(samples, COMPUTE, compute, inner, late)
    assert late.total_ns == 0.4 * MS
    assert mean.mean_mhz[0] == pytest.approx(1400.0)
    assert mean.half_width_mhz[0] == pytest.approx(0.008 * 550 + 7.5)


@st.composite
def jobs(draw: st.DrawFn) -> tuple[LabelledSamples, list[int], Intervals]:
    """Compute samples with any bits but `UNEXPLAINED`, which no driver reports, and a mask."""
    times = sorted(draw(st.sets(st.integers(0, 500), min_size=2, max_size=8)))
    clocks = draw(st.lists(st.integers(900, 2100), min_size=len(times), max_size=len(times)))
    bits = draw(st.lists(st.integers(0, 1023), min_size=len(times), max_size=len(times)))
    edges = sorted(draw(st.sets(st.integers(0, 500), min_size=2, max_size=6)))
    mask = spans(*((a * MS, b * MS) for a, b in zip(edges[::2], edges[1::2], strict=False)))
    samples = labelled(
        [t * MS for t in times], [float(clock) for clock in clocks], COMPUTE, period_ns=50 * MS
    )
    return samples, [bit & ~Cause.UNEXPLAINED.bit for bit in bits], mask


def lost_exactly(
    clock: ClassClock, mask: Intervals, start: int, end: int, level_mhz: int
) -> Fraction:
    """∫ max(0, level - f) dt over mask and window, each line cut where it crosses the level."""
    total = Fraction(0)
    lines = zip(clock.left_mhz.tolist(), clock.right_mhz.tolist(), clock.covered, strict=True)
    for (t0, t1), (left, right, covered) in zip(
        pairwise(clock.edges_ns.tolist()), lines, strict=True
    ):
        if not covered:
            continue
        slope = (Fraction(right) - Fraction(left)) / (t1 - t0)
        for low, high in zip(mask.start_ns.tolist(), mask.end_ns.tolist(), strict=True):
            x, y = Fraction(max(low, t0, start)), Fraction(min(high, t1, end))
            cuts = {x, y}
            if slope:
                crossing = t0 + (level_mhz - Fraction(left)) / slope
                cuts |= {crossing} if x < crossing < y else set()
            for a, b in pairwise(sorted(cuts)) if x < y else ():
                middle = level_mhz - (Fraction(left) + slope * ((a + b) / 2 - t0))
                total += max(Fraction(0), middle) * (b - a)
    return total


@settings(max_examples=20, deadline=None)
@given(job=jobs(), cut=st.integers(0, 500), limit_mhz=st.sampled_from([None, 1200, 1500, 2000]))
def test_losses_equal_exact_fractions_and_causes_sum_to_them(
    job: tuple[LabelledSamples, list[int], Intervals], cut: int, limit_mhz: int | None
) -> None:
    samples, bits, mask = job
    edges = [0, cut * MS, 500 * MS]
    mean, loss = loss_of(samples, mask, windows(*pairwise(edges)), limit_mhz=limit_mhz, causes=bits)
    assert loss.by_cause_ns.sum(axis=1).tolist() == loss.lost_ns.tolist()
    assert (loss.by_cause_ns >= 0).all()
    assert (loss.lost_ns <= mean.covered_ns).all()
    for w, (start, end) in enumerate(pairwise(edges)):
        exact = lost_exactly(mean.clock, mask, start, end, 1980) / 1980
        assert loss.lost_ns[w] == pytest.approx(float(exact), rel=1e-9, abs=1.0)
        if limit_mhz is None or any(bit & Cause.USER_LIMIT.bit for bit in bits):
            continue
        below = lost_exactly(mean.clock, mask, start, end, min(limit_mhz, 1980)) / 1980
        user_ns = loss.by_cause_ns[w, Cause.USER_LIMIT]
        assert user_ns == pytest.approx(float(exact - below), rel=1e-9, abs=2.0)
