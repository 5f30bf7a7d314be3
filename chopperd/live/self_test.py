"""Self-test: the cost of sampling to a job's steps, measured by short blocks without sampling.

Only while steps are marked, and for a small share of the time.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final, Protocol

import numpy as np

from chopperd.clock import Clock
from chopperd.model.arrays import Float64s, Int64s
from chopperd.model.live import SelfTestLive
from chopperd.units import NS_PER_S

# Each quiet block is compared with as much time on either side, so that drifts over minutes cancel;
# blocks come at random, so that they are in step with no rhythm of the job. The interval is over
# blocks, not steps: neighbouring steps are alike.

#: Time with fewer whole steps is not compared.
LEAST_STEPS: Final = 3
#: With fewer blocks no result is given.
LEAST_BLOCKS: Final = 10
#: Probability outside the interval, on either side.
_TAIL: Final = 0.025


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimeRatio:
    """Mean step time with sampling over that without, and its 95 % interval."""

    #: 1.02: sampling makes steps 2 % longer.
    ratio: float
    low: float
    high: float
    block_count: int  # number of blocks measured


def block_log_ratios(
    end_ns: Int64s,
    duration_ns: Int64s,
    quiet_start_ns: Int64s,
    quiet_end_ns: Int64s,
    settle_ns: int,
) -> Float64s:
    """Compute ln(step time with sampling / without) by block, (b,) float64; NaN if not comparable.

    Of the block, and of the time as long before and after it, the first `settle_ns` are left out
    (all three alike, so that none is favoured), and steps count that lie within the rest: one that
    straddles a switch is no evidence. Both sides weigh the same, which cancels a linear drift.

    Args:
        end_ns: (n,) int64, rising; when each step ended.
        duration_ns: (n,) int64, > 0; how long it took.
        quiet_start_ns: (b,) int64, when sampling was to stop.
        quiet_end_ns: (b,) int64, when it was to go on.
        settle_ns: Time after a switch until it has taken effect.
    """
    length_ns = quiet_end_ns - quiet_start_ns
    means = [
        _log_mean(end_ns, duration_ns, first_ns + settle_ns, first_ns + length_ns)
        for first_ns in (quiet_start_ns - length_ns, quiet_start_ns, quiet_end_ns)
    ]
    ratios: Float64s = (means[0] + means[2]) / 2 - means[1]
    return ratios


def step_time_ratio(log_ratios: Float64s) -> StepTimeRatio | None:
    """Estimate the ratio over all blocks; None if fewer than `LEAST_BLOCKS` are known.

    Of (b,) float64 log ratios, NaN left out, it is the median of all pairwise means
    (Hodges-Lehmann) with the interval that belongs to the signed-rank test: it asks for no shape
    but symmetry, and a step that saved a checkpoint or waited for data does not widen it.

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
    """Compute ln of the mean step length in ns within each `[from, to)`, (b,); NaN if too few."""
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
    """Count the ordered pairwise means that lie outside the interval, on either side.

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


#: Left out after a switch, as the sampler takes up to half a second to follow an order.
SETTLE_NS: Final = NS_PER_S
_SHORTEST_NS: Final = 5 * NS_PER_S
#: Longest time without samples.
_LONGEST_NS: Final = 30 * NS_PER_S
#: Steps wanted in a block, and least that must fit into the longest one.
_WANTED_STEPS: Final = 12
_LEAST_STEPS: Final = 4
#: How often marked steps are searched for while there are none.
_SEARCH_EVERY_NS: Final = 5 * NS_PER_S
#: Older blocks are forgotten.
_MOST_BLOCKS: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkedSteps:
    """Steps that one rank of a job marked."""

    run: str  # identifies this run of this job
    end_mono_ns: Int64s  # (n,) int64, rising; when each ended
    duration_ns: Int64s  # (n,) int64, how long it took


class StepMarks(Protocol):
    """A source of marked steps."""

    def steps(self, since_mono_ns: int) -> MarkedSteps | None:
        """Return steps ended since a time, of the run that has marked longest; None if none."""
        ...


class NoStepMarks:
    """A source without any marked steps."""

    def steps(self, since_mono_ns: int) -> MarkedSteps | None:  # noqa: ARG002 - as the protocol has it
        """Return None."""
        return None


@dataclass(slots=True)
class _Block:
    """A quiet block: planned, begun or over; void once something has disturbed it."""

    start_ns: int
    length_ns: int
    cycle_end_ns: int
    is_begun: bool = False
    is_over: bool = False
    is_void: bool = False

    @property
    def end_ns(self) -> int:
        return self.start_ns + self.length_ns


class SelfTest:
    """Measures the cost of sampling by quiet blocks, one at a random time in each cycle.

    A cycle is as long as the share of quiet time requires. For one thread.

    Args:
        quiet: Stops driver calls until a time of CLOCK_MONOTONIC.
        share_ratio: Share of the time that may be quiet; 0 switches it off.
    """

    def __init__(
        self,
        marks: StepMarks,
        quiet: Callable[[int], None],
        clock: Clock,
        *,
        share_ratio: float,
        seed: int,
    ) -> None:
        self._marks = marks
        self._quiet = quiet
        self._clock = clock
        self._share_ratio = share_ratio
        self._random = Random(seed)
        self._block: _Block | None = None
        self._search_ns = 0
        self._run: str | None = None
        self._log_ratios: deque[float] = deque(maxlen=_MOST_BLOCKS)
        self._found: StepTimeRatio | None = None
        self._reason = "no steps are marked" if share_ratio else "switched off"

    def turn(self, *, is_steady: bool) -> None:
        """Plan, begin or evaluate a block; call it a few times a second.

        Args:
            is_steady: Whether sampling is as configured, except for the blocks.
        """
        if not self._share_ratio:
            return
        now_ns = self._clock.mono_ns()
        block = self._block
        if block is None:
            if now_ns >= self._search_ns:
                self._search_ns = now_ns + _SEARCH_EVERY_NS
                self._block = self._planned(now_ns)
            return
        block.is_void |= not is_steady and now_ns >= block.start_ns - block.length_ns
        if not block.is_begun and now_ns >= block.start_ns:
            self._begin(block, now_ns)
        elif not block.is_over and now_ns >= block.end_ns + block.length_ns + SETTLE_NS:
            self._evaluate(block)
        if block.is_over and now_ns >= block.cycle_end_ns:
            self._block = None

    def live(self) -> SelfTestLive:
        """Return the step time ratio found so far, or the reason why there is none."""
        found = self._found
        if found is None:
            return SelfTestLive(block_count=len(self._log_ratios), reason=self._reason)
        return SelfTestLive(
            step_time_ratio=found.ratio,
            low_ratio=found.low,
            high_ratio=found.high,
            block_count=found.block_count,
        )

    def _planned(self, now_ns: int) -> _Block | None:
        """Plan the block of a cycle that begins now; None, and store why, without steps."""
        steps = self._steps(now_ns - 2 * _LONGEST_NS)
        if steps is None or len(steps.end_mono_ns) < _LEAST_STEPS:
            self._reason = "no steps are marked"
            return None
        step_ns = float(np.mean(steps.duration_ns))
        if SETTLE_NS + _LEAST_STEPS * step_ns > _LONGEST_NS:
            self._reason = f"steps of {step_ns / NS_PER_S:.0f} s are too long to be compared"
            return None
        wanted_ns = SETTLE_NS + round(_WANTED_STEPS * step_ns)
        length_ns = min(max(wanted_ns, _SHORTEST_NS), _LONGEST_NS)
        cycle_ns = round(length_ns / self._share_ratio)
        into_ns = length_ns + round(self._random.random() * (cycle_ns - 3 * length_ns))
        self._reason = f"{len(self._log_ratios)} of {LEAST_BLOCKS} quiet blocks so far"
        return _Block(
            start_ns=now_ns + into_ns, length_ns=length_ns, cycle_end_ns=now_ns + cycle_ns
        )

    def _begin(self, block: _Block, now_ns: int) -> None:
        block.is_begun = True
        block.start_ns = now_ns
        recent = self._steps(now_ns - block.length_ns)
        block.is_void |= recent is None or len(recent.end_mono_ns) == 0
        if block.is_void:
            block.is_over = True
        else:
            self._quiet(block.end_ns)

    def _evaluate(self, block: _Block) -> None:
        block.is_over = True
        steps = self._steps(block.start_ns - block.length_ns)
        if steps is None or block.is_void:
            return
        log_ratio = block_log_ratios(
            steps.end_mono_ns,
            steps.duration_ns,
            np.array([block.start_ns]),
            np.array([block.end_ns]),
            SETTLE_NS,
        )
        if np.isfinite(log_ratio[0]):
            self._log_ratios.append(float(log_ratio[0]))
            self._found = step_time_ratio(np.array(self._log_ratios))

    def _steps(self, since_ns: int) -> MarkedSteps | None:
        """Return the steps marked since a time; if another run marks them, discard all results."""
        steps = self._marks.steps(since_ns)
        if steps is not None and steps.run != self._run:
            self._run = steps.run
            self._log_ratios.clear()
            self._found = None
            if self._block is not None:
                self._block.is_void = True
        return steps
