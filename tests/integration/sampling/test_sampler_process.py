"""Real sampler processes over scripted GPUs: rates, hangs, kills, and what is left behind."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from chopperd.clock import SystemClock
from chopperd.errors import BackendUnavailableError
from chopperd.model.causes import Cause
from chopperd.model.samples import SampleSet
from chopperd.sampling.layout import GpuState, SamplerState
from chopperd.sampling.recording import Recorder
from chopperd.sampling.restarts import RestartPolicy
from chopperd.sampling.settings import SamplerSettings
from chopperd.sampling.supervisor import SamplerSupervisor, SupervisorState
from chopperd.units import NS_PER_MS, NS_PER_S
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


def exists(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rsplit(") ", 1)[1][0] != "Z"


def wait_for_end(pid: int) -> None:
    wait_for(lambda: not exists(pid))


def kill(supervisor: SamplerSupervisor) -> int:
    assert supervisor.pid is not None
    os.kill(supervisor.pid, signal.SIGKILL)
    return supervisor.pid


def open_files() -> dict[str, str]:
    names = {}
    for entry in Path("/proc/self/fd").iterdir():
        try:
            names[entry.name] = str(entry.readlink())
        except FileNotFoundError:  # the listing's own descriptor
            continue
    return {number: name for number, name in names.items() if not name.startswith("/proc/")}


def children() -> set[str]:
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    before = open_files(), children(), threading.active_count()
    yield
    assert (open_files(), children(), threading.active_count()) == before


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., SamplerSupervisor]]:
    made: list[SamplerSupervisor] = []

    def supervisor(gpu_count: int = 2, hz: float = 100.0) -> SamplerSupervisor:
        command = [sys.executable, str(SCRIPT), "--gpus", str(gpu_count), "--folder", str(tmp_path)]
        settings = SamplerSettings(hz=hz, totals_every_s=0.2, probe_every_s=0.2, budget_ratio=1.0)
        made.append(SamplerSupervisor(command, settings, CLOCK, QUICK))
        return made[-1]

    yield supervisor
    for path in tmp_path.iterdir():
        path.unlink()
    for sampler in made:
        sampler.stop(10.0)
        wait_until_gone(sampler)
        sampler.close()


def written(supervisor: SamplerSupervisor, slot: int) -> int:
    return supervisor.reader.status(slot).written


def test_a_recording_at_100_hz_keeps_the_rate_and_ends_cleanly(
    make: Callable[..., SamplerSupervisor],
) -> None:
    recorder = Recorder(make(4), CLOCK)
    before_ns = CLOCK.unix_ns()
    recorder.start()
    assert [gpu.gpu for gpu in recorder.gpus] == ["0", "1", "2", "3"]
    wait_for(lambda: min(len(gpu) for gpu in recorder.so_far().gpus) >= 100)
    samples = recorder.finish()
    after_ns = CLOCK.unix_ns()
    assert (samples.backend, samples.simulated, samples.asked_hz) == ("scripted", True, 100.0)
    assert samples.started_unix_ns is not None
    assert before_ns <= samples.started_unix_ns < after_ns
    for n, gpu in enumerate(samples.gpus):
        assert (np.diff(gpu.t_unix_ns) > 0).all()
        lasted_s = (gpu.t_unix_ns[-1] - gpu.t_unix_ns[0]) / NS_PER_S
        assert 60 < len(gpu) / lasted_s < 110  # a busy machine may lose some
        assert before_ns < gpu.t_unix_ns[0]
        assert gpu.t_unix_ns[-1] < after_ns
        assert set(gpu.sm_clock_mhz) == {1500.0 + n}
        assert set(gpu.causes.tolist()) == {Cause.POWER_CAP.bit}
        assert 1 <= (~np.isnan(gpu.power_w)).sum() <= 2 + lasted_s  # full reads: once a second
        assert set(gpu.limited_ns) == {
            Cause.POWER_CAP,
            Cause.SYNC_BOOST,
            Cause.THERMAL,
            Cause.HW_THERMAL,
            Cause.POWER_BRAKE,
        }
    assert len(samples.triples) >= 2


def test_what_was_recorded_so_far_is_there_before_the_end(
    make: Callable[..., SamplerSupervisor],
) -> None:
    recorder = Recorder(make(1), CLOCK)
    recorder.start()
    early: list[SampleSet] = []

    def some() -> bool:
        early.append(recorder.so_far())
        return len(early[-1].gpus[0]) >= 10

    try:
        wait_for(some)
    finally:
        late = recorder.finish()
    count = len(early[-1].gpus[0])
    assert late.gpus[0].sm_clock_mhz[:count].tolist() == early[-1].gpus[0].sm_clock_mhz.tolist()
    assert len(late.gpus[0]) >= count


def test_after_kill_9_a_successor_samples_on_and_totals_never_fall(
    make: Callable[..., SamplerSupervisor],
) -> None:
    supervisor = make(2)
    supervisor.start()
    wait_for(lambda: supervisor.reader.totals(1) is not None)
    before, totals = written(supervisor, 1), supervisor.reader.totals(1)
    pid = kill(supervisor)
    wait_for_end(pid)
    killed_ns = CLOCK.mono_ns()

    def samples_again() -> bool:
        supervisor.poll()
        drained = supervisor.reader.drain(1, before)
        return bool((drained.records["t_mono_ns"] > killed_ns).any())

    assert wait_for(samples_again) < 5.0  # 1 s, with 5x slack
    assert supervisor.pid != pid
    assert supervisor.restart_count == 1
    wait_for(lambda: supervisor.poll() is SupervisorState.RUNNING)
    now = supervisor.reader.totals(1)
    assert totals is not None
    assert now is not None
    assert (now.sm_cycles or 0) >= (totals.sm_cycles or 0)
    assert (now.energy_j or 0) >= (totals.energy_j or 0)


def test_a_process_that_keeps_dying_is_replaced_with_growing_pauses(
    make: Callable[..., SamplerSupervisor],
) -> None:
    supervisor = make(1)
    supervisor.start()
    kill(supervisor)
    wait_for(lambda: supervisor.poll() is SupervisorState.STARTING)
    kill(supervisor)
    wait_for(lambda: supervisor.poll() is SupervisorState.WAITING)
    assert not supervisor.alive()
    assert wait_for(lambda: supervisor.poll() is SupervisorState.STARTING) > 0.5
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
        assert exists(pid)
        parent.kill()
    wait_for_end(pid)


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
    assert exists(first)  # left alone, not killed
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


def test_a_recording_may_be_closed_after_its_finish_and_says_nothing_twice(
    make: Callable[..., SamplerSupervisor], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    supervisor = make(1)
    recorder = Recorder(supervisor, CLOCK)
    recorder.start()
    wait_for(lambda: written(supervisor, 0) > 0)
    (tmp_path / "hang-0").touch()
    wait_for_hang(supervisor, 0)
    samples = recorder.finish(0.3)
    recorder.close()
    assert [note.code for note in samples.notes if note.code == "sampler_left"] == ["sampler_left"]
    assert sum("still in a driver call" in record.getMessage() for record in caplog.records) == 1


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


def test_samples_and_counters_go_on_after_a_suspension(
    make: Callable[..., SamplerSupervisor],
) -> None:
    supervisor = make(1)
    supervisor.start()

    def cycles() -> float:
        totals = supervisor.reader.totals(0)
        return (totals and totals.sm_cycles) or 0.0

    wait_for(lambda: cycles() > 0)
    supervisor.suspend()
    assert supervisor.pid is None
    wait_for(lambda: supervisor.reader.state is SamplerState.STOPPED)
    before, cycles_before = written(supervisor, 0), cycles()
    assert supervisor.poll() is SupervisorState.STOPPED
    assert supervisor.left_pids == ()
    assert written(supervisor, 0) == before
    supervisor.launch()
    wait_for(lambda: supervisor.poll() is SupervisorState.RUNNING)
    wait_for(lambda: written(supervisor, 0) > before + 5)
    assert supervisor.restart_count == 0
    wait_for(lambda: cycles() > cycles_before)


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


def test_gpus_that_turn_up_later_are_sampled_with_a_whole_history(
    tmp_path: Path,
) -> None:
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


def test_a_lost_gpu_comes_back_and_the_recording_says_so(
    make: Callable[..., SamplerSupervisor], tmp_path: Path
) -> None:
    supervisor = make(2)
    recorder = Recorder(supervisor, CLOCK)
    recorder.start()
    (tmp_path / "lost-1").touch()
    wait_for(lambda: supervisor.reader.status(1).state is GpuState.LOST)
    count = written(supervisor, 1)
    (tmp_path / "lost-1").unlink()
    wait_for(lambda: written(supervisor, 1) > count)
    samples = recorder.finish()
    assert "gpu_lost" in [note.code for note in samples.notes]
    assert [gpu.gpu.gpu for gpu in samples.gpus] == ["0", "1"]


def test_a_driver_that_can_not_be_opened_is_an_error_with_its_own_words(
    make: Callable[..., SamplerSupervisor], tmp_path: Path
) -> None:
    (tmp_path / "fail-open").touch()
    with pytest.raises(BackendUnavailableError, match="no driver is loaded"):
        make(1).start()


def test_a_driver_that_hangs_at_the_start_is_an_error_after_a_while(tmp_path: Path) -> None:
    (tmp_path / "hang-open").touch()
    command = [sys.executable, str(SCRIPT), "--folder", str(tmp_path)]
    policy = RestartPolicy(start_s=1.0)
    supervisor = SamplerSupervisor(command, SamplerSettings(), CLOCK, policy)
    with pytest.raises(BackendUnavailableError, match="did not answer within 1 s"):
        supervisor.start()
    (tmp_path / "hang-open").unlink()
    wait_until_gone(supervisor)


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
