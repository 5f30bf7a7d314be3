"""Names that a terminal would obey, through every command: what is printed holds none of them.

The forbidden set is written out here from the Unicode tables, apart from the code that escapes it.
"""

import csv
import json
import logging
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from io import StringIO
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from chopperd import cli
from chopperd.cli.output import complain_of_crash
from chopperd.logs import configure_logging
from chopperd.model.captures import JobEntry
from tests.fakes import api_answers
from tests.fakes.drops import gpu_drop
from tests.fakes.http_agent import FakeAgent, Reply, as_json, problem, serving
from tests.fakes.nvml.fixtures import SCENARIO_VARIABLE
from tests.fakes.nvml.scenario import Scenario
from tests.integration.test_pipeline import kineto, written
from tests.unit.store.captures.examples import entry

API = "/api/v1"
#: Sets the title, rings, colours by C1, hides by bidi, moves, ends lines, looks like a formula.
EVIL = "=ev\x1b]0;own\x07il\x9b31m\x7f\u202etxt\u2066\u200f\u061c\u2028\x85\t\r\nspoofed line\x08"
EVIL_FILE = EVIL.replace("/", "")
FORBIDDEN = (
    set(map(chr, [*range(0x0A), *range(0x0B, 0x20), *range(0x7F, 0xA0), 0x61C, 0x200E, 0x200F]))
    | set(map(chr, range(0x202A, 0x202F)))
    | set(map(chr, range(0x2066, 0x206A)))
)
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def hostile(value: object) -> object:
    """JSON in which every text that is no date or closed word is a hostile name."""
    if isinstance(value, dict):
        return {name: hostile(item) for name, item in value.items()}
    if isinstance(value, list):
        return [hostile(item) for item in value]
    closed = {"running", "here", "nvidia", "power_cap", "nvml", "0"}
    return EVIL if isinstance(value, str) and value not in closed else value


def trace() -> dict[str, object]:
    """A trace all of whose names are hostile: annotation, kernel, collective, host, group."""
    document = kineto(rank=0, chopperd_run=EVIL, hostname=EVIL, trace_id=EVIL)
    document["deviceProperties"] = [{"id": 0, "name": EVIL}]
    document["distributedInfo"] |= {"pg_config": [{"pg_name": EVIL, "pg_desc": EVIL}]}
    events = document["traceEvents"]
    for each in [each for each in events if each["cat"] == "kernel"]:
        each["name"] = f"{EVIL}<float>({EVIL})"
        start = {"ph": "X", "pid": 1, "tid": 1, "ts": each["ts"] - 10, "dur": 100}
        layer = {**start, "cat": "python_function", "name": f"nn.Module: {EVIL}_0"}
        events += [layer, {**start, "cat": "user_annotation", "name": EVIL}]
        events += [{**start, "cat": "cpu_op", "name": EVIL, "dur": 20}]
    return document


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """The command line configures logging for its process; here that is the tests'."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a hostile name and hostile files, and no agent but the test's own."""
    monkeypatch.setenv("CHOPPERD_PATHS__RUNTIME", str(tmp_path))
    monkeypatch.setenv("CHOPPERD_PATHS__STATE", str(tmp_path / "state"))
    monkeypatch.setenv("CHOPPERD_API__LISTEN", "")
    monkeypatch.setenv("CHOPPERD_METRICS__LISTEN", "")
    inside = tmp_path / EVIL_FILE
    inside.mkdir()
    written(inside / "trace.json", trace())
    written(inside / "other.json", kineto(rank=0, chopperd_run=f"{EVIL}2"))
    (inside / "empty.json").write_text("")
    (inside / "words.json").write_text(EVIL)
    (inside / "samples.csv").write_text(f"timestamp, {EVIL.splitlines()[0]}, index\n1,2,3\n")
    header = {"gpus": [{"index": 0, "uuid": EVIL, "name": EVIL}], "node": EVIL, "driver": EVIL}
    own = f"# chopperd-samples/1 {json.dumps(header)}\nt_unix_ns,gpu,sm_clock_mhz\n"
    (inside / "own.csv").write_text(own + f"{kineto()['baseTimeNanoseconds']},0,1500\n")
    (inside / "bad.toml").write_text(f'[{json.dumps(EVIL)}]\n{json.dumps(EVIL)} = "{{}}"\n')
    (inside / "good.toml").write_text(f"[traces]\nstate = {json.dumps(EVIL)}\n")
    return inside


def said(capsys: pytest.CaptureFixture[str]) -> str:
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    return captured.out + captured.err


def is_safe(text: str) -> None:
    assert not FORBIDDEN & set(text), ascii(sorted(FORBIDDEN & set(text)))


FILES: Sequence[tuple[str, ...]] = (
    *(("report", "trace.json", "--format", form) for form in ("text", "json", "csv")),
    *(
        ("report", "trace.json", "--by", by, "--format", form)
        for by in ("family", "operation", "layer", "phase")
        for form in ("text", "csv")
    ),
    ("report", "trace.json", "--samples", "own.csv"),
    ("report", "trace.json", "--samples", "samples.csv"),
    ("report", "trace.json", "--samples", "missing.csv"),
    ("report", "trace.json", "empty.json", "words.json"),
    ("report", "trace.json", "--tz", EVIL),
    ("report", "trace.json", "--device-map", EVIL),
    ("report", "trace.json", "--device-map", f"0={EVIL}", "--samples", "own.csv"),
    ("report", "trace.json", "other.json"),
    ("report", "trace.json", "--rank-of", EVIL),
    ("report", "missing.json"),
    ("report", "empty.json"),
    ("report", "words.json"),
    ("report", "trace.json", "--format", EVIL),
    ("report", "trace.json", "--step", "99"),
    ("report", "--job", EVIL),
    ("annotate", "trace.json", "-o", "out.json", "--samples", "own.csv"),
    ("annotate", "words.json", "-o", "out.json"),
    ("check-config", "bad.toml"),
    ("check-config", "good.toml"),
    ("check-config", "words.json"),
    ("record", "--backend", "simulated", "--", EVIL),
    ("record", "-o", "none/x.csv", "--", "true"),
    ("devices", "--backend", EVIL),
    ("doctor", "--backend", EVIL),
    ("selftest", "--backend", "simulated", "--gpu", EVIL),
    ("top", "--once", "--backend", EVIL),
    ("demo", "--preset", EVIL),
    (EVIL,),
    ("status", f"--{EVIL}"),
    ("_none\x1b",),
)


@pytest.mark.parametrize("command", FILES, ids=lambda command: ascii(" ".join(command))[:40])
def test_hostile_files_and_arguments_print_nothing_that_a_terminal_obeys(
    command: Sequence[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    endings = (".json", ".csv", ".toml")
    given = [str(folder / each) if each.endswith(endings) else each for each in command]
    cli.run(given)
    text = said(capsys)
    assert text
    is_safe(text)
    shown = text.replace("spoofed line\\", "")
    assert not [line for line in shown.splitlines() if line.startswith("spoofed")]


@pytest.mark.parametrize("by", [None, "family", "layer", "operation"])
def test_no_text_of_a_csv_is_a_formula_and_numbers_stay_numbers(
    by: str | None, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["report", str(folder / "trace.json"), "--format", "csv"]
    cli.run([*arguments, *(["--by", by] if by else [])])
    cells = [cell for line in csv.reader(StringIO(capsys.readouterr().out)) for cell in line]
    texts = [cell for cell in cells if re.fullmatch(r"-?[\d.e+-]*", cell) is None]
    assert not [cell for cell in texts if cell.startswith(("=", "+", "-", "@", "\t", "\r"))]
    assert [cell for cell in texts if cell.startswith("'=ev")]
    assert {"60000", "120000"} & {*cells}  # 60 us a kernel: no quote before it


AGENT: Sequence[tuple[str, ...]] = (
    *(("status", "--format", form) for form in ("text", "json")),
    *(("steps", "--format", form) for form in ("text", "json", "csv")),
    *(("report", "--by", "family", "--format", form) for form in ("text", "json", "csv")),
    *(
        (name, "--format", form)
        for name in ("traces", "jobs", "drops")
        for form in ("text", "json")
    ),
    ("top", "--once"),
    ("doctor", "--backend", "simulated"),
)


def _job(name: str) -> JobEntry:
    return JobEntry(
        job=name, runs=(name,), traces=8, captures=1, first_unix_ns=10**18, last_unix_ns=10**18
    )


@pytest.mark.parametrize("command", AGENT, ids=" ".join)
def test_a_hostile_agent_prints_nothing_that_a_terminal_obeys(
    command: Sequence[str], folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cli.run(["report", str(folder / "trace.json"), "--format", "json"])
    document = json.loads(capsys.readouterr().out)
    for row in document["steps"]:
        row |= {"job": EVIL, "gpu": EVIL}
    words = dict.fromkeys(("code", "title", "action", "command", "gpu"), EVIL)
    document["findings"] = [
        {**words, "evidence": [EVIL], "bound_ns": 1, "basis": "row", "rank": None}
    ]
    times = (float(at_s) for at_s in range(10, 100, 4))  # losses are known after two looks
    gpus = (api_answers.gpus(sampled_s=at_s, lost_s=1.0, after_s=at_s) for at_s in times)
    replies: dict[str, Reply | Callable[[str], Reply]] = {
        f"{API}/status": as_json(hostile(api_answers.status(EVIL))),
        f"{API}/gpus": lambda _: as_json(hostile(next(gpus))),
        f"{API}/steps": as_json({"steps": document["steps"], "cursor": None}),
        f"{API}/report/latest": as_json(document),
        f"{API}/traces": as_json(
            {"traces": [msgspec.to_builtins(replace(entry(EVIL, job=EVIL), reason=EVIL))]}
        ),
        f"{API}/jobs": as_json({"jobs": [msgspec.to_builtins(_job(EVIL))]}),
        f"{API}/drops": as_json(
            {"drops": [msgspec.to_builtins(replace(gpu_drop(1.0, gpu=EVIL), cause=EVIL))]}
        ),
        f"{API}/stream": Reply(
            body=9 * b"event: snapshot\ndata: {}\n\n", media_type="text/event-stream"
        ),
    }
    with serving(FakeAgent(replies), tmp_path / "api.sock"):
        cli.run([*command])
    text = said(capsys)
    assert "ev\\u001b]0;own" in text or command[0] == "doctor"
    is_safe(text)


def test_a_hostile_refusal_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refusing = FakeAgent({f"{API}/report/latest": problem(403, EVIL)})
    with serving(refusing, tmp_path / "api.sock"):
        assert cli.run(["report"]) == 1
    text = said(capsys)
    is_safe(text)
    assert len(text.splitlines()) == 1


def test_metrics_print_hostile_labels_visibly(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    body = 'chopperd_gpu_info{name="\x1b[2J\u202e"} 1\n'
    with serving(FakeAgent({"/metrics": Reply(body=body.encode())})) as port:
        monkeypatch.setenv("CHOPPERD_METRICS__LISTEN", f"127.0.0.1:{port}")
        assert cli.run(["metrics"]) == 0
    assert capsys.readouterr().out == 'chopperd_gpu_info{name="\\u001b[2J\\u202e"} 1\n'


@pytest.mark.parametrize("command", [("devices",), ("devices", "--format", "json"), ("doctor",)])
def test_a_hostile_driver_prints_nothing_that_a_terminal_obeys(
    command: tuple[str, ...],
    nvml_library: Callable[[], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    scenario = Scenario(tmp_path / "scenario.bin", 1)
    scenario.gpus[0].name = EVIL.encode()[:90]
    monkeypatch.setenv("LD_LIBRARY_PATH", str(nvml_library().parent))
    monkeypatch.setenv(SCENARIO_VARIABLE, str(scenario.path))
    cli.run([*command, "--backend", "nvml"])
    text = said(capsys)
    assert "own" in text
    is_safe(text)


def test_at_a_terminal_colours_are_all_that_it_obeys(folder: Path) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "chopperd", "report", str(folder / "trace.json")]
    with subprocess.Popen([*command, "--by", "family"], stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        shown = b""
        while part := _read(ours):
            shown += part
    os.close(ours)
    assert process.returncode == 0
    text = shown.decode().replace("\r\n", "\n")
    assert COLOURS.search(text)
    bar = text.rfind("\x1b[?25h")  # the progress bar's own: cursor shown again
    is_safe(COLOURS.sub("", text[bar + 6 if bar >= 0 else 0 :].replace("\r\x1b[1A\x1b[2K", "")))


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # nobody has the other end any more
        return b""


@pytest.mark.parametrize("as_json", [False, True])
def test_a_log_line_with_a_hostile_name_is_one_line(
    as_json: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    configure_logging("info", as_json=as_json)
    try:
        int(EVIL)
    except ValueError:
        logging.getLogger("chopperd.x").exception("can't read %s", EVIL)
    logging.getLogger("chopperd.x").warning("%s", EVIL)
    text = capsys.readouterr().err
    is_safe(text)
    assert len([line for line in text.splitlines() if "WARNING" in line or "warning" in line]) == 1
    assert not [line for line in text.splitlines() if line.startswith("spoofed")] or not as_json


def test_a_crash_shows_its_traceback_safely(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        float(EVIL)
    except ValueError as error:
        complain_of_crash(type(error), error, error.__traceback__)
    text = capsys.readouterr().err
    is_safe(text)
    assert "Traceback (most recent call last)" in text
