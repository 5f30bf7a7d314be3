"""Sampler processes over scripted GPUs, as the tests of their supervision have them."""

import os
import signal
from pathlib import Path

from chopperd.clock import SystemClock
from chopperd.sampling.memory.layout import Pace
from chopperd.sampling.memory.ring_reader import GpuStatus
from chopperd.sampling.settings import RestartPolicy
from chopperd.sampling.supervisor import SamplerSupervisor
from chopperd.units import NS_PER_MS
from tests.waiting import wait_for

SCRIPT = Path(__file__).with_name("scripted_sampler.py")
CLOCK = SystemClock()
QUICK = RestartPolicy(start_s=10.0, hung_s=0.3)


def wait_for_hang(supervisor: SamplerSupervisor, slot: int) -> None:
    """Wait until a call on a GPU lasts so long that it must be held up by the test."""

    def hangs() -> bool:
        started_ns = supervisor.reader.status(slot).call_started_mono_ns
        return started_ns is not None and CLOCK.mono_ns() - started_ns > 50 * NS_PER_MS

    wait_for(hangs)


def wait_until_gone(supervisor: SamplerSupervisor) -> None:
    """Wait until the processes that it left alone have ended by themselves."""
    wait_for(lambda: not supervisor.left_pids)


def kill(supervisor: SamplerSupervisor) -> int:
    assert supervisor.pid is not None
    os.kill(supervisor.pid, signal.SIGKILL)
    return supervisor.pid


def written(supervisor: SamplerSupervisor, slot: int) -> int:
    return supervisor.reader.status(slot).written


def statuses(sampler: SamplerSupervisor) -> list[GpuStatus]:
    return [sampler.reader.status(slot) for slot in range(2)]


def wait_for_pace(sampler: SamplerSupervisor, pace: Pace, slots: range = range(2)) -> None:
    wait_for(
        lambda: all(sampler.reader.status(slot).pace is pace for slot in slots), f"pace {pace.name}"
    )
