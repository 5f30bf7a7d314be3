"""Chopper's chain on simulated kernels of known truth, and against the same in plain Python."""

import math
import statistics
from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chopperd.correlate.clock.integrals import ClockPieces
from chopperd.correlate.clock.signal import class_clock
from chopperd.correlate.efficiency import (
    MAX_QUARTILE_RATIO,
    MIN_LIKE_KERNELS,
    MIN_MEASURED_SHARE,
    EfficiencyTotals,
    MatrixKernels,
)
from chopperd.correlate.waterfall import RowSums, busy_masks
from chopperd.model.devices import MI300X
from chopperd.model.kinds import DType, KernelClass
from chopperd.model.timeline import DeviceTimeline
from tests.unit.correlate.builders import Rec, device, labelled

GEMM, COMM = KernelClass.GEMM, KernelClass.COMM
PEAK_FLOPS_PER_NS, PEAK_MHZ = 1307.4e3, 2100.0
SAMPLE_NS = 200_000


def totals(
    timeline: DeviceTimeline, clock: list[tuple[int, float]] | None = None
) -> EfficiencyTotals:
    pieces = None
    if clock is not None:
        samples = labelled([t for t, _ in clock], [mhz for _, mhz in clock])
        pieces = ClockPieces.of(class_clock(samples, None), ())
    kernels = MatrixKernels.of(timeline, busy_masks(timeline).comm, pieces, MI300X)
    return kernels.totals(partial(RowSums, timeline))


@pytest.mark.parametrize("lowered_mhz", [2000.0, 1400.0, 1000.0])
@pytest.mark.parametrize("slowed", [1.0, 1.2, 2.0])
def test_the_chain_finds_what_kernels_were_made_with(slowed: float, lowered_mhz: float) -> None:
    """Made: 1 ms at the peak x use 1.5, x what communication costs at one clock, x 2100 / clock.

    Blocks of ten kernels, every other one beside communication, which lowers the clock from 2000
    MHz. Where the time of kernels was compared instead of their cycles, a clock of 1400 MHz beside
    communication was counted twice, and use came out as 1.21.
    """
    dice, records, clock, at = Random(1), [], [], 0
    made_ns = beside_ns = 0.0
    for block in range(40):
        beside, began = block % 2 == 1, at
        mhz = lowered_mhz if beside else 2000.0
        for _ in range(10):
            made = 1.5e6 * (slowed if beside else 1.0) * dice.lognormvariate(0, 0.02)
            work = 1e6 * PEAK_FLOPS_PER_NS
            length = round(made * PEAK_MHZ / mhz)
            records.append(Rec(at, at + length, GEMM, flops=work, dtype=DType.BF16))
            at += length
            made_ns, beside_ns = made_ns + made, beside_ns + made * beside
        if beside:
            records.append(Rec(began, at, COMM, stream=20, family=9))
        clock += [(t, mhz) for t in range(began, at, SAMPLE_NS)]
    found = totals(device(records), clock)
    overlap = made_ns / (made_ns - beside_ns + beside_ns / slowed)
    frequency = (at / made_ns) if made_ns else math.nan
    assert found.utilization[-1] == pytest.approx(1.5, rel=0.01)
    assert found.overlap[-1] == pytest.approx(overlap, rel=0.01)
    assert found.frequency[-1] == pytest.approx(frequency, rel=0.01)


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel of a random trace."""

    start: int
    end: int
    family: int
    flops: float
    step: int


def drawn(dice: Random) -> tuple[list[Kernel], list[tuple[int, int]], list[tuple[int, float]]]:
    """Kernels one after another, communication here and there, a clock that is known in part."""
    kernels, at = [], dice.randint(0, 10**6)
    sizes = [1.0, 1.3, 2.0]
    for _ in range(dice.randint(5, 80)):
        at += dice.choice([0, 0, 10**5])
        family, work = dice.randrange(2), dice.choice(sizes)
        length = round(10**6 * work * dice.lognormvariate(0, 0.1))
        kernels.append(Kernel(at, at + length, family, work * 1e12, dice.randint(-1, 2)))
        at += length
    comm, t = [], 0
    while t < at:
        t += dice.randint(1, 10**7)
        end = t + dice.randint(1, 8 * 10**6)
        comm.append((t, end))
        t = end
    last = round(at * dice.choice([0.3, 0.7, 1.0])) + SAMPLE_NS
    clock = [(t, dice.uniform(900, 2100)) for t in range(0, last + SAMPLE_NS, SAMPLE_NS)]
    return kernels, comm, clock


def cycles(clock: list[tuple[int, float]], start: int, end: int) -> tuple[float, float]:
    """MHz x ns, and ns, of the line through the samples, from sample to sample."""
    total = covered = 0.0
    for (left, left_mhz), (right, right_mhz) in pairwise(clock):
        begin, until = max(left, start), min(right, end)
        if begin < until:
            middle = ((begin + until) / 2 - left) / (right - left)
            total += (until - begin) * (left_mhz + middle * (right_mhz - left_mhz))
            covered += until - begin
    return total, covered


def like_ns(values: list[float]) -> float:
    """The median of like kernels; NaN of too few or uneven ones."""
    ordered = sorted(values)
    quarter = len(ordered) // 4
    if len(ordered) < MIN_LIKE_KERNELS:
        return math.nan
    if ordered[-1 - quarter] > MAX_QUARTILE_RATIO * ordered[quarter]:
        return math.nan
    return statistics.median(ordered)


def plainly(
    kernels: list[Kernel],
    every: list[Kernel],
    comm: list[tuple[int, int]],
    clock: list[tuple[int, float]],
) -> tuple[float, float, float]:
    """Utilization, overlap and frequency of some kernels; like ones are looked for in all."""
    beside = {k for k in every if any(k.start < end and begin < k.end for begin, end in comm)}
    steady: dict[Kernel, float] = {}
    for k in every:
        total, covered = cycles(clock, k.start, k.end)
        if covered > 0:
            steady[k] = (k.end - k.start) * total / covered / PEAK_MHZ
    alone: defaultdict[tuple[int, float], list[float]] = defaultdict(list)
    for k in every:
        if k not in beside and k in steady:
            alone[k.family, k.flops].append(steady[k])
    parts = [cycles(clock, k.start, k.end) for k in kernels]
    covered_ns = sum(part[1] for part in parts)
    taken_ns = sum(k.end - k.start for k in kernels)
    frequency = math.nan
    if covered_ns >= MIN_MEASURED_SHARE * taken_ns:
        frequency = covered_ns / (sum(part[0] for part in parts) / PEAK_MHZ)
    mine = [k for k in kernels if k in beside]
    overlap = 1.0
    if mine:
        measured = [
            k for k in mine if k in steady and not math.isnan(like_ns(alone[k.family, k.flops]))
        ]
        measured_ns, beside_ns = (sum(k.end - k.start for k in some) for some in (measured, mine))
        overlap = math.nan
        if measured_ns >= MIN_MEASURED_SHARE * beside_ns:
            slowed = sum(steady[k] for k in measured) / sum(
                like_ns(alone[k.family, k.flops]) for k in measured
            )
            every_ns = sum(steady[k] for k in kernels if k in steady)
            known_ns = sum(steady[k] for k in mine if k in steady)
            overlap = every_ns / (every_ns - known_ns + known_ns / slowed)
    at_peak_ns = sum(k.flops for k in kernels) / PEAK_FLOPS_PER_NS
    return taken_ns / (at_peak_ns * overlap * frequency), overlap, frequency


@given(st.integers(0, 2**32))
@settings(max_examples=15, deadline=None)
def test_every_rows_chain_is_that_of_plain_python(seed: int) -> None:
    kernels, comm, clock = drawn(Random(seed))
    records = [
        Rec(k.start, k.end, GEMM, family=k.family, step=k.step, flops=k.flops, dtype=DType.BF16)
        for k in kernels
    ]
    records += [Rec(begin, end, COMM, stream=20, family=9) for begin, end in comm]
    last = max(rec.end for rec in records)
    timeline = device(records, [(last * n // 3, last * (n + 1) // 3) for n in range(3)])
    found = totals(timeline, clock)
    rows = [[k for k in kernels if k.step == step] for step in range(3)] + [kernels]
    for at, mine in enumerate(rows):
        if not mine:
            assert np.isnan(found.utilization[at])
            continue
        expected = plainly(mine, kernels, comm, clock)
        got = (found.utilization[at], found.overlap[at], found.frequency[at])
        assert got == pytest.approx(expected, rel=1e-9, nan_ok=True)
