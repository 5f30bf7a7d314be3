"""Chopper's chain on small timelines, worked out by hand, and AMD's published figures."""

import math
from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest

from chopperd.correlate.clock.integrals import ClockPieces
from chopperd.correlate.clock.signal import class_clock
from chopperd.correlate.contention import contention
from chopperd.correlate.efficiency import EfficiencyTotals, MatrixKernels
from chopperd.correlate.waterfall import RowSums, busy_masks
from chopperd.model.devices import B200, H100_SXM, MI210, MI300X, MI325X, GpuSpec
from chopperd.model.kinds import DType, KernelClass
from chopperd.model.timeline import DeviceTimeline
from chopperd.units import NS_PER_MS
from tests.unit.correlate.builders import Rec, device, labelled

MS = NS_PER_MS
GEMM, ATTENTION, COMM = KernelClass.GEMM, KernelClass.ATTENTION, KernelClass.COMM


def pieces(clock_mhz: Sequence[float], period_ms: int = 10) -> ClockPieces:
    """A clock sampled every `period_ms` from 0 on."""
    t_ns = [index * period_ms * MS for index in range(len(clock_mhz))]
    return ClockPieces.of(class_clock(labelled(t_ns, clock_mhz), None), ())


def totals(
    timeline: DeviceTimeline, spec: GpuSpec | None, clock: ClockPieces | None = None
) -> EfficiencyTotals:
    """The figures of the device."""
    kernels = MatrixKernels.of(timeline, busy_masks(timeline).comm, clock, spec)
    return kernels.totals(partial(RowSums, timeline))


def product(found: EfficiencyTotals) -> list[float]:
    """Of each row, the chain multiplied out."""
    factors = found.utilization * found.overlap * found.frequency
    chain: list[float] = (found.theoretical_ns * factors).tolist()
    return chain


@pytest.mark.parametrize(
    ("spec", "tflops", "mhz", "frequency", "utilization"),
    [
        # AMD: 2100/1207, and 1307.4 x 1207/2100 = 751.4 over 708 (efficiency 0.942).
        (MI300X, 708.0, 1207.0, 1.740, 1.061),
        # 2100/1447, and 1307.4 x 1447/2100 = 900.9 over 843 (efficiency 0.936).
        (MI325X, 843.0, 1447.0, 1.451, 1 / 0.936),
    ],
)
def test_amds_published_rates_part_into_clock_and_utilization(
    spec: GpuSpec, tflops: float, mhz: float, frequency: float, utilization: float
) -> None:
    """Source: AMD, "Measuring Max-Achievable FLOPs - Part 2" (2025): BF16, median clocks."""
    flops_of_100_ms = tflops * 1e12 / 10
    kernel = Rec(start=0, end=100 * MS, kind=GEMM, flops=flops_of_100_ms, dtype=DType.BF16)
    found = totals(device([kernel]), spec, pieces([mhz] * 11))
    assert found.frequency[-1] == pytest.approx(frequency, abs=5e-4)
    assert found.utilization[-1] == pytest.approx(utilization, abs=1e-3)
    assert found.overlap[-1] == 1.0
    assert found.theoretical_ns[-1] / found.rated_ns[-1] == pytest.approx(tflops / 1307.4)
    assert product(found) == pytest.approx([100 * MS])


def test_rows_are_by_launch_and_the_last_is_the_file() -> None:
    # 1307.4e12 / 1000 operations take 1 ms at the peak.
    a_ms = 1307.4e9
    records = [
        Rec(start=0, end=2 * MS, kind=GEMM, step=0, flops=a_ms, dtype=DType.BF16),
        # Another kernel of the same operator, whose work stands on the one before.
        Rec(start=2 * MS, end=3 * MS, kind=GEMM, step=0, dtype=DType.BF16),
        # Launched in step 0, runs in the window of step 1.
        Rec(start=6 * MS, end=10 * MS, kind=ATTENTION, step=0, flops=a_ms, dtype=DType.FP16),
        Rec(start=10 * MS, end=12 * MS, kind=GEMM, step=1, flops=a_ms, dtype=DType.BF16),
        # Of unknown work, and no matrix kernel.
        Rec(start=12 * MS, end=15 * MS, kind=GEMM, step=1),
        Rec(start=15 * MS, end=16 * MS, kind=KernelClass.NORM, step=1),
        # Of no step.
        Rec(start=16 * MS, end=18 * MS, kind=GEMM, step=-1, flops=3 * a_ms, dtype=DType.FP16),
    ]
    found = totals(device(records, [(0, 5 * MS), (5 * MS, 18 * MS)]), MI300X)
    assert found.flops.tolist() == [2 * a_ms, a_ms, 6 * a_ms]
    assert found.matrix_ns.tolist() == [7 * MS, 5 * MS, 14 * MS]
    assert found.shaped_ns.tolist() == [7 * MS, 2 * MS, 11 * MS]
    assert found.rated_ns.tolist() == [7 * MS, 2 * MS, 11 * MS]
    assert found.theoretical_ns.tolist() == pytest.approx([2 * MS, MS, 6 * MS])
    # Step 0: as much of each type, the first in order; the file has 2 ms of BF16, 4 of FP16.
    assert found.dtype.tolist() == [DType.FP16, DType.BF16, DType.FP16]


def test_only_types_with_a_stated_peak_are_rated() -> None:
    records = [
        Rec(start=0, end=MS, kind=GEMM, flops=989.4e8, dtype=DType.BF16),
        Rec(start=MS, end=2 * MS, kind=GEMM, flops=1.0, dtype=DType.FLOAT),
    ]
    on_h100, on_mi210 = totals(device(records), H100_SXM), totals(device(records), MI210)
    assert on_h100.shaped_ns.tolist() == [2 * MS]
    assert on_h100.rated_ns.tolist() == [MS]
    # A GPU without TF32 multiplies 32 bits as FP32.
    assert on_mi210.rated_ns.tolist() == [2 * MS]


def test_each_type_is_held_against_the_clock_of_its_own_peak() -> None:
    records = [
        Rec(start=0, end=20 * MS, kind=GEMM, flops=1.0, dtype=DType.BF16),
        Rec(start=20 * MS, end=60 * MS, kind=GEMM, flops=1.0, dtype=DType.FP32),
    ]
    found = totals(device(records), H100_SXM, pieces([1500.0] * 7))
    at_peak_ms = 20 * 1500 / 1830 + 40 * 1500 / 1980
    assert found.frequency.tolist() == pytest.approx([60 / at_peak_ms])


def test_the_clock_is_integrated_over_the_kernels_alone() -> None:
    # 1000 MHz while the kernel runs, 2000 after.
    kernel = Rec(start=0, end=20 * MS, kind=GEMM, flops=1.0, dtype=DType.BF16)
    found = totals(device([kernel]), MI300X, pieces([1000, 1000, 1000, 2000, 2000]))
    assert found.frequency.tolist() == pytest.approx([2.1])


def test_without_clocks_frequency_and_utilization_are_unknown() -> None:
    kernel = Rec(start=0, end=20 * MS, kind=GEMM, flops=1.0, dtype=DType.BF16)
    found = totals(device([kernel]), MI300X)
    assert np.isnan(found.frequency).all()
    assert np.isnan(found.utilization).all()
    assert found.overlap.tolist() == [1.0]
    assert found.clock_share.tolist() == [0.0]


def test_a_clock_over_less_than_half_of_the_kernels_is_none() -> None:
    kernel = Rec(start=0, end=50 * MS, kind=GEMM, flops=1.0, dtype=DType.BF16)
    few = totals(device([kernel]), MI300X, pieces([1000.0] * 3))
    most = totals(device([kernel]), MI300X, pieces([1000.0] * 5))
    assert (math.isnan(few.frequency[-1]), few.clock_share.tolist()) == (True, [0.4])
    assert (most.frequency.tolist(), most.clock_share.tolist()) == ([2.1], [0.8])


def test_a_peak_without_a_clock_has_no_factor_of_the_clock() -> None:
    kernel = Rec(start=0, end=20 * MS, kind=GEMM, flops=2250e9, dtype=DType.BF16)
    found = totals(device([kernel]), B200, pieces([1800.0] * 3))
    assert found.theoretical_ns.tolist() == pytest.approx([MS])
    assert np.isnan(found.frequency).all()


def beside_comm(lone_ms: Sequence[int], slowed_ms: Sequence[int], flops: float) -> list[Rec]:
    """Kernels one after the other, the last ones beside communication."""
    records, at = [], 0
    for length in lone_ms:
        records.append(
            Rec(start=at, end=at + length * MS, kind=GEMM, flops=flops, dtype=DType.BF16)
        )
        at += length * MS
    began = at
    for length in slowed_ms:
        records.append(
            Rec(start=at, end=at + length * MS, kind=GEMM, flops=flops, dtype=DType.BF16)
        )
        at += length * MS
    return [*records, Rec(start=began, end=at, kind=COMM, stream=20, family=9)]


def test_overlap_is_what_like_kernels_take_without_communication() -> None:
    # Ten kernels of 2 ms alone and five of 3 ms beside communication: 35 ms instead of 30.
    records = beside_comm([2] * 10, [3] * 5, 1307.4e9)
    found = totals(device(records), MI300X, pieces([2100.0] * 5))
    assert found.overlap.tolist() == pytest.approx([35 / 30])
    assert found.overlap_share.tolist() == [1.0]
    # 1 ms each at the peak: 15 ms x 2 x 35/30 x 1 = 35 ms.
    assert found.utilization.tolist() == pytest.approx([2.0])
    assert product(found) == pytest.approx([35 * MS])


def test_like_kernels_are_slowed_by_what_contention_and_chopper_find() -> None:
    # Ten of 2 ms alone, ten of 3 ms beside communication: 50 ms instead of 40.
    timeline = device(beside_comm([2] * 10, [3] * 10, 1.0))
    comm = busy_masks(timeline).comm
    family = contention(timeline, comm)
    assert family is not None
    assert (family.factor.tolist(), family.e50_e0.tolist()) == ([1.5], [1.0])
    assert totals(timeline, MI300X).overlap.tolist() == pytest.approx([50 / (20 + 30 / 1.5)])
    # With two more beside it, Chopper's middle kernel is one of those.
    uneven = device(beside_comm([2] * 10, [3] * 12, 1.0))
    more = contention(uneven, busy_masks(uneven).comm)
    assert more is not None
    assert more.e50_e0.tolist() == [1.5]


def test_kernels_of_other_work_are_not_alike() -> None:
    # One name, twice the work: those beside communication have no like ones without.
    lone, slowed = beside_comm([2] * 10, [], 1.0), beside_comm([2] * 10, [3] * 5, 2.0)
    records = [*lone[:10], *slowed[10:]]
    found = totals(device(records), MI300X, pieces([2100.0] * 5))
    assert np.isnan(found.overlap).all()
    assert np.isnan(found.utilization).all()
    assert found.overlap_share.tolist() == [0.0]


@pytest.mark.parametrize("lone_ms", [[2] * 4, [2, 2, 2, 2, 4, 4, 4, 4]])
def test_few_or_uneven_kernels_tell_nothing(lone_ms: list[int]) -> None:
    found = totals(device(beside_comm(lone_ms, [3] * 5, 1.0)), MI300X)
    assert np.isnan(found.overlap).all()


def test_kernels_without_like_ones_are_slowed_as_the_others() -> None:
    records = beside_comm([2] * 10, [3] * 5, 1.0)
    # 6 ms beside communication of a work of its own, against 15 ms measured.
    odd = Rec(start=40 * MS, end=46 * MS, kind=GEMM, flops=7.0, dtype=DType.BF16)
    comm = Rec(start=40 * MS, end=46 * MS, kind=COMM, stream=20, family=9)
    found = totals(device([*records, odd, comm]), MI300X)
    assert found.overlap_share.tolist() == pytest.approx([15 / 21])
    assert found.overlap.tolist() == pytest.approx([41 / (20 + 21 / 1.5)])


def test_a_step_without_overlap_has_a_factor_of_one_beside_one_with() -> None:
    records = [
        Rec(
            start=rec.start, end=rec.end, kind=rec.kind, flops=rec.flops, dtype=rec.dtype, step=step
        )
        for step, rec in zip([0] * 10 + [1] * 6, beside_comm([2] * 10, [3] * 5, 1.0), strict=True)
    ]
    found = totals(device(records, [(0, 20 * MS), (20 * MS, 35 * MS)]), MI300X)
    assert found.overlap.tolist() == pytest.approx([1.0, 1.5, 35 / 30])


def test_an_unknown_gpu_has_work_and_no_chain() -> None:
    kernel = Rec(start=0, end=20 * MS, kind=GEMM, flops=5.0, dtype=DType.BF16)
    found = totals(device([kernel]), None, pieces([1000.0] * 3))
    assert (found.flops.tolist(), found.shaped_ns.tolist()) == ([5.0], [20 * MS])
    assert found.rated_ns.tolist() == [0]
    for unknown in (found.utilization, found.overlap, found.frequency):
        assert np.isnan(unknown).all()


def test_a_device_without_records_has_nothing() -> None:
    found = totals(device([]), MI300X, None)
    assert (found.matrix_ns.tolist(), found.dtype.tolist()) == ([0], [DType.NONE])
