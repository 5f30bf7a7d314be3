"""The command `top`: a live table of the GPUs, from the agent or from an own sampler."""

import os
import pwd
import select
import sys
import termios
import tty
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from chopperd import __version__
from chopperd.cli import options
from chopperd.cli.output import print_page
from chopperd.config.load import DEFAULT_PATH, load_config
from chopperd.config.sections import Config
from chopperd.errors import AgentUnreachableError, BackendUnavailableError
from chopperd.units import NS_PER_MS, NS_PER_S

if TYPE_CHECKING:
    from chopperd.model.live import NodeSnapshot
    from chopperd.report.text.live_pages import ProcessOwner

#: How long a single table waits for losses, which need two reads of the totals.
_ONCE_NS: Final = 6 * NS_PER_S
_HZ: Final = 10.0
_SNAPSHOT_EVERY_NS: Final = 500 * NS_PER_MS
_STOP_S: Final = 2.0


@options.documented("chopperd top", "chopperd top --once")
@options.once
@options.backend
@options.config_path
def top(once: bool, backend: str | None, config: Path | None) -> None:
    """Show a live table of the GPUs; samples them itself with --backend or without an agent."""
    with closing(_snapshots(load_config(config or DEFAULT_PATH), backend)) as snapshots:
        try:
            if once or not sys.stdout.isatty():
                _print_once(snapshots)
            else:
                _show(snapshots)
        except BackendUnavailableError as error:
            hint = "`chopperd top --backend simulated` needs none"
            raise BackendUnavailableError(f"{error}; {hint}") from error


def _snapshots(config: Config, backend: str | None) -> Generator["NodeSnapshot"]:
    from chopperd.client.agent import AgentClient

    if backend is None:
        client = AgentClient.of(config)
        try:
            client.status()
        except AgentUnreachableError:
            pass  # sample without an agent
        else:
            return client.snapshots()
    return own_snapshots(config, backend or config.sampling.backend)


def _print_once(snapshots: Iterable["NodeSnapshot"]) -> None:
    from chopperd.report.text.live_pages import live_page

    history: list[NodeSnapshot] = []
    for snapshot in snapshots:
        history.append(snapshot)
        waited_ns = snapshot.taken_mono_ns - history[0].taken_mono_ns
        if waited_ns >= _ONCE_NS or _has_losses(history):
            break
    print_page(live_page(history, owners_of(history[-1])))


def _has_losses(history: Sequence["NodeSnapshot"]) -> bool:
    from chopperd.report.text.live_pages import lost_ratios

    ratios = lost_ratios(history)
    known = [ratios[gpu.info.gpu] is not None for gpu in history[-1].gpus if gpu.up]
    return bool(known) and all(known)


def _show(snapshots: Iterable["NodeSnapshot"]) -> None:
    from rich.console import Console
    from rich.live import Live

    from chopperd.report.text.live_pages import live_page, minute
    from chopperd.report.text.page import Shown

    console = Console(highlight=False, markup=False, emoji=False)
    history: tuple[NodeSnapshot, ...] = ()
    screen = Live(console=console, screen=True, auto_refresh=False)
    try:
        # The page itself shows what a sampler would warn of.
        with quiet_stderr(), quit_key() as is_quit, screen as page:
            for snapshot in snapshots:
                history = minute((*history, snapshot))
                page.update(Shown(live_page(history, owners_of(snapshot))), refresh=True)
                if is_quit():
                    return
    except KeyboardInterrupt:
        return  # the usual way to leave


def own_snapshots(config: Config, backend: str) -> Generator["NodeSnapshot"]:
    """Yield snapshots of the node twice a second from an own sampler, which ends on close.

    Raises `BackendUnavailableError` if the back end can't be used.
    """
    from chopperd.cli.recording import sampler_command
    from chopperd.clock import SystemClock
    from chopperd.config.paths import node_name
    from chopperd.live.node import LiveNode
    from chopperd.model.live import SamplerCondition, SamplerLive
    from chopperd.sampling.settings import SamplerSettings
    from chopperd.sampling.supervisor import SamplerSupervisor, SupervisorState

    clock, slow_hz, name = SystemClock(), config.sampling.slow_hz, node_name(config)
    # As under `record`; a simulation has no driver whose time must be limited.
    ratio = 1.0 if backend == "simulated" else config.sampling.record_driver_budget_ratio
    settings = SamplerSettings(hz=_HZ, slow_hz=slow_hz, budget_ratio=ratio)
    node = LiveNode(clock, version=__version__, node=name, backend=backend, slow_hz=slow_hz)
    conditions = {
        SupervisorState.RUNNING: SamplerCondition.RUNNING,
        SupervisorState.DOWN: SamplerCondition.HUNG,
    }
    supervisor = SamplerSupervisor(sampler_command(backend), settings, clock)
    try:
        supervisor.start()
        while True:
            supervisor.poll()
            node.follow(supervisor.ring)
            sampler = SamplerLive(
                condition=conditions.get(supervisor.state, SamplerCondition.RESTARTING),
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


_QUIT: Final = frozenset(b"qQ\x1b")
_READ_BYTES: Final = 64
_STDERR: Final = 2
#: Of the machine's first pid namespace. Source: Linux, include/linux/proc_ns.h.
_FIRST_PID_NAMESPACE: Final = "pid:[4026531836]"


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
