"""Real sampler processes that are asked for bursts and quiet times, and that find idle GPUs."""

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from chopperd.live.node import LiveNode
from chopperd.model.live import GpuLive, SamplerCondition, SamplerLive
from chopperd.sampling.memory.layout import Pace
from chopperd.sampling.memory.ring_reader import RingReader, is_laid_out
from chopperd.sampling.orders import Burst, Quiet, encoded
from chopperd.sampling.settings import SamplerSettings
from chopperd.sampling.supervisor import SamplerSupervisor, SupervisorState
from chopperd.units import NS_PER_MS, NS_PER_S
from tests.integration.sampling.supervised import CLOCK, SCRIPT, in_s, kill, statuses, wait_for_pace
from tests.waiting import wait_for

pytestmark = pytest.mark.usefixtures("nothing_left_behind")

RUNNING = SamplerLive(condition=SamplerCondition.RUNNING)


def test_a_burst_raises_the_rate_of_all_gpus_and_ends_by_itself(
    started: Callable[..., SamplerSupervisor],
) -> None:
    sampler = started()
    until_ns = in_s(3)
    assert sampler.order(Burst(hz=100.0, until_mono_ns=until_ns))
    wait_for_pace(sampler, Pace.BURST)
    first = statuses(sampler)
    assert [each.period_ns for each in first] == [10 * NS_PER_MS] * 2
    assert [each.asked_period_ns for each in first] == [100 * NS_PER_MS] * 2
    begun_ns = CLOCK.mono_ns()
    wait_for_pace(sampler, Pace.ASKED)
    assert CLOCK.mono_ns() >= until_ns
    for before, after in zip(first, statuses(sampler), strict=True):
        due = after.ticks_count + after.missed_count - before.ticks_count - before.missed_count
        assert due > 0.9 * 100 * (until_ns - begun_ns) / NS_PER_S - 5
        assert after.period_ns == 100 * NS_PER_MS


def test_a_successor_takes_over_a_burst(started: Callable[..., SamplerSupervisor]) -> None:
    sampler = started()
    sampler.order(Burst(hz=100.0, until_mono_ns=in_s(50)))
    wait_for_pace(sampler, Pace.BURST)
    kill(sampler)
    wait_for(lambda: sampler.poll() is SupervisorState.RUNNING and sampler.reader.generation == 2)
    wait_for_pace(sampler, Pace.BURST)
    sampler.order(Burst(hz=100.0, until_mono_ns=0))  # ends it
    wait_for_pace(sampler, Pace.ASKED)


def test_an_order_that_came_while_there_was_no_process_is_told_to_the_next(
    started: Callable[..., SamplerSupervisor],
) -> None:
    sampler = started()
    sampler.suspend()
    assert not sampler.order(Burst(hz=100.0, until_mono_ns=in_s(50)))
    sampler.launch()
    wait_for(lambda: sampler.poll() is SupervisorState.RUNNING)
    wait_for_pace(sampler, Pace.BURST)


def test_a_sampler_that_does_not_read_its_orders_holds_nobody_up(
    started: Callable[..., SamplerSupervisor], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It hangs in the opening of its driver; the pipe holds some thousand orders, and no more."""
    (tmp_path / "hang-open").touch()
    sampler = started(wait=False, burst_budget_ratio=1.0)
    order = Burst(hz=100.0, until_mono_ns=in_s(50))
    with caplog.at_level(logging.WARNING):
        taken = [sampler.order(order) for _ in range(5000)]
    assert taken[0]
    assert not taken[-1]
    assert [record.getMessage() for record in caplog.records] == [
        f"the sampler does not take its orders; one is dropped: {order}"
    ]


def test_idle_gpus_are_read_less_often_until_one_works_and_that_is_said(
    started: Callable[..., SamplerSupervisor], tmp_path: Path
) -> None:
    (tmp_path / "idle-1").touch()
    sampler = started(idle_hz=1.0, idle_after_s=0.5)
    node = LiveNode(CLOCK, version="1", node="n", backend="scripted", slow_hz=1.0)
    node.follow(sampler.reader)

    def gpus() -> tuple[GpuLive, ...]:
        return node.snapshot(RUNNING).gpus

    wait_for(lambda: [gpu.pace for gpu in gpus()] == ["asked", "idle"])
    assert [gpu.kept_hz for gpu in gpus()] == [10.0, 1.0]
    wait_for(lambda: gpus()[1].ticks_count >= 8)
    assert all(gpu.up for gpu in gpus())
    (tmp_path / "idle-1").unlink()
    wait_for(lambda: [gpu.pace for gpu in gpus()] == ["asked", "asked"])
    node.follow(None)


def test_a_driver_that_is_slow_is_read_less_often_and_that_is_said(
    started: Callable[..., SamplerSupervisor],
) -> None:
    """20 ms of each 100 ms are ten times the budget; a slow machine makes it more."""
    slow = [str(SCRIPT), "--gpus", "2", "--call-s", "0.02"]
    sampler = started(*slow, budget_ratio=0.02)
    wait_for_pace(sampler, Pace.BUDGET)
    assert all(each.period_ns >= 900 * NS_PER_MS for each in statuses(sampler))


class Piped:
    """A sampler whose pipe is in the test's hand."""

    def __init__(self) -> None:
        self.ring_fd = os.memfd_create("ring")
        settings = SamplerSettings(hz=10.0, burst_hz=100.0, budget_ratio=1.0)
        self.process = subprocess.Popen(
            [sys.executable, str(SCRIPT), "--ring-fd", str(self.ring_fd), *settings.to_argv()],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=(self.ring_fd,),
        )
        wait_for(lambda: is_laid_out(self.ring_fd))
        wait_for(lambda: RingReader(self.ring_fd).gpu_slots)
        self.reader = RingReader(self.ring_fd)
        wait_for(lambda: self.reader.status(0).written > 2)

    def tell(self, data: bytes) -> None:
        assert self.process.stdin is not None
        os.write(self.process.stdin.fileno(), data)

    def end(self) -> int:
        """Close the pipe; the status with which it ends."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(30)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stderr):
            if stream is not None:
                stream.close()
        self.reader.close()
        os.close(self.ring_fd)


@pytest.fixture
def piped() -> Iterator[Piped]:
    made = Piped()
    yield made
    made.close()


def test_garbage_half_lines_and_a_flood_do_not_disturb_and_the_next_order_is_obeyed(
    piped: Piped,
) -> None:
    burst = encoded(Burst(hz=100.0, until_mono_ns=in_s(50)))
    for garbage in (b"\xff\x00garbage\n", b"{}\n" * 500, b"x" * 20_000, b"\n", burst[:20]):
        piped.tell(garbage)
    before = piped.reader.status(0).written
    wait_for(lambda: piped.reader.status(0).written > before + 5)
    assert piped.reader.status(0).pace is Pace.ASKED
    piped.tell(burst[20:])
    wait_for(lambda: piped.reader.status(0).pace is Pace.BURST)
    assert piped.end() == 0


def test_the_end_of_the_pipe_is_seen_in_the_middle_of_a_line_and_in_a_quiet_time(
    piped: Piped,
) -> None:
    piped.tell(encoded(Quiet(until_mono_ns=in_s(50))))
    wait_for(lambda: piped.reader.status(0).pace is Pace.QUIET)
    piped.tell(b'{"type":"bur')
    assert piped.end() == 0
