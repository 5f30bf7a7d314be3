"""The whole agent over a fake NVIDIA driver that fails: nothing stale, no counter that falls.

The real binding, the real sampler process, and what is seen in `/metrics` and `/healthz`.
"""

import time
from ast import literal_eval
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final, TypeAlias

import pytest

from chopperd.api.models import Gpus, Status
from chopperd.model.live import SamplerCondition
from tests.e2e.agents import RunningAgent, agent_under, nvml_environment
from tests.e2e.running import SLACK
from tests.fakes.nvml.scenario import (
    CRASHES,
    GPU_IS_LOST,
    HANGS,
    SUCCESS,
    UNKNOWN,
    Scenario,
    Segment,
)
from tests.waiting import wait_for

FRESH_S: Final = 3.0

StartAgent: TypeAlias = Callable[..., RunningAgent]


@pytest.fixture
def library(nvml_library: Callable[[], Path]) -> Path:
    return nvml_library()


@pytest.fixture
def start(library: Path, tmp_path: Path) -> Iterator[StartAgent]:
    """Starts an agent over a scenario; at the end the driver works again and the agent ends."""
    running: list[tuple[AbstractContextManager[RunningAgent], Scenario]] = []

    def started(scenario: Scenario, **settings: str) -> RunningAgent:
        environment = nvml_environment(library, scenario.path)
        context = agent_under(tmp_path, None, settings, environment)
        agent = context.__enter__()
        running.append((context, scenario))
        return agent

    yield started
    for context, scenario in running:
        heal(scenario)
        context.__exit__(None, None, None)


def heal(scenario: Scenario) -> None:
    for gpu in scenario.gpus:
        gpu.fails(SUCCESS)
    scenario.fails(SUCCESS, ["nvmlInitWithFlags", "nvmlDeviceGetCount_v2"])


def of(scrape: dict[str, float], name: str, **labels: str) -> dict[str, float]:
    """The series of a metric by GPU label (by the rest of the labels where it has none)."""
    found = {}
    for key, value in scrape.items():
        metric, _, rest = key.partition("[")
        given = dict(literal_eval(f"[{rest}"))
        if metric == name and labels.items() <= given.items():
            found[given.get("gpu", "")] = value
    return found


def up(agent: RunningAgent) -> dict[str, float]:
    return of(agent.scrape(), "chopperd_gpu_up")


def wait_for_up(agent: RunningAgent, **states: float) -> float:
    wanted = {label.removeprefix("gpu"): float(state) for label, state in states.items()}
    return wait_for(lambda: up(agent) == wanted, f"{wanted}, not {up(agent)}", 60)


def test_case_18_a_lost_gpu_has_no_values_and_the_others_do(
    start: StartAgent, tmp_path: Path
) -> None:
    """By the case: 303 + 313 + 298 = 914 W over three of four GPUs; nothing shifts."""
    scenario = Scenario(tmp_path / "scenario.bin", gpu_count=4)
    for gpu, watts in zip(scenario.gpus, (303, 313, 305, 298), strict=True):
        gpu.plays(Segment(power_mw=watts * 1000))
    agent = start(scenario)
    wait_for_up(agent, gpu0=1, gpu1=1, gpu2=1, gpu3=1)
    scenario.aside(scenario.gpus[2]).has_xid(79)
    scenario.gpus[2].fails(GPU_IS_LOST)
    wait_for_up(agent, gpu0=1, gpu1=1, gpu2=0, gpu3=1)
    scrape = agent.scrape()
    for name in ("power_watts", "sm_clock_hertz", "temperature_celsius", "memory_used_bytes"):
        assert of(scrape, f"chopperd_gpu_{name}").keys() == {"0", "1", "3"}
    assert sum(of(scrape, "chopperd_gpu_power_watts").values()) == 914
    # An XID may be seen a moment before the loss that it explains.
    wait_for_trouble(agent, 2, "code 15")
    wait_for_trouble(agent, 2, "XID 79")
    # The agent is started again, and the GPU is still lost.
    agent.stop()
    agent.start()
    wait_for_up(agent, gpu0=1, gpu1=1, gpu2=0, gpu3=1)
    assert of(agent.scrape(), "chopperd_gpu_power_watts") == {"0": 303, "1": 313, "3": 298}
    known = agent.get("/api/v1/gpus", Gpus).gpus
    assert [(gpu.info.gpu, gpu.info.index, gpu.up) for gpu in known] == [
        (str(index), index, index != 2) for index in range(4)
    ]


def wait_for_trouble(agent: RunningAgent, index: int, words: str) -> None:
    def trouble() -> str:
        return agent.get("/api/v1/gpus", Gpus).gpus[index].trouble or ""

    wait_for(lambda: words in trouble(), f"{words!r} in {trouble()!r}")


def test_case_19_a_driver_that_knows_no_gpu_any_more_is_down_at_once(
    start: StartAgent, tmp_path: Path
) -> None:
    scenario = Scenario(tmp_path / "scenario.bin", gpu_count=2)
    agent = start(scenario, HEALTH__FAIL_ON_LOST_DRIVER="true")
    wait_for_up(agent, gpu0=1, gpu1=1)
    wait_for(lambda: of(agent.scrape(), "chopperd_gpu_sm_cycles_total").keys() == {"0", "1"})
    before = of(agent.scrape(), "chopperd_gpu_sm_cycles_total")
    scenario.fails(UNKNOWN, ["nvmlInitWithFlags"])
    for gpu in scenario.gpus:
        gpu.fails(UNKNOWN)
    took_s = wait_for_up(agent, gpu0=0, gpu1=0)
    assert took_s < FRESH_S * SLACK
    scrape = agent.scrape()
    assert of(scrape, "chopperd_agent_backend_up", backend="nvml") == {"": 0}
    assert not of(scrape, "chopperd_gpu_sm_clock_hertz")
    assert not of(scrape, "chopperd_gpu_power_watts")
    assert agent.health() == 200  # it may pass
    wait_for(lambda: agent.health() == 503, "five failed starts of the sampler", 120)
    assert agent.scrape()  # and yet it answers
    # One line a change of state: not one for each of the failed starts.
    said = [line for line in agent.log().splitlines() if "ended after" in line]
    assert len(said) == 2, said  # it gives up; NVML does not start
    heal(scenario)
    wait_for_up(agent, gpu0=1, gpu1=1)
    after = wait_for_cycles(agent, before.keys())
    assert all(after[gpu] >= before[gpu] for gpu in before)
    wait_for(lambda: agent.health() == 200)


def wait_for_cycles(agent: RunningAgent, gpus: object) -> dict[str, float]:
    def cycles() -> dict[str, float]:
        return of(agent.scrape(), "chopperd_gpu_sm_cycles_total")

    wait_for(lambda: cycles().keys() == gpus)
    return cycles()


def test_case_23_a_card_in_parts_has_its_power_once_and_memory_by_part(
    start: StartAgent, tmp_path: Path
) -> None:
    """By the case: 87 W in all, 1 GiB and 2 GiB in the parts, no activity."""
    scenario = Scenario(tmp_path / "scenario.bin", gpu_count=1)
    scenario.gpus[0].plays(Segment(power_mw=87_000))
    scenario.partition(0, 1, uuid="MIG-1", used_bytes=1 << 30)
    part = scenario.partition(0, 2, uuid="MIG-2", used_bytes=2 << 30)
    scenario.aside(part).runs((4711, 1 << 29))
    agent = start(scenario)
    wait_for_up(agent, **{"gpu0": 1, "gpu0.1": 1, "gpu0.2": 1})
    memory = {"0.1": 1 << 30, "0.2": 2 << 30}
    wait_for(lambda: of(agent.scrape(), "chopperd_gpu_memory_used_bytes") == memory)
    wait_for(lambda: of(agent.scrape(), "chopperd_gpu_sm_cycles_total"))
    # Once it was seen to agree with the power.
    wait_for(lambda: of(agent.scrape(), "chopperd_gpu_energy_joules_total"))
    scrape = agent.scrape()
    assert of(scrape, "chopperd_gpu_power_watts") == {"0": 87}
    assert not of(scrape, "chopperd_gpu_activity_ratio")
    for name in (
        *("sm_clock_hertz", "sm_clock_reference_hertz", "sm_cycles_total", "sampled_seconds_total"),
        *("busy_seconds_total", "energy_joules_total", "temperature_celsius", "power_limit_watts"),
    ):
        assert of(scrape, f"chopperd_gpu_{name}").keys() == {"0"}, name
    assert of(scrape, "chopperd_gpu_info", parent="0").keys() == {"0.1", "0.2"}
    assert of(scrape, "chopperd_gpu_memory_size_bytes").keys() == {"0.1", "0.2"}
    wait_for(lambda: agent.get("/api/v1/gpus", Gpus).gpus[2].processes)
    (process,) = agent.get("/api/v1/gpus", Gpus).gpus[2].processes or ()
    assert (process.pid, process.memory_used_bytes, process.partition) == (4711, 1 << 29, 2)


def test_case_34_a_call_that_hangs_leaves_the_others_their_rate_and_scrapes_quick(
    start: StartAgent, tmp_path: Path
) -> None:
    scenario = Scenario(tmp_path / "scenario.bin", gpu_count=3)
    agent = start(scenario)
    wait_for_up(agent, gpu0=1, gpu1=1, gpu2=1)
    scenario.gpus[1].fails(HANGS, "nvmlDeviceGetClockInfo")
    wait_for_up(agent, gpu0=1, gpu1=0, gpu2=1)
    wait_for(lambda: of(agent.scrape(), "chopperd_agent_driver_call_hung_seconds").get("1"))
    before, at_s = ticks(agent), time.monotonic()
    time.sleep(2)
    now, passed_s = ticks(agent), time.monotonic() - at_s
    assert now[1] == before[1]
    assert all((now[gpu] - before[gpu]) / passed_s > 10 / SLACK for gpu in (0, 2))
    began_s = time.monotonic()
    scrape = agent.scrape()
    assert time.monotonic() - began_s < 0.2 * SLACK
    assert of(scrape, "chopperd_gpu_power_watts").keys() == {"0", "2"}
    assert len(agent.chopperd.samplers()) == 1
    # All hang: one successor, which hangs as well, and no third.
    for gpu in scenario.gpus:
        gpu.fails(HANGS, "nvmlDeviceGetClockInfo")
    wait_for_up(agent, gpu0=0, gpu1=0, gpu2=0)
    scrape = agent.scrape()
    assert of(scrape, "chopperd_agent_backend_up", backend="nvml") == {"": 0}
    assert not of(scrape, "chopperd_gpu_sm_clock_hertz")
    wait_for(lambda: condition(agent) is SamplerCondition.HUNG, "one successor", 60)
    assert len(agent.chopperd.samplers()) == 2
    began_s = time.monotonic()
    assert agent.stop() == 0
    assert time.monotonic() - began_s < 2 * SLACK
    assert len(agent.chopperd.samplers()) == 2  # left alone, never killed


def test_a_scrape_before_any_sample_answers_at_once(start: StartAgent, tmp_path: Path) -> None:
    """The driver does not even start, as in case 34 at t = 0."""
    scenario = Scenario(tmp_path / "scenario.bin", gpu_count=1)
    scenario.fails(HANGS, ["nvmlInitWithFlags"])
    agent = start(scenario)
    began_s = time.monotonic()
    scrape = agent.scrape()
    assert time.monotonic() - began_s < SLACK
    assert of(scrape, "chopperd_agent_backend_up") == {"": 0}
    assert not of(scrape, "chopperd_gpu_up")


def condition(agent: RunningAgent) -> SamplerCondition:
    return agent.get("/api/v1/status", Status).sampler.condition


def ticks(agent: RunningAgent) -> list[int]:
    return [gpu.sampling.ticks_count for gpu in agent.get("/api/v1/gpus", Gpus).gpus]


def test_a_crash_inside_the_driver_library_costs_a_sampler_and_not_the_agent(
    start: StartAgent, tmp_path: Path
) -> None:
    scenario = Scenario(tmp_path / "scenario.bin", gpu_count=2)
    agent = start(scenario)
    wait_for_up(agent, gpu0=1, gpu1=1)
    before = wait_for_cycles(agent, {"0", "1"})
    scenario.gpus[1].fails(CRASHES, "nvmlDeviceGetTemperatureV")
    wait_for(lambda: "with status -11" in agent.log(), "the sampler to crash", 60)
    assert agent.scrape()
    scenario.gpus[1].fails(SUCCESS, "nvmlDeviceGetTemperatureV")
    wait_for_up(agent, gpu0=1, gpu1=1)
    after = wait_for_cycles(agent, {"0", "1"})
    assert all(after[gpu] >= before[gpu] for gpu in before)
