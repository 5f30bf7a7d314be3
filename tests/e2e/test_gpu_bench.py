"""`bench/gpu/run.sh` from end to end, dry: on the CPU and the fake driver."""

import gzip
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.running import PYTHON

RUN = Path(__file__).parents[2] / "bench" / "gpu" / "run.sh"


@pytest.mark.torch
@pytest.mark.usefixtures("real_torch")
def test_a_dry_run_writes_every_part_and_says_what_it_is(
    nvml_library: Callable[[], Path], tmp_path: Path
) -> None:
    nvml_library()  # where it can't be built, this is where that is said
    done = subprocess.run(
        [shutil.which("bash") or "bash", str(RUN), "--cpu"],
        cwd=tmp_path,
        env={**os.environ, "OUT": "results", "PYTHON": PYTHON},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    (folder,) = (tmp_path / "results").iterdir()
    assert folder.name.startswith("DRY-nvidia-h100"), done.stderr
    assert "no figure here is a measurement" in (folder / "summary.md").read_text()
    written = json.loads((folder / "summary.json").read_bytes())
    assert written["dry_run"] is True
    by_name = {part["name"]: part for part in written["parts"]}
    failed = {name: part["text"] for name, part in by_name.items() if part["failure"]}
    assert failed == {}, failed
    assert done.returncode == 0
    _check_figures({name: part["data"] for name, part in by_name.items()})
    for kept in (
        "selftest.csv.gz",
        "samples.csv.gz",
        "fsdp2.pt.trace.json.gz",
        "fake-fsdp1.csv.gz",
    ):
        assert gzip.decompress((folder / kept).read_bytes())


def _check_figures(data: dict[str, Any]) -> None:
    assert data["step_time"]["ratio"]["pairs"] == 2
    assert set(data["allocation"]["ratios"]) == {"10 Hz", "100 Hz", "1000 Hz"}
    assert data["zeros_random"]["gpu"]["name"] == "NVIDIA H100 80GB HBM3"
    assert data["fields"]["driver"] == "595.45.04"
    assert set(data["calls"]["cost_us"]) == {"fast", "full"}
    frameworks = {key: each["framework"]["name"] for key, each in data["fsdp_memory"].items()}
    assert frameworks == {"1": "fsdp1", "2": "fsdp2"}
