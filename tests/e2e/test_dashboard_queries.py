"""Every query of the boards, asked of a real Prometheus that scrapes the real agent."""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx
import pytest

from chopperd.cli.demo import simulated_traces
from chopperd.clock import SystemClock
from chopperd.simulation.node import SimulatedNode
from chopperd.units import NS_PER_S
from dashboards.__main__ import BOARDS
from dashboards.checks import expressions
from dashboards.rules_file import rule_files
from tests.e2e.agents import RunningAgent, agent_under, now_spec
from tests.e2e.made_series import NODE, OF_GPUS, served
from tests.e2e.prometheus import Prometheus, prometheus
from tests.promql import filled_in
from tests.waiting import wait_for

#: Scraped each second, this holds many scrapes; Grafana's own would be four.
WINDOW: Final = "20s"
#: The excess needs a whole window of 10 s, the waterfall an analysed trace.
WITHIN_S: Final = 120.0
#: Long enough for 30 samples of some kernel classes: fewer say nothing of their loss.
_TRACED_NS: Final = 8 * NS_PER_S
_JOBS: Final = """
  - job_name: chopperd
    scrape_interval: 1s
    scrape_timeout: 1s
    static_configs: [{{targets: ["{agent}"]}}]
  - job_name: made
    scrape_interval: 1s
    scrape_timeout: 1s
    honor_labels: true
    static_configs: [{{targets: ["{made}"]}}]
"""
#: Empty where all is well: a hundredth of busy time is not sampled. Its value is held by promtool.
_EMPTY_IF_WELL: Final = {"not sampled"}


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[RunningAgent]:
    """An agent of a simulated node that samples."""
    with agent_under(tmp_path, now_spec(), {"METRICS__PROFILE": "full"}) as running:
        wait_for(lambda: _is_ready(running.metrics), "the agent is ready")
        yield running
        assert running.stop() == 0


def test_every_query_of_every_panel_returns_data(agent: RunningAgent, tmp_path: Path) -> None:
    rules = rule_files()["rules.yml"].replace("interval: 1m", "interval: 1s")
    # The rules' windows as short as the scrapes are frequent.
    rules = rules.replace("[5m]", f"[{WINDOW}]").replace("[10m]", f"[{WINDOW}]")
    with (
        served(agent.metrics) as made,
        prometheus(tmp_path, _JOBS.format(agent=agent.metrics, made=made), rules) as server,
    ):
        # While it is scraped, so that their counts are seen to rise.
        _write_traces(agent)
        unanswered = _queries()
        until_s = time.monotonic() + WITHIN_S
        while unanswered and time.monotonic() < until_s:
            unanswered = {k: q for k, q in unanswered.items() if not _returns_data(server, q)}
        assert list(unanswered) == []
        now = Moment(server, time.time())
        gap = now.value("sum by (gpu) (gpu_cause:chopperd_gpu_dvfs_gap:ratio5m)")
        clock = now.value("gpu:chopperd_gpu_busy_sm_clock_hertz:mean5m")
        reference = now.value("chopperd_gpu_sm_clock_reference_hertz")
        of_model = now.value("gpu_name:chopperd_gpu_busy_sm_clock_hertz:mean5m")
        held = now.value("gpu:chopperd_gpu_held_by:code5m")
    exported = {name.partition("[")[0] for name in agent.scrape()}
    # No join drops a GPU or doubles one, and each GPU has one cause.
    assert gap.keys() == clock.keys() == of_model.keys() == held.keys() == set(map(str, range(8)))
    # The same loss, once by cycles and once by cause.
    for gpu, lost in gap.items():
        assert lost == pytest.approx(1 - clock[gpu] / reference[gpu], abs=0.02)
        assert 0 < lost < 1
    # Nothing of an agent's GPUs is made that this one exports.
    made_names = {f"chopperd_{series.partition('{')[0]}" for series in OF_GPUS}
    assert not made_names & exported


def _is_ready(address: str) -> bool:
    try:
        return httpx.get(f"http://{address}/readyz").status_code == httpx.codes.OK
    except httpx.TransportError:
        return False


def _write_traces(agent: RunningAgent) -> None:
    """A trace of each rank of the job that the agent samples, of a time that it has sampled."""
    clock = SystemClock()
    start_ns = clock.unix_ns()
    wait_for(lambda: clock.unix_ns() > start_ns + _TRACED_NS, "samples of a while")
    for name, content in simulated_traces(
        SimulatedNode(agent.spec), start_ns, start_ns + _TRACED_NS - NS_PER_S
    ):
        with (agent.state / "inbox" / name).open("wb") as file:
            file.writelines(content)


def _queries() -> dict[str, str]:
    """The expressions of all panels by board, title and name of the series."""
    return {
        f"{board}: {title}: {legend} {number}": filled_in(expression, window=WINDOW)
        for board, make in BOARDS.items()
        for number, (title, expression, legend) in enumerate(expressions(make()))
        if legend not in _EMPTY_IF_WELL
    }


def _returns_data(server: Prometheus, query: str) -> bool:
    return any(math.isfinite(series.value) for series in server.query(query))


@dataclass(frozen=True, slots=True)
class Moment:
    """A Prometheus asked as of one moment, so that all answers are about the same scrapes."""

    server: Prometheus
    at_s: float

    def value(self, query: str) -> dict[str, float]:
        """The value by GPU of the agent; each GPU has one."""
        found: dict[str, float] = {}
        for series in self.server.query(query, self.at_s):
            if series.labels.get("instance") != NODE:
                assert series.labels["gpu"] not in found
                found[series.labels["gpu"]] = series.value
        return found
