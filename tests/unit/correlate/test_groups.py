"""Groups of records: what is not known is a group, and any grouping shares the same losses."""

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chopperd.correlate.families import family_totals
from chopperd.correlate.groups import (
    MOST_GROUPS,
    OTHER,
    GroupTotals,
    RecordFigures,
    group_totals,
    record_figures,
)
from chopperd.correlate.pieces import ClockPieces
from chopperd.correlate.signal import class_clock
from chopperd.model.classes import KernelClass
from chopperd.model.timeline import DeviceTimeline, Phase
from tests.unit.correlate.builders import COMPUTE, Rec, device, labelled

TIMES = np.array([0, 500, 1000], np.int64)
UNKNOWN = -1


def half_clock() -> ClockPieces:
    """990 of 1980 MHz from 0 to 1000 ns: half of every covered ns is lost."""
    samples = labelled(TIMES.tolist(), [990.0] * 3)
    return ClockPieces.of(class_clock(samples, COMPUTE), (1980.0,))


def figures(timeline: DeviceTimeline, reference_mhz: float | None = 1980.0) -> RecordFigures:
    return record_figures(timeline, half_clock(), reference_mhz, TIMES)


def by_layer(records: list[Rec], reference_mhz: float | None = 1980.0) -> GroupTotals:
    timeline = device(records)
    return group_totals(timeline.layer, figures(timeline, reference_mhz))


def test_what_is_of_no_known_layer_is_a_group_of_its_own() -> None:
    """Durations 100, 300 and 50; the sample at 500 lies in the second, that at 0 in the first."""
    found = by_layer([Rec(0, 100, layer=2), Rec(400, 700), Rec(750, 800, layer=2)])
    assert found.group.tolist() == [UNKNOWN, 2]
    assert found.first.tolist() == [1, 0]
    assert found.count.tolist() == [1, 2]
    assert found.time_ns.tolist() == [300, 150]
    assert found.samples.tolist() == [1, 1]
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
    found = group_totals(timeline.layer, record_figures(timeline, None, 1980.0, TIMES[:0]))
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
    """Counts, times and samples exactly, losses up to rounding, as their families."""
    timeline = device(made)
    found = figures(timeline)
    families = family_totals(timeline, found)
    for column in (timeline.operation, timeline.layer, timeline.phase):
        totals = group_totals(column, found)
        assert sorted(totals.group) == sorted(set(column.tolist()))
        assert totals.count.sum() == families.count.sum() == len(made)
        assert totals.time_ns.sum() == families.time_ns.sum()
        assert totals.samples.sum() == families.samples.sum()
        assert np.nansum(totals.lost_ns) == pytest.approx(np.nansum(families.lost_ns))
        assert np.all(np.diff(totals.time_ns) <= 0)


@pytest.mark.parametrize("unknown", [0, 1])
def test_of_very_many_groups_those_with_the_least_time_are_one(unknown: int) -> None:
    """Layer k takes k + 1 ns, so that those up to 4 are the least; the sample at 0 is in layer 0's.

    Of the 1 + 2 + ... + 5 ns all but the first 100 ns before the first sample is covered.
    """
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
    assert (found.count[other], found.time_ns[other], found.first[other]) == (5, 15, 0)
    assert found.samples[other] == 1
    assert found.lost_ns[other] == pytest.approx(7.5)
    assert found.mean_mhz[other] == pytest.approx(990.0)
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
    found = family_totals(timeline, figures(timeline))
    assert len(found.family) <= MOST_GROUPS + len(classes)
    for each in classes:
        of_class = found.kernel_class == each
        mine = [rec for rec in records if rec.kind == each]
        assert found.count[of_class].sum() == len(mine)
        assert found.time_ns[of_class].sum() == sum(rec.end - rec.start for rec in mine)
        families = {rec.family for rec in mine}
        own = np.count_nonzero(found.family[of_class] >= 0)
        assert own + found.merged[of_class].sum() == len(families)
