"""Commands run to their end in processes of their own, and what the kernel says they used."""

import os
import subprocess
import time
from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "bench" / "scratch"


class CommandFailedError(Exception):
    """A measured command ended with another status than 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What one command used, its children included.

    Attributes:
        wall_s: From before its start to its end.
        cpu_s: User and system time.
        peak_bytes: Largest resident set of any one process of it. The kernel counts from the
            fork on, so a runner larger than the command would show instead: keep it small.
    """

    wall_s: float
    cpu_s: float
    peak_bytes: int


def measured(command: Sequence[str], *, core: int, output: Path) -> Usage:
    """Run a command on one core; what it used.

    Args:
        command: What to run, from the root of the checkout.
        core: The only core that it may use.
        output: Where its standard output goes.

    Raises:
        CommandFailedError: It failed; says what it wrote to standard error.
    """
    errors = output.with_suffix(".stderr")
    with output.open("wb") as out, errors.open("wb") as err:
        began_s = time.perf_counter()
        with pinned({core}):
            process = subprocess.Popen(command, stdout=out, stderr=err, cwd=ROOT)
        _, status, used = os.wait4(process.pid, 0)
        wall_s = time.perf_counter() - began_s
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        said = errors.read_text(errors="replace")[-2000:]
        raise CommandFailedError(f"{command[:4]} ended with {process.returncode}: {said}")
    return Usage(
        wall_s=wall_s, cpu_s=used.ru_utime + used.ru_stime, peak_bytes=used.ru_maxrss * 1024
    )


@contextmanager
def pinned(cores: Set[int]) -> Iterator[None]:
    """What is started inside may use these cores only."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def last_core() -> int:
    """The core to measure on: interrupts tend to go to the first ones."""
    return max(os.sched_getaffinity(0))


def cpu_ns(pid: int) -> int:
    """CPU time of a running process so far, all threads, in ns.

    Source: clock_getcpuclockid(3); the id is made of the pid as the kernel defines it, with
        `CPUCLOCK_SCHED` (2) in its lowest bits.
    """
    return time.clock_gettime_ns(~pid << 3 | 2)


def ended(process: "subprocess.Popen[bytes]") -> None:
    """Kill a process that we have started, and wait for its end."""
    process.kill()
    process.wait()
