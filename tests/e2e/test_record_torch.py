"""`record` around a real training script that profiles itself; on the CPU, so without kernels."""

import json
from pathlib import Path

import pytest

from chopperd.store.samples.files import read_samples
from tests.e2e.running import PYTHON, Chopperd

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("real_torch")]

TRAIN = (PYTHON, str(Path(__file__).parent / "jobs" / "train_on_cpu.py"))
OWN_OUTPUT = "training\nfinite\n"


def test_a_job_without_a_gpu_is_reported_without_clocks(chopperd: Chopperd) -> None:
    done = chopperd.run("record", "--backend", "auto", "--", *TRAIN, "0")
    assert done.returncode == 0, done.stderr
    assert "CMD runs without clock samples" in done.stderr
    text = _after_own_output(done.stdout)
    assert text.startswith(" HOST TIME ONLY   3 steps of ")
    # schedule(wait=1, warmup=1, active=3): steps 0 and 1 are not profiled, 2 to 4 are.
    assert _steps(text) == [2, 3, 4]
    assert "no_device_records" in text
    assert "no_samples" in text
    assert "SIMULATED" not in text


def test_samples_are_kept_where_the_trace_has_no_gpu(chopperd: Chopperd) -> None:
    options = ("--backend", "simulated", "--hz", "20", "-o", "samples.csv")
    done = chopperd.run("record", *options, "--", *TRAIN, "7")
    assert done.returncode == 7, done.stderr
    text = _after_own_output(done.stdout)
    assert text.startswith(" SIMULATED DATA")
    assert _steps(text) == [2, 3, 4]
    kept = read_samples(chopperd.folder / "samples.csv")
    assert kept.simulated
    assert len(kept.gpus) == 8
    assert min(map(len, kept.gpus)) >= 20  # a second of the seconds that torch takes to start
    _later_report(chopperd)


def _later_report(chopperd: Chopperd) -> None:
    trace = Path("profiles/cpu.pt.trace.json")
    document = chopperd.document("report", trace, "--samples", "samples.csv")
    assert document.generated.simulated
    assert [row.step for row in document.steps] == [2, 3, 4]
    assert all(row.host_only and row.device is None for row in document.steps)
    assert all(row.marker_ns for row in document.steps)
    assert (document.totals, document.summary) == ((), None)
    written = json.loads((chopperd.folder / trace).read_bytes())
    assert document.trace.base_time_unix_ns == written["baseTimeNanoseconds"]
    assert document.trace.events == len(written["traceEvents"])


def _after_own_output(stdout: str) -> str:
    """The report; the job's own output must stand before it, as it wrote it."""
    assert stdout.startswith(OWN_OUTPUT), stdout
    return stdout.removeprefix(OWN_OUTPUT)


def _steps(text: str) -> list[int]:
    """The numbers of the steps that the text lists as seen on the host only."""
    lines = [line for line in text.splitlines() if line.endswith("  host only")]
    return [int(line.split()[0]) for line in lines]
