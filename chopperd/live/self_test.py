"""When sampling is switched off for a while, to find what it costs the steps that a job marks.

Only while steps are marked, and for a small share of the time: samples are what all else rests on.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final, Protocol

import numpy as np

from chopperd.clock import Clock
from chopperd.live.on_off import LEAST_BLOCKS, StepTimeRatio, block_log_ratios, step_time_ratio
from chopperd.model.arrays import Int64s
from chopperd.model.live import SelfTestLive
from chopperd.units import NS_PER_S

#: After a switch so much is left out: an order takes up to half a second to be obeyed.
SETTLE_NS: Final = NS_PER_S
_SHORTEST_NS: Final = 5 * NS_PER_S
#: For no longer are there no samples.
_LONGEST_NS: Final = 30 * NS_PER_S
#: So many steps are to lie in a block, and at least so many must have room in the longest.
_WANTED_STEPS: Final = 12
_LEAST_STEPS: Final = 4
#: How often marked steps are looked for while there are none.
_LOOK_EVERY_NS: Final = 5 * NS_PER_S
#: Older blocks are forgotten.
_MOST_BLOCKS: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkedSteps:
    """Steps that one rank of a job marked.

    Attributes:
        run: What tells this run of this job from others.
        end_mono_ns: (n,) int64, rising; when each ended.
        duration_ns: (n,) int64, how long it took.
    """

    run: str
    end_mono_ns: Int64s
    duration_ns: Int64s


class StepMarks(Protocol):
    """Where marked steps come from."""

    def steps(self, since_mono_ns: int) -> MarkedSteps | None:
        """The steps of the run that marks longest, those that ended since; None: none does."""
        ...


class NoStepMarks:
    """Nothing marks steps."""

    def steps(self, since_mono_ns: int) -> MarkedSteps | None:  # noqa: ARG002 - as the protocol has it
        """None."""
        return None


@dataclass(slots=True)
class _Block:
    """A quiet block: planned, begun or over; void once anything else has disturbed it."""

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
    """Draws quiet blocks, has them kept, and compares; one thread calls it again and again.

    In each cycle, which is as long as the share of quiet time demands, there is one block at a
    point drawn anew.

    Args:
        marks: The steps.
        quiet: Has sampling make no driver call until a time of CLOCK_MONOTONIC.
        clock: Tells the time.
        share_ratio: Share of the time that may be quiet; 0 switches it off.
        seed: Draws the blocks.
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
        self._look_at_ns = 0
        self._run: str | None = None
        self._log_ratios: deque[float] = deque(maxlen=_MOST_BLOCKS)
        self._found: StepTimeRatio | None = None
        self._reason = "no steps are marked" if share_ratio else "switched off"

    def turn(self, *, is_steady: bool) -> None:
        """Begin, watch over or evaluate a block, as it comes; call it a few times a second.

        Args:
            is_steady: Whether sampling goes on as configured, but for the blocks.
        """
        if not self._share_ratio:
            return
        now_ns = self._clock.mono_ns()
        block = self._block
        if block is None:
            if now_ns >= self._look_at_ns:
                self._look_at_ns = now_ns + _LOOK_EVERY_NS
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
        """What was found so far."""
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
        """The block of the cycle that begins now; None while there is nothing to compare."""
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
        """The marked steps; what was found of another run is forgotten."""
        steps = self._marks.steps(since_ns)
        if steps is not None and steps.run != self._run:
            self._run = steps.run
            self._log_ratios.clear()
            self._found = None
            if self._block is not None:
                self._block.is_void = True
        return steps
