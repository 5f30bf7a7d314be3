"""A site's own kernel classes, from the configuration to what is reported."""

import json
from pathlib import Path

import pytest

from chopperd import cli
from chopperd.config.load import load_config
from chopperd.ingest.service import worker_command
from chopperd.ingest.worker_process import AnalysisWorker, Lost
from chopperd.model.kinds import KernelClass
from chopperd.pipeline.reports import Origin, configured_options
from chopperd.pipeline.worker import Analyse, Analysed, Compose, Composed, Reply, Request
from tests.integration.agent.node import CLOCK, MIB, trace

OWN = '[[traces.classes]]\nclass = "comm"\npattern = "^our_"\n'


@pytest.fixture
def configured(tmp_path: Path) -> Path:
    path = tmp_path / "config.toml"
    path.write_text(OWN, encoding="utf-8")
    return path


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    path = tmp_path / "trace.json"
    path.write_bytes(trace(1, kernel="our_gemm"))
    return path


def test_a_report_has_the_classes_that_the_file_gives(
    configured: Path, stored: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["report", str(stored), "--format", "json", "--config"]
    assert cli.run([*arguments, str(configured)]) == 0
    (row,) = json.loads(capsys.readouterr().out)["totals"]
    assert (row["compute_ns"], row["comm_ns"]) == (0, 30_000)
    assert row["families"][0]["class"] == KernelClass.COMM.label
    configured.write_text("", encoding="utf-8")
    assert cli.run([*arguments, str(configured)]) == 0
    (row,) = json.loads(capsys.readouterr().out)["totals"]
    assert (row["compute_ns"], row["comm_ns"]) == (30_000, 0)
    assert row["families"][0]["class"] == KernelClass.GEMM.label


def test_the_agents_worker_has_them_too(configured: Path, stored: Path) -> None:
    worker = AnalysisWorker(
        [*worker_command(256 * MIB), "--in-foreground"], idle_s=0.3, clock=CLOCK
    )
    try:
        analysed = _outcome(
            worker,
            Analyse(
                id="id",
                path=str(stored),
                origin=Origin(),
                recorder=None,
                options=configured_options(load_config(configured, {})),
            ),
        )
        assert isinstance(analysed, Analysed)
        composed = _outcome(worker, Compose(reports=(analysed.trace.report,)))
    finally:
        worker.close()
    assert isinstance(composed, Composed)
    (row,) = composed.document.totals
    assert (row.compute_ns, row.comm_ns) == (0, 30_000)


def test_check_config_shows_them_and_names_a_wrong_one_in_one_line(
    configured: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["check-config", str(configured)]) == 0
    assert "traces.classes" in capsys.readouterr().out
    configured.write_text(f'{OWN}\n[[traces.classes]]\nclass = "gem"\npattern = "x"\n', "utf-8")
    assert cli.run(["check-config", str(configured)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(
        f"chopperd: {configured}: traces.classes, rule 2: class 'gem' is none of gemm | "
    )


def _outcome(worker: AnalysisWorker, request: Request) -> Reply | Lost:
    worker.ask(request, 30.0)
    while (found := worker.poll(0.2)) is None:
        pass
    return found


def test_a_step_marker_makes_steps_and_a_bad_one_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    events = [
        {"ph": "X", "cat": "user_annotation", "name": f"turn {n}", "pid": 1, "tid": 1}
        | {"ts": 100 * n, "dur": 80}
        for n in (4, 5, 6)
    ]
    events += [
        {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 450, "dur": 10}
        | {"args": {"device": 0, "stream": 7, "correlation": 1}},
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1}
        | {"ts": 420, "dur": 5, "args": {"correlation": 1}},
    ]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    assert cli.run(["report", str(path)]) == 0
    suggested = r"--step-marker '^turn (\d+)$'"
    assert suggested in " ".join(capsys.readouterr().out.split())
    command = ["report", str(path), "--step-marker", r"^turn (\d+)$", "--format", "json"]
    assert cli.run(command) == 0
    steps = json.loads(capsys.readouterr().out)["steps"]
    assert [(row["step"], row["step_name"]) for row in steps] == [
        (4, "turn 4"),
        (5, "turn 5"),
        (6, "turn 6"),
    ]
    assert cli.run(["report", str(path), "--step-marker", "(a+)+b"]) == 2
    assert "--step-marker: '(a+)+b' repeats a group" in capsys.readouterr().err
