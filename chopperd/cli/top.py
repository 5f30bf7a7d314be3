"""Helpers of `chopperd top`: key presses, silenced stderr, and sampling without an agent."""

import os
import select
import sys
import termios
import tty
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Final

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

_QUIT: Final = frozenset(b"qQ\x1b")
_READ_BYTES: Final = 64
_STDERR: Final = 2


@contextmanager
def quit_key() -> Iterator[Callable[[], bool]]:
    """Give a function: whether `q` or Escape was pressed since its last call.

    The function always returns False if standard input is not a terminal. The settings of the
    terminal are restored afterwards.
    """
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


SIMULATED: Final = "simulated"
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

    Raises:
        BackendUnavailableError: The back end can't be used; says why.
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
