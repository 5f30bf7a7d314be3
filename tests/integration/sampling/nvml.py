"""Real sampler processes over the fake NVIDIA driver, through the real binding."""

import sys
from collections.abc import Callable, Iterator
from typing import TypeAlias

import pytest

from chopperd.sampling.settings import RestartPolicy, SamplerSettings
from chopperd.sampling.supervisor import SamplerSupervisor, SupervisorState
from tests.fakes.nvml.fixtures import FakeNvml
from tests.fakes.nvml.scenario import SUCCESS
from tests.integration.sampling.supervised import CLOCK
from tests.waiting import wait_for

COMMAND = [sys.executable, "-P", "-m", "chopperd", "_sampler", "--backend", "nvml"]
#: All that is seldom done is done often.
BUSY = SamplerSettings(
    hz=50.0,
    slow_hz=5.0,
    budget_ratio=1.0,
    probe_every_s=0.2,
    processes_every_s=0.2,
    watch_every_s=0.5,
)

Supervise: TypeAlias = Callable[[FakeNvml], SamplerSupervisor]


@pytest.fixture
def supervise(monkeypatch: pytest.MonkeyPatch) -> Iterator[Supervise]:
    """Starts a sampler over a fake driver; at the end the driver works and the sampler ends."""
    made: list[tuple[SamplerSupervisor, FakeNvml]] = []

    def started(fake: FakeNvml, settings: SamplerSettings = BUSY) -> SamplerSupervisor:
        monkeypatch.setenv("LD_LIBRARY_PATH", str(fake.library.parent))
        policy = RestartPolicy(start_s=30.0, hung_s=2.0)
        supervisor = SamplerSupervisor(COMMAND, settings, CLOCK, policy)
        made.append((supervisor, fake))
        supervisor.start()
        return supervisor

    yield started
    for supervisor, fake in made:
        for gpu in fake.scenario.gpus:
            gpu.fails(SUCCESS)
        supervisor.stop(30.0)
        wait_for(lambda: not supervisor.left_pids)  # noqa: B023 - waited for here
        supervisor.close()


def labels(supervisor: SamplerSupervisor) -> dict[str, str]:
    """The label of each GPU by UUID, in the order of the slots."""
    supervisor.poll()
    return {gpu.uuid: gpu.gpu for gpu in supervisor.reader.description().gpus}


def wait_for_samples(supervisor: SamplerSupervisor, *uuids: str) -> None:
    """Wait until each of these GPUs has been sampled once more by a running process."""
    wait_for(
        lambda: supervisor.poll() is SupervisorState.RUNNING and set(uuids) <= {*labels(supervisor)}
    )
    slots = [list(labels(supervisor)).index(uuid) for uuid in uuids]
    before = [supervisor.reader.status(slot).written for slot in slots]

    def all_sampled() -> bool:
        supervisor.poll()
        written = [supervisor.reader.status(slot).written for slot in slots]
        return all(now > then for now, then in zip(written, before, strict=True))

    wait_for(all_sampled, f"samples of {uuids}", 60)
