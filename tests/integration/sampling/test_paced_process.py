"""Real sampler processes that find idle GPUs and slow drivers."""

from collections.abc import Callable
from pathlib import Path

import pytest

from chopperd.live.node import LiveNode
from chopperd.model.live import GpuLive, SamplerCondition, SamplerLive
from chopperd.sampling.memory.layout import Pace
from chopperd.sampling.supervisor import SamplerSupervisor
from chopperd.units import NS_PER_MS
from tests.integration.sampling.supervised import CLOCK, SCRIPT, statuses, wait_for_pace
from tests.waiting import wait_for

pytestmark = pytest.mark.usefixtures("nothing_left_behind")

RUNNING = SamplerLive(condition=SamplerCondition.RUNNING)


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
