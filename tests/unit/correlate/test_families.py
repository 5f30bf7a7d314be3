"""Families: sharing of concurrent kernels by hand, and their sums against the device's loss."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chopperd.correlate.clock.integrals import ClockPieces
from chopperd.correlate.clock.signal import class_clock
from chopperd.correlate.groups import GroupTotals, group_totals, record_figures
from chopperd.correlate.join import join_device
from chopperd.model.kinds import KernelClass
from tests.unit.correlate.builders import COMPUTE, MS, Rec, device, gpu_samples, labelled

NO_SAMPLES, NO_CLOCKS = np.empty(0, np.int64), np.empty(0)


def half_clock() -> ClockPieces:
    """990 of 1980 MHz from 0 to 1000 ns: half of every covered ns is lost."""
    samples = labelled([0, 500, 1000], [990.0] * 3)
    return ClockPieces.of(class_clock(samples, COMPUTE), (1980.0,))


def totals(records: list[Rec], reference_mhz: float | None = 1980.0) -> GroupTotals:
    times, clocks = np.arange(1001), np.full(1001, 990.0)  # a sample each ns
    timeline = device(records)
    figures = record_figures(timeline, half_clock(), reference_mhz, times, clocks)
    return group_totals(timeline.family, figures, timeline.kernel_class)


def test_two_kernels_at_once_carry_half_of_that_time_each() -> None:
    """Family 0 on [0, 100), family 1 on [60, 160): of the union's 80 lost, 20 are shared."""
    found = totals([Rec(0, 100), Rec(60, 160, family=1, stream=8)])
    assert found.group.tolist() == [0, 1]
    assert found.lost_ns.tolist() == pytest.approx([60 / 2 + 20 / 2, 20 / 2 + 60 / 2])
    assert found.lost_ns.sum() == pytest.approx(160 / 2)


def test_kernels_one_after_another_carry_all_of_their_own_loss() -> None:
    found = totals([Rec(0, 100), Rec(100, 160, family=1), Rec(200, 400)])
    assert found.lost_ns.tolist() == pytest.approx([150.0, 30.0])


def test_families_are_listed_by_time_with_count_class_and_samples() -> None:
    """A sample each ns, also in communication."""
    records = [
        Rec(0, 50, family=3),
        Rec(450, 550, family=3),
        Rec(600, 900, KernelClass.COMM, family=1, stream=20),
        Rec(700, 700, family=2),
    ]
    found = totals(records)
    assert found.group.tolist() == [1, 3, 2]
    assert found.kind.tolist() == [KernelClass.COMM, KernelClass.GEMM, KernelClass.GEMM]
    assert found.count.tolist() == [1, 2, 1]
    assert found.time_ns.tolist() == [300, 150, 0]
    assert found.samples.tolist() == [300, 150, 0]


def test_only_covered_compute_has_a_clock_and_a_loss() -> None:
    """Communication, and compute after the last sample, have neither; half of 900..1100 has."""
    records = [
        Rec(600, 900, KernelClass.COMM, family=1, stream=20),
        Rec(900, 1100, family=2),
        Rec(1200, 1300, family=3),
    ]
    found = totals(records)
    assert found.group.tolist() == [1, 2, 3]
    assert np.isnan(found.lost_ns[[0, 2]]).all()
    assert np.isnan(found.mean_mhz[[0, 2]]).all()
    assert found.mean_mhz[1] == pytest.approx(990.0)
    assert found.lost_ns[1] == pytest.approx(50.0)


def test_without_a_reference_there_is_a_clock_but_no_loss() -> None:
    found = totals([Rec(0, 100)], reference_mhz=None)
    assert found.mean_mhz.tolist() == pytest.approx([990.0])
    assert np.isnan(found.lost_ns).all()


def test_without_samples_there_are_counts_and_times_only() -> None:
    timeline = device([Rec(0, 100)])
    figures = record_figures(timeline, None, 1980.0, NO_SAMPLES, NO_CLOCKS)
    found = group_totals(timeline.family, figures, timeline.kernel_class)
    assert (found.count.tolist(), found.time_ns.tolist()) == ([1], [100])
    assert np.isnan(found.mean_mhz).all()
    assert np.isnan(found.lost_ns).all()


def test_a_device_without_records_has_no_families() -> None:
    timeline = device([])
    figures = record_figures(timeline, half_clock(), 1980.0, NO_SAMPLES, NO_CLOCKS)
    assert len(group_totals(timeline.family, figures, timeline.kernel_class)) == 0


@st.composite
def kernels(draw: st.DrawFn) -> Rec:
    start = draw(st.integers(0, 900))
    return Rec(
        start * MS,
        (start + draw(st.integers(0, 200))) * MS,
        draw(st.sampled_from([KernelClass.GEMM, KernelClass.NORM, KernelClass.COMM])),
        family=draw(st.integers(0, 4)),
        stream=draw(st.integers(7, 9)),
    )


@settings(max_examples=20, deadline=None)
@given(
    records=st.lists(kernels(), min_size=1, max_size=12),
    clocks=st.lists(st.floats(900.0, 2200.0), min_size=40, max_size=40),
)
def test_losses_of_records_by_the_line_sum_to_the_devices_ceiling_loss(
    records: list[Rec], clocks: list[float]
) -> None:
    times = [n * 50 * MS - 400 * MS for n in range(40)]
    timeline = device(records)
    found = join_device(timeline, (), gpu_samples(times, clocks), 1980.0).clocks
    if found is None:
        return
    assert found.loss is not None
    pieces = ClockPieces.of(found.compute.clock, (1980.0,))
    figures = record_figures(timeline, pieces, 1980.0, NO_SAMPLES, NO_CLOCKS)
    of_records = figures.lost.sum() / 1980
    assert of_records == pytest.approx(float(found.loss.lost_ns[-1]), rel=1e-9, abs=1.0)
