"""When sampling is switched off, and what is made of it, on scripted times."""

from collections.abc import Callable

import numpy as np
import pytest

from chopperd.live.self_test import MarkedSteps, NoStepMarks, SelfTest, StepMarks
from tests.fakes.clock import ScriptedClock

SECOND = 1_000_000_000
TURN_NS = SECOND // 5


class Job:
    """Steps of a length that depends on whether sampling goes on; they end by the clock."""

    def __init__(self, clock: ScriptedClock, step_s: float, ratio: float = 1.0) -> None:
        self.run = "first"
        self.quiet_until_ns = 0
        self.is_marking = True
        self._clock = clock
        self._step_ns = round(step_s * SECOND)
        self._ratio = ratio
        self._ends_ns: list[int] = []
        self._lengths_ns: list[int] = []
        self._next_ns = clock.mono_ns()

    def go_on(self) -> None:
        """Make the steps that have ended by now."""
        while self.is_marking:
            is_quiet = self._next_ns < self.quiet_until_ns
            length_ns = round(self._step_ns * (1.0 if is_quiet else self._ratio))
            if self._next_ns + length_ns > self._clock.mono_ns():
                return
            self._next_ns += length_ns
            self._ends_ns.append(self._next_ns)
            self._lengths_ns.append(length_ns)

    def steps(self, since_mono_ns: int) -> MarkedSteps | None:
        first = int(np.searchsorted(self._ends_ns, since_mono_ns))
        return MarkedSteps(
            run=self.run,
            end_mono_ns=np.array(self._ends_ns[first:], np.int64),
            duration_ns=np.array(self._lengths_ns[first:], np.int64),
        )


class Bench:
    """A self-test over a job, turned five times a second; `quiets` is what it asked for."""

    def __init__(
        self,
        step_s: float = 0.5,
        ratio: float = 1.0,
        share_ratio: float = 0.02,
        seed: int = 1,
        marks: StepMarks | None = None,
    ) -> None:
        self.clock = ScriptedClock(mono_ns=100 * SECOND)
        self.job = Job(self.clock, step_s, ratio)
        self.quiets: list[tuple[int, int]] = []
        self.is_steady: Callable[[], bool] = lambda: True
        self.test = SelfTest(
            marks or self.job, self._quiet, self.clock, share_ratio=share_ratio, seed=seed
        )

    def _quiet(self, until_mono_ns: int) -> None:
        self.quiets.append((self.clock.mono_ns(), until_mono_ns))
        self.job.quiet_until_ns = until_mono_ns

    def go_on(self, seconds: float) -> None:
        for _ in range(round(seconds * 5)):
            self.clock.advance(TURN_NS)
            self.job.go_on()
            self.test.turn(is_steady=self.is_steady())

    @property
    def quiet_s(self) -> float:
        return sum(until - begun for begun, until in self.quiets) / SECOND


def test_without_marked_steps_sampling_is_never_switched_off() -> None:
    bench = Bench(share_ratio=0.1, marks=NoStepMarks())
    bench.go_on(2000)
    assert bench.quiets == []
    live = bench.test.live()
    assert (live.step_time_ratio, live.reason) == (None, "no steps are marked")


def test_it_can_be_switched_off() -> None:
    bench = Bench(share_ratio=0.0)
    bench.go_on(2000)
    assert bench.quiets == []
    assert bench.test.live().reason == "switched off"


def test_the_share_of_quiet_time_is_kept_and_blocks_come_at_drawn_times() -> None:
    """Steps of 0.5 s: blocks of 1 + 12 * 0.5 = 7 s, one in each 350 s."""
    bench = Bench(share_ratio=0.02)
    bench.go_on(7000)
    assert len(bench.quiets) == pytest.approx(20, abs=1)
    assert {until - begun for begun, until in bench.quiets} == {7 * SECOND}
    assert bench.quiet_s <= 0.0205 * 7000
    into_s = np.diff([begun for begun, _ in bench.quiets]) / SECOND
    assert into_s.min() > 3 * 7
    assert into_s.std() > 50
    other = Bench(seed=2)
    other.go_on(700)
    assert other.quiets != bench.quiets[:2]


@pytest.mark.parametrize("ratio", [1.0, 1.02])
def test_what_sampling_costs_is_found_once_ten_blocks_are_over(ratio: float) -> None:
    bench = Bench(ratio=ratio, share_ratio=0.1)
    bench.go_on(8 * 70)
    early = bench.test.live()
    assert early.step_time_ratio is None
    assert early.reason is not None
    assert "of 10 quiet blocks so far" in early.reason
    bench.go_on(5 * 70)
    live = bench.test.live()
    assert live.reason is None
    assert live.block_count >= 10
    assert live.step_time_ratio == pytest.approx(ratio, abs=1e-6)
    assert live.low_ratio == pytest.approx(ratio, abs=1e-6)
    assert live.high_ratio == pytest.approx(ratio, abs=1e-6)


def test_a_block_that_a_burst_or_a_pause_disturbs_is_not_counted() -> None:
    bench = Bench(share_ratio=0.1)
    bench.go_on(300)
    before = bench.test.live().block_count
    bench.is_steady = lambda: False
    count = len(bench.quiets)
    bench.go_on(300)
    assert len(bench.quiets) == count  # nor is one begun
    assert bench.test.live().block_count <= before + 1
    bench.is_steady = lambda: True
    bench.go_on(300)
    assert len(bench.quiets) > count


def test_a_disturbance_after_the_block_has_begun_voids_it_too() -> None:
    bench = Bench(share_ratio=0.1)
    bench.is_steady = lambda: not bench.quiets  # it lasts, from within the first block on
    bench.go_on(500)
    assert len(bench.quiets) == 1
    assert bench.test.live().block_count == 0


def test_when_the_steps_stop_no_more_blocks_are_begun() -> None:
    bench = Bench(share_ratio=0.1)
    bench.go_on(200)
    bench.job.is_marking = False
    count = len(bench.quiets)
    bench.go_on(300)
    assert len(bench.quiets) <= count + 1
    assert bench.test.live().reason == "no steps are marked"


def test_steps_that_are_too_long_are_not_measurable_and_that_is_said() -> None:
    bench = Bench(step_s=10.0, share_ratio=0.1)
    bench.go_on(1000)
    assert bench.quiets == []
    assert bench.test.live().reason == "steps of 10 s are too long to be compared"


def test_no_block_is_longer_than_half_a_minute() -> None:
    bench = Bench(step_s=5.0, share_ratio=0.1)
    bench.go_on(1500)
    assert {until - begun for begun, until in bench.quiets} == {30 * SECOND}
    assert bench.test.live().block_count > 1


def test_what_was_found_of_a_run_is_forgotten_with_the_next() -> None:
    bench = Bench(share_ratio=0.1)
    bench.go_on(15 * 70)
    assert bench.test.live().step_time_ratio is not None
    bench.job.run = "second"
    bench.go_on(140)
    live = bench.test.live()
    assert live.step_time_ratio is None
    assert live.block_count < 3
