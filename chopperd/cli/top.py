"""The live table of all GPUs: from the agent where one runs, else sampled by the command itself."""

import os
import select
import sys
import termios
import tty
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from chopperd import __version__
from chopperd.cli import options
from chopperd.cli.output import print_page
from chopperd.cli.recording import sampler_command
from chopperd.clock import Clock, SystemClock
from chopperd.config.load import DEFAULT_PATH, load_config
from chopperd.config.paths import node_name
from chopperd.config.sections import Config
from chopperd.errors import AgentUnreachableError
from chopperd.live.node import LiveNode
from chopperd.model.live import NodeSnapshot, SamplerCondition, SamplerLive
from chopperd.sampling.settings import SamplerSettings
from chopperd.sampling.supervisor import SamplerSupervisor, SupervisorState
from chopperd.units import NS_PER_MS, NS_PER_S

if TYPE_CHECKING:
    from chopperd.model.live import NodeSnapshot


# The terminal while a page fills it: keys that end it, and nothing written across it.

_QUIT: Final = frozenset(b"qQ\x1b")
_READ_BYTES: Final = 64
_STDERR: Final = 2


@contextmanager
def quit_key() -> Iterator[Callable[[], bool]]:
    """Tells, whenever called, whether `q` or Escape was pressed; leaves the terminal as it was.

    Where standard input is no terminal nothing is ever pressed.
    """
    if not sys.stdin.isatty():
        yield lambda: False
        return
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    tty.setcbreak(fd)  # keys come at once and are not shown; Ctrl-C still interrupts
    try:
        yield lambda: _quits(fd)
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


@contextmanager
def quiet_stderr() -> Iterator[None]:
    """Drops what this process and those that it starts meanwhile write to standard error."""
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


def _quits(fd: int) -> bool:
    """Whether what was pressed since the last look ends the page, or the terminal has gone."""
    if not select.select([fd], [], [], 0)[0]:
        return False
    pressed = os.read(fd, _READ_BYTES)
    return not pressed or not _QUIT.isdisjoint(pressed)


#: A single table waits so long for losses, which take two looks at the totals.
_ONCE_NS: Final = 6 * NS_PER_S


@click.command()
@options.once
@options.backend
@options.config_path
def top(
    once: bool,
    backend: str | None,
    config: Path | None,
) -> None:
    """Show the GPUs as they are now; where no agent runs, or with --backend, it samples itself."""
    with closing(_snapshots(load_config(config or DEFAULT_PATH), backend)) as snapshots:
        if once or not sys.stdout.isatty():
            _print_once(snapshots)
        else:
            _show(snapshots)


def _snapshots(config: Config, backend: str | None) -> "Generator[NodeSnapshot]":
    from chopperd.client.agent import AgentClient

    if backend is None:
        client = AgentClient.of(config)
        try:
            client.status()
        except AgentUnreachableError:
            pass  # it takes no agent
        else:
            return client.snapshots()
    return own_snapshots(config, backend or config.sampling.backend)


def _print_once(snapshots: "Iterable[NodeSnapshot]") -> None:
    from chopperd.report.text.live_pages import live_page

    history: list[NodeSnapshot] = []
    for snapshot in snapshots:
        history.append(snapshot)
        waited_ns = snapshot.taken_mono_ns - history[0].taken_mono_ns
        if waited_ns >= _ONCE_NS or _has_losses(history):
            break
    print_page(live_page(history))


def _has_losses(history: "Sequence[NodeSnapshot]") -> bool:
    """Whether the losses of all GPUs that answer, of which there are some, are known by now."""
    from chopperd.report.text.live_pages import lost_ratios

    ratios = lost_ratios(history)
    known = [ratios[gpu.info.gpu] is not None for gpu in history[-1].gpus if gpu.up]
    return bool(known) and all(known)


def _show(snapshots: "Iterable[NodeSnapshot]") -> None:
    """Show the table until a key or an interrupt ends it."""
    from rich.console import Console
    from rich.live import Live

    from chopperd.report.text.live_pages import live_page, window
    from chopperd.report.text.report import Shown

    console = Console(highlight=False, markup=False, emoji=False)
    history: tuple[NodeSnapshot, ...] = ()
    screen = Live(console=console, screen=True, auto_refresh=False)
    try:
        # The page shows what a sampler would warn of.
        with quiet_stderr(), quit_key() as is_quit, screen as page:
            for snapshot in snapshots:
                history = window((*history, snapshot))
                page.update(Shown(live_page(history)), refresh=True)
                if is_quit():
                    return
    except KeyboardInterrupt:
        return  # the usual way to leave


# Sampling of the command's own, for a page of the node where no agent is asked.

SIMULATED: Final = "simulated"
_CONDITIONS: Final = {
    SupervisorState.RUNNING: SamplerCondition.RUNNING,
    SupervisorState.DOWN: SamplerCondition.HUNG,
}
_HZ: Final = 10.0
_LOOK_EVERY_NS: Final = 500 * NS_PER_MS
_STOP_S: Final = 2.0


def own_snapshots(
    config: Config, backend: str, clock: Clock | None = None
) -> Generator[NodeSnapshot]:
    """The node twice a second, until closed; no sampler is left then.

    Raises:
        BackendUnavailableError: The back end can't be used; says why.
    """
    clock = clock or SystemClock()
    settings = SamplerSettings(
        hz=_HZ,
        slow_hz=config.sampling.slow_hz,
        # Somebody is watching, as under `record`; there is no driver to spare in a simulation.
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
            yield node.snapshot(_live(supervisor))
            clock.sleep_until(clock.mono_ns() + _LOOK_EVERY_NS)
    finally:
        node.follow(None)
        supervisor.stop(_STOP_S)
        supervisor.close()


def _live(supervisor: SamplerSupervisor) -> SamplerLive:
    return SamplerLive(
        condition=_CONDITIONS.get(supervisor.state, SamplerCondition.RESTARTING),
        pid=supervisor.pid,
        restart_count=supervisor.restart_count,
        abandoned_pids=supervisor.left_pids,
    )
