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
from chopperd.simulation.presets import SimulationSpec
from chopperd.units import NS_PER_S
from dashboards import node_and_gpu
from dashboards.checks import expressions
from tests.e2e.agents import agent_under, now_spec
from tests.e2e.prometheus import Prometheus, scraping
from tests.promql import filled_in
from tests.waiting import wait_for

#: Scraped each second, this holds many scrapes; Grafana's own would be four.
WINDOW: Final = "10s"
#: The excess needs a whole window of 10 s, the waterfall an analysed trace.
WITHIN_S: Final = 90.0
_TRACED_NS: Final = 3 * NS_PER_S


@pytest.fixture
def agent_address(tmp_path: Path) -> Iterator[str]:
    """Where an agent of a simulated node is scraped that has taken in a trace of each rank."""
    with agent_under(tmp_path, now_spec()) as agent:
        wait_for(lambda: _is_ready(agent.metrics), "the agent is ready")
        _write_traces(agent.state / "inbox")
        yield agent.metrics
        assert agent.stop() == 0


def test_every_query_of_every_panel_returns_data(agent_address: str, tmp_path: Path) -> None:
    with scraping(agent_address, tmp_path) as server:
        wait_for(
            lambda: not _without_data(server, agent_address),
            "every query returns data",
            within_s=WITHIN_S,
        )
        now = Moment(server, agent_address, time.time())
        gap = now.value("Clock gap by cause (ceiling)", "sum({})")
        clock = now.value("SM clock while busy", "avg({})")
        reference = now.value("chopperd_gpu_sm_clock_reference_hertz", "max({})")
    # The same loss, once by cycles and once by cause; all GPUs are of one model and as busy.
    assert gap == pytest.approx(1 - clock / reference, abs=0.02)
    assert 0 < gap < 1


def _is_ready(address: str) -> bool:
    try:
        return httpx.get(f"http://{address}/readyz").status_code == httpx.codes.OK
    except httpx.TransportError:
        return False


def _write_traces(inbox: Path) -> None:
    """A job's traces of the last seconds; the simulated GPUs are the agent's by their UUIDs."""
    now_ns = SystemClock().unix_ns()
    node = SimulatedNode(SimulationSpec(start_unix_ns=now_ns - 2 * _TRACED_NS))
    for name, content in simulated_traces(node, now_ns - _TRACED_NS, now_ns):
        with (inbox / name).open("wb") as file:
            file.writelines(content)


def _queries(node: str) -> dict[str, str]:
    """The expressions of all panels by title and metric names."""
    return {
        f"{title}: {expression}": filled_in(expression, node=node, window=WINDOW)
        for title, expression, _ in expressions(node_and_gpu.board())
    }


def _without_data(server: Prometheus, node: str) -> list[str]:
    """The queries that show nothing."""
    return [
        name
        for name, query in _queries(node).items()
        if not any(math.isfinite(series.value) for series in server.query(query))
    ]


@dataclass(frozen=True, slots=True)
class Moment:
    """A Prometheus asked as of one moment, so that all answers are about the same scrapes."""

    server: Prometheus
    node: str
    at_s: float

    def value(self, start: str, reduced: str) -> float:
        """One number made of a panel's first query, or of a metric that it draws."""
        query = next(query for name, query in _queries(self.node).items() if start in name)
        (series,) = self.server.query(reduced.format(query), self.at_s)
        return series.value
