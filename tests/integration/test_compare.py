"""`chopperd compare` from files to exit code: reports by hand, simulated jobs of known truth."""

import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chopperd import cli
from chopperd.model.report import ReportDocument
from chopperd.report.forms.schema import formatted
from chopperd.store.samples.files import write_samples
from tests.fakes.simulated_job import SimulatedJob, play
from tests.unit.correlate.compared_runs import run_of

STEPS = np.random.default_rng(2).normal(1500.0, 15.0, 80).tolist()


@dataclass(frozen=True, slots=True)
class Output:
    """What a command said."""

    status: int
    out: str
    err: str


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder, with no recorder or configuration of this machine in reach."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CHOPPERD_PATHS__STATE", str(tmp_path / "state"))
    write(tmp_path / "a.json", run_of(STEPS, communication_ms=200))
    write(tmp_path / "b.json", run_of([ms + 30 for ms in STEPS], communication_ms=230))
    return tmp_path


def write(path: Path, document: ReportDocument) -> None:
    data = formatted(document, "html" if path.suffix == ".html" else "json").encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def said(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> Output:
    status = cli.run(["compare", *map(str, arguments)])
    return Output(status, *capsys.readouterr())


def test_two_reports_need_no_dashes_and_a_limit_fails_the_build(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for between in ([], ["--"]):
        found = said(
            capsys, "a.json", *between, "b.json", "--format", "line", "--fail-over", "1.5%"
        )
        assert found.status == 1
        assert found.out.startswith("+2.0 % [")
        assert found.out.endswith("slower: communication 2.0\n")
    assert said(capsys, "a.json", "b.json", "--fail-over", "3%").status == 0
    assert said(capsys, "b.json", "a.json", "--fail-over", "0").status == 0  # faster


def test_pages_compare_like_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(folder / "a.html", run_of(STEPS, communication_ms=200))
    write(folder / "b.html", run_of([ms + 30 for ms in STEPS], communication_ms=230))
    found = [
        said(capsys, f"a.{form}", f"b.{form}", "--format", "json") for form in ("html", "json")
    ]
    documents = [json.loads(each.out) for each in found]
    assert documents[0]["comparisons"] == documents[1]["comparisons"]
    (folder / "a.html").write_bytes((folder / "a.html").read_bytes()[:5000])
    refused = said(capsys, "a.html", "b.html")
    assert refused.status == 4
    assert "a.html: not a report of chopperd" in refused.err


def test_each_form_is_written_by_its_suffix(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, begins in (("c.txt", " B IS SLOWER"), ("c.md", "**B IS SLOWER**"), ("c.json", "{")):
        assert said(capsys, "a.json", "b.json", "-o", name).out == ""
        assert (folder / name).read_text().startswith(begins)
    found = json.loads((folder / "c.json").read_text())
    assert found["schema"] == "chopperd.compare/1"
    assert found["comparisons"][0]["step"]["verdict"] == "higher"
    assert max(map(len, said(capsys, "a.json", "b.json").out.splitlines())) <= 80


def test_too_few_steps_do_not_pass_a_build(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(folder / "few.json.gz", run_of(STEPS[:8]))
    found = said(capsys, "few.json.gz", "few.json.gz", "--fail-over", "2%", "--format", "line")
    assert found.status == 1
    assert "record about" in found.out
    assert found.err == "chopperd: --fail-over: B and A have too few steps to tell\n"


def test_runs_of_other_gpus_or_limits_are_refused_and_how_to_ask_is_said(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(folder / "gpus.json", run_of(STEPS, uuids=["x", "y"]))
    write(folder / "limit.json", run_of(STEPS, limit_w=500))
    write(folder / "clock.json", run_of(STEPS, reference_mhz=1755))
    for name, what in (("gpus", "gpus"), ("limit", "power-limit"), ("clock", "reference")):
        found = said(capsys, "a.json", f"{name}.json")
        assert (found.status, found.out) == (2, "")
        (line,) = found.err.splitlines()
        assert line.endswith(f"to compare them all the same: --allow {what}")
        assert said(capsys, "a.json", f"{name}.json", "--allow", what).status == 0


def test_three_runs_are_a_table_of_their_limits(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for watts, factor in ((700, 1.0), (600, 1.01), (500, 1.2)):
        write(folder / f"{watts}.json", run_of([ms * factor for ms in STEPS], limit_w=watts))
    found = said(capsys, "700.json", "--", "600.json", "--", "500.json")
    assert found.status == 0
    assert next(line for line in found.out.splitlines() if line.endswith("knee"))[0] == "B"


@pytest.mark.parametrize(
    ("arguments", "status", "line"),
    [
        (["a.json"], 2, "compare takes two sides, with -- between them: A... -- B..."),
        (["a.json", "b.json", "a.json"], 2, "compare takes two sides, with -- between them"),
        (["a.json", "--"], 2, "compare takes two sides, with -- between them"),
        (["a.json", "b.json", "--fail-over", "much"], 2, "--fail-over: 'much' is no percentage"),
        (["a.json", "b.json", "-o", "c.csv"], 2, "-o c.csv: comparisons are written as"),
        (["a.json", "none.json"], 4, "none.json: can't be read: No such file or directory"),
        (["a.json", "cut.json"], 4, "cut.json: not a report of chopperd"),
        (["a.json", "samples.csv"], 2, "samples.csv: samples have no steps: add the traces"),
        (["a.json", "empty.json"], 2, "B has no complete step"),
    ],
)
def test_what_cannot_be_compared_is_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], status: int, line: str
) -> None:
    (folder / "cut.json").write_text((folder / "a.json").read_text()[:5000])
    (folder / "samples.csv").write_text("t_unix_ns,gpu,sm_clock_mhz\n1,0,1500\n2,0,1500\n")
    write(folder / "empty.json", run_of([]))
    found = said(capsys, *arguments)
    assert (found.status, found.out) == (status, "")
    (only,) = found.err.splitlines()
    assert only.startswith(f"chopperd: {line}")


@dataclass(frozen=True, slots=True)
class Recorded:
    """A simulated job with its samples in a file."""

    job: SimulatedJob
    files: tuple[Path, ...]  # of the ranks that are traced, then the samples

    def step_ms(self, rank: int) -> float:
        """The true mean of a rank's steps but the last."""
        windows = self.job.truth(rank).windows
        return float((windows.end_ns - windows.start_ns)[:-1].mean() / 1e6)

    def lost_ms(self, rank: int) -> float:
        """The true mean loss to the clock of these."""
        return float(self.job.truth(rank).lost_ns[:-1].mean() / 1e6)


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Recorded]:
    """Equal GPUs; then GPU 5 too hot; then rank 5 late by its loader, for which rank 4 waits."""
    made = {}
    for preset, ranks in (("even", (4, 5)), ("slow-heat", (5,)), ("slow-data", (4,))):
        folder = tmp_path_factory.mktemp(preset)
        job = play(preset, folder, seconds=11, warm_s=10, hz=50, ranks=ranks)
        write_samples(folder / "samples.csv", job.samples)
        made[preset] = Recorded(job, (*job.paths, folder / "samples.csv"))
    return made


def as_json(
    capsys: pytest.CaptureFixture[str], a: Sequence[Path], b: Sequence[Path]
) -> dict[str, Any]:
    found = said(capsys, *a, "--", *b, "--format", "json")
    assert (found.status, found.err) == (0, "")
    (comparison,) = json.loads(found.out)["comparisons"]
    return {
        "step": comparison["step"],
        **{each["name"]: each for each in comparison["figures"]},
        "gpus": comparison["gpus"],
    }


def test_a_lower_clock_is_found_in_the_clock(
    jobs: dict[str, Recorded], capsys: pytest.CaptureFixture[str]
) -> None:
    """Of GPU 5 alone, which is in both runs: step time to the ns, the clock's part by samples."""
    a, b = jobs["even"], jobs["slow-heat"]
    found = as_json(capsys, a.files, b.files)
    truth = b.step_ms(5) / a.step_ms(5) - 1
    assert truth > 0.01
    assert found["step"]["change"] == pytest.approx(truth, abs=1e-9)
    assert found["step"]["verdict"] == "higher"
    lost = (b.lost_ms(5) - a.lost_ms(5)) / a.step_ms(5)
    assert lost > 0.01
    assert found["waterfall_ns/dvfs_loss"]["change"] == pytest.approx(lost, abs=0.002)
    assert abs(found["waterfall_ns/exposed_comm"]["change"]) < lost / 3
    assert found["busy_mhz"]["change"] < -0.02
    (gpu,) = found["gpus"]
    assert gpu["gpu_a"] == gpu["gpu_b"] == "5"


def test_waiting_for_a_late_rank_is_found_in_communication(
    jobs: dict[str, Recorded], capsys: pytest.CaptureFixture[str]
) -> None:
    """Of rank 4, whose steps are longer only by what it waits for rank 5."""
    a, b = jobs["even"], jobs["slow-data"]
    found = as_json(capsys, a.files, b.files)
    truth = b.step_ms(4) / a.step_ms(4) - 1
    assert truth > 0.02
    assert found["step"]["change"] == pytest.approx(truth, abs=1e-9)
    assert found["waterfall_ns/exposed_comm"]["change"] == pytest.approx(truth, abs=0.01)
    line = said(capsys, *a.files, "--", *b.files, "--format", "line").out
    assert f"{100 * truth:+.1f} % [" in line
    assert "] slower: " in line
    assert "communication" in line
    assert line.endswith("(simulated data)\n")


def test_simulated_fsdp1_and_fsdp2_are_set_against_each_other(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the simulation: version 2 never asks for segments; both clocks as the node had them.

    The truth is of compute; while busy with communication alone the clock is higher.
    """
    sides, truth_mhz, calls = [], [], []
    for preset in ("fsdp1-mi300x", "fsdp2-mi300x"):
        (folder / preset).mkdir()
        job = play(preset, folder / preset, seconds=9, warm_s=10, hz=50, ranks=(2,))
        write_samples(folder / preset / "samples.csv", job.samples)
        sides.append([*job.paths, folder / preset / "samples.csv"])
        truth_mhz.append(float(job.truth(2).mean_mhz[:-1].mean()))
        calls.append(job.paths[0].read_bytes().count(b'"hipFree"'))
    assert calls[0] > 0 == calls[1]
    found = said(capsys, *sides[0], "--", *sides[1], "--format", "json")
    (comparison,) = json.loads(found.out)["comparisons"]
    figures = {each["name"]: each for each in comparison["figures"]}
    clock = figures["busy_mhz"]
    assert (clock["a"], clock["b"]) == pytest.approx(truth_mhz, rel=0.05)
    evidence = comparison["evidence"]
    assert (evidence["fsdp1"]["verdicts"], evidence["fsdp2"]["verdicts"]) == (
        {"churns": 1},
        {"deterministic": 1},
    )
    claims = {each["name"]: each for each in evidence["claims"]}
    steady = claims["steadier_allocation"]
    assert {"verdicts", "cv_reserved", "determinism_ratio"} <= set(steady["supports"])
    assert steady["contradicts"] == []
    assert claims["higher_clock"]["open"] == ["busy_mhz"]  # a few steps tell no difference
    assert figures["memory/segment_calls"]["a"] > 0 == figures["memory/segment_calls"]["b"]
    for form in ("text", "markdown"):
        page = said(capsys, *sides[0], "--", *sides[1], "--format", form).out
        assert "FSDPv1 (A) AND FSDPv2 (B)" in page
        assert "because" not in page
        assert "simulat" in page.lower()


def test_traces_of_two_runs_are_no_side(
    folder: Path, jobs: dict[str, Recorded], capsys: pytest.CaptureFixture[str]
) -> None:
    trace, other = jobs["even"].files[0], folder / "other.json"
    text = jobs["slow-heat"].files[0].read_text().replace('"world_size":8', '"world_size":4', 1)
    other.write_text(text)
    found = said(capsys, trace, other, "--", trace)
    assert found.status == 4
    (line,) = found.err.splitlines()
    assert line.endswith("write a report on each run, and compare the reports")
    samples = jobs["even"].files[-1]
    found = said(capsys, trace, samples, samples, "--", trace)
    assert (found.status, found.err.count("one file of samples a side")) == (2, 1)
