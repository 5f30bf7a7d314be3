"""The driver and nvidia-smi asked by processes of their own, through a compiled fake driver."""

import os
import signal
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from chopperd.cli.doctor import Answer, answer_of, probed, surveyed
from chopperd.diagnosis.probe import (
    LIBRARY_NAME,
    QUERY,
    inventory_of,
    left_probes,
    loaded_library,
    probe_of,
)
from chopperd.errors import BackendUnavailableError, ConfigError
from tests.fakes.nvml.fixtures import SCENARIO_VARIABLE
from tests.fakes.nvml.scenario import GPU_IS_LOST, HANGS, Scenario

ARGUMENTS = " ".join(QUERY)


@pytest.fixture
def driver(
    nvml_library: Callable[[], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Scenario:
    """A fake driver with two GPUs, for processes that are started from here."""
    scenario = Scenario(tmp_path / "scenario.bin", 2)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(nvml_library().parent))
    monkeypatch.setenv(SCENARIO_VARIABLE, str(scenario.path))
    return scenario


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Puts a script of this body where `nvidia-smi` is looked for."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def install(body: str) -> Path:
        script = folder / "nvidia-smi"
        script.write_text(f"#!/bin/sh\n{body}\n")
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
        return script

    return install


def test_a_driver_is_read_and_its_library_named(driver: Scenario) -> None:
    probe = probed("nvml")
    assert probe.inventory is not None
    assert [entry.info.gpu for entry in probe.inventory.gpus] == ["0", "1"]
    assert probe.library is not None
    assert probe.library.path is not None
    assert probe.library.path.endswith(f"/{LIBRARY_NAME}")
    assert (probe.error, probe.hung_s, probe.hung_pid) == (None, None, None)
    assert driver.gpus[0].calls_of("nvmlDeviceGetClockInfo") > 0


def test_a_driver_that_hangs_is_waited_for_no_longer(driver: Scenario) -> None:
    driver.gpus[0].fails(0, "nvmlDeviceGetUUID", delay_ms=60_000)
    probe = probed("nvml", limit_s=2.0)
    assert probe.hung_s == 2.0
    assert (probe.inventory, probe.error) == (None, None)


@pytest.mark.usefixtures("driver")
def test_a_survey_holds_nvidia_smi_s_numbers_at_the_right_gpu(smi: Callable[[str], Path]) -> None:
    smi(
        f'[ "$*" = "{ARGUMENTS}" ] || exit 2\n'
        "echo 'GPU-00000001, 1410, 2619, 499.0, 60, 8, 100, 700.00, [N/A], 1980, 2619, 81920'"
    )
    first, second = surveyed("nvml").gpus
    assert first.nvidia_smi is None
    assert second.nvidia_smi is not None
    assert second.nvidia_smi["sm_clock_mhz"] == 1410.0
    assert "power_limit_default_w" not in second.nvidia_smi


@pytest.mark.usefixtures("driver")
def test_without_nvidia_smi_nothing_is_said_of_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert [entry.nvidia_smi for entry in surveyed("nvml").gpus] == [None, None]
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("driver")
def test_an_nvidia_smi_that_fails_is_told_of(
    smi: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    smi("echo 'NVIDIA-SMI has failed'; exit 9")
    assert [entry.nvidia_smi for entry in surveyed("nvml").gpus] == [None, None]
    assert capsys.readouterr().err == (
        "chopperd: nvidia-smi failed with status 9; its numbers are not shown\n"
    )


def test_a_lost_gpu_does_not_hide_the_others(driver: Scenario) -> None:
    driver.gpus[1].fails(GPU_IS_LOST, "nvmlDeviceGetClockInfo")
    probe = probed("nvml")
    assert probe.inventory is not None
    assert [entry.error is None for entry in probe.inventory.gpus] == [True, False]


def test_errors_come_over_as_they_are(driver: Scenario) -> None:
    with pytest.raises(ConfigError, match="backend 'nvmll' is not known"):
        surveyed("nvmll")
    driver.fails(9, ["nvmlInitWithFlags"])
    with pytest.raises(
        BackendUnavailableError, match=r"nvml: NVML does not start: .*\(NVML code 9"
    ):
        surveyed("nvml")
    assert probed("nvml").error is not None


def test_a_process_that_ends_early_is_no_inventory() -> None:
    for output in (b"", b"{}\n", b'{"name":"x","path":null,"error":null}\n{"inv', b"\xff\n\xff"):
        with pytest.raises(BackendUnavailableError, match="without an answer"):
            inventory_of(output)
    probe = probe_of("auto", b'{"name":"x","path":"/y","error":null}\n')
    assert probe.library is not None
    assert (probe.library.path, probe.inventory) == ("/y", None)


def test_a_library_that_is_not_there_says_so_in_the_loader_s_words() -> None:
    found = loaded_library("libnobody-has.so.1")
    assert found.path is None
    assert found.error is not None
    assert "cannot open shared object file" in found.error


def test_a_program_that_will_not_end_is_asked_and_then_left() -> None:
    """A signal that is ignored here is ignored there, from its very start."""
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        answer = answer_of(["/bin/sleep", "600"], limit_s=0.2)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (answer.status, answer.output) == (None, b"")
    assert answer.left_pid is not None
    assert os.waitpid(answer.left_pid, os.WNOHANG) == (0, 0)
    os.kill(answer.left_pid, signal.SIGKILL)  # it is in no driver
    os.waitpid(answer.left_pid, 0)


def test_a_program_that_said_all_is_not_waited_for_to_the_end() -> None:
    """Its limit is longer than any test may run."""
    command = ["/bin/sh", "-c", "echo said; exec /bin/sleep 600"]
    answer = answer_of(command, limit_s=3600.0, is_whole=lambda output: output == b"said\n")
    assert answer == Answer(status=None, output=b"said\n")


@pytest.mark.parametrize("call", ["nvmlDeviceGetUUID", "nvmlDeviceGetSamples"])
def test_a_gpu_that_hangs_leaves_the_others_surveyed(driver: Scenario, call: str) -> None:
    """One that hangs from the start, and one that hangs in a call that only the survey makes."""
    driver.gpus[0].fails(HANGS, call)
    hung, well = surveyed("nvml").gpus
    assert "do not return" in (hung.error or "")
    assert "NVML code" not in (hung.error or "")
    assert (well.error, well.info.gpu) == (None, "1")
    assert well.reading is not None
    assert well.probes


def test_a_gpu_that_hangs_leaves_the_others_looked_at(driver: Scenario) -> None:
    driver.gpus[0].fails(HANGS, "nvmlDeviceGetUUID")
    probe = probed("nvml")
    assert probe.inventory is not None
    assert [entry.error is None for entry in probe.inventory.gpus] == [False, True]
    assert probe.hung_s is None


def test_a_process_that_answered_and_will_not_end_is_named_and_left(
    driver: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No signal reaches a process in the kernel's part of a driver; it ends as the call returns."""
    driver.gpus[0].fails(HANGS, "nvmlDeviceGetUUID")
    monkeypatch.setattr(subprocess.Popen, "terminate", lambda _: None)
    probe = probed("nvml")
    assert probe.inventory is not None
    assert probe.hung_s is None
    assert probe.hung_pid is not None
    assert os.waitpid(probe.hung_pid, os.WNOHANG) == (0, 0)
    driver.gpus[0].fails(0, "nvmlDeviceGetUUID")
    os.waitpid(probe.hung_pid, 0)


@pytest.mark.usefixtures("driver")
def test_two_looks_that_still_hang_keep_from_a_third(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chopperd.diagnosis.probe.left_probes", lambda _: (7, 8))
    assert probed("nvml").stuck_pids == (7, 8)
    with pytest.raises(BackendUnavailableError, match="processes 7, 8 of earlier probes"):
        surveyed("nvml")
    assert probed("simulated").inventory is not None
    monkeypatch.setattr("chopperd.diagnosis.probe.left_probes", lambda _: (7,))
    assert probed("nvml").inventory is not None


def test_looks_of_this_user_that_are_old_enough_are_found(tmp_path: Path) -> None:
    """Up for 1000 s; they started at 100 s, at 990 s, and at 100 s as something else."""
    ticks = os.sysconf("SC_CLK_TCK")
    (tmp_path / "uptime").write_text("1000.00 5.00\n")
    ours = b"python\0-P\0-m\0chopperd\0_probe\0--backend\0nvml\0"
    for pid, start_s, command in ((5, 100, ours), (6, 990, ours), (9, 100, b"python\0-m\0x\0")):
        folder = tmp_path / str(pid)
        folder.mkdir()
        (folder / "cmdline").write_bytes(command)
        before = " ".join(["0"] * 18)
        (folder / "stat").write_text(f"{pid} (a) b) S {before} {start_s * ticks} 0 0\n")
    (tmp_path / "11").mkdir()
    assert left_probes(80.0, tmp_path) == (5,)


def test_a_program_that_ends_when_asked_is_not_left() -> None:
    assert answer_of(["/bin/sleep", "600"], limit_s=0.2) == Answer(status=None, output=b"")


def test_what_a_program_says_comes_with_its_status() -> None:
    answer = answer_of(["/bin/sh", "-c", "echo said; exit 3"], limit_s=60)
    assert answer == Answer(status=3, output=b"said\n")
