"""The correction for the clock's settling where a class begins, by hand."""

import numpy as np
import pytest
from msgspec.structs import replace

from chopperd.correlate.clock.precision import TimingUncertainty
from chopperd.correlate.clock.signal import LabelledSamples, RunningClass, border_correction_mhz
from chopperd.correlate.losses import mean_clock
from chopperd.correlate.waterfall import Windows
from chopperd.model.timeline import Intervals
from tests.unit.correlate.builders import COMM, COMPUTE, COPY, MS, labelled, spans

EXACT = TimingUncertainty(join_ns=0.0, lag_ns=0)
PERIODS = 10


def pattern(lengthened_ms: int = 0) -> tuple[LabelledSamples, Intervals]:
    """Ten times 500 ms: compute at 0, 100, 300, 400 ms, communication at 200 ms.

    Compute runs in [0, 150) and [290, 500) ms; `lengthened_ms` are added before each 300 ms.
    """
    starts = [n * (500 + lengthened_ms) for n in range(PERIODS)]
    late = lengthened_ms
    samples = labelled(
        [(s + t) * MS for s in starts for t in (0, 100, 200, 300 + late, 400 + late)],
        [1400.0, 1500.0, 1950.0, 1600.0, 1400.0] * PERIODS,
        [COMPUTE, COMPUTE, COMM, COMPUTE, COMPUTE] * PERIODS,
        period_ns=100 * MS,
    )
    compute = [(s + t) * MS for s in starts for t in (0, 150, 290 + late, 500 + late)]
    return samples, spans(*zip(compute[::2], compute[1::2], strict=True))


def test_the_correction_is_the_mean_residual_by_time_stood_for_less_that_by_time_given() -> None:
    """By hand, times in ms; every sample stands for 100.

    The sample at 100 has a hat with feet at 0 and 300: over compute 50 (rising), 43.75 on
    [100, 150), 0.25 on [290, 300): 94. The sample at 300, feet at 100 and 400: 6.25 on
    [100, 150), 9.75 on [290, 300), 50 (falling): 66. Those at 0 and 400: 100 each.
    Residuals against the lines through the neighbours at 0, 100, 300, 400: -50, 100/3, 500/3,
    -100. The very first (at 0) and last (at 400) have no line. In all:
    by time stood for (10 x 50 + 50 + 100) / 38 = 17.1053,
    by time given (10 x (-866.667) + 5000 + 10000) / 3400 = 1.8627.
    """
    samples, compute = pattern()
    assert border_correction_mhz(samples, COMPUTE, compute) == pytest.approx(15.2425, abs=1e-4)


def test_few_samples_of_the_class_correct_nothing() -> None:
    """Of 30 samples in the class, 28 have a line."""
    samples, compute = pattern()
    kept = np.arange(len(samples)) < 37
    few = replace(
        samples,
        t_ns=samples.t_ns[kept],
        clock_mhz=samples.clock_mhz[kept],
        label=samples.label[kept],
    )
    assert np.count_nonzero(few.label == COMPUTE) == 30
    assert border_correction_mhz(few, COMPUTE, compute) == 0.0


def test_samples_without_any_of_the_class_correct_nothing() -> None:
    samples, _ = pattern()
    assert border_correction_mhz(samples, COPY, spans()) == 0.0


def test_samples_beside_a_gap_correct_nothing() -> None:
    """With a period of 33 ms every spacing of 100 ms is a gap."""
    samples, compute = pattern()
    assert border_correction_mhz(replace(samples, period_ns=33 * MS), COMPUTE, compute) == 0.0


def test_samples_whose_line_in_class_is_too_long_to_be_used_correct_nothing() -> None:
    """1001 ms from 100 to 300 ms: the clock there hangs on all samples; no other is left."""
    samples, compute = pattern(lengthened_ms=801)
    wide = replace(samples, period_ns=310 * MS)
    assert wide.max_in_class_gap_ns == 1000 * MS
    assert border_correction_mhz(wide, COMPUTE, compute) == 0.0


def test_only_lines_in_class_are_corrected() -> None:
    """Before the first compute sample the line is of all samples and stands as measured.

    Its mean over [0, 100) ms is (1000 + 1400) / 2; the first line in class, [100, 200) ms with a
    mean of 1450 MHz, is corrected.
    """
    after, compute = pattern()
    samples = labelled(
        [0, *(after.t_ns + 100 * MS).tolist()],
        [1000.0, *after.clock_mhz.tolist()],
        [COMM, *[RunningClass(label) for label in after.label.tolist()]],
    )
    mask = Intervals(
        start_ns=np.concatenate(([0], compute.start_ns[1:] + 100 * MS)),
        end_ns=compute.end_ns + 100 * MS,
    )
    windows = Windows(
        start_ns=np.array([0, 100 * MS], np.int64), end_ns=np.array([100 * MS, 200 * MS], np.int64)
    )
    mean = mean_clock(samples, COMPUTE, mask, windows, EXACT)
    correction_mhz = border_correction_mhz(samples, COMPUTE, mask)
    assert correction_mhz > 10
    assert mean.mean_mhz.tolist() == pytest.approx([1200.0, 1450.0 + correction_mhz])
