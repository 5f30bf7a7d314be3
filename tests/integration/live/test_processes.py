"""What processes cost, from the real /proc."""

import os
import subprocess
import sys
import time

import pytest

from chopperd.clock import SystemClock
from chopperd.live.node import ProcessCosts, process_live
from chopperd.units import NS_PER_S

CLOCK = SystemClock()


def test_this_process_is_described() -> None:
    mine = process_live(os.getpid(), CLOCK)
    assert mine is not None
    assert mine.cpu_s == pytest.approx(time.process_time(), abs=0.5)
    assert 10e6 < mine.resident_bytes < 10e9
    assert mine.open_fds >= 3
    assert mine.threads >= 1
    assert mine.started_unix_ns < CLOCK.unix_ns()


def test_a_process_tells_when_it_was_started() -> None:
    begin_ns = CLOCK.unix_ns()
    with subprocess.Popen(["sleep", "60"]) as process:
        end_ns = CLOCK.unix_ns()
        live = process_live(process.pid, CLOCK)
        process.kill()
    assert live is not None
    # The kernel tells it in hundredths of a second, since a boot that is known as well.
    assert begin_ns - NS_PER_S // 10 < live.started_unix_ns < end_ns + NS_PER_S // 10


def test_a_process_that_does_not_exist_or_is_a_zombie_is_none() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""], stdin=subprocess.DEVNULL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert process_live(process.pid, CLOCK) is None
    process.wait()
    assert process_live(process.pid, CLOCK) is None


def test_the_cpu_time_of_a_role_goes_on_over_its_processes() -> None:
    costs = ProcessCosts(CLOCK)
    assert costs.read({"agent": os.getpid(), "worker": None}).keys() == {"agent"}
    program = "for n in range(3_000_000): n * n\nprint(flush=True)\ninput()"
    seen = []
    for _ in range(2):
        with subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as worker:
            assert worker.stdout is not None
            worker.stdout.readline()
            seen.append(costs.read({"worker": worker.pid})["worker"])
        after = costs.read({"worker": None})["worker"]
        assert after.cpu_s == seen[-1].cpu_s
        assert (after.resident_bytes, after.open_fds, after.threads) == (0, 0, 0)
        assert costs.read({"worker": None})["worker"] == after
    first, second = seen
    assert first.cpu_s > 0.02
    assert second.cpu_s > first.cpu_s
    assert second.started_unix_ns >= first.started_unix_ns
    assert second.resident_bytes > 0
