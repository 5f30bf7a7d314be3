"""One GPU whose driver calls do not return: at the start, and while others come and go."""

import pytest

from chopperd.sampling.supervisor import SamplerSupervisor, SupervisorState
from chopperd.sampling.watch import PROBE_NS
from chopperd.units import NS_PER_S
from tests.fakes.nvml.fixtures import FakeNvml, MakeFakeNvml
from tests.fakes.nvml.scenario import HANGS, SUCCESS
from tests.integration.sampling.nvml import BUSY, Supervise, labels, supervise, wait_for_samples
from tests.integration.sampling.supervised import CLOCK, wait_for_hang, written
from tests.waiting import wait_for

__all__ = ["supervise"]

ZERO, ONE, TWO = (f"GPU-0000000{n}" for n in range(3))
#: Several looks for what came or went, and the time in which a process that can't end is replaced.
LOOKS_NS = round(10 * BUSY.watch_every_s * NS_PER_S)


def test_a_change_waits_for_a_gpu_that_hangs_and_the_others_keep_their_rate(
    make_fake_nvml: MakeFakeNvml, supervise: Supervise
) -> None:
    """A process that ended would wait for the call, and its successor hang on the same GPU."""
    fake = make_fake_nvml(gpu_count=2)
    supervisor = supervise(fake)
    wait_for_samples(supervisor, ZERO, ONE)
    fake.scenario.gpus[1].fails(HANGS, "nvmlDeviceGetClockInfo")
    wait_for_hang(supervisor, 1)
    wait_for_ns(supervisor, 2 * NS_PER_S)
    assert_that_a_change_waits(supervisor, fake)


def test_a_change_waits_for_a_probe_of_sensors_that_hangs(
    make_fake_nvml: MakeFakeNvml, supervise: Supervise
) -> None:
    """Only a probe asks for the driver's own samples, of a power that stands still."""
    fake = make_fake_nvml(gpu_count=2)
    hanging = "nvmlDeviceGetSamples"
    fake.scenario.gpus[1].fails(HANGS, hanging)
    supervisor = supervise(fake)
    wait_for(lambda: fake.scenario.gpus[1].calls_of(hanging), "the probe to hang")
    wait_for_ns(supervisor, 3 * PROBE_NS)
    assert_that_a_change_waits(supervisor, fake)


@pytest.mark.parametrize("call", ["nvmlDeviceGetName", "nvmlDeviceGetClockInfo"])
def test_a_gpu_that_hangs_at_the_start_leaves_the_others_sampled(
    make_fake_nvml: MakeFakeNvml, supervise: Supervise, call: str
) -> None:
    fake = make_fake_nvml(gpu_count=3)
    fake.scenario.gpus[1].fails(HANGS, call)
    supervisor = supervise(fake)
    pid = supervisor.pid
    wait_for_samples(supervisor, ZERO, TWO)
    assert labels(supervisor) == {ZERO: "0", "": "1", TWO: "2"}
    wait_for(lambda: supervisor.reader.slow_state(1).trouble is not None)
    trouble = "enumeration failed: its first calls do not return"
    assert supervisor.reader.slow_state(1).trouble == trouble
    wait_for_ns(supervisor, LOOKS_NS)
    assert supervisor.poll() is SupervisorState.RUNNING
    assert (supervisor.pid, supervisor.left_pids, supervisor.restart_count) == (pid, (), 0)
    fake.scenario.gpus[1].fails(SUCCESS)
    wait_for_samples(supervisor, ZERO, ONE, TWO)
    assert labels(supervisor) == {ZERO: "0", ONE: "1", TWO: "2"}


def assert_that_a_change_waits(supervisor: SamplerSupervisor, fake: FakeNvml) -> None:
    """The same process samples on; it ends for a successor once the driver has returned."""
    pid = supervisor.pid
    fake.scenario.add_gpu()
    wait_for_ns(supervisor, LOOKS_NS)
    before = written(supervisor, 0)
    wait_for(lambda: supervisor.poll() and written(supervisor, 0) > before + 20)
    assert supervisor.poll() is SupervisorState.RUNNING
    assert (supervisor.pid, supervisor.left_pids, supervisor.restart_count) == (pid, (), 0)
    fake.scenario.gpus[1].fails(SUCCESS)
    wait_for_samples(supervisor, ZERO, ONE, TWO)


def wait_for_ns(supervisor: SamplerSupervisor, length_ns: int) -> None:
    """Let time pass while the process is looked after."""
    end_ns = CLOCK.mono_ns() + length_ns
    wait_for(lambda: supervisor.poll() and CLOCK.mono_ns() > end_ns)
