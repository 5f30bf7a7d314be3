"""What sampling costs a job: times of its steps with sampling and without, block by block.

Each quiet block is compared with as much time on either side of it, so that whatever drifts over
minutes cancels; when blocks come is drawn, so that no rhythm of the job keeps time with them. The
block, not the step, is the unit of the interval: neighbouring steps are alike.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from chopperd.model.arrays import Float64s, Int64s

#: A stretch with fewer whole steps has no mean to compare.
LEAST_STEPS: Final = 3
#: With fewer blocks nothing is said.
LEAST_BLOCKS: Final = 10
#: The interval leaves out so much on either side.
_TAIL: Final = 0.025


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimeRatio:
    """Mean step time with sampling over that without, and its 95 % interval.

    Attributes:
        ratio, low, high: 1.02: sampling makes steps 2 % longer.
        block_count: Blocks that it rests on.
    """

    ratio: float
    low: float
    high: float
    block_count: int


def block_log_ratios(
    end_ns: Int64s,
    duration_ns: Int64s,
    quiet_start_ns: Int64s,
    quiet_end_ns: Int64s,
    settle_ns: int,
) -> Float64s:
    """The log of step time with sampling over without, (b,) float64; NaN where not comparable.

    Of the block, and of the time as long before and after it, the first `settle_ns` are left out
    (all three alike, so that none is favoured), and steps count that lie wholly in the rest: one
    that straddles a switch says nothing. Both sides weigh the same, which cancels a linear drift.

    Args:
        end_ns: (n,) int64, rising; when each step ended.
        duration_ns: (n,) int64, > 0; how long it took.
        quiet_start_ns: (b,) int64, when sampling was to stop.
        quiet_end_ns: (b,) int64, when it was to go on.
        settle_ns: What a switch takes to be carried out and felt.
    """
    length_ns = quiet_end_ns - quiet_start_ns
    means = [
        _log_mean(end_ns, duration_ns, first_ns + settle_ns, first_ns + length_ns)
        for first_ns in (quiet_start_ns - length_ns, quiet_start_ns, quiet_end_ns)
    ]
    ratios: Float64s = (means[0] + means[2]) / 2 - means[1]
    return ratios


def step_time_ratio(log_ratios: Float64s) -> StepTimeRatio | None:
    """The ratio over all blocks, (b,) float64 of which NaN is left out; None: too few blocks.

    The median of all pairwise means (Hodges-Lehmann) with the interval that belongs to the
    signed-rank test: it asks for no shape but symmetry, and a step that saved a checkpoint or
    waited for data does not widen it.

    Source: J. L. Hodges and E. L. Lehmann, "Estimates of location based on rank tests", Annals of
    Mathematical Statistics 34 (1963); F. Wilcoxon, Biometrics Bulletin 1 (1945).
    """
    known = log_ratios[np.isfinite(log_ratios)]
    count = len(known)
    if count < LEAST_BLOCKS:
        return None
    first, second = np.triu_indices(count)
    means = np.sort((known[first] + known[second]) / 2)
    outside = _outside_count(count)
    log_low, log_middle, log_high = means[outside], np.median(means), means[-1 - outside]
    return StepTimeRatio(
        ratio=float(np.exp(log_middle)),
        low=float(np.exp(log_low)),
        high=float(np.exp(log_high)),
        block_count=count,
    )


def _log_mean(end_ns: Int64s, duration_ns: Int64s, from_ns: Int64s, to_ns: Int64s) -> Float64s:
    """The log of the mean length of the steps inside each `[from, to)`, (b,); NaN of too few."""
    first = np.searchsorted(end_ns - duration_ns, from_ns, "left")
    last = np.searchsorted(end_ns, to_ns, "right")
    count = np.maximum(last - first, 0)
    total_ns = np.concatenate(([0], np.cumsum(duration_ns)))
    enough = count >= LEAST_STEPS
    mean_ns = np.full(len(count), np.nan)
    mean_ns[enough] = (total_ns[last] - total_ns[first])[enough] / count[enough]
    logs: Float64s = np.log(mean_ns)
    return logs


def _outside_count(count: int) -> int:
    """How many of the ordered pairwise means lie outside the interval, on either side.

    The rank sum of n differences of either sign is distributed as a sum of those of 1, 2, ... n
    that are drawn with probability 1/2 each; its distribution is worked out exactly.
    """
    chance = np.ones(1)
    for rank in range(1, count + 1):
        longer = np.zeros(len(chance) + rank)
        longer[: len(chance)] += chance / 2
        longer[rank:] += chance / 2
        chance = longer
    return int(np.searchsorted(np.cumsum(chance), _TAIL, "right")) - 1
