"""Real sampler processes over scripted GPUs: starts, kills, suspensions, and drivers that fail."""

import os
import signal
import subprocess
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
from tests.integration.sampling.supervised import CLOCK, SCRIPT, kill, written
from tests.waiting import wait_for

pytestmark = pytest.mark.usefixtures("nothing_left_behind")


def test_a_lifeline_that_is_no_pipe_ends_the_process(tmp_path: Path) -> None:
    """The threads must not sample on, deaf to every signal."""
    ring_fd = os.memfd_create("ring")
    lifeline_fd = os.open(os.devnull, os.O_WRONLY)
    try:
        ended = subprocess.run(
            [
                *(sys.executable, str(SCRIPT), "--gpus", "1", "--folder", str(tmp_path)),
                *("--ring-fd", str(ring_fd), *SamplerSettings(hz=100.0).to_argv()),
            ],
            stdin=lifeline_fd,
            stderr=subprocess.PIPE,
            pass_fds=(ring_fd,),
            check=False,
            timeout=30,
        )
    finally:
        os.close(lifeline_fd)
        os.close(ring_fd)
    assert ended.returncode == 0


def test_after_kill_9_a_successor_samples_on(make: Callable[..., SamplerSupervisor]) -> None:
    supervisor = make(2)
    supervisor.start()
    wait_for(lambda: written(supervisor, 1) > 5)
    before = written(supervisor, 1)
    pid = kill(supervisor)
    wait_for(lambda: not is_alive(pid))
    killed_ns = CLOCK.mono_ns()

    def samples_again() -> bool:
        supervisor.poll()
        drained = supervisor.reader.drain(1, before)
        return bool((drained.records["t_mono_ns"] > killed_ns).any())

    assert wait_for(samples_again) < 5.0  # 1 s, with 5x slack
    assert supervisor.pid != pid
    assert supervisor.restart_count == 1
    wait_for(lambda: supervisor.poll() is SupervisorState.RUNNING)


def test_a_process_that_keeps_dying_is_replaced_with_growing_pauses(
    make: Callable[..., SamplerSupervisor],
) -> None:
    supervisor = make(1)
    supervisor.start()
    kill(supervisor)
    wait_for(lambda: supervisor.poll() is SupervisorState.STARTING)
    killed_ns = CLOCK.mono_ns()
    kill(supervisor)
    wait_for(lambda: supervisor.poll() is SupervisorState.WAITING)
    assert not supervisor.alive()
    wait_for(lambda: supervisor.poll() is SupervisorState.STARTING)
    assert CLOCK.mono_ns() - killed_ns > NS_PER_S // 2
    assert supervisor.alive()


def test_the_death_of_the_parent_ends_the_sampler(tmp_path: Path) -> None:
    """The parent is killed while it holds a sampler; it prints the sampler's pid first."""
    program = (
        "import sys, time\n"
        "from chopperd.clock import SystemClock\n"
        "from chopperd.sampling.settings import SamplerSettings\n"
        "from chopperd.sampling.supervisor import SamplerSupervisor\n"
        f"command = [sys.executable, {str(SCRIPT)!r}, '--folder', {str(tmp_path)!r}]\n"
        "supervisor = SamplerSupervisor(command, SamplerSettings(), SystemClock())\n"
        "supervisor.start()\n"
        "print(supervisor.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert is_alive(pid)
        parent.kill()
    wait_for(lambda: not is_alive(pid))


def test_samples_and_counters_go_on_after_a_suspension(
    make: Callable[..., SamplerSupervisor],
) -> None:
    supervisor = make(1)
    supervisor.start()

    wait_for(lambda: written(supervisor, 0) > 5)
    supervisor.suspend()
    assert supervisor.pid is None
    wait_for(lambda: supervisor.reader.state is SamplerState.STOPPED)
    before = written(supervisor, 0)
    assert supervisor.poll() is SupervisorState.STOPPED
    assert supervisor.left_pids == ()
    assert written(supervisor, 0) == before
    supervisor.launch()
    wait_for(lambda: supervisor.poll() is SupervisorState.RUNNING)
    wait_for(lambda: written(supervisor, 0) > before + 5)
    assert supervisor.restart_count == 0
    assert supervisor.reader.status(0).ticks_count > before


def test_gpus_that_turn_up_later_are_sampled_with_a_whole_history(tmp_path: Path) -> None:
    (tmp_path / "fail-open").touch()
    command = [sys.executable, str(SCRIPT), "--gpus", "2", "--folder", str(tmp_path)]
    policy = RestartPolicy(unavailable_pause_s=0.3)
    supervisor = SamplerSupervisor(command, SamplerSettings(hz=100.0), CLOCK, policy)
    supervisor.launch()
    wait_for(lambda: supervisor.poll() is SupervisorState.WAITING)
    failure = supervisor.failure
    assert failure is not None
    assert "no driver is loaded" in failure.reason
    assert failure.exit_status == 3
    assert not supervisor.has_run
    (tmp_path / "fail-open").unlink()
    wait_for(lambda: supervisor.poll() is SupervisorState.RUNNING)
    assert supervisor.failure is None
    assert supervisor.reader.capacity == supervisor.settings.capacity
    wait_for(lambda: written(supervisor, 1) > 2)
    supervisor.stop(10.0)
    supervisor.close()


def test_a_driver_that_can_not_be_opened_is_an_error_with_its_own_words(
    make: Callable[..., SamplerSupervisor], tmp_path: Path
) -> None:
    (tmp_path / "fail-open").touch()
    with pytest.raises(BackendUnavailableError, match="no driver is loaded"):
        make(1).start()


def test_a_driver_without_gpus_is_an_error(make: Callable[..., SamplerSupervisor]) -> None:
    with pytest.raises(BackendUnavailableError, match="reports no GPU"):
        make(0).start()


def test_a_command_that_does_not_exist_is_an_error() -> None:
    supervisor = SamplerSupervisor(["/nonexistent/sampler"], SamplerSettings(), CLOCK)
    with pytest.raises(BackendUnavailableError, match="ended at once"):
        supervisor.start()


def test_an_interrupt_at_the_terminal_does_not_end_the_sampler(
    make: Callable[..., SamplerSupervisor],
) -> None:
    supervisor = make(1)
    supervisor.start()
    assert supervisor.pid is not None
    assert os.getsid(supervisor.pid) == supervisor.pid
    os.kill(supervisor.pid, signal.SIGINT)
    before = written(supervisor, 0)
    wait_for(lambda: written(supervisor, 0) > before + 20)
    assert supervisor.alive()
