"""A back end of another package, found by its entry point, shown and sampled for real."""

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np

from chopperd.store.samples.files import read_samples
from tests.e2e.running import Chopperd
from tests.integration.devices.test_contract import install_example


def program_beside(package: Path, folder: Path) -> Chopperd:
    """Chopperd where the package is installed beside it."""
    install_example(package)
    program = Chopperd.under(folder)
    paths = [str(package), os.environ.get("PYTHONPATH", "")]
    return replace(
        program,
        environment={
            **program.environment,
            "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        },
    )


def test_the_documented_back_end_is_found_shown_and_sampled(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    program = program_beside(package, tmp_path)
    shown = program.run("devices", "--backend", "example", "--format", "json")
    assert shown.returncode == 0, shown.stderr
    found = json.loads(shown.stdout)
    assert found["backend"] == "example"
    assert found["chosen"] is None  # it was named
    recorded = program.run(
        "record", "--backend", "example", "-o", "samples.csv", "--", "sleep", "2"
    )
    assert recorded.returncode == 0, recorded.stderr
    samples = read_samples(program.folder / "samples.csv")
    assert samples.backend == "example"
    assert [each.gpu.uuid for each in samples.gpus] == [
        each["info"]["uuid"] for each in found["gpus"]
    ]
    for each in samples.gpus:
        assert len(each) >= 10
        assert np.isfinite(each.sm_clock_mhz).all()
