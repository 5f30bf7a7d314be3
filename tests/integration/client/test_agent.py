"""The agent's answers as typed values, from a server of our own."""

import math
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest
from msgspec.structs import replace

from chopperd.client.agent import AgentClient
from chopperd.config.load import load_config
from chopperd.config.sections import Config
from chopperd.errors import AgentUnreachableError
from chopperd.model.captures import StepQuery
from chopperd.model.kinds import Cause
from chopperd.model.live import SamplerCondition
from chopperd.model.report_rows import Row
from tests.fakes import api_answers
from tests.fakes.http_agent import FakeAgent, Reply, as_json, serving
from tests.unit.report.documents import eight_gpus, row

API = "/api/v1"


def config(runtime: Path, **variables: str) -> Config:
    return load_config(None, {"CHOPPERD_PATHS__RUNTIME": str(runtime), **variables})


@pytest.fixture
def agent() -> FakeAgent:
    return FakeAgent({})


@pytest.fixture
def client(agent: FakeAgent, tmp_path: Path) -> Iterator[AgentClient]:
    with serving(agent, tmp_path / "api.sock"):
        yield AgentClient.of(config(tmp_path, CHOPPERD_API__LISTEN=""))


def test_the_node_is_told_with_what_is_not_known(agent: FakeAgent, client: AgentClient) -> None:
    agent.replies = {
        f"{API}/status": as_json(api_answers.status()),
        f"{API}/gpus": as_json(api_answers.gpus()),
    }
    now = client.snapshot()
    assert (now.version, now.node, now.backend, now.driver) == ("1.2.3", "node7", "nvml", "560.35")
    assert now.sampler.condition is SamplerCondition.RUNNING
    assert now.taken_unix_ns - now.started_unix_ns == 60_000_000_000
    (gpu,) = now.gpus
    assert gpu.reading.sm_clock_mhz == 1485.0
    assert gpu.reading.energy_j is None
    # A cause that this version does not know is unknown, not left out.
    assert gpu.reading.causes == frozenset({Cause.POWER_CAP, Cause.UNKNOWN})
    assert gpu.totals is not None
    assert gpu.totals.lost_s == {Cause.POWER_CAP: 12.5}
    assert gpu.excess_s is None
    assert gpu.residency_s == {1980.0: 50.0, math.inf: 0.0}


def test_a_gpu_that_is_down_has_no_values(agent: FakeAgent, client: AgentClient) -> None:
    agent.replies = {
        f"{API}/status": as_json(api_answers.status()),
        f"{API}/gpus": as_json(api_answers.gpus(up=False)),
    }
    (gpu,) = client.snapshot().gpus
    assert gpu.reading.sm_clock_mhz is None
    assert gpu.reading.causes is None


def test_each_event_of_the_stream_is_a_look_at_the_node(
    agent: FakeAgent, client: AgentClient
) -> None:
    news = b"event: snapshot\ndata: {}\n\n"
    events = b": no news\n\n" + news + news + b"event: end\ndata: {}\n\n"
    agent.replies = {
        f"{API}/stream": Reply(body=events, media_type="text/event-stream"),
        f"{API}/status": as_json(api_answers.status()),
        f"{API}/gpus": as_json(api_answers.gpus()),
    }
    seen = []
    with pytest.raises(AgentUnreachableError, match="the agent has ended"):
        seen.extend(iter_all(client))
    assert agent.asked.count(f"{API}/gpus") == 2
    agent.replies = {**agent.replies, f"{API}/stream": Reply(body=events, cut_bytes=5)}
    with pytest.raises(AgentUnreachableError):
        iter_all(client)


def iter_all(client: AgentClient) -> list[object]:
    return list(client.snapshots())


def test_the_latest_report_comes_with_its_families(agent: FakeAgent, client: AgentClient) -> None:
    document = eight_gpus()
    agent.replies = {f"{API}/report/latest": Reply(body=msgspec.json.encode(document))}
    assert client.report_latest("llama") == document
    assert agent.asked == [f"{API}/report/latest?job=llama&include=families"]


def rows(step: int, run: str = "r1") -> list[Row]:
    return [replace(row(device, step), run=run) for device in (1, 0)]


def paged(pages: list[list[Row]]) -> FakeAgent:
    """An agent whose cursors are the numbers of pages."""

    def answer(target: str) -> Reply:
        asked = parse_qs(urlsplit(target).query)
        number = int(asked.get("cursor", ["0"])[0])
        following = str(number + 1) if number + 1 < len(pages) else None
        return as_json({"steps": pages[number], "cursor": following})

    return FakeAgent({f"{API}/steps": answer})


def last_steps(pages: list[list[Row]], query: StepQuery, count: int, folder: Path) -> list[Row]:
    with serving(paged(pages), folder / "api.sock"):
        return list(AgentClient.of(config(folder)).last_steps(query, count))


def test_the_last_steps_are_whole_oldest_first_and_in_order(tmp_path: Path) -> None:
    """Newest first: 9, 8 | 8, 7 | 6. The last two are 8 and 9, on both devices."""
    newest = [rows(9) + rows(8)[:1], rows(8)[1:] + rows(7), rows(6)]
    found = last_steps(newest, StepQuery(), 2, tmp_path)
    assert [(each.step, each.device) for each in found] == [(8, 0), (8, 1), (9, 0), (9, 1)]


def test_steps_of_one_number_in_two_runs_are_two(tmp_path: Path) -> None:
    newest = [rows(3, "new") + rows(3, "old") + rows(2, "old")]
    found = last_steps(newest, StepQuery(), 2, tmp_path)
    assert [(each.run, each.step) for each in found[::2]] == [("old", 3), ("new", 3)]


def test_fewer_steps_than_asked_for_are_all_there_are(tmp_path: Path) -> None:
    assert last_steps([[]], StepQuery(), 5, tmp_path) == []


def test_a_query_is_told_to_the_agent(agent: FakeAgent, client: AgentClient) -> None:
    agent.replies = {f"{API}/steps": as_json({"steps": [], "cursor": None})}
    client.steps(StepQuery(job="j", run="r", rank=0, gpu="GPU-1", from_unix_ns=7), limit=3)
    assert agent.asked == [f"{API}/steps?job=j&run=r&rank=0&gpu=GPU-1&from=7&limit=3"]


def test_traces_and_metrics_are_asked_where_they_are(tmp_path: Path) -> None:
    entry = {
        "id": "ab" * 8,
        "name": "rank0.json",
        "job": None,
        "owner_uid": None,
        "state": "rejected",
        "reason": "empty",
        "stored_bytes": 0,
        "received_unix_ns": 1,
    }
    api = FakeAgent(
        {f"{API}/traces": as_json({"traces": [entry]}), "/metrics": Reply(body=b"from the socket")}
    )
    exposition = FakeAgent({"/metrics": Reply(body="chopperd_gpu_up 1 ±\n".encode())})
    with serving(exposition) as port:
        listen = {"CHOPPERD_METRICS__LISTEN": f"127.0.0.1:{port}", "CHOPPERD_API__LISTEN": ""}
        client = AgentClient.of(config(tmp_path, **listen))
        assert client.metrics() == "chopperd_gpu_up 1 ±\n"
        with serving(api, tmp_path / "api.sock"):
            (trace,) = client.traces()
            assert (trace.state, trace.reason) == ("rejected", "empty")
            assert client.metrics() == "from the socket"


def test_what_is_no_agent_is_said_to_be_none(agent: FakeAgent, client: AgentClient) -> None:
    agent.replies = {f"{API}/status": Reply(body=b"<html>")}
    with pytest.raises(AgentUnreachableError, match="not from a chopperd agent of this version"):
        client.status()


@pytest.mark.parametrize("content", ["a-long-secret\n", "", None])
def test_a_token_is_sent_if_it_can_be_read(content: str | None, tmp_path: Path) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_text(content, encoding="ascii")
    agent = FakeAgent({f"{API}/status": as_json(api_answers.status())})
    with serving(agent, tmp_path / "api.sock"):
        AgentClient.of(config(tmp_path, CHOPPERD_API__TOKEN_FILE=str(file))).status()
    expected = "Bearer a-long-secret" if content else None
    assert agent.headers[0].get("Authorization") == expected
