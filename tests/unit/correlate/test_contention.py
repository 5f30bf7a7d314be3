"""Contention: by hand, by plain Python, and its interval on simulated families of known truth."""

import math
import statistics
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chopperd.correlate.contention import ContentionReason, ContentionTotals, contention
from chopperd.correlate.waterfall import busy_masks
from chopperd.model.kinds import KernelClass
from chopperd.model.timeline import DeviceTimeline, Intervals
from tests.unit.correlate.builders import Rec, device

COMM = KernelClass.COMM
FEW, SAME = ContentionReason.FEW_KERNELS, ContentionReason.SAME_OVERLAP
COMPARE, SIZES = ContentionReason.FEW_TO_COMPARE, ContentionReason.SEVERAL_SIZES
NONE = ContentionReason.NONE


def found_in(timeline: DeviceTimeline) -> ContentionTotals:
    totals = contention(timeline, busy_masks(timeline).comm)
    assert totals is not None
    return totals


def overlapped(kernels: list[tuple[int, int]], family: int = 0, at: int = 0) -> list[Rec]:
    """Kernels of (duration, overlap), 10,000 ns apart, each with communication from its start."""
    records = []
    for number, (duration, overlap) in enumerate(kernels):
        start = at + number * 10_000
        records.append(Rec(start, start + duration, family=family))
        if overlap:
            records.append(Rec(start, start + overlap, COMM, stream=9))
    return records


def test_the_half_with_more_overlap_is_set_against_the_tenth_with_the_least() -> None:
    """Medians: of 120, 126, 132 (overlap 1/2, 2/3, 3/4) 126; of the one least, 100."""
    kernels = [(120, 60), (100, 0), (126, 84), (132, 99), (110, 22)]
    totals = found_in(device(overlapped(kernels)))
    assert totals.family.tolist() == [0]
    assert totals.count.tolist() == [5]
    assert totals.factor.tolist() == pytest.approx([1.26])
    assert totals.reason.tolist() == [COMPARE]
    assert np.isnan(totals.low).all()


def test_each_step_s_kernels_during_communication_are_set_against_those_alone() -> None:
    """Alone 104 at the median; step 0 has 200 and 201, step 1 has 202, 203 and 204, step 2 none."""
    kernels = [(100 + 2 * n, 0) for n in range(5)] + [(200 + n, 100 + n) for n in range(5)]
    step = [2] * 5 + [0] * 2 + [1] * 3
    records = [replace(record, step=step[record.start // 10_000]) for record in overlapped(kernels)]
    by_step = found_in(device(records)).by_step
    assert by_step[:2].tolist() == pytest.approx([401 / 208, 609 / 312])
    assert len(by_step) == 2  # none of the third is during communication


def test_steps_of_families_without_a_factor_are_unknown() -> None:
    kernels = [(100, 0), (200, 150), (210, 160)]
    assert not np.isfinite(found_in(device(overlapped(kernels))).by_step).any()


def test_all_that_overlap_as_little_as_the_tenth_are_of_it() -> None:
    """Of ten, five have none: the median of 100, 102, 104, 106, 108 is 104."""
    kernels = [(100 + 2 * n, 0) for n in range(5)] + [(200 + n, 100 + n) for n in range(5)]
    totals = found_in(device(overlapped(kernels)))
    assert totals.factor.tolist() == pytest.approx([202 / 104])
    assert totals.reason.tolist() == [NONE]


def test_the_interval_is_price_and_bonett_s() -> None:
    """For n = 5 the rank is 3 - 2.24, so 1: the binomial chance is 1/32, z 1.8627."""
    little, much = [100, 102, 104, 106, 108], [200, 201, 202, 203, 204]
    kernels = [(each, 0) for each in little] + [(each, 150) for each in much]
    totals = found_in(device(overlapped(kernels)))
    errors = [math.log(max(those) / min(those)) / (2 * 1.8627) for those in (little, much)]
    spread = math.exp(1.95996 * math.hypot(*errors))
    factor = 202 / 104
    # Of the lone ones the quartiles are 102 and 106: what chance may add is exp(s^2).
    by_chance = math.exp((math.log(106 / 102) / (2 * 0.6745)) ** 2)
    assert totals.low.tolist() == pytest.approx([factor / spread / by_chance], rel=1e-4)
    assert totals.high.tolist() == pytest.approx([factor * spread], rel=1e-4)


def test_of_many_kernels_the_chance_is_the_normal_one() -> None:
    """1,001 of each: the rank is 501 - 31.64, so 469, and z (1,001 - 2 * 469 + 1) / sqrt(1,001)."""
    none = [(2000 + n, 0) for n in range(1001)]
    all_of_it = [(4000 + n, 4000 + n) for n in range(1001)]
    totals = found_in(device(overlapped(none + all_of_it)))
    errors = [
        math.log((low + 1001 - 469) / (low + 468)) / (2 * (1001 - 2 * 469 + 1) / math.sqrt(1001))
        for low in (2000, 4000)
    ]
    factor = (4000 + 500) / (2000 + 500)
    assert totals.factor.tolist() == pytest.approx([factor])
    half = 1.959963985 * math.hypot(*errors)
    by_chance = (math.log(2750 / 2250) / (2 * 0.6745)) ** 2
    assert totals.low.tolist() == pytest.approx([factor * math.exp(-half - by_chance)])
    assert totals.high.tolist() == pytest.approx([factor * math.exp(half)])


def test_chopper_takes_the_one_in_the_middle_over_the_first() -> None:
    """Of four by overlap, that at 50 % is the second: 120 / 100."""
    kernels = [(130, 80), (100, 0), (120, 30), (150, 100)]
    assert found_in(device(overlapped(kernels))).e50_e0.tolist() == pytest.approx([1.2])


def test_chopper_s_is_1_where_the_middle_has_no_overlap_or_is_shorter() -> None:
    without = overlapped([(100, 0), (150, 0), (120, 0), (130, 90)])
    shorter = overlapped([(100, 10), (80, 20), (120, 60)], family=1, at=100_000)
    assert found_in(device(without + shorter)).e50_e0.tolist() == [1.0, 1.0]


def test_few_kernels_or_no_difference_in_overlap_give_no_factor() -> None:
    few = overlapped([(100, 0), (110, 50), (110, 60), (120, 90)])
    same = overlapped([(100, 0)] * 4 + [(110, 50)] * 3, family=1, at=100_000)
    totals = found_in(device(few + same))
    assert totals.count.tolist() == [4, 7]
    assert totals.reason.tolist() == [FEW, SAME]
    assert np.isnan(totals.factor).all()


def test_kernels_of_several_sizes_get_no_factor() -> None:
    """Half are of 100, half of 300 ns without overlap; then: shorter beside communication."""
    mixed = [(100 if n % 2 else 300, 0) for n in range(6)] + [(300 + n, 200) for n in range(6)]
    shorter = [(300 + n, 0) for n in range(6)] + [(100 + n, 50) for n in range(6)]
    records = overlapped(mixed) + overlapped(shorter, family=1, at=1_000_000)
    totals = found_in(device(records))
    assert totals.reason.tolist() == [SIZES, SIZES]
    for unknown in (totals.factor, totals.low, totals.high):
        assert np.isnan(unknown).all()


def test_only_kernels_that_compute_and_have_a_length_count() -> None:
    records = [*overlapped([(100, 0)] * 6), Rec(90_000, 90_000), Rec(0, 5, COMM, family=3)]
    records += [Rec(200, 300, KernelClass.MEMCPY, family=4)]
    totals = found_in(device(records))
    assert totals.family.tolist() == [0]
    assert totals.count.tolist() == [6]


def test_without_communication_there_is_nothing_to_measure() -> None:
    timeline = device([Rec(0, 10)])
    assert contention(timeline, busy_masks(timeline).comm) is None


def test_communication_without_compute_has_no_families() -> None:
    assert found_in(device([Rec(0, 10, COMM)])).family.tolist() == []


def plainly(kernels: list[tuple[int, int]]) -> float:
    """DESIGN.md's words, one kernel after another."""
    ranked = sorted((overlap / duration, duration) for duration, overlap in kernels)
    middle = statistics.median(overlap for overlap, _ in ranked)
    tenth = math.ceil(len(ranked) / 10)
    least = ranked[tenth - 1][0]
    if len(ranked) < 5 or middle <= least:
        return math.nan
    much = [duration for overlap, duration in ranked if overlap >= middle]
    little = [duration for overlap, duration in ranked if overlap <= least]
    return statistics.median(much) / statistics.median(little)


@given(
    st.lists(
        st.lists(
            st.integers(1, 400).flatmap(
                lambda duration: st.tuples(
                    st.just(duration), st.integers(0, 4).map(lambda q: q * duration // 4)
                )
            ),
            min_size=1,
            max_size=30,
        ),
        min_size=1,
        max_size=4,
    )
)
@settings(max_examples=50, deadline=None)
def test_every_factor_is_what_plain_python_finds(families: list[list[tuple[int, int]]]) -> None:
    records = [Rec(10_000_000, 10_000_001, COMM)]
    for number, kernels in enumerate(families):
        records += overlapped(kernels, family=number, at=number * 1_000_000)
    totals = found_in(device(records))
    sized = totals.reason == SIZES
    expected = np.where(sized, np.nan, [plainly(kernels) for kernels in families])
    assert totals.factor.tolist() == pytest.approx(expected, nan_ok=True)


def test_families_of_any_number_are_told_apart() -> None:
    """By hand: half of 8 kernels overlap and take 1.5 times as long as those that do not."""
    many = 20_000  # twice as many, by whether they overlap, are more than 16 bits hold
    records = [Rec(0, 1, COMM, stream=9)]
    for number in range(many):
        kernels = [(100, 0)] * 4 + [(150, 75)] * 4 if number in (0, many - 1) else [(100, 0)]
        records += overlapped(kernels, family=number, at=number * 100_000)
    totals = found_in(device(records))
    assert (totals.factor[0], totals.factor[-1], len(totals.factor)) == (1.5, 1.5, many)


@pytest.mark.parametrize(("kernels", "spread"), [(50, 0.02), (50, 0.1), (250, 0.1)])
def test_the_interval_holds_the_truth_in_nearly_19_of_20_families(
    kernels: int, spread: float
) -> None:
    """Known truth: 1.3 times as long beside communication, durations log-normal about that.

    A tenth of the kernels run alone, so that 5 or 25 are set against half of all or more.
    """
    random = np.random.default_rng(7)
    families, alone = 25_000 // kernels, kernels // 10
    records = []
    for family in range(families):
        base_ns = 100_000 * np.exp(random.normal(0, spread, kernels))
        for number in range(kernels):
            beside = number >= alone
            duration = round(base_ns[number] * (1.3 if beside else 1.0))
            start = (family * kernels + number) * 1_000_000
            records.append(Rec(start, start + duration, family=family))
            if beside:
                records.append(Rec(start, start + duration // 2 + number, COMM))
    totals = found_in(device(records))
    assert (totals.reason == NONE).all()
    held = np.mean((totals.low <= 1.3) & (totals.high >= 1.3))
    assert 0.9 <= held <= 0.99


@pytest.mark.parametrize("deviation", [0.02, 0.1, 0.2])
def test_where_communication_costs_nothing_the_interval_mostly_holds_1(deviation: float) -> None:
    """Kernels one after another, communication on and off for as long as one takes on average.

    The longer a kernel, the likelier it is met; that alone makes a factor of 1.04 at 0.2.
    """
    dice, held = np.random.default_rng(7), []
    for _ in range(60):
        edges = np.cumsum(np.rint(100_000 * dice.lognormal(0, deviation, 300))).astype(np.int64)
        turns = np.cumsum(np.rint(dice.exponential(100_000, 600))).astype(np.int64) + edges[0]
        rows = [Rec(int(start), int(end)) for start, end in pairwise(edges.tolist())]
        comm = Intervals(start_ns=turns[0::2], end_ns=turns[1::2])
        totals = contention(device(rows), comm)
        assert totals is not None
        if np.isfinite(totals.low[0]):
            held.append(totals.low[0] <= 1 <= totals.high[0])
    assert len(held) >= 50
    assert np.mean(held) >= 0.9
