"""Who runs the processes on the GPUs that `chopperd top` shows, by the real /proc."""

import os
import pwd
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace

from chopperd.cli.top import owners_of
from chopperd.model.devices import GpuProcess
from chopperd.model.live import NodeSnapshot
from tests.unit.report.live import live_gpu, snapshot

FIRST_NAMESPACE = "pid:[4026531836]"


def on_gpu(*pids: int) -> NodeSnapshot:
    processes = tuple(GpuProcess(pid=pid) for pid in pids)
    return snapshot(replace(live_gpu(), processes=processes))


def proc_of(folder: Path, namespace: str) -> Path:
    """A /proc of another namespace, in which this machine's processes are."""
    (folder / "self" / "ns").mkdir(parents=True)
    (folder / "self" / "ns" / "pid").symlink_to(namespace)
    (folder / str(os.getpid())).symlink_to(f"/proc/{os.getpid()}")
    return folder


def sleeping(environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    code = "import sys; print(flush=True); sys.stdin.read()"
    child = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **environment},
    )
    assert child.stdout is not None
    child.stdout.readline()
    return child


def test_a_process_has_its_user_command_and_job(tmp_path: Path) -> None:
    with sleeping({"SLURM_JOB_ID": "4711"}) as child:
        proc = proc_of(tmp_path, FIRST_NAMESPACE)
        (proc / str(child.pid)).symlink_to(f"/proc/{child.pid}")
        (owner,) = owners_of(on_gpu(child.pid, 2**30), proc).values()
        child.communicate()
    assert (owner.user, owner.job) == (pwd.getpwuid(os.getuid()).pw_name, "4711")
    assert owner.command is not None
    assert owner.command.startswith("python")


def test_without_a_job_it_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    with sleeping({}) as child:
        proc = proc_of(tmp_path, FIRST_NAMESPACE)
        (proc / str(child.pid)).symlink_to(f"/proc/{child.pid}")
        assert owners_of(on_gpu(child.pid), proc)[child.pid].job is None
        child.communicate()


def test_in_another_namespace_nobody_is_named(tmp_path: Path) -> None:
    assert owners_of(on_gpu(os.getpid()), proc_of(tmp_path, "pid:[4026532222]")) == {}
    assert owners_of(on_gpu(os.getpid()), tmp_path / "none") == {}
