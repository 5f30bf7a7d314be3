"""Every query of the boards, asked of a real Prometheus that scrapes the real agent."""

import math
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import httpx
import pytest

from chopperd.clock import SystemClock
from chopperd.pipeline.simulated import simulated_traces
from chopperd.simulation.node import SimulatedNode
from chopperd.simulation.spec import SimulationSpec
from chopperd.units import NS_PER_S
from dashboards import node_and_gpu
from dashboards.checks import expressions
from tests.e2e.prometheus import Prometheus, scraping
from tests.e2e.running import SLACK, Chopperd
from tests.ports import free_port
from tests.promql import filled_in
from tests.waiting import wait_for

#: Scraped each second, this holds many scrapes; Grafana's own would be four.
WINDOW: Final = "10s"
#: The excess needs a whole window of 10 s, the waterfall an analysed trace.
WITHIN_S: Final = 90.0
_TRACED_NS: Final = 3 * NS_PER_S


@pytest.fixture
def agent_address(chopperd: Chopperd, tmp_path: Path) -> Iterator[str]:
    """Where an agent of a simulated node is scraped that has taken in a trace of each rank."""
    address = f"127.0.0.1:{free_port()}"
    state = tmp_path / "state"
    settings = {
        "CHOPPERD_METRICS__LISTEN": address,
        "CHOPPERD_API__LISTEN": "",
        "CHOPPERD_PATHS__STATE": str(state),
        "CHOPPERD_PATHS__RUNTIME": str(tmp_path / "run"),
        "CHOPPERD_INGEST__SETTLE_S": "0.5",
    }
    program = replace(chopperd, environment={**chopperd.environment, **settings})
    agent = program.start("run", "--backend", "simulated")
    try:
        wait_for(lambda: _is_ready(address), "the agent is ready")
        _write_traces(state / "inbox")
        yield address
    finally:
        agent.send_signal(signal.SIGTERM)
        _, errors = agent.communicate(timeout=2 * SLACK)
    assert agent.returncode == 0, errors


def test_every_query_of_every_panel_returns_data(agent_address: str, tmp_path: Path) -> None:
    with scraping(agent_address, tmp_path) as server:
        wait_for(
            lambda: not _without_data(server, agent_address),
            "every query returns data",
            within_s=WITHIN_S,
        )
        gap = _value(server, "Clock gap by cause (ceiling)", agent_address, "sum({})")
        clock = _value(server, "SM clock while busy", agent_address, "avg({})")
        reference = _value(
            server, "chopperd_gpu_sm_clock_reference_hertz", agent_address, "max({})"
        )
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


def _value(server: Prometheus, start: str, node: str, reduced: str) -> float:
    """One number made of a panel's first query, or of a metric that it draws."""
    query = next(query for name, query in _queries(node).items() if start in name)
    (series,) = server.query(reduced.format(query))
    return series.value
