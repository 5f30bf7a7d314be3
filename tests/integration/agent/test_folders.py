"""The agent's folders: modes, one agent at a time, and places that can't be written to."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from chopperd.agent.lifecycle import claimed_state, made_runtime
from chopperd.errors import ConfigError


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_folders_are_made_with_their_modes_whatever_the_umask(tmp_path: Path) -> None:
    before, folder = os.umask(0o077), tmp_path / "a" / "state"
    try:
        with claimed_state(folder) as problem:
            assert made_runtime(tmp_path / "run") is None
    finally:
        os.umask(before)
    assert problem is None
    modes = {path.name: mode(path) for path in folder.iterdir() if path.is_dir()}
    assert modes == {"inbox": 0o1733, "traces": 0o700, "rejected": 0o700, "recorder": 0o755}
    assert mode(folder) == mode(tmp_path / "run") == 0o755


def test_folders_that_are_there_are_left_as_their_owner_made_them(tmp_path: Path) -> None:
    (tmp_path / "inbox").mkdir(mode=0o700)
    with claimed_state(tmp_path):
        assert mode(tmp_path / "inbox") == 0o700


def test_a_second_agent_is_refused_with_the_pid_of_the_first(tmp_path: Path) -> None:
    used = pytest.raises(ConfigError, match=rf"used by another agent \(pid {os.getpid()}\)")
    with claimed_state(tmp_path), used, claimed_state(tmp_path):
        pass
    with claimed_state(tmp_path) as problem:
        assert problem is None


def test_the_claim_ends_with_the_process_and_is_not_inherited(tmp_path: Path) -> None:
    program = (
        "import subprocess, sys\n"
        "from pathlib import Path\n"
        "from chopperd.agent.lifecycle import claimed_state\n"
        "with claimed_state(Path(sys.argv[1])):\n"
        "    child = subprocess.Popen(['sleep', '30'], stdout=subprocess.DEVNULL)\n"
        "    print(child.pid, flush=True)\n"
        "    sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        with pytest.raises(ConfigError, match=f"pid {process.pid}"), claimed_state(tmp_path):
            pass
        process.kill()
    with claimed_state(tmp_path) as problem:
        assert problem is None
    os.kill(child, 9)


@pytest.mark.parametrize("name", ["file/state", "file"])
def test_a_place_that_can_not_be_made_is_trouble_and_no_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("in the way")
    path = tmp_path / name
    with claimed_state(path) as problem:
        assert str(path) in (problem or "")
    assert str(path) in (made_runtime(path) or "")


def test_a_disk_that_takes_no_file_is_trouble_and_no_error() -> None:
    """/proc/sys takes no file of anyone."""
    with claimed_state(Path("/proc/sys/kernel")) as problem:
        assert problem is not None
