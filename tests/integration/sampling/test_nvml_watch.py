"""What is seldom asked of the fake driver, by a thread of its own in the real sampler."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from chopperd.model.devices import GpuProcess
from chopperd.sampling.supervisor import SupervisorState
from tests.fakes.nvml.fixtures import MakeFakeNvml
from tests.fakes.nvml.scenario import GPU_IS_LOST, HANGS, NOT_SUPPORTED, SUCCESS
from tests.integration.processes import is_alive
from tests.integration.sampling.nvml import COMMAND, Supervise, supervise, wait_for_samples
from tests.integration.sampling.supervised import written
from tests.waiting import wait_for

__all__ = ["supervise"]

ZERO, ONE = "GPU-00000000", "GPU-00000001"
V3 = "nvmlDeviceGetComputeRunningProcesses_v3"


@pytest.mark.parametrize("without", [frozenset[str](), frozenset({V3})])
def test_processes_are_listed_with_their_memory_where_it_is_known(
    make_fake_nvml: MakeFakeNvml, supervise: Supervise, without: frozenset[str]
) -> None:
    fake = make_fake_nvml(2, without)
    fake.scenario.aside(fake.scenario.gpus[1]).runs((100, 1 << 30), (200, -1))
    supervisor = supervise(fake)
    wait_for(lambda: supervisor.reader.slow_state(1).processes)
    assert supervisor.reader.slow_state(1).processes == (
        GpuProcess(pid=100, memory_used_bytes=1 << 30),
        GpuProcess(pid=200),
    )
    assert supervisor.reader.slow_state(0).processes == ()
    assert supervisor.reader.slow_state(0).processes_mono_ns is not None
    assert supervisor.reader.slow_state(1).driver_rare_ns > 0
    fake.scenario.aside(fake.scenario.gpus[1]).runs()
    wait_for(lambda: not supervisor.reader.slow_state(1).processes)


def test_where_the_driver_lists_no_processes_none_are_told(
    make_fake_nvml: MakeFakeNvml, supervise: Supervise
) -> None:
    fake = make_fake_nvml()
    fake.scenario.gpus[0].fails(NOT_SUPPORTED, V3, V3.replace("v3", "v2"))
    supervisor = supervise(fake)
    wait_for(lambda: fake.scenario.gpus[0].calls_of(V3))
    wait_for_samples(supervisor, ZERO)
    assert supervisor.reader.slow_state(0).processes_mono_ns is None


def test_more_processes_than_there_is_room_for_are_cut(
    make_fake_nvml: MakeFakeNvml, supervise: Supervise
) -> None:
    fake = make_fake_nvml()
    fake.scenario.aside(fake.scenario.gpus[0]).runs(*((pid, 1) for pid in range(1, 81)))
    supervisor = supervise(fake)
    wait_for(lambda: len(supervisor.reader.slow_state(0).processes) == 64)


def test_a_lost_gpu_is_explained_by_its_xid(
    make_fake_nvml: MakeFakeNvml, supervise: Supervise
) -> None:
    fake = make_fake_nvml(gpu_count=2)
    supervisor = supervise(fake)
    wait_for_samples(supervisor, ZERO, ONE)
    fake.scenario.aside(fake.scenario.gpus[1]).has_xid(79)
    fake.scenario.gpus[1].fails(GPU_IS_LOST)
    wait_for(lambda: "XID 79 (fell off the bus)" in (supervisor.reader.slow_state(1).trouble or ""))
    wait_for(lambda: "code 15" in (supervisor.reader.slow_state(1).trouble or ""))
    assert supervisor.reader.slow_state(0).trouble is None
    fake.scenario.gpus[1].fails(SUCCESS)
    wait_for_samples(supervisor, ONE)


def test_memory_errors_and_a_reset_that_is_due_are_told(
    make_fake_nvml: MakeFakeNvml, supervise: Supervise
) -> None:
    fake = make_fake_nvml(gpu_count=2)
    ill = fake.scenario.aside(fake.scenario.gpus[0])
    ill.ecc_uncorrected, ill.rows_pending, ill.pages_pending, ill.recovery_action = 3, 1, 1, 1
    supervisor = supervise(fake)
    wait_for(lambda: supervisor.reader.slow_state(0).trouble)
    assert supervisor.reader.slow_state(0).trouble == (
        "the GPU must be reset; 3 uncorrected memory errors since the driver loaded; "
        "row remapping waits for a reset; page retirement waits for a reset"
    )
    assert supervisor.reader.slow_state(1).trouble is None


def test_a_driver_without_any_of_these_calls_tells_no_trouble(
    make_fake_nvml: MakeFakeNvml, supervise: Supervise
) -> None:
    lacking = frozenset(
        {
            "nvmlEventSetCreate",
            "nvmlDeviceGetTotalEccErrors",
            "nvmlDeviceGetRemappedRows",
            "nvmlDeviceGetRetiredPagesPendingStatus",
            "nvmlDeviceGetMaxMigDeviceCount",
            "nvmlDeviceGetMigMode",
            V3,
            V3.replace("v3", "v2"),
        }
    )
    fake = make_fake_nvml(1, lacking)
    supervisor = supervise(fake)
    wait_for(lambda: supervisor.reader.slow_state(0).driver_rare_ns > 0)
    wait_for_samples(supervisor, ZERO)
    assert supervisor.reader.slow_state(0).trouble is None
    assert supervisor.restart_count == 0


def test_a_list_of_processes_that_hangs_stops_neither_ticks_nor_triples(
    make_fake_nvml: MakeFakeNvml, supervise: Supervise
) -> None:
    fake = make_fake_nvml(gpu_count=2)
    supervisor = supervise(fake)
    wait_for_samples(supervisor, ZERO, ONE)
    fake.scenario.gpus[0].fails(HANGS, V3)
    asked = fake.scenario.gpus[0].calls_of(V3)
    wait_for(lambda: fake.scenario.gpus[0].calls_of(V3) > asked)
    triples, ticks = supervisor.reader.triples_written, written(supervisor, 0)
    wait_for(lambda: supervisor.reader.triples_written >= triples + 3)
    assert supervisor.poll() is SupervisorState.RUNNING
    assert written(supervisor, 0) > ticks + 10
    assert supervisor.restart_count == 0
    # The end waits for the call, as for any other.
    pid = supervisor.pid
    supervisor.suspend()
    assert pid is not None
    assert supervisor.stop(0.5) == (pid,)
    fake.scenario.gpus[0].fails(SUCCESS, V3)
    wait_for(lambda: not is_alive(pid))


PARENT = """
import os, sys, time
from chopperd.clock import SystemClock
from chopperd.sampling.settings import SamplerSettings
from chopperd.sampling.supervisor import SamplerSupervisor
supervisor = SamplerSupervisor(sys.argv[1:], SamplerSettings(hz=50, budget_ratio=1), SystemClock())
supervisor.start()
written = lambda: supervisor.reader.status(0).written
for _ in range(3):  # forks that end leave the sampler alone
    if os.fork() == 0:
        os._exit(0)
    os.wait()
before = written()
while written() < before + 5:
    time.sleep(0.01)
assert supervisor.poll() == "running" and supervisor.restart_count == 0
child = os.fork()
if child == 0:  # holds what it has inherited
    time.sleep(60)
    os._exit(0)
print(supervisor.pid, child, flush=True)
time.sleep(60)
"""


def test_a_fork_in_the_parent_neither_disturbs_the_sampler_nor_keeps_it(
    make_fake_nvml: MakeFakeNvml, tmp_path: Path
) -> None:
    """The fork holds the sampler's lifeline when the parent is killed."""
    fake = make_fake_nvml()
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    parent = subprocess.Popen(
        [sys.executable, str(script), *COMMAND],
        env=fake.environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    sampler_pid, fork_pid = map(int, parent.stdout.readline().split())
    try:
        parent.kill()
        parent.wait(30)
        assert is_alive(fork_pid)
        wait_for(lambda: not is_alive(sampler_pid), "the sampler to end")
    finally:
        os.kill(fork_pid, signal.SIGKILL)
        parent.stdout.close()
    wait_for(lambda: not is_alive(fork_pid))
