"""`chopperd doctor` as a command: on this machine, and over the compiled fake driver."""

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from chopperd import cli
from chopperd.cli import doctor
from tests.fakes.amd.smi.fixtures import MakeFakeAmdSmi
from tests.fakes.amd.sysfs.tree import SysfsTree
from tests.fakes.nvml.fixtures import SCENARIO_VARIABLE
from tests.fakes.nvml.scenario import GPU_IS_LOST, Scenario

CHECKS = {"container", "GPU hardware", "GPUs", "configuration", "state folder", "agent", "clock"}


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """The command line configures logging for its process; here that is the tests'."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders and addresses of this test's own."""
    monkeypatch.setenv("CHOPPERD_PATHS__STATE", str(tmp_path / "state"))
    monkeypatch.setenv("CHOPPERD_PATHS__RUNTIME", str(tmp_path))
    monkeypatch.setenv("CHOPPERD_METRICS__LISTEN", "")
    monkeypatch.setenv("CHOPPERD_API__LISTEN", "")


@pytest.fixture
def driver(
    nvml_library: Callable[[], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Scenario:
    """A fake driver with two GPUs, for processes that are started from here."""
    scenario = Scenario(tmp_path / "scenario.bin", 2)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(nvml_library().parent))
    monkeypatch.setenv(SCENARIO_VARIABLE, str(scenario.path))
    return scenario


def diagnosed(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, dict[str, str]]:
    """The findings by their check, the last of each; the exit code says if one is a problem."""
    status = cli.run(["doctor", "--format", "json", *arguments])
    document = json.loads(capsys.readouterr().out)
    verdicts = [finding["verdict"] for finding in document["findings"]]
    assert status == int("problem" in verdicts)
    assert document["ok"] is ("problem" not in verdicts)
    return {finding["check"]: finding for finding in document["findings"]}


def test_a_simulated_node_has_no_problem(capsys: pytest.CaptureFixture[str]) -> None:
    found = diagnosed(capsys, "--backend", "simulated")
    assert set(found) >= CHECKS
    assert found["GPUs"]["text"] == "SIMULATED, 8 read by simulated"
    assert found["GPU hardware"]["verdict"] == "ok"


def test_a_back_end_that_is_not_known_is_a_finding(capsys: pytest.CaptureFixture[str]) -> None:
    found = diagnosed(capsys, "--backend", "nvmll")
    assert found["GPUs"]["verdict"] == "problem"
    assert "'nvmll' is not known" in found["GPUs"]["text"]


def test_a_wrong_setting_is_a_finding_and_the_rest_is_looked_at(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "config.toml"
    file.write_text("[sampling]\nhz = -1\n")
    found = diagnosed(capsys, "--backend", "simulated", "--config", str(file))
    assert "sampling.hz" in found["configuration"]["text"]
    assert found["GPUs"]["verdict"] == "ok"


@pytest.mark.usefixtures("driver")
def test_gpus_behind_a_driver_are_read(capsys: pytest.CaptureFixture[str]) -> None:
    found = diagnosed(capsys, "--backend", "nvml")
    assert found["GPUs"]["text"] == "2 read by nvml, driver 595.45.04"
    assert found["driver library"]["text"].endswith("/libnvidia-ml.so.1")


def test_a_lost_gpu_and_a_pause_are_problems(
    driver: Scenario, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    driver.gpus[0].fails(GPU_IS_LOST, "nvmlDeviceGetClockInfo")
    (tmp_path / "pause").write_text("reason=maintenance")
    assert cli.run(["doctor", "--backend", "nvml"]) == 1
    text = capsys.readouterr().out
    assert "problem  GPUs" in text
    assert "GPU 0: nvmlDeviceGetClockInfo failed: GPU is lost (NVML code 15)" in text
    assert "maintenance" in text
    assert max(map(len, text.splitlines())) <= 100


def test_an_amd_node_is_told_from_its_module_to_amd_smi(
    make_fake_amdsmi: MakeFakeAmdSmi,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Files, `gpu_metrics` and binding are fake ones; device files of this tree there are none."""
    fake = make_fake_amdsmi()
    SysfsTree(tmp_path / "root/sys")
    monkeypatch.setattr(doctor, "_ROOT", tmp_path / "root")
    found = diagnosed(capsys, "--backend", "amdsmi")
    assert found["GPU hardware"]["text"] == "1 AMD on the PCI bus"
    assert found["GPUs"]["text"].startswith("1 read by amdsmi")
    assert found["AMD kernel module"] == {
        "check": "AMD kernel module", "verdict": "ok", "text": "amdgpu 6.12.12", "fix": None,
    }  # fmt: skip
    assert found["gpu_metrics"]["text"] == "v1.8, of 1 of 1 cards"
    assert found["partitions"]["text"] == "SPX/NPS1 on 1"
    assert found["AMD SMI"]["text"].startswith(f"binding {fake.binding.version} in ")
    assert found["AMD SMI"]["verdict"] == "ok"
    assert found["AMD device files"]["verdict"] == "unknown"
