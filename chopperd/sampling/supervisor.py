"""Supervises the sampler process: starts it, detects hangs and ends, replaces and stops it.

A process that hangs inside a driver is asked to end and then abandoned, never killed: that has
frozen GPUs. At most one such process exists next to its one successor.
"""

import logging
import os
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from chopperd.clock import Clock
from chopperd.errors import BackendUnavailableError, StoreError
from chopperd.sampling.settings import (
    ExitStatus,
    RestartPolicy,
    Restarts,
    SamplerFailure,
    SamplerSettings,
)
from chopperd.units import NS_PER_MS, NS_PER_S

if TYPE_CHECKING:
    from chopperd.sampling.memory.ring_reader import RingReader
    from chopperd.sampling.sampler_health import SamplerHealth

logger = logging.getLogger(__name__)

_POLL_NS: Final = 5 * NS_PER_MS
#: With this many hung processes no other is started: an abandoned one and its successor.
_MOST_LEFT: Final = 2
#: Why a process ended on purpose.
_SELF_ENDS: Final[Mapping[int, str]] = {
    ExitStatus.CHANGED: "GPUs came or went",
    ExitStatus.NO_ROOM: "there are more GPUs than before",
}


class SupervisorState(StrEnum):
    """State of the sampler process.

    `WAITING`: it ended, its successor starts after a pause. `DOWN`: it hangs, and so does the one
    before it; no other starts until one of them ends. `STOPPED`: not started yet, or stopped;
    `launch` starts it.
    """

    STARTING = "starting"
    RUNNING = "running"
    WAITING = "waiting"
    DOWN = "down"
    STOPPED = "stopped"


class SamplerSupervisor:
    """Starts, watches, restarts and stops the sampler process, and holds its shared memory.

    Not to be used by several threads at once. To the command, `--ring-fd N --settings JSON` is
    added.
    """

    def __init__(
        self,
        command: Sequence[str],
        settings: SamplerSettings,
        clock: Clock,
        policy: RestartPolicy | None = None,
    ) -> None:
        self._command = tuple(command)
        self.settings = settings
        self._clock = clock
        self._policy = policy or RestartPolicy()
        self.state = SupervisorState.STOPPED  # of the process at the last `poll`
        self._ring_fd = -1
        self._known_health: SamplerHealth | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._ending: subprocess.Popen[bytes] | None = None
        self._left: list[subprocess.Popen[bytes]] = []
        self._launched_ns = 0
        self._asked_ns = 0
        self._awaited_generation = 0
        self._restart_ns = 0
        self.restart_count = 0  # how many successors were started
        self._restarts = Restarts(self._policy)

    @property
    def reader(self) -> "RingReader":
        """Reader of the shared memory, from a successful `start` to `close`; else RuntimeError."""
        reader = self.ring
        if reader is None:
            raise RuntimeError("the sampler was not started")
        return reader

    @property
    def ring(self) -> "RingReader | None":
        """Reader of the shared memory; None before it is laid out. Read again after each `poll`."""
        return self._health.reader if self._ring_fd >= 0 else None

    @property
    def failure(self) -> SamplerFailure | None:
        """Why the last process could not sample; None where it gave no reason, or one samples."""
        return self._restarts.failure

    @property
    def has_run(self) -> bool:
        """Whether any process has sampled."""
        return self._restarts.has_run

    @property
    def pid(self) -> int | None:
        """The pid of the present process; None between two."""
        return self._process.pid if self._process else None

    @property
    def left_pids(self) -> tuple[int, ...]:
        """Pids of processes that hung, were left alone and still exist."""
        self._left = [process for process in self._left if process.poll() is None]
        return tuple(process.pid for process in self._left)

    def start(self) -> None:
        """Start the sampler and wait until it samples.

        Raises:
            BackendUnavailableError: The sampler ended, or gave no sign of life in time; says why.
        """
        self.launch()
        try:
            self._wait_until_running()
        except BackendUnavailableError:
            self.stop(timeout_s=1.0)
            self.close()
            raise

    def launch(self) -> None:
        """Start the sampler, also again after `suspend`, without waiting; `poll` returns its state.

        Earlier samples stay, and counters go on. State `DOWN`: too many processes hang to start
        one.
        """
        if self._ring_fd < 0:
            self._ring_fd = os.memfd_create("chopperd-samples")
        self._abandon_ending()
        self._restarts.reset()
        if self._may_launch():
            self._launch()
        else:
            self.state = SupervisorState.DOWN

    def suspend(self) -> None:
        """Ask the sampler to end, and start none until `launch`; does not wait."""
        process, self._process = self._process, None
        self.state = SupervisorState.STOPPED
        if process is not None:
            self._ask_to_end(process)
            self._asked_ns = self._clock.mono_ns()
            self._ending = process

    def alive(self) -> bool:
        """Whether a sampler process exists that is not known to hang."""
        return (
            self.state in {SupervisorState.STARTING, SupervisorState.RUNNING}
            and self._process is not None
            and self._process.poll() is None
        )

    def poll(self) -> SupervisorState:
        """Check the process, handle its end or hang, start a successor if due. Call it often."""
        now_ns = self._clock.mono_ns()
        if self.state is SupervisorState.STOPPED:
            if now_ns - self._asked_ns > self._policy.hung_s * NS_PER_S:
                self._abandon_ending()
            return self.state
        if self._process is None:
            if now_ns >= self._restart_ns and self._may_launch():
                self.restart_count += 1
                self._launch()
        elif self._process.poll() is not None:
            self._note_end(self._process, now_ns)
        else:
            self._look_for_hang(self._process, now_ns)
        return self.state

    def stop(self, timeout_s: float = 2.0) -> tuple[int, ...]:
        """Stop the sampler; return the pids of processes that did not end and were left alone.

        The shared memory stays readable until `close`. A second call does nothing.
        """
        if self.state is SupervisorState.STOPPED and self._ending is None:
            return self.left_pids
        if self.state is not SupervisorState.STOPPED:
            self.suspend()
        if self._ending is not None:
            with suppress(subprocess.TimeoutExpired):
                self._ending.wait(timeout_s)
        self._abandon_ending()
        left_pids = self.left_pids
        calls = self.calls() if left_pids else ""
        for pid in left_pids:
            how = f"is still in a driver call{calls}" if calls else "has not ended yet"
            logger.warning("sampler process %d %s; it is left alone", pid, how)
        return left_pids

    def close(self) -> None:
        """Release the shared memory."""
        if self._known_health is not None:
            self._known_health.close()
            self._known_health = None
        if self._ring_fd >= 0:
            os.close(self._ring_fd)
            self._ring_fd = -1

    def _may_launch(self) -> bool:
        """Whether another process may start next to those that hang."""
        return len(self.left_pids) < _MOST_LEFT

    def _abandon_ending(self) -> None:
        """Add the process that was asked to end to those left alone, if it has not ended."""
        process, self._ending = self._ending, None
        if process is not None and process.poll() is None:
            self._left.append(process)

    def _launch(self) -> None:
        """Start a process; its standard input is the lifeline that closes when this one ends."""
        self._awaited_generation = self._known_health.generation + 1 if self._known_health else 1
        self._launched_ns = self._clock.mono_ns()
        self.state = SupervisorState.STARTING
        arguments = ["--ring-fd", str(self._ring_fd), *self.settings.to_argv()]
        try:
            self._process = subprocess.Popen(
                [*self._command, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                pass_fds=(self._ring_fd,),
                start_new_session=True,  # an interrupt from the terminal is the parent's to handle
            )
        except OSError as error:
            logger.warning("the sampler process can't be started: %s", error)
            self._plan_restart()

    def _wait_until_running(self) -> None:
        limit_ns = self._launched_ns + round(self._policy.start_s * NS_PER_S)
        while not self._is_running():
            ended = self._process is None or self._process.poll() is not None
            if ended or self._reported_failure() is not None:
                raise BackendUnavailableError(
                    self._reported_failure() or "the sampler process ended at once"
                )
            if self._clock.mono_ns() > limit_ns:
                raise BackendUnavailableError(
                    f"the driver did not answer within {self._policy.start_s:g} s"
                )
            self._clock.sleep_until(self._clock.mono_ns() + _POLL_NS)

    def _is_running(self) -> bool:
        """Whether the process launched last samples; sets the state to `RUNNING` once it does."""
        is_starting = self.state is SupervisorState.STARTING
        if is_starting and self._health.samples(self._awaited_generation):
            self.state = SupervisorState.RUNNING
            self._restarts.note_running()
        return self.state is SupervisorState.RUNNING

    def _reported_failure(self) -> str | None:
        """Return the reported reason why the last process could not sample; None if it did."""
        return self._health.failure(self._awaited_generation)

    @property
    def _health(self) -> "SamplerHealth":
        """The sampler's health, read from the shared memory; created on first use."""
        if self._known_health is None:
            # Imported late: it takes long, and the first process is started before.
            from chopperd.sampling.sampler_health import SamplerHealth  # noqa: PLC0415

            self._known_health = SamplerHealth(self._ring_fd)
        return self._known_health

    def _note_end(self, process: subprocess.Popen[bytes], now_ns: int) -> None:
        """Handle the end of a process: store its failure, make room, plan the next, log."""
        _close_lifeline(process)
        self._process = None
        lasted_s = (now_ns - self._launched_ns) / NS_PER_S
        failure, before = self._reported_failure(), self._restarts.failure
        if failure is not None:
            self._restarts.note_failure(failure, process.returncode, lasted_s)
        if process.returncode == ExitStatus.NO_ROOM:
            self._make_room()
        pause_s = self._plan_restart()
        reason = failure or _SELF_ENDS.get(process.returncode)
        is_known = before is not None and before.reason == failure
        logger.log(
            logging.DEBUG if is_known else logging.WARNING,
            "sampler process %d ended after %.0f s with status %d%s; the next starts in %.0f s",
            process.pid,
            lasted_s,
            process.returncode,
            f" ({reason})" if reason else "",
            pause_s,
        )
        if pause_s == 0:
            self.poll()

    def _make_room(self) -> None:
        """Move the shared memory into a larger file, since there are more GPUs than before."""
        from chopperd.sampling.memory.ring import grown  # noqa: PLC0415 - as in `_health`
        from chopperd.sampling.sampler_health import SamplerHealth  # noqa: PLC0415

        try:
            larger_fd = grown(self._ring_fd)
        except (OSError, StoreError) as error:
            logger.warning("there is no room for all GPUs: %s", error)
            return
        before_fd = self._ring_fd
        # The old one stays mapped for whoever still reads it.
        self._ring_fd, self._known_health = larger_fd, SamplerHealth(larger_fd)
        os.close(before_fd)

    def _plan_restart(self) -> float:
        """Set when the next process starts; return the pause before it in s."""
        self.state = SupervisorState.WAITING
        now_ns = self._clock.mono_ns()
        pause_s = self._restarts.pause_s((now_ns - self._launched_ns) / NS_PER_S)
        self._restart_ns = now_ns + round(pause_s * NS_PER_S)
        return pause_s

    def _look_for_hang(self, process: subprocess.Popen[bytes], now_ns: int) -> None:
        if not self._is_hung(now_ns):
            if self.state is SupervisorState.DOWN:
                self.state = SupervisorState.RUNNING
            return
        if self.left_pids:
            if self.state is not SupervisorState.DOWN:
                logger.error("sampler process %d hangs too%s", process.pid, self.calls())
            self.state = SupervisorState.DOWN
            return
        logger.error("sampler process %d hangs%s; another takes over", process.pid, self.calls())
        self._ask_to_end(process)
        self._left.append(process)
        self._process = None
        self.restart_count += 1
        self._launch()

    def _is_hung(self, now_ns: int) -> bool:
        """Whether the process does not start, shows no sign of life, or only waits for drivers."""
        if not self._is_running() and self.state is not SupervisorState.DOWN:
            return now_ns - self._launched_ns > self._policy.start_s * NS_PER_S
        return self._health.is_stuck(now_ns, round(self._policy.hung_s * NS_PER_S))

    def calls(self) -> str:
        """Describe the driver calls in progress and their age, for a message; empty if none."""
        return self._health.calls(self._clock.mono_ns())

    def _ask_to_end(self, process: subprocess.Popen[bytes]) -> None:
        process.terminate()
        _close_lifeline(process)


def _close_lifeline(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        process.stdin.close()
