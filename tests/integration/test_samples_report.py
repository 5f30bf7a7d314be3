"""`record` of a command that writes no trace, and `report --samples` without one."""

import gzip
import json
import sys
from base64 import b64decode
from pathlib import Path

import pytest

from chopperd import cli
from tests.unit.report.html.pages import seen


@pytest.fixture
def recorded(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],  # before the recording, to take what it prints  # noqa: ARG001
) -> Path:
    """The samples of three seconds of a simulated node, in a folder without a configuration."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "samples.csv"
    command = [sys.executable, "-c", "import time; time.sleep(3)"]
    assert cli.run(["record", "--backend", "simulated", "-o", str(file), "--", *command]) == 0
    return file


def test_without_a_trace_the_samples_are_reported_on(
    recorded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The job of the simulated node is busy all the time; three seconds are too few to compare."""
    at_once = capsys.readouterr()
    assert at_once.err.endswith(": reported from samples alone\n")
    assert at_once.out.startswith(" SIMULATED DATA: ")
    assert "chopperd explain profiler" in " ".join(at_once.out.split())
    assert "GPUs are not compared with each other" in at_once.out
    assert cli.run(["report", "--samples", str(recorded)]) == 0
    later = capsys.readouterr().out
    # Files have their times to the microsecond: no figure of the page changes by that.
    assert later.splitlines()[1:4] == at_once.out.splitlines()[1:4]


def test_the_document_has_a_schema_of_its_own(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "report.json"
    assert cli.run(["report", "--samples", str(recorded), "-o", str(output)]) == 0
    document = json.loads(output.read_text(encoding="utf-8"))
    assert document["schema"] == "chopperd.samples-report/1"
    assert document["generated"]["simulated"] is True
    assert [each["gpu"] for each in document["gpus"]] == [str(index) for index in range(8)]
    for each in document["gpus"]:
        assert 1000 < each["busy_mhz"] < 1980
        assert 0 < each["lost_ratio"] < 0.5
    assert capsys.readouterr().err.count("reported from samples alone") == 1


def test_samples_alone_have_a_page(recorded: Path, tmp_path: Path) -> None:
    output = tmp_path / "report.html"
    assert cli.run(["report", "--samples", str(recorded), "-o", str(output)]) == 0
    page = seen(output.read_text(encoding="utf-8"))
    assert page.words.strip().startswith("SIMULATED DATA")
    assert "GPUs are not compared with each other" in page.words
    assert "chopperd explain profiler" in page.words
    (packed, _) = page.unseen["script"]
    inside = json.loads(gzip.decompress(b64decode(packed)))
    assert inside["schema"] == "chopperd.samples-report/1"


@pytest.mark.parametrize(
    "arguments", [["--last", "3"], ["--job", "x"], ["--by", "family"], ["--device-map", "0=0"]]
)
def test_options_of_steps_and_traces_are_refused(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["report", "--samples", "s.csv", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"chopperd: {arguments[0]}: samples alone have no steps; give trace files"


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_forms_of_steps_are_refused(
    form: str, recorded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert cli.run(["report", "--samples", str(recorded), "--format", form]) == 2
    assert "made of steps, and there is no trace" in capsys.readouterr().err


def test_a_form_of_steps_does_not_change_the_recorded_commands_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ["record", "--backend", "simulated", "--format", "csv", "--", "true"]
    assert cli.run(arguments) == 0
    assert capsys.readouterr().err.endswith("; no report\n")
