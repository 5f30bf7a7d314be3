"""Groups of records: what is not known is a group, and any grouping shares the same losses."""

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chopperd.correlate.clock.integrals import ClockPieces
from chopperd.correlate.clock.signal import class_clock
from chopperd.correlate.contention import exposed_by_class_ns
from chopperd.correlate.groups import (
    MOST_GROUPS,
    OTHER,
    GroupTotals,
    RecordFigures,
    add_alike,
    group_totals,
    record_figures,
    step_groups,
)
from chopperd.correlate.join import join_device
from chopperd.correlate.waterfall import busy_masks
from chopperd.model.arrays import Int8s, Int32s
from chopperd.model.kinds import COMPUTE_CLASSES, KERNEL_CLASSES, KernelClass
from chopperd.model.timeline import DeviceTimeline, Phase
from tests.unit.correlate.builders import COMPUTE, MS, Rec, device, gpu_samples, labelled

TIMES = np.arange(1001)  # a sample each ns, so that short records have their 30
CLOCKS = np.full(1001, 990.0)
UNKNOWN = -1


def half_clock() -> ClockPieces:
    """990 of 1980 MHz from 0 to 1000 ns: half of every covered ns is lost."""
    samples = labelled([0, 500, 1000], [990.0] * 3)
    return ClockPieces.of(class_clock(samples, COMPUTE), (1980.0,))


def figures(timeline: DeviceTimeline, reference_mhz: float | None = 1980.0) -> RecordFigures:
    return record_figures(timeline, half_clock(), reference_mhz, TIMES, CLOCKS)


def by_layer(records: list[Rec], reference_mhz: float | None = 1980.0) -> GroupTotals:
    timeline = device(records)
    return group_totals(timeline.layer, figures(timeline, reference_mhz))


def test_what_is_of_no_known_layer_is_a_group_of_its_own() -> None:
    """Durations 100, 300 and 50, a sample each ns."""
    found = by_layer([Rec(0, 100, layer=2), Rec(400, 700), Rec(750, 800, layer=2)])
    assert found.group.tolist() == [UNKNOWN, 2]
    assert found.count.tolist() == [1, 2]
    assert found.time_ns.tolist() == [300, 150]
    assert found.samples.tolist() == [300, 150]
    assert found.lost_ns.tolist() == pytest.approx([150.0, 75.0])
    assert len(found) == 2


def test_kernels_at_once_share_their_loss_also_across_groups() -> None:
    """[0, 100) of layer 0, [60, 160) of layer 1: 30 + 10 lost each.

    Together 80, half of their union; within one group they are not counted twice either.
    """
    apart = by_layer([Rec(0, 100, layer=0), Rec(60, 160, layer=1, stream=8)])
    assert apart.lost_ns.tolist() == pytest.approx([60 / 2 + 20 / 2, 20 / 2 + 60 / 2])
    together = by_layer([Rec(0, 100, layer=0), Rec(60, 160, layer=0, stream=8)])
    assert together.lost_ns.tolist() == pytest.approx([80.0])
    assert together.time_ns.tolist() == [200]


def test_an_operation_that_also_copies_has_the_clock_of_its_compute() -> None:
    """100 ns of compute, half of it lost, and 300 ns of a copy: neither clock nor loss of that."""
    records = [Rec(0, 100, operation=4), Rec(100, 400, KernelClass.MEMCPY, operation=4)]
    timeline = device(records)
    found = group_totals(timeline.operation, figures(timeline))
    assert (found.group.tolist(), found.time_ns.tolist()) == ([4], [400])
    assert found.mean_mhz.tolist() == pytest.approx([990.0])
    assert found.lost_ns.tolist() == pytest.approx([50.0])


def test_a_group_without_covered_compute_has_neither_clock_nor_loss() -> None:
    """Layer 1 communicates, layer 2 computes after the last sample; half of layer 0 is covered."""
    found = by_layer([
        Rec(600, 850, KernelClass.COMM, layer=1, stream=20),
        Rec(900, 1100, layer=0),
        Rec(1200, 1350, layer=2),
    ])  # fmt: skip
    assert found.group.tolist() == [1, 0, 2]
    assert np.isnan(found.mean_mhz).tolist() == [True, False, True]
    assert np.isnan(found.lost_ns).tolist() == [True, False, True]
    assert found.lost_ns[1] == pytest.approx(50.0)


def test_without_a_reference_or_samples_losses_are_unknown() -> None:
    assert np.isnan(by_layer([Rec(0, 100, layer=0)], reference_mhz=None).lost_ns).all()
    timeline = device([Rec(0, 100, layer=0)])
    found = group_totals(
        timeline.layer, record_figures(timeline, None, 1980.0, TIMES[:0], CLOCKS[:0])
    )
    assert (found.count.tolist(), found.time_ns.tolist()) == ([1], [100])
    assert np.isnan(found.mean_mhz).all()
    assert np.isnan(found.lost_ns).all()


def test_phases_are_grouped_by_their_codes() -> None:
    records = [Rec(0, 100, phase=Phase.BACKWARD), Rec(100, 140, phase=Phase.FORWARD), Rec(200, 210)]
    timeline = device(records)
    found = group_totals(timeline.phase, figures(timeline))
    assert found.group.tolist() == [Phase.BACKWARD, Phase.FORWARD, Phase.UNKNOWN]


def test_a_device_without_records_has_no_groups() -> None:
    assert len(by_layer([])) == 0


@st.composite
def records(draw: st.DrawFn) -> Rec:
    start = draw(st.integers(0, 1100))
    return Rec(
        start,
        start + draw(st.integers(0, 200)),
        draw(st.sampled_from([KernelClass.GEMM, KernelClass.NORM, KernelClass.COMM])),
        family=draw(st.integers(0, 3)),
        operation=draw(st.integers(-1, 2)),
        layer=draw(st.integers(-1, 3)),
        phase=draw(st.integers(-1, 2)),
        stream=draw(st.integers(7, 9)),
    )


@settings(max_examples=60, deadline=None)
@given(st.lists(records(), min_size=1, max_size=12))
def test_every_grouping_sums_to_the_same_records(made: list[Rec]) -> None:
    """Counts, times and samples exactly, as their families."""
    timeline = device(made)
    found = figures(timeline)
    families = group_totals(timeline.family, found, timeline.kernel_class)
    for column in (timeline.operation, timeline.layer, timeline.phase):
        totals = group_totals(column, found)
        assert sorted(totals.group) == sorted(set(column.tolist()))
        assert totals.count.sum() == families.count.sum() == len(made)
        assert totals.time_ns.sum() == families.time_ns.sum()
        assert totals.samples.sum() == families.samples.sum()
        assert np.all(np.diff(totals.time_ns) <= 0)


def test_numbers_far_larger_than_records_are_many_group_alike() -> None:
    """Layers 0 and 999,999 in turn: 100 + 50 and 20 ns."""
    records = [Rec(100, 200), Rec(300, 320, layer=999_999), Rec(400, 450)]
    timeline = device([replace(one, layer=max(one.layer, 0)) for one in records])
    found = figures(timeline)
    columns, fewer = add_alike((timeline.phase, timeline.family, timeline.layer), found)
    for totals in (group_totals(timeline.layer, found), group_totals(columns[2], fewer)):
        assert totals.group.tolist() == [0, 999_999]
        assert totals.count.tolist() == [2, 1]
        assert totals.time_ns.tolist() == [150, 20]


@settings(max_examples=40, deadline=None)
@given(st.lists(records(), max_size=12), st.booleans())
def test_what_agrees_in_all_columns_may_be_summed_first(made: list[Rec], sampled: bool) -> None:
    """Totals of any grouping are those of the records one by one."""
    timeline = device(made)
    found = figures(timeline)
    if not sampled:
        found = record_figures(timeline, None, 1980.0, TIMES[:0], CLOCKS[:0])
    columns: list[Int32s | Int8s] = [timeline.family, timeline.operation]
    columns += [timeline.layer, timeline.phase]
    fewer_columns, fewer = add_alike(columns, found)
    assert len(fewer.duration_ns) == len(set(zip(*columns, strict=True)))
    for column, fewer_column in zip(columns, fewer_columns, strict=True):
        each, summed = group_totals(column, found), group_totals(fewer_column, fewer)
        for name in ("group", "count", "time_ns", "samples"):
            assert getattr(each, name).tolist() == getattr(summed, name).tolist()
        for name in ("mean_mhz", "lost_ns", "half_ns"):
            expected = pytest.approx(getattr(summed, name), rel=1e-9, abs=1e-9, nan_ok=True)
            assert getattr(each, name) == expected


@pytest.mark.parametrize("unknown", [0, 1])
def test_of_very_many_groups_those_with_the_least_time_are_one(unknown: int) -> None:
    """Layer k takes k + 1 ns, so that those up to 4, with 15 ns and samples, are the least."""
    lengths = list(range(1, MOST_GROUPS + 6))
    starts = np.cumsum([0, *lengths])
    records = [
        Rec(int(start), int(start) + length, layer=layer)
        for layer, (start, length) in enumerate(zip(starts, lengths, strict=False))
    ]
    records += [Rec(int(starts[-1]), int(starts[-1]) + 1)] * unknown
    timeline = device(records)
    found = group_totals(timeline.layer, figures(timeline))
    assert len(found) == MOST_GROUPS + 1 + unknown
    (other,) = np.flatnonzero(found.group == OTHER)
    assert found.merged[other] == 5
    assert found.merged.sum() == 5
    assert (found.count[other], found.time_ns[other]) == (5, 15)
    assert found.samples[other] == 15
    assert (found.group == UNKNOWN).sum() == unknown
    assert found.group[0] == MOST_GROUPS + 4


def test_as_many_groups_as_there_may_be_stay_apart() -> None:
    records = [Rec(at, at + 1, layer=at) for at in range(MOST_GROUPS)]
    found = by_layer([*records, Rec(MOST_GROUPS, MOST_GROUPS + 9)])
    assert len(found) == MOST_GROUPS + 1
    assert not found.merged.any()


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32))
def test_sums_stay_whole_where_families_are_put_together_by_class(seed: int) -> None:
    dice = Random(seed)
    classes = [KernelClass.GEMM, KernelClass.NORM, KernelClass.COMM]
    records = [
        Rec(at, at + dice.randint(0, 3), classes[family % 3], family=family)
        for at, family in enumerate(dice.choices(range(4 * MOST_GROUPS), k=3 * MOST_GROUPS))
    ]
    timeline = device(records)
    found = group_totals(timeline.family, figures(timeline), timeline.kernel_class)
    assert len(found) <= MOST_GROUPS + len(classes)
    for each in classes:
        of_class = found.kind == each
        mine = [rec for rec in records if rec.kind == each]
        assert found.count[of_class].sum() == len(mine)
        assert found.time_ns[of_class].sum() == sum(rec.end - rec.start for rec in mine)
        families = {rec.family for rec in mine}
        own = np.count_nonzero(found.group[of_class] >= 0)
        assert own + found.merged[of_class].sum() == len(families)


def sampled_groups(clocks: dict[tuple[int, int], list[float]], line_mhz: float) -> GroupTotals:
    """Layers by spans of time, each with its own clocks evenly in it; the line is flat."""
    records = [Rec(start, end, layer=nth) for nth, (start, end) in enumerate(clocks)]
    pieces = labelled([0, 500, 1000], [line_mhz] * 3)
    line = ClockPieces.of(class_clock(pieces, COMPUTE), (1980.0,))
    times = [np.linspace(a, b, len(f), endpoint=False) for (a, b), f in clocks.items()]
    seen = np.concatenate(times).astype(np.int64)
    mhz = np.concatenate([np.array(each) for each in clocks.values()])
    timeline = device(records)
    return group_totals(timeline.layer, record_figures(timeline, line, 1980.0, seen, mhz))


def test_a_groups_clock_and_loss_are_by_samples_of_its_own() -> None:
    """Layer 0: 400 ns, 40 samples of 1100 and 1300 by turns; layer 1: 39 of 1780 in 390 ns.

    By hand: 1200 of 1980 MHz are 157.58 ns lost; the samples' spread is 100 x sqrt(40 / 39), their
    mean's 1.96 / sqrt(40) of that, 31.4 MHz. The line, at 1210, is within that; for layer 1 it is
    570 MHz off, which is the whole of its interval.
    """
    found = sampled_groups({(0, 400): [1100.0, 1300.0] * 20, (400, 790): [1780.0] * 39}, 1210.0)
    error_mhz = 1.96 * 100 * np.sqrt(40 / 39) / np.sqrt(40)
    assert found.mean_mhz.tolist() == [1200.0, 1780.0]
    assert found.lost_ns.tolist() == pytest.approx([400 * 780 / 1980, 390 * 200 / 1980])
    assert found.half_ns.tolist() == pytest.approx([400 * error_mhz / 1980, 390 * 570 / 1980])


def test_with_29_samples_of_its_own_the_clock_of_a_group_is_unknown() -> None:
    found = sampled_groups({(0, 290): [1200.0] * 29, (300, 600): [1200.0] * 30}, 1200.0)
    assert found.group.tolist() == [1, 0]
    for column in (found.mean_mhz, found.lost_ns, found.half_ns):
        assert np.isnan(column).tolist() == [False, True]


def test_samples_above_the_reference_win_nothing_back_in_a_group() -> None:
    """Half at 1780, half at 2180 of 1980 MHz: 100 MHz on average."""
    found = sampled_groups({(0, 400): [1780.0, 2180.0] * 20}, 1980.0)
    assert found.lost_ns.tolist() == pytest.approx([400 * 100 / 1980])


@pytest.mark.parametrize(("hz", "seconds"), [(10, 60), (100, 20)])
@pytest.mark.parametrize("seed", range(5))
def test_losses_hold_where_the_clock_follows_the_kernel(hz: int, seed: int, seconds: int) -> None:
    """GEMMs of 30 ms at 1400 MHz, elementwise kernels of 10 ms at 1750, each +- 20; known truth.

    The line through all compute samples is above 100 MHz (5 points) off for the short ones.
    """
    dice = np.random.default_rng([seed, hz])
    count = seconds * 1000 // 40
    mhz = np.stack([dice.normal(1400, 20, count), dice.normal(1750, 20, count)], axis=1)
    records = [
        rec
        for start in range(0, count * 40 * MS, 40 * MS)
        for rec in (
            Rec(start, start + 30 * MS),
            Rec(start + 30 * MS, start + 40 * MS, KernelClass.ELEMENTWISE),
        )
    ]
    ticks = np.arange(seconds * hz)
    times = ((ticks + dice.uniform(0, 1, len(ticks))) * (1000 * MS // hz)).astype(np.int64)
    is_short = times % (40 * MS) >= 30 * MS
    seen = mhz[times // (40 * MS), is_short.astype(int)]
    samples = gpu_samples(times.tolist(), seen.tolist())
    found = join_device(device(records), (), samples, 1980.0).classes
    for nth, (kind, length) in enumerate(((KernelClass.GEMM, 30), (KernelClass.ELEMENTWISE, 10))):
        (g,) = np.flatnonzero(found.group == kind)
        true_ns = float(((1980 - mhz[:, nth]) / 1980).sum() * length * MS)
        ends_ns = 2 * 1000 * MS / hz * 0.3  # before the first sample and after the last
        assert abs(found.lost_ns[g] - true_ns) <= found.half_ns[g] + ends_ns
        assert abs(found.lost_ns[g] - true_ns) < 0.01 * count * length * MS


def exposed(records: list[Rec]) -> dict[KernelClass, int]:
    timeline = device(records)
    found = exposed_by_class_ns(timeline, busy_masks(timeline)).tolist()
    return {kind: each for kind, each in zip(KERNEL_CLASSES, found, strict=True) if each}


def exposed_at(t: int, timeline: DeviceTimeline) -> KernelClass | None:
    """The class that is exposed in [t, t + 1), by the words of the docstring."""
    running = {
        KernelClass(kind)
        for start, end, kind in zip(
            timeline.start_ns, timeline.end_ns, timeline.kernel_class, strict=True
        )
        if start <= t < end
    }
    computing = running & COMPUTE_CLASSES
    if computing:
        return next(iter(computing)) if len(computing) == 1 else None
    order = (KernelClass.COMM, KernelClass.MEMCPY, KernelClass.MEMSET)
    return next((kind for kind in order if kind in running), None)


@settings(max_examples=20, deadline=None)
@given(
    st.lists(
        st.builds(
            lambda start, length, kind: Rec(start, start + length, kind=kind, stream=kind),
            st.integers(0, 40),
            st.integers(0, 12),
            st.sampled_from(KERNEL_CLASSES),
        ),
        max_size=12,
    )
)
def test_exposed_time_equals_a_walk_over_every_ns(records: list[Rec]) -> None:
    timeline = device(records)
    walked = [exposed_at(t, timeline) for t in range(60)]
    assert exposed(records) == {
        kind: walked.count(kind) for kind in KERNEL_CLASSES if kind in walked
    }


def test_a_class_is_exposed_while_nothing_that_hides_it_runs() -> None:
    """By hand: two gemms [0, 100) and [50, 120), a norm [110, 150), communication [100, 200).

    Gemm alone [0, 110), both [110, 120), the norm alone [120, 150), communication [150, 200).
    """
    norm, comm = KernelClass.NORM, KernelClass.COMM
    records = [Rec(0, 100), Rec(50, 120), Rec(110, 150, kind=norm), Rec(100, 200, kind=comm)]
    assert exposed(records) == {KernelClass.GEMM: 110, norm: 30, comm: 50}


@pytest.mark.parametrize("most", [MOST_GROUPS, 3])
@given(seed=st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_groups_of_steps_are_sums_over_their_launches(most: int, seed: int) -> None:
    """Against adding up record by record; with little room each step still sums to its records."""
    dice = Random(seed)
    records = [
        Rec(
            start,
            start + dice.randrange(1, 9),
            dice.choice((KernelClass.GEMM, KernelClass.COMM)),
            step=dice.randrange(-1, 3),
            layer=dice.randrange(-1, 4),
        )
        for start in range(0, 10 * dice.randrange(1, 30), 10)
    ]
    timeline = device(records)
    figures = record_figures(timeline, None, None, np.empty(0, np.int64), np.empty(0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("chopperd.correlate.groups.MOST_OF_STEPS", most)
        found = step_groups(timeline.step, 3, timeline.layer, figures, timeline.kernel_class)
    for step, groups in enumerate(found):
        mine = [each for each in records if each.step == step]
        assert groups.time_ns.sum() == sum(each.end - each.start for each in mine)
        assert groups.count.sum() == len(mine)
        for group, time_ns, count in zip(groups.group, groups.time_ns, groups.count, strict=True):
            its = [each for each in mine if each.layer == group]
            assert group == OTHER or count == len(its)
            assert group == OTHER or time_ns == sum(each.end - each.start for each in its)
        assert OTHER not in groups.group or most == 3
