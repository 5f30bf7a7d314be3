"""Real sampler processes over the fake AMD SMI, through the real binding."""

import os
import sys
from collections.abc import Callable, Iterator
from typing import TypeAlias

import numpy as np
import pytest

from chopperd.model.kinds import Cause
from chopperd.sampling.memory.layout import Records
from chopperd.sampling.native.library import native_library
from chopperd.sampling.settings import RestartPolicy, SamplerSettings
from chopperd.sampling.supervisor import SamplerSupervisor, SupervisorState
from tests.fakes.amd.cards import mi250x_pair, mi300x
from tests.fakes.amd.motion import Segment
from tests.fakes.amd.smi.calls import CRASHES, DRIVER_NOT_LOADED, HANGS, NOT_FOUND
from tests.fakes.amd.smi.fixtures import FakeAmdSmi, MakeFakeAmdSmi
from tests.fakes.amd.smi.gpu import METRICS
from tests.integration.sampling.nvml import BUSY, labels, wait_for_samples
from tests.integration.sampling.supervised import CLOCK, written
from tests.waiting import wait_for

COMMAND = [sys.executable, "-P", "-m", "chopperd", "_sampler", "--backend", "amdsmi"]
ZERO, ONE, TWO = (f"GPU-5b1a4e600000000{n}" for n in range(3))

Supervise: TypeAlias = Callable[[FakeAmdSmi], SamplerSupervisor]


@pytest.fixture
def supervise() -> Iterator[Supervise]:
    """Starts a sampler over a fake library; at the end the library works and the sampler ends."""
    made: list[tuple[SamplerSupervisor, FakeAmdSmi]] = []

    def started(fake: FakeAmdSmi, settings: SamplerSettings = BUSY) -> SamplerSupervisor:
        policy = RestartPolicy(start_s=30.0, hung_s=2.0)
        supervisor = SamplerSupervisor(COMMAND, settings, CLOCK, policy)
        made.append((supervisor, fake))
        supervisor.start()
        return supervisor

    yield started
    for supervisor, fake in made:
        for gpu in fake.node.gpus:
            gpu.heals()
        supervisor.stop(30.0)
        wait_for(lambda: not supervisor.left_pids)  # noqa: B023 - waited for here
        supervisor.close()


def newest(supervisor: SamplerSupervisor, slot: int, count: int = 5) -> Records:
    """The newest records of a GPU, once there are so many more."""
    supervisor.poll()
    before = written(supervisor, slot)
    wait_for(lambda: supervisor.poll() and written(supervisor, slot) >= before + count)
    return supervisor.reader.drain(slot, before).records


def test_everything_of_a_mi300x_is_sampled(fake_amdsmi: FakeAmdSmi, supervise: Supervise) -> None:
    dies = (2100, 1900, 132, 0, 2000, 2000, 2000, 2000)
    fake_amdsmi.node.plays(Segment(die_clocks_mhz=dies, power_w=650, limits=frozenset({"ppt"})))
    supervisor = supervise(fake_amdsmi)
    wait_for_samples(supervisor, ZERO)
    [info] = supervisor.reader.description().gpus
    assert (info.name, info.power_source, info.kfd_node) == ("AMD Instinct MI300X", "instant", 2)
    wait_for(
        lambda: not np.isnan(newest(supervisor, 0)["energy_j"]).all(), "the energy to be checked"
    )
    records = newest(supervisor, 0, 60)
    assert set(records["sm_clock_mhz"]) == {1900.0}
    assert {tuple(row) for row in records["die_clocks_mhz"]} == {dies}
    assert set(records["power_w"]) == {650.0}
    assert (records["causes"] == 0).all()
    spans_s = np.diff(records["t_mono_ns"][[0, -1]])[0] / 1e9
    joules = np.diff(records["energy_j"][[0, -1]])[0]  # all looks have it, fast ones too
    assert joules == pytest.approx(650 * spans_s, rel=0.05)
    limited_s = np.diff(records["limited_ns"][[0, -1], Cause.POWER_CAP])[0] / 1e9
    assert limited_s == pytest.approx(spans_s, rel=0.05)


def test_settled_looks_are_made_without_python_and_still_one_at_a_time(
    make_fake_amdsmi: MakeFakeAmdSmi, supervise: Supervise
) -> None:
    if native_library() is None:
        pytest.skip("the C part is not built")
    fake = make_fake_amdsmi([mi300x()] * 3)
    fake.node.takes(200, METRICS)
    supervisor = supervise(fake)
    wait_for_samples(supervisor, ZERO, ONE, TWO)
    wait_for(lambda: not np.isnan(newest(supervisor, 2)["energy_j"]).all())
    newest(supervisor, 0, 50)
    assert fake.node.most_at_once == 1


def test_a_gpu_is_lost_and_comes_back_while_the_others_go_on(
    make_fake_amdsmi: MakeFakeAmdSmi, supervise: Supervise
) -> None:
    fake = make_fake_amdsmi([mi300x()] * 2)
    supervisor = supervise(fake)
    wait_for_samples(supervisor, ZERO, ONE)
    fake.node.gpus[1].fails(NOT_FOUND)
    wait_for(lambda: "code 31" in (supervisor.reader.slow_state(1).trouble or ""))
    wait_for_samples(supervisor, ZERO)
    fake.node.gpus[1].heals()
    wait_for_samples(supervisor, ZERO, ONE)
    assert labels(supervisor) == {ZERO: "0", ONE: "1"}
    assert supervisor.restart_count == 0


def test_all_gpus_are_lost_and_come_back(
    make_fake_amdsmi: MakeFakeAmdSmi, supervise: Supervise
) -> None:
    fake = make_fake_amdsmi([mi300x()] * 2)
    supervisor = supervise(fake)
    wait_for_samples(supervisor, ZERO, ONE)
    for gpu in fake.node.gpus:
        gpu.fails(DRIVER_NOT_LOADED)
    wait_for(
        lambda: supervisor.reader.slow_state(0).trouble and supervisor.reader.slow_state(1).trouble
    )
    for gpu in fake.node.gpus:
        gpu.heals()
    wait_for_samples(supervisor, ZERO, ONE)


def test_a_new_partition_is_sampled_and_the_others_keep_their_labels(
    make_fake_amdsmi: MakeFakeAmdSmi, supervise: Supervise
) -> None:
    fake = make_fake_amdsmi([mi300x()])
    supervisor = supervise(fake)
    wait_for_samples(supervisor, ZERO)
    fake.node.add_partitions(mi300x().at(1), 2, compute="DPX")
    wait_for(lambda: supervisor.poll() and ONE in labels(supervisor))
    wait_for_samples(supervisor, ZERO, ONE)
    assert labels(supervisor) == {ZERO: "0", ONE: "1", f"{ONE}.0": "1.0", f"{ONE}.1": "1.1"}
    fake.node.has_gpus(1)
    wait_for(
        lambda: supervisor.poll() is SupervisorState.RUNNING and ONE not in sampled(supervisor)
    )
    wait_for_samples(supervisor, ZERO)
    assert supervisor.failure is None


def sampled(supervisor: SamplerSupervisor) -> set[str]:
    """The GPUs whose newest sample is of the process that runs now."""
    fresh_ns = CLOCK.mono_ns() - 3_000_000_000
    return {
        uuid
        for slot, uuid in enumerate(labels(supervisor))
        if (supervisor.reader.status(slot).last_mono_ns or 0) > fresh_ns
    }


def test_both_dies_of_a_mi250x_are_sampled_and_the_card_s_power_once(
    make_fake_amdsmi: MakeFakeAmdSmi, supervise: Supervise
) -> None:
    fake = make_fake_amdsmi(mi250x_pair())
    fake.node.plays(Segment(die_clocks_mhz=1650, power_w=430))
    supervisor = supervise(fake)
    wait_for_samples(supervisor, ZERO, ONE)
    first, second = newest(supervisor, 0), newest(supervisor, 1)
    assert set(first["power_w"]) == {430.0}
    assert np.isnan(second["power_w"]).all()
    assert set(first["sm_clock_mhz"]) | set(second["sm_clock_mhz"]) == {1650.0}


def test_a_crash_in_the_library_costs_a_process_and_no_label(
    make_fake_amdsmi: MakeFakeAmdSmi, supervise: Supervise
) -> None:
    fake = make_fake_amdsmi([mi300x()] * 2)
    supervisor = supervise(fake)
    wait_for_samples(supervisor, ZERO, ONE)
    fake.node.gpus[1].fails(CRASHES, METRICS)
    wait_for(lambda: supervisor.poll() is not SupervisorState.RUNNING)
    fake.node.gpus[1].heals()
    wait_for_samples(supervisor, ZERO, ONE)
    assert labels(supervisor) == {ZERO: "0", ONE: "1"}


def test_one_call_that_hangs_holds_up_all_until_it_returns(
    make_fake_amdsmi: MakeFakeAmdSmi, supervise: Supervise
) -> None:
    """No process may call the library meanwhile; a successor takes over once it returns."""
    fake = make_fake_amdsmi([mi300x()] * 2)
    supervisor = supervise(fake)
    wait_for_samples(supervisor, ZERO, ONE)
    pid = supervisor.pid
    fake.node.gpus[1].fails(HANGS, METRICS)
    wait_for(lambda: (supervisor.poll(), supervisor.pid)[1] != pid, "a successor", 60)
    fake.node.gpus[1].heals()
    wait_for_samples(supervisor, ZERO, ONE)
    assert labels(supervisor) == {ZERO: "0", ONE: "1"}
    wait_for(lambda: (supervisor.poll(), not supervisor.left_pids)[1], "those left to end")


def test_a_fork_of_the_parent_leaves_the_sampler_alone(
    fake_amdsmi: FakeAmdSmi, supervise: Supervise
) -> None:
    supervisor = supervise(fake_amdsmi)
    wait_for_samples(supervisor, ZERO)
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    wait_for_samples(supervisor, ZERO)
    assert supervisor.restart_count == 0
