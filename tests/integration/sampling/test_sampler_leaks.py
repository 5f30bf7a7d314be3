"""Sampler after sampler, ended or killed: the parent holds no more than after the first few."""

import gc
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from chopperd.sampling.settings import RestartPolicy
from chopperd.sampling.supervisor import SamplerSupervisor, SupervisorState
from tests.integration.processes import is_alive
from tests.integration.sampling.conftest import children, open_files
from tests.integration.sampling.supervised import kill
from tests.waiting import wait_for

pytestmark = pytest.mark.usefixtures("nothing_left_behind")

ROUNDS = 12
SETTLED = 4
#: What a process may take more after the rounds: a leak of a ring would be 100 KiB a round.
MOST_MORE_BYTES = 512 * 1024
#: No pause between two samplers, however soon each ends.
AT_ONCE = RestartPolicy(start_s=30.0, hung_s=5.0, longest_pause_s=0.0)


@pytest.fixture
def supervisor(make: Callable[..., SamplerSupervisor]) -> SamplerSupervisor:
    return make(2, policy=AT_ONCE)


def own_bytes() -> int:
    """Memory of this process that is in no file: pages shared with a sampler count in part.

    Of files it shares pages with any other Python on the machine, which come and go.
    """
    rollup = Path("/proc/self/smaps_rollup").read_text().splitlines()
    kib = {name: value.split()[0] for name, _, value in (line.partition(":") for line in rollup)}
    return (int(kib["Pss_Anon"]) + int(kib["Pss_Shmem"])) * 1024


def held() -> tuple[list[str], set[str], int]:
    """Open files by what they are, children, threads."""
    gc.collect()
    kinds = sorted(name.split(":")[0] for name in open_files().values())
    return kinds, children(), threading.active_count()


def wait_for_running(supervisor: SamplerSupervisor) -> None:
    wait_for(lambda: supervisor.poll() is SupervisorState.RUNNING, "a sampler", 60)


def end_and_launch(supervisor: SamplerSupervisor) -> None:
    pid = supervisor.pid
    assert pid is not None
    supervisor.suspend()
    supervisor.stop(30.0)
    assert not is_alive(pid)
    supervisor.launch()


def kill_and_follow(supervisor: SamplerSupervisor) -> None:
    pid = kill(supervisor)
    wait_for(lambda: supervisor.poll() is not None and supervisor.pid not in {None, pid})


@pytest.mark.parametrize("end", [end_and_launch, kill_and_follow])
def test_restarts_leave_nothing_in_the_parent(
    supervisor: SamplerSupervisor, end: Callable[[SamplerSupervisor], None]
) -> None:
    supervisor.start()
    before = None
    for turn in range(ROUNDS):
        end(supervisor)
        wait_for_running(supervisor)
        if turn == SETTLED:
            before, before_bytes = held(), own_bytes()
    assert before is not None
    files, children_before, threads = before
    files_now, children_now, threads_now = held()
    assert (files_now, len(children_now), threads_now) == (files, len(children_before), threads)
    assert own_bytes() - before_bytes < MOST_MORE_BYTES
    assert supervisor.reader.generation >= ROUNDS
    assert supervisor.left_pids == ()
