"""The commands that ask the agent, against a server of our own on a Unix socket."""

import csv
import json
import logging
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from chopperd import cli
from tests.fakes import api_answers
from tests.fakes.http_agent import FakeAgent, Reply, as_json, problem, serving
from tests.unit.report.documents import eight_gpus, row

API = "/api/v1"
ROWS = [row(device, step, critical=device == 5) for step in (9, 8) for device in range(8)]
WELL = {
    f"{API}/status": as_json(api_answers.status()),
    f"{API}/gpus": as_json(api_answers.gpus()),
    f"{API}/steps": as_json({"steps": ROWS, "cursor": None}),
    f"{API}/report/latest": Reply(body=msgspec.json.encode(eight_gpus())),
}


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """The command line configures logging for its process; here that is the tests'."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No agent but the one that a test puts into its own folder."""
    monkeypatch.setenv("CHOPPERD_PATHS__RUNTIME", str(tmp_path))
    monkeypatch.setenv("CHOPPERD_API__LISTEN", "")
    monkeypatch.setenv("CHOPPERD_METRICS__LISTEN", "")


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[FakeAgent]:
    fake = FakeAgent(WELL)
    with serving(fake, tmp_path / "api.sock"):
        yield fake


@pytest.mark.parametrize("command", ["status", "steps", "metrics", "report"])
def test_without_an_agent_one_line_says_what_to_do(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run([command]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith(f"chopperd: no agent answers at {tmp_path / 'api.sock'} (no such")
    assert "start one with `chopperd run`" in line
    assert line.endswith(", or give trace files") is (command == "report")


@pytest.mark.usefixtures("agent")
def test_status_of_a_well_agent_is_0_in_both_forms(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["status"]) == 0
    text = capsys.readouterr().out
    assert "1.2.3 on node7, up 1 min 0 s" in text
    # 12.5 s lost of 50 s busy.
    (gpu,) = [line.split() for line in text.splitlines() if line.startswith("0 ")]
    assert gpu[1:9] == ["1485", "75", "698", "600", "66", "98", "25.0", "10.0"]
    assert "SIMULATED" not in text
    assert cli.run(["status", "--format", "json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said == api_answers.status()


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize(
    ("path", "reply"),
    [
        (f"{API}/status", as_json(api_answers.status("the loop stalls"))),
        (f"{API}/gpus", as_json(api_answers.gpus(up=False))),
    ],
)
def test_status_of_an_agent_that_is_not_well_is_1(
    path: str, reply: Reply, form: str, agent: FakeAgent, capsys: pytest.CaptureFixture[str]
) -> None:
    agent.replies = {**WELL, path: reply}
    assert cli.run(["status", "--format", form]) == 1
    captured = capsys.readouterr()
    assert captured.err == ""
    if form == "text":
        expected = "the loop stalls" if path.endswith("status") else "GPU 0: does not answer"
        (line,) = [line for line in captured.out.splitlines() if line.startswith("trouble")]
        assert line.split(maxsplit=1)[1] == expected


def test_simulated_figures_are_marked(agent: FakeAgent, capsys: pytest.CaptureFixture[str]) -> None:
    agent.replies = {**WELL, f"{API}/status": as_json(api_answers.status(simulated=True))}
    for command in ("status", "steps"):
        assert cli.run([command]) == 0
        assert capsys.readouterr().out.startswith(" SIMULATED DATA: ")
    assert cli.run(["steps", "--format", "csv"]) == 0
    assert {line["simulated"] for line in _table(capsys)} == {"true"}
    assert cli.run(["steps", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["simulated"] is True


def _table(capsys: pytest.CaptureFixture[str]) -> list[dict[str, str]]:
    return list(csv.DictReader(StringIO(capsys.readouterr().out)))


@pytest.mark.parametrize("form", ["text", "json", "csv"])
def test_no_steps_is_1_in_every_form(
    form: str, agent: FakeAgent, capsys: pytest.CaptureFixture[str]
) -> None:
    agent.replies = {**WELL, f"{API}/steps": as_json({"steps": [], "cursor": None})}
    assert cli.run(["steps", "--format", form]) == 1
    text = capsys.readouterr().out
    if form == "json":
        assert json.loads(text)["steps"] == []
    else:
        assert len(text.splitlines()) == 1


@pytest.mark.usefixtures("agent")
def test_steps_are_listed_by_their_critical_device_and_in_full_for_programs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.run(["steps"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    listed = [cells for cells in lines if cells and cells[-1].isascii() and "5" in cells[:5]]
    assert len(listed) == 2
    assert cli.run(["steps", "--format", "csv"]) == 0
    table = _table(capsys)
    assert [(line["step"], line["device"]) for line in table] == [
        (str(step), str(device)) for step in (8, 9) for device in range(8)
    ]
    assert cli.run(["steps", "--format", "json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["steps"]) == 16


def test_steps_of_one_gpu_are_asked_for_and_all_shown(
    agent: FakeAgent, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [replace(each, is_critical=False) for each in ROWS if each.device == 2]
    agent.replies = {**WELL, f"{API}/steps": as_json({"steps": rows, "cursor": None})}
    options = ["--job", "llama", "--run", "r1", "--rank", "2", "--gpu", "2", "--last", "1"]
    assert cli.run(["steps", *options]) == 0
    assert agent.asked[0].startswith(f"{API}/steps?job=llama&run=r1&rank=2&gpu=2&limit=")
    shown = capsys.readouterr().out
    assert "STEPS  job llama, run r1" in shown
    assert len([line for line in shown.splitlines() if " 1412 " in line]) == 1


def test_metrics_are_printed_as_they_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    exposition = FakeAgent({"/metrics": Reply(body=b"chopperd_gpu_up 1\n")})
    with serving(exposition) as port:
        monkeypatch.setenv("CHOPPERD_METRICS__LISTEN", f"127.0.0.1:{port}")
        assert cli.run(["metrics"]) == 0
    assert capsys.readouterr().out == "chopperd_gpu_up 1\n"


def test_report_without_a_file_is_the_agents_in_every_form(
    agent: FakeAgent, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["report", "--job", "llama", "--by", "family"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(" COMMUNICATION   208 of each 1412 ms step")
    assert "FAMILIES" in text
    assert agent.asked == [f"{API}/report/latest?job=llama&include=families"]
    assert cli.run(["report", "--job", "llama", "--by", "layer"]) == 0
    assert "layers.7  " in capsys.readouterr().out
    assert cli.run(["report", "--format", "json", "--last", "2"]) == 0
    document = json.loads(capsys.readouterr().out)
    steps = sorted({each["step"] for each in document["steps"]})
    assert steps == sorted({each.step for each in eight_gpus().steps if each.step})[-2:]
    assert document["summary"]["steps"] == 10
    assert cli.run(["report", "--format", "csv", "--step", str(steps[0])]) == 0
    table = _table(capsys)
    assert {line["step"] for line in table if line["row"] == "step"} == {str(steps[0])}
    assert len([line for line in table if line["row"] == "total"]) == 8


@pytest.mark.usefixtures("agent")
def test_a_step_that_the_agents_report_lacks_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["report", "--step", "999999", "--format", "json"]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    (line,) = shown.err.splitlines()
    first, last = eight_gpus().steps[0].step, eight_gpus().steps[-1].step
    assert line == f"chopperd: there is no step 999999: the steps are {first} to {last}"


@pytest.mark.parametrize(
    ("status", "said"),
    [(403, "the agent refuses: words (HTTP 403)"), (404, "the agent has none: words (HTTP 404)")],
)
def test_a_refusal_of_the_agent_is_one_line_and_1(
    agent: FakeAgent, capsys: pytest.CaptureFixture[str], status: int, said: str
) -> None:
    agent.replies = {f"{API}/report/latest": problem(status, "words")}
    assert cli.run(["report"]) == 1
    assert capsys.readouterr().err == f"chopperd: {said}\n"


def test_top_shows_what_the_agent_says_until_losses_are_known(
    agent: FakeAgent, capsys: pytest.CaptureFixture[str]
) -> None:
    """From 10 to 14 sampled seconds 1 s is lost: 250 ms of each second."""
    news = b"event: snapshot\ndata: {}\n\n"
    totals = iter([(10.0, 2.0), (14.0, 3.0), (18.0, 4.0)])

    def gpus(_: str) -> Reply:
        sampled_s, lost_s = next(totals)
        return as_json(api_answers.gpus(sampled_s=sampled_s, lost_s=lost_s, after_s=sampled_s))

    agent.replies = {
        **WELL,
        f"{API}/stream": Reply(body=3 * news, media_type="text/event-stream"),
        f"{API}/gpus": gpus,
    }
    assert cli.run(["top", "--once"]) == 0
    shown = capsys.readouterr().out
    (gpu,) = [line.split() for line in shown.splitlines() if line.startswith("0 ")]
    assert gpu[1:10] == ["1485", "75", "698", "600", "66", "98", "10.0", "250", "-"]
    assert list(totals) == [(18.0, 4.0)]


def test_top_ends_with_1_when_the_agent_ends_first(
    agent: FakeAgent, capsys: pytest.CaptureFixture[str]
) -> None:
    agent.replies = {**WELL, f"{API}/stream": Reply(body=b"event: end\ndata: {}\n\n")}
    assert cli.run(["top", "--once"]) == 1
    assert capsys.readouterr().err == "chopperd: the agent has ended\n"


def test_top_without_an_agent_samples_by_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["top", "--once", "--backend", "simulated"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(" SIMULATED DATA: ")
    gpus = [line.split() for line in shown.splitlines() if line[:1].isdecimal()]
    assert [cells[0] for cells in gpus] == [str(index) for index in range(8)]
    for cells in gpus:
        # Simulated H100s run between their lowest and highest clock.
        assert 200 <= float(cells[1]) <= 1980
        assert 0 <= float(cells[8]) < 1000


def test_top_with_no_gpu_to_read_is_3(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CHOPPERD_SAMPLING__BACKEND", "nvml")
    assert cli.run(["top", "--once"]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("chopperd: nvml: libnvidia-ml.so.1 not found")
    assert line.endswith("; `chopperd top --backend simulated` needs none")
