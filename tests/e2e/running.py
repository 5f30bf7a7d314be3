"""The installed program as a user runs it: real processes, their output, and what they leave."""

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from chopperd.model.report import ReportDocument

PYTHON: Final = sys.executable
#: Marks, in the environment, every process that a test has started, directly or not.
_MARK: Final = "E2E_RUN"
#: Deadlines of the product are asserted with this slack.
SLACK: Final = 5
_TIMEOUT_S: Final = 120


@dataclass(frozen=True, slots=True)
class Chopperd:
    """chopperd in a working directory and an environment of its own.

    Attributes:
        folder: The working directory.
        temporary: Where it makes temporary files.
        environment: Its environment.
        wrapper: What the program is started by, before its own command line.
    """

    folder: Path
    temporary: Path
    environment: dict[str, str] = field(default_factory=dict)
    wrapper: tuple[str, ...] = ()

    @staticmethod
    def under(folder: Path, environment: Mapping[str, str] | None = None) -> "Chopperd":
        """One that works in `folder`/work and finds no configuration but the defaults."""
        work, temporary = folder / "work", folder / "tmp"
        work.mkdir(exist_ok=True)
        temporary.mkdir(exist_ok=True)
        own = {_MARK: str(folder), "TMPDIR": str(temporary)}
        return Chopperd(work, temporary, {**os.environ, **(environment or {}), **own})

    def start(self, *arguments: str | Path) -> "subprocess.Popen[str]":
        """Start it in a process group of its own; both outputs are pipes."""
        return subprocess.Popen(
            self._command(arguments),
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, *arguments: str | Path) -> "subprocess.CompletedProcess[str]":
        """Run it to its end."""
        return subprocess.run(
            self._command(arguments),
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )

    def document(self, *arguments: str | Path) -> ReportDocument:
        """The document that a command prints as JSON; it must succeed."""
        done = self.run(*arguments, "--format", "json")
        assert done.returncode == 0, done.stderr
        return msgspec.json.decode(done.stdout, type=ReportDocument)

    def _command(self, arguments: Sequence[str | Path]) -> list[str]:
        return [*self.wrapper, PYTHON, "-m", "chopperd", *map(str, arguments)]

    def processes(self) -> list[int]:
        """Living processes that descend from what was started here."""
        mark = f"{_MARK}={self.environment[_MARK]}".encode()
        return [pid for pid in _pids() if mark in _environment(pid)]

    def samplers(self) -> list[int]:
        """Those of them that are samplers."""
        return [pid for pid in self.processes() if b"_sampler" in _arguments(pid)]

    def running(self, program: str) -> list[int]:
        """Those of them that run a program, by the name that it was started with."""
        return [pid for pid in self.processes() if _arguments(pid)[:1] == [program.encode()]]

    def nothing_left(self, within_s: float) -> None:
        """Fail if any process is left after a time, or any temporary file of ours."""
        until = time.monotonic() + within_s
        while self.processes() and time.monotonic() < until:
            time.sleep(0.02)
        left = {pid: _arguments(pid) for pid in self.processes()}
        assert not left, f"processes left behind: {left}"
        assert list(self.temporary.glob("chopperd*")) == []


def complaints(stderr: str) -> list[str]:
    """The lines of standard error, but for one that a busy machine may cause.

    An agent waits a fraction of a second for its sampler, then leaves it to end by itself.
    """
    return [line for line in stderr.splitlines() if not line.endswith("it is left alone")]


def _pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]


def _environment(pid: int) -> list[bytes]:
    """The environment of a living process; none of one that is gone, a zombie, or not ours."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _arguments(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []
