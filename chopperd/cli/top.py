"""Helpers of `chopperd top`: key presses, silenced stderr, and sampling without an agent."""

import os
import pwd
import select
import sys
import termios
import tty
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from chopperd import __version__
from chopperd.cli.recording import sampler_command
from chopperd.clock import Clock, SystemClock
from chopperd.config.paths import node_name
from chopperd.config.sections import Config
from chopperd.live.node import LiveNode
from chopperd.model.live import NodeSnapshot, SamplerCondition, SamplerLive
from chopperd.sampling.settings import SamplerSettings
from chopperd.sampling.supervisor import SamplerSupervisor, SupervisorState
from chopperd.units import NS_PER_MS

if TYPE_CHECKING:
    from chopperd.report.text.live_pages import ProcessOwner

_QUIT: Final = frozenset(b"qQ\x1b")
_READ_BYTES: Final = 64
_STDERR: Final = 2


@contextmanager
def quit_key() -> Iterator[Callable[[], bool]]:
    """Give a function: whether `q` or Escape was pressed since its last call, at a terminal."""
    if not sys.stdin.isatty():
        yield lambda: False
        return
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    tty.setcbreak(fd)  # keys arrive at once and are not shown; Ctrl-C still interrupts

    def is_quit() -> bool:
        if not select.select([fd], [], [], 0)[0]:
            return False
        pressed = os.read(fd, _READ_BYTES)  # empty if the terminal has gone
        return not pressed or not _QUIT.isdisjoint(pressed)

    try:
        yield is_quit
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


@contextmanager
def quiet_stderr() -> Iterator[None]:
    """Discard stderr of this process, and of those that it starts, during the block."""
    sys.stderr.flush()
    before, nowhere = os.dup(_STDERR), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, _STDERR)
    os.close(nowhere)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(before, _STDERR)
        os.close(before)


def owners_of(snapshot: "NodeSnapshot", proc: Path = Path("/proc")) -> dict[int, "ProcessOwner"]:
    """Return who runs the processes on the GPUs, by pid; without those that are not seen here.

    Drivers number processes as the machine's first pid namespace does: in another nobody is named.
    """
    try:
        namespace = str((proc / "self" / "ns" / "pid").readlink())
    except OSError:
        return {}
    if namespace != _FIRST_PID_NAMESPACE:
        return {}
    pids = {each.pid for gpu in snapshot.gpus for each in gpu.processes or ()}
    return {pid: owner for pid in sorted(pids) if (owner := _owner(proc / str(pid))) is not None}


def _owner(folder: Path) -> "ProcessOwner | None":
    """Return who runs the process of this folder in /proc; None where it has ended.

    Source: proc(5): cmdline, environ (of one's own processes only); the folder's owner.
    """
    from chopperd.report.text.live_pages import ProcessOwner

    try:
        uid = folder.stat().st_uid
        words = (folder / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    except OSError:
        return None
    try:
        user = pwd.getpwuid(uid).pw_name
    except KeyError:
        user = str(uid)
    command = b" ".join((words[0].rpartition(b"/")[2], *words[1:])).decode(errors="replace")
    return ProcessOwner(user=user, job=_job(folder), command=command or None)


def _job(folder: Path) -> str | None:
    try:
        variables = (folder / "environ").read_bytes().split(b"\0")
    except OSError:
        return None
    prefix = b"SLURM_JOB_ID="
    found = next((each for each in variables if each.startswith(prefix)), prefix)
    return found.removeprefix(prefix).decode(errors="replace") or None


SIMULATED: Final = "simulated"
#: Of the machine's first pid namespace. Source: Linux, include/linux/proc_ns.h.
_FIRST_PID_NAMESPACE: Final = "pid:[4026531836]"
_CONDITIONS: Final = {
    SupervisorState.RUNNING: SamplerCondition.RUNNING,
    SupervisorState.DOWN: SamplerCondition.HUNG,
}
_HZ: Final = 10.0
_SNAPSHOT_EVERY_NS: Final = 500 * NS_PER_MS
_STOP_S: Final = 2.0


def own_snapshots(
    config: Config, backend: str, clock: Clock | None = None
) -> Generator[NodeSnapshot]:
    """Yield snapshots of the node twice a second from an own sampler, which ends on close.

    Raises `BackendUnavailableError` if the back end can't be used.
    """
    clock = clock or SystemClock()
    settings = SamplerSettings(
        hz=_HZ,
        slow_hz=config.sampling.slow_hz,
        # As under `record`; a simulation has no driver whose time must be limited.
        budget_ratio=1.0 if backend == SIMULATED else config.sampling.record_driver_budget_ratio,
    )
    node = LiveNode(
        clock,
        version=__version__,
        node=node_name(config),
        backend=backend,
        slow_hz=settings.slow_hz,
    )
    supervisor = SamplerSupervisor(sampler_command(backend), settings, clock)
    try:
        supervisor.start()
        while True:
            supervisor.poll()
            node.follow(supervisor.ring)
            sampler = SamplerLive(
                condition=_CONDITIONS.get(supervisor.state, SamplerCondition.RESTARTING),
                pid=supervisor.pid,
                restart_count=supervisor.restart_count,
                abandoned_pids=supervisor.left_pids,
            )
            yield node.snapshot(sampler)
            clock.sleep_until(clock.mono_ns() + _SNAPSHOT_EVERY_NS)
    finally:
        node.follow(None)
        supervisor.stop(_STOP_S)
        supervisor.close()
