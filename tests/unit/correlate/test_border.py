"""The correction for the clock's settling where a class begins, by hand."""

from dataclasses import replace

import numpy as np
import pytest

from chopperd.correlate.border import border_correction_mhz
from chopperd.correlate.losses import TimingUncertainty, Windows, mean_clock
from chopperd.correlate.signal import LabelledSamples
from tests.unit.correlate.builders import COMM, COMPUTE, MS, labelled, spans

EXACT = TimingUncertainty(join_ns=0.0, lag_ns=0)
COMPUTE_TIME = spans((0, 150 * MS), (290 * MS, 400 * MS))


def around_a_communication() -> LabelledSamples:
    """Compute samples at 0, 100, 300, 400 ms and one in communication at 200."""
    return labelled(
        [n * 100 * MS for n in range(5)],
        [1400, 1500, 1950, 1600, 1400],
        [COMPUTE, COMPUTE, COMM, COMPUTE, COMPUTE],
    )


def test_the_correction_is_each_samples_missing_time_times_its_residual() -> None:
    """By hand, times in ms.

    The sample at 100 has a hat with feet at 0 and 300: over compute 50 (rising), 43.75 on
    [100, 150), 0.25 on [290, 300): 94 of the 100 that it stands for. The sample at 300, feet at
    100 and 400: 6.25 on [100, 150), 9.75 on [290, 300), 50 (falling): 66 of 100.
    Residuals against the line through the neighbours: 1500 - 1466.67 and 1600 - 1433.33.
    (6 x 33.33 + 34 x 166.67) / (94 + 66) = 36.67.
    """
    found = border_correction_mhz(around_a_communication(), COMPUTE, COMPUTE_TIME)
    assert found == pytest.approx(5866.667 / 160, rel=1e-6)


def test_fewer_than_three_samples_of_the_class_correct_nothing() -> None:
    samples = labelled([0, 100, 200], [1400, 1950, 1500], [COMPUTE, COMM, COMPUTE])
    assert border_correction_mhz(samples, COMPUTE, spans((0, 200))) == 0.0


def test_samples_beside_a_gap_correct_nothing() -> None:
    """The samples at 100 and 300 each have a neighbour further off than 3 x 33 ms."""
    samples = replace(around_a_communication(), period_ns=33 * MS)
    assert border_correction_mhz(samples, COMPUTE, COMPUTE_TIME) == 0.0


def test_a_sample_whose_line_in_class_is_too_long_to_be_used_corrects_nothing() -> None:
    """Compute at 0, 400 and from 1300 ms on, at 100 ms: 400 to 1300 is no more than a second.

    At 1100 ms apart (a longer stretch of communication) the clock there hangs on all samples, so
    residuals against the line in class say nothing of it: both ends of that line are left out.
    """
    label = [COMPUTE, COMPUTE, *[COMM] * 10, COMPUTE, COMPUTE]
    clock_mhz = [1400.0, 1500.0, *[1950.0] * 10, 1600.0, 1400.0]
    samples = labelled([n * 100 * MS for n in range(14)], clock_mhz, label)
    compute = spans((0, 150 * MS), (1190 * MS, 1300 * MS))
    assert border_correction_mhz(samples, COMPUTE, compute) == 0.0


def test_only_lines_in_class_are_corrected() -> None:
    """Before the first compute sample the line is of all samples and stands as measured.

    Its mean over [0, 100) ms is (1000 + 1400) / 2; the correction is for the class's own lines.
    """
    before = around_a_communication()
    samples = labelled(
        [0, *(before.t_ns + 100 * MS).tolist()],
        [1000.0, *before.clock_mhz.tolist()],
        [COMM, COMPUTE, COMPUTE, COMM, COMPUTE, COMPUTE],
    )
    compute = spans((0, 250 * MS), (390 * MS, 500 * MS))
    windows = Windows(
        start_ns=np.array([0, 200 * MS], np.int64), end_ns=np.array([100 * MS, 250 * MS], np.int64)
    )
    mean = mean_clock(samples, COMPUTE, compute, windows, EXACT)
    assert mean.mean_mhz[0] == pytest.approx(1200.0)
    assert mean.mean_mhz[1] > 1500.0 + 25 * (1600 - 1500) / 200
