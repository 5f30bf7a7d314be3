"""Real sampler processes whose driver does not answer."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from chopperd.errors import BackendUnavailableError
from chopperd.sampling.memory.layout import SamplerState
from chopperd.sampling.settings import RestartPolicy, SamplerSettings
from chopperd.sampling.supervisor import SamplerSupervisor, SupervisorState
from chopperd.units import NS_PER_S
from tests.integration.processes import is_alive
from tests.integration.sampling.supervised import (
    CLOCK,
    SCRIPT,
    wait_for_hang,
    wait_until_gone,
    written,
)
from tests.waiting import wait_for

pytestmark = pytest.mark.usefixtures("nothing_left_behind")


def test_a_hang_of_one_gpu_leaves_the_others_at_their_rate(
    make: Callable[..., SamplerSupervisor], tmp_path: Path
) -> None:
    supervisor = make(3)
    supervisor.start()
    wait_for(lambda: written(supervisor, 1) > 5)
    (tmp_path / "hang-1").touch()
    wait_for_hang(supervisor, 1)
    before = [written(supervisor, slot) for slot in range(3)]
    waited_s = wait_for(
        lambda: min(written(supervisor, slot) - before[slot] for slot in (0, 2)) >= 60
    )
    assert waited_s < 3.0  # 0.6 s, with 5x slack
    assert written(supervisor, 1) == before[1]
    assert supervisor.poll() is SupervisorState.RUNNING  # one GPU of several: no new process
    assert supervisor.restart_count == 0
    started_ns = supervisor.reader.status(1).call_started_mono_ns
    assert started_ns is not None
    assert CLOCK.mono_ns() - started_ns > 500_000_000


def test_when_all_gpus_hang_one_successor_takes_over_and_no_third(
    make: Callable[..., SamplerSupervisor], tmp_path: Path
) -> None:
    supervisor = make(1)
    supervisor.start()
    wait_for(lambda: written(supervisor, 0) > 5)
    first = supervisor.pid
    assert first is not None
    (tmp_path / "hang-0").touch()
    wait_for(lambda: supervisor.poll() is SupervisorState.STARTING)
    assert supervisor.left_pids == (first,)
    assert supervisor.pid != first
    wait_for(lambda: supervisor.poll() is SupervisorState.DOWN)
    second = supervisor.pid
    assert second not in {None, first}
    later_ns = CLOCK.mono_ns() + NS_PER_S // 2
    while CLOCK.mono_ns() < later_ns:
        assert supervisor.poll() is SupervisorState.DOWN
    assert supervisor.restart_count == 1
    assert is_alive(first)  # left alone, not killed
    (tmp_path / "hang-0").unlink()
    wait_for(lambda: supervisor.poll() is SupervisorState.RUNNING)
    before = written(supervisor, 0)
    wait_for(lambda: written(supervisor, 0) > before + 5)
    assert supervisor.pid == second
    wait_until_gone(supervisor)


def test_a_process_that_hangs_is_left_alone_at_the_stop(
    make: Callable[..., SamplerSupervisor], tmp_path: Path
) -> None:
    supervisor = make(1)
    supervisor.start()
    wait_for(lambda: written(supervisor, 0) > 0)
    pid = supervisor.pid
    (tmp_path / "hang-0").touch()
    wait_for_hang(supervisor, 0)
    start_ns = CLOCK.mono_ns()
    assert supervisor.stop(0.3) == (pid,)
    assert CLOCK.mono_ns() - start_ns < 1.5 * NS_PER_S
    assert supervisor.poll() is SupervisorState.STOPPED
    assert supervisor.reader.state is SamplerState.STOPPING


def test_suspensions_of_a_driver_that_hangs_leave_two_processes_at_most(
    make: Callable[..., SamplerSupervisor], tmp_path: Path
) -> None:
    supervisor = make(1)
    supervisor.start()
    (tmp_path / "hang-0").touch()
    for _ in range(4):
        wait_for_hang(supervisor, 0)
        supervisor.suspend()
        supervisor.launch()
        wait_for(lambda: supervisor.poll() is not SupervisorState.STARTING)
        assert len(supervisor.left_pids) <= 2
    assert supervisor.poll() is SupervisorState.DOWN
    assert supervisor.pid is None
    assert len(supervisor.left_pids) == 2
    (tmp_path / "hang-0").unlink()
    wait_for(lambda: supervisor.poll() is SupervisorState.RUNNING)


def test_a_launch_does_not_wait(make: Callable[..., SamplerSupervisor], tmp_path: Path) -> None:
    (tmp_path / "hang-open").touch()
    supervisor = make(1)
    start_ns = CLOCK.mono_ns()
    supervisor.launch()
    assert CLOCK.mono_ns() - start_ns < NS_PER_S
    assert supervisor.poll() is SupervisorState.STARTING
    assert supervisor.ring is None
    (tmp_path / "hang-open").unlink()
    wait_for(lambda: supervisor.poll() is SupervisorState.RUNNING)
    assert supervisor.has_run
    wait_for(lambda: written(supervisor, 0) > 0)


def test_a_driver_that_hangs_at_the_start_is_an_error_after_a_while(tmp_path: Path) -> None:
    (tmp_path / "hang-open").touch()
    command = [sys.executable, str(SCRIPT), "--folder", str(tmp_path)]
    policy = RestartPolicy(start_s=1.0)
    supervisor = SamplerSupervisor(command, SamplerSettings(), CLOCK, policy)
    with pytest.raises(BackendUnavailableError, match="did not answer within 1 s"):
        supervisor.start()
    (tmp_path / "hang-open").unlink()
    wait_until_gone(supervisor)


@pytest.mark.parametrize("outcome", ["opens", "fails"])
def test_a_process_that_was_given_up_at_the_start_leaves_its_successor_the_memory(
    make: Callable[..., SamplerSupervisor], tmp_path: Path, outcome: str
) -> None:
    (tmp_path / "hang-one-open").touch()
    supervisor = make(1, policy=RestartPolicy(start_s=2.0, hung_s=5.0))
    supervisor.launch()
    wait_for((tmp_path / "hanging-open").exists)
    wait_for(lambda: supervisor.poll() is SupervisorState.RUNNING)
    wait_for(lambda: written(supervisor, 0) > 0)
    successor, generation = supervisor.pid, supervisor.reader.generation
    assert len(supervisor.left_pids) == 1
    if outcome == "fails":
        (tmp_path / "fail-open").touch()
    (tmp_path / "hanging-open").unlink()
    wait_until_gone(supervisor)
    before = written(supervisor, 0)
    wait_for(lambda: supervisor.poll() and written(supervisor, 0) > before + 20)
    assert supervisor.poll() is SupervisorState.RUNNING
    assert (supervisor.pid, supervisor.reader.generation) == (successor, generation)
    assert supervisor.failure is None
