"""Tells which classes run at one clock level, so that their samples can serve one another.

Lines in class throw away what was sampled while something else ran. Where the clock does not
depend on what runs that is a fifth of the samples, and those at the borders. So a class's
samples are added to another's where its equality is shown, not where a difference is not: the
whole interval of the difference must lie within 0.5 % (`docs/decisions/`).
"""

from dataclasses import replace
from typing import Final

import numpy as np

from chopperd.correlate.clock.signal import LabelledSamples, RunningClass
from chopperd.model.arrays import Bools, Float64s, Int64s

MAX_DIFFERENCE_RATIO: Final = 0.005
MIN_SAMPLES: Final = 20
_BLOCKS: Final = 20
_MIN_IN_BLOCK: Final = 2


def pooled_by_level(samples: LabelledSamples, running: RunningClass) -> LabelledSamples:
    """The samples with those of classes at the same level labelled as `running`.

    The same object where no class is shown to be.
    """
    member = np.flatnonzero(samples.label == running)
    label = samples.label.copy()
    for other in RunningClass:
        mine = samples.label == other
        if other != running and is_one_level(samples, member, mine):
            label[mine] = running
    return samples if np.array_equal(label, samples.label) else replace(samples, label=label)


def is_one_level(samples: LabelledSamples, member: Int64s, other: Bools) -> bool:
    """Whether the other samples are shown to lie on the class's lines.

    Each other sample between two of the class is held against their line; d is the mean
    difference, its error comes from the means of up to 20 blocks of time (neighbouring samples
    are correlated), and |d| + 2 se must stay below 0.5 % of the class's mean clock.

    Args:
        samples: All samples.
        member: (k,) int64, indices of the class's samples.
        other: (n,) bool, the other class's.
    """
    difference = _off_the_lines_mhz(samples, member, np.flatnonzero(other))
    if len(difference) < MIN_SAMPLES:
        return False
    blocks = min(_BLOCKS, len(difference) // _MIN_IN_BLOCK)
    means = np.array([block.mean() for block in np.array_split(difference, blocks)])
    error = means.std(ddof=1) / np.sqrt(blocks)
    limit = MAX_DIFFERENCE_RATIO * samples.clock_mhz[member].mean()
    return bool(abs(means.mean()) + 2 * error < limit)


def _off_the_lines_mhz(samples: LabelledSamples, member: Int64s, other: Int64s) -> Float64s:
    """How far the clock at each of `other` lies off the class's line there: those with one."""
    t_ns, clock_mhz = samples.t_ns, samples.clock_mhz
    at = np.searchsorted(member, other)
    between = (at > 0) & (at < len(member))
    other, at = other[between], at[between]
    before, after = member[at - 1], member[at]
    near = t_ns[after] - t_ns[before] <= samples.max_in_class_gap_ns
    other, before, after = other[near], before[near], after[near]
    share = (t_ns[other] - t_ns[before]) / (t_ns[after] - t_ns[before])
    line_mhz = clock_mhz[before] + share * (clock_mhz[after] - clock_mhz[before])
    off: Float64s = clock_mhz[other] - line_mhz
    return off
