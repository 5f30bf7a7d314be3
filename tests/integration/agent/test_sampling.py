"""How the agent sees its sampler fare: real processes over scripted GPUs."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from chopperd.agent.sampling import Sampling
from chopperd.clock import SystemClock
from chopperd.model.live import SamplerCondition
from chopperd.sampling.memory.layout import Pace
from chopperd.sampling.settings import RestartPolicy, SamplerSettings
from chopperd.sampling.supervisor import SamplerSupervisor
from tests.integration.sampling import scripted_sampler
from tests.integration.sampling.supervised import wait_for_hang
from tests.waiting import wait_for

CLOCK = SystemClock()
POLICY = RestartPolicy(hung_s=0.3, longest_pause_s=0.05, unavailable_pause_s=0.2)


class Scripted:
    """Sampling over one GPU that does what files in a folder say."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        script = str(Path(scripted_sampler.__file__))
        command = [sys.executable, script, "--gpus", "1", "--folder", str(folder)]
        settings = SamplerSettings(budget_ratio=1.0)
        self._supervisor = SamplerSupervisor(command, settings, CLOCK, POLICY)
        self.sampling = Sampling(self._supervisor)

    def wait_for(self, condition: Callable[[], object], *, paused: bool = False) -> None:
        """Look after the sampler until the condition holds."""

        def holds() -> object:
            self.sampling.poll(paused=paused)
            return condition()

        wait_for(holds)

    def condition(self) -> SamplerCondition:
        return self.sampling.live().condition

    def has_pace(self, pace: Pace) -> bool:
        ring = self.sampling.ring
        return ring is not None and ring.status(0).pace is pace

    def becomes(self, condition: SamplerCondition, *, paused: bool = False) -> None:
        self.wait_for(lambda: self.condition() is condition, paused=paused)

    def hang(self) -> None:
        """Have the driver hang, and return once a call does."""
        (self.folder / "hang-0").touch()
        wait_for_hang(self._supervisor, 0)

    def kill(self) -> None:
        pid = self.sampling.live().pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        self.wait_for(lambda: self.sampling.live().pid != pid)


@pytest.fixture
def scripted(tmp_path: Path) -> Iterator[Scripted]:
    made = Scripted(tmp_path)
    yield made
    for path in tmp_path.iterdir():
        path.unlink()
    made.sampling.stop(10.0)
    wait_for(lambda: not made.sampling.live().abandoned_pids)
    made.sampling.close()


def test_it_starts_with_the_first_look_and_has_samples_once_it_runs(scripted: Scripted) -> None:
    assert scripted.condition() is SamplerCondition.STOPPED
    scripted.sampling.poll(paused=False)
    assert scripted.condition() is SamplerCondition.STARTING
    scripted.becomes(SamplerCondition.RUNNING)
    ring = scripted.sampling.ring
    assert ring is not None
    assert ring.gpu_slots > 0
    assert scripted.sampling.live().reason is None
    scripted.kill()
    live = scripted.sampling.live()
    assert (live.condition, live.restart_count) == (SamplerCondition.RESTARTING, 1)
    assert live.reason is not None
    scripted.becomes(SamplerCondition.RUNNING)


def test_a_driver_that_never_came_up_is_unavailable_and_not_lost(scripted: Scripted) -> None:
    (scripted.folder / "fail-open").touch()
    scripted.becomes(SamplerCondition.UNAVAILABLE)
    scripted.wait_for(lambda: scripted.sampling.live().restart_count >= 6)
    live = scripted.sampling.live()
    assert live.condition is SamplerCondition.UNAVAILABLE
    assert live.reason == "no driver is loaded"
    assert scripted.sampling.lost_driver() is None
    (scripted.folder / "fail-open").unlink()
    scripted.becomes(SamplerCondition.RUNNING)


def test_a_driver_that_had_worked_is_lost_after_five_failures_until_it_is_back(
    scripted: Scripted,
) -> None:
    scripted.becomes(SamplerCondition.RUNNING)
    (scripted.folder / "fail-open").touch()
    scripted.kill()
    assert scripted.sampling.lost_driver() is None
    scripted.wait_for(scripted.sampling.lost_driver)
    lost = scripted.sampling.lost_driver()
    assert lost is not None
    assert "no driver is loaded" in lost
    (scripted.folder / "fail-open").unlink()
    scripted.becomes(SamplerCondition.RUNNING)
    assert scripted.sampling.lost_driver() is None


def test_two_processes_that_hang_are_said_with_the_call_and_its_age(scripted: Scripted) -> None:
    scripted.becomes(SamplerCondition.RUNNING)
    scripted.hang()
    scripted.becomes(SamplerCondition.HUNG)
    live = scripted.sampling.live()
    assert live.reason is not None
    assert "GPU 0" in live.reason
    assert len(live.abandoned_pids) == 1
    (scripted.folder / "hang-0").unlink()
    scripted.becomes(SamplerCondition.RUNNING)


def test_a_pause_holds_over_a_hang_and_ends_with_a_successor(scripted: Scripted) -> None:
    scripted.becomes(SamplerCondition.RUNNING)
    scripted.hang()
    scripted.becomes(SamplerCondition.PAUSED, paused=True)
    scripted.wait_for(lambda: scripted.sampling.live().abandoned_pids, paused=True)
    assert scripted.sampling.live().pid is None
    (scripted.folder / "hang-0").unlink()
    scripted.wait_for(lambda: not scripted.sampling.live().abandoned_pids, paused=True)
    assert scripted.sampling.live().pid is None
    scripted.becomes(SamplerCondition.RUNNING)
