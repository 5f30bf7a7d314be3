"""kill -9 of the agent at any moment: nothing stored is lost, nothing is torn, nothing is left."""

import random
import time
from pathlib import Path
from typing import Final

import pytest

from chopperd.cli.demo import simulated_traces
from chopperd.simulation.node import SimulatedNode
from chopperd.simulation.presets import SimulationSpec
from chopperd.store.recorder.reader import RecordedSamples
from tests.e2e.agents import RunningAgent, agent_under, now_spec
from tests.e2e.running import SLACK
from tests.waiting import wait_for

KILLS: Final = 5
NS_PER_S: Final = 1_000_000_000
#: The recorder is written once a second; what is younger may go with the agent.
UNRECORDED_S: Final = 2.0 * SLACK
#: After its start it samples again within this time.
SAMPLING_S: Final = 1.0 * SLACK


@pytest.fixture(scope="module")
def traces() -> list[bytes]:
    """Small traces of one rank, from one job's successive captures."""
    node = SimulatedNode(SimulationSpec(seed=1, start_unix_ns=time.time_ns() - 60 * NS_PER_S))
    contents = []
    for second in range(KILLS + 1):
        begin_ns = node.spec.start_unix_ns + second * 2 * NS_PER_S
        content = dict(simulated_traces(node, begin_ns, begin_ns + NS_PER_S))
        contents.append(b"".join(content["rank0.pt.trace.json"]))
    return contents


def test_no_stored_step_is_lost_and_no_process_is_left(tmp_path: Path, traces: list[bytes]) -> None:
    chance = random.Random(20261128)
    with agent_under(tmp_path, now_spec()) as agent:
        for round_number in range(KILLS):
            agent.drop("kills", f"cycle{round_number}.json", traces[round_number])
            time.sleep(chance.uniform(0.0, 2.5))
            before, told_ns = _told(agent), time.time_ns()
            agent.kill()
            wait_for(lambda: not agent.chopperd.processes(), "sampler and worker to end", 10)
            _nothing_is_torn(agent.state, told_ns)
            started_ns = time.time_ns()
            agent.start()
            wait_for(lambda: _is_sampling(agent), "all GPUs", 30)
            assert _first_sample_ns(agent.state, started_ns) - started_ns < SAMPLING_S * NS_PER_S
            assert before <= _told(agent)
        agent.drop("kills", "last.json", traces[KILLS])
        wait_for(lambda: len(_analysed(agent)) == KILLS + 1, "all traces", 60)


def _told(agent: RunningAgent) -> set[tuple[str | None, int | None, int | None]]:
    """The step rows that the agent shows: whoever has seen them once must see them again."""
    return {(row.run, row.step, row.device) for row in agent.steps("&job=kills")}


def _analysed(agent: RunningAgent) -> list[str]:
    return [trace.id for trace in agent.traces() if trace.state == "analysed"]


def _is_sampling(agent: RunningAgent) -> bool:
    metrics = agent.scrape()
    return all(metrics.get(f"chopperd_gpu_up[('gpu', '{gpu}')]") == 1.0 for gpu in range(8))


def _first_sample_ns(state: Path, after_ns: int) -> int:
    """The time of the first sample after a time, once it is recorded."""
    recorded = RecordedSamples(state / "recorder")
    found: list[int] = []

    def look() -> bool:
        samples = recorded.between(after_ns, after_ns + 60 * NS_PER_S)
        if samples is not None:
            found.extend(int(gpu.t_unix_ns[0]) for gpu in samples.gpus)
        return samples is not None

    wait_for(look, "a recorded sample", 30)
    return min(found)


def _nothing_is_torn(state: Path, told_ns: int) -> None:
    """The recorder as the killed agent left it: whole, and nearly up to the kill."""
    recorded = RecordedSamples(state / "recorder")
    samples = recorded.between(told_ns - 20 * NS_PER_S, told_ns + 20 * NS_PER_S)
    assert samples is not None
    assert recorded.damaged_count == 0
    for gpu in samples.gpus:
        assert told_ns - int(gpu.t_unix_ns[-1]) < UNRECORDED_S * NS_PER_S
