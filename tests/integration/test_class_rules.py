"""A site's own kernel classes, from the configuration to what is reported."""

import json
from pathlib import Path

import pytest

from chopperd import cli
from chopperd.config.load import load_config
from chopperd.ingest.service import worker_command
from chopperd.ingest.worker_process import AnalysisWorker, Lost
from chopperd.model.kinds import KernelClass
from chopperd.pipeline.frames import Analyse, Analysed, Compose, Composed, Reply, Request
from chopperd.pipeline.reports import Origin, configured_options
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
