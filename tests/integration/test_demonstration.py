"""What plays the job of the demo, beside an agent that is a server of our own."""

import socket
import threading
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from chopperd.cli.demo import Demonstration, demo_config, demo_spec
from chopperd.clock import SystemClock
from chopperd.config.load import load_config
from chopperd.config.sections import Config
from chopperd.errors import AgentUnreachableError, ChopperdError
from chopperd.model.report import ReportDocument
from chopperd.simulation.presets import SimulationSpec
from chopperd.traces.read.sniff import is_kineto
from tests.fakes import api_answers
from tests.fakes.http_agent import FakeAgent, Reply, as_json, serving
from tests.unit.report.documents import eight_gpus, trace

API = "/api/v1"
RANKS = range(8)
DOCUMENT = replace(eight_gpus(), traces=tuple(trace(rank) for rank in RANKS))
UP = {
    **api_answers.gpus(),
    "gpus": [api_answers.gpus()["gpus"][0] for _ in RANKS],  # type: ignore[index]
}


def entries(*states: str) -> Reply:
    """Traces in these states."""
    return as_json(
        {
            "traces": [
                {
                    "id": f"{number:016x}",
                    "name": f"rank{number}.json",
                    "job": "demo",
                    "owner_uid": 0,
                    "state": state,
                    "reason": "no room" if state == "rejected" else None,
                    "stored_bytes": 1,
                    "received_unix_ns": 1,
                }
                for number, state in enumerate(states)
            ]
        }
    )


def agent_with(traces: Reply, document: ReportDocument = DOCUMENT) -> FakeAgent:
    return FakeAgent(
        {
            f"{API}/gpus": as_json(UP),
            f"{API}/traces": traces,
            f"{API}/report/latest": Reply(body=msgspec.json.encode(document)),
        }
    )


def config(folder: Path) -> Config:
    made = demo_config(load_config(None, {}), folder)
    return replace(made, api=replace(made.api, listen=""))


class Stage:
    """A demonstration, and what comes of it."""

    def __init__(self, folder: Path, *, stays: bool = False) -> None:
        spec = SimulationSpec(start_unix_ns=SystemClock().unix_ns())
        self.shown: list[ReportDocument] = []
        self.stopped = threading.Event()
        self.demonstration = Demonstration(
            spec, config(folder), self.shown.append, seconds=0.5, stays=stays
        )

    def play(self) -> None:
        """Play to the end, as beside an agent that stops when it is told."""
        self.demonstration.start(self.stopped.set)
        assert self.stopped.wait(30)
        self.demonstration.finish()


def test_the_report_is_shown_once_every_rank_is_in_it(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    with serving(agent_with(entries(*["analysed"] * 8)), tmp_path / "api.sock"):
        stage.play()
    assert stage.shown == [DOCUMENT]
    assert stage.demonstration.is_shown
    inbox = tmp_path / "state" / "inbox" / "demo"
    names = sorted(path.name for path in inbox.iterdir())
    assert names == [f"capture0-rank{rank}.pt.trace.json" for rank in RANKS]
    assert all(map(is_kineto, inbox.iterdir()))


def test_a_refused_trace_is_said_with_its_reason(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    refusing = agent_with(entries("analysed", "rejected"))
    with (
        serving(refusing, tmp_path / "api.sock"),
        pytest.raises(ChopperdError, match=r"its own demo: rank1\.json was rejected: no room"),
    ):
        stage.play()
    assert stage.shown == []
    assert not stage.demonstration.is_shown


def test_an_agent_that_does_not_answer_ends_it(tmp_path: Path) -> None:
    with pytest.raises(AgentUnreachableError, match="no agent answers"):
        Stage(tmp_path).play()


@pytest.mark.parametrize("stays", [True, False])
def test_it_ends_at_once_when_the_agent_does(stays: bool, tmp_path: Path) -> None:
    stage = Stage(tmp_path, stays=stays)
    waiting = agent_with(entries(*["queued"] * 8))
    with serving(waiting, tmp_path / "api.sock"):
        stage.demonstration.start(stage.stopped.set)
        stage.demonstration.finish()
    assert stage.stopped.is_set()
    assert stage.shown == []
    assert len(list(tmp_path.glob("state/inbox/demo/*"))) < 8


def test_its_agent_shares_no_folder_and_no_taken_port(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        variables = {"CHOPPERD_METRICS__LISTEN": f"127.0.0.1:{port}", "CHOPPERD_API__LISTEN": ""}
        made = demo_config(load_config(None, variables), tmp_path)
    assert (made.metrics.listen, made.api.listen) == ("127.0.0.1:0", "")
    assert Path(made.paths.state or "").parent == Path(made.paths.runtime or "") == tmp_path
    assert made.sampling.hz == 100.0
    assert made.store.min_free_ratio == 0.0


@pytest.mark.parametrize(("seconds", "after_s"), [(3.0, 1.2), (10.0, 4.0), (1.0, -0.5)])
def test_a_gpu_is_slowed_down_in_the_second_capture(seconds: float, after_s: float) -> None:
    """0.4 of the capture after its begin, at 30 s; of a short one 1.5 s before its end."""
    brake = demo_spec(3, "fsdp2-h100", 10**18, seconds=seconds).brake
    assert brake is not None
    assert brake.start_unix_ns == 10**18 + round((30 + after_s) * 10**9)
    assert brake.end_unix_ns == brake.start_unix_ns + 6 * 10**9
    assert brake.gpu != 5  # which is hot
