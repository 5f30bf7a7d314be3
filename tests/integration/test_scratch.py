"""The temporary folder of a process, which must not outlive it."""

import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from chopperd.cli.own import scratch_folder

#: Makes a folder with a file in it, says so, and waits.
HOLDER = """
import sys
from chopperd.cli.own import scratch_folder
with scratch_folder() as folder:
    (folder / "deep").mkdir()
    (folder / "deep" / "file").write_text("x")
    print(folder, flush=True)
    sys.stdin.read()
"""
END_S = 10.0


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    return tmp_path


def holder() -> "tuple[subprocess.Popen[str], Path]":
    """A process that holds a scratch folder, and the folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def gone(folder: Path) -> bool:
    """Whether the folder goes in time."""
    until = time.monotonic() + END_S
    while folder.exists() and time.monotonic() < until:
        time.sleep(0.02)
    return not folder.exists()


def test_the_folder_is_private_and_goes_with_its_content(temporary: Path) -> None:
    with scratch_folder() as folder:
        assert folder.parent == temporary
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "file").write_text("x", encoding="utf-8")
    assert list(temporary.iterdir()) == []


def test_it_goes_when_an_error_ends_its_use(temporary: Path) -> None:
    with pytest.raises(RuntimeError, match="a bug"), scratch_folder():
        raise RuntimeError("a bug")
    assert list(temporary.iterdir()) == []


def test_it_goes_when_its_process_is_killed(temporary: Path) -> None:
    process, folder = holder()
    assert folder.parent == temporary
    assert (folder / "deep" / "file").exists()
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert gone(folder)


def test_what_others_still_write_into_it_goes_too(temporary: Path) -> None:
    process, folder = holder()
    assert folder.parent == temporary
    process.send_signal(signal.SIGKILL)
    for number in range(20):
        with suppress(OSError):  # once the folder is gone
            (folder / f"late{number}").write_bytes(b"x")
        time.sleep(0.005)
    process.communicate()
    assert gone(folder)


def test_a_folder_that_was_never_made_ends_the_sweeper_at_once(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    command = [sys.executable, "-m", "chopperd", "_sweep", "--folder", missing]
    assert subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode == 0
