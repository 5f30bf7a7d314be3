"""The analysis worker process: started when there is work, killed when there is none.

It uses no driver and has nothing to save, so a kill is safe.
"""

import logging
import os
import select
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from chopperd.clock import Clock
from chopperd.pipeline.worker import (
    MOST_REPLY_BYTES,
    FrameBuffer,
    FrameError,
    Ready,
    Reply,
    Request,
    framed,
    sent_of,
)
from chopperd.units import NS_PER_MS, NS_PER_S

logger = logging.getLogger(__name__)

_PIPE_BYTES: Final = 1 << 20
_END_S: Final = 1.0


class Loss(Enum):
    """Why a request got no reply: the worker did not start, died, timed out or was stopped."""

    NOT_STARTED = auto()
    DIED = auto()
    TOO_SLOW = auto()
    INTERRUPTED = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """A request that got no reply, and the reason for people."""

    how: Loss
    reason: str


class AnalysisWorker:
    """The analysis worker's process, which works on one request at a time.

    Only `interrupt` and `pid` are for any thread; the rest is for one. The process is ended
    after `idle_s` without a request.
    """

    def __init__(self, command: Sequence[str], *, idle_s: float, clock: Clock) -> None:
        self._command = tuple(command)
        self._idle_ns = round(idle_s * NS_PER_S)
        self._clock = clock
        self._process: subprocess.Popen[bytes] | None = None
        self._ending: list[subprocess.Popen[bytes]] = []
        self._busy = False
        self._ready = False
        self._interrupted = False
        self._start_error = ""
        self._unsent = memoryview(b"")
        self._frames = FrameBuffer(MOST_REPLY_BYTES)
        self._since_ns = 0
        self._deadline_ns = 0

    @property
    def pid(self) -> int | None:
        """Pid of the process; None where there is none."""
        process = self._process
        return None if process is None else process.pid

    @property
    def busy(self) -> bool:
        """Whether a request waits for its outcome."""
        return self._busy

    def ask(self, request: Request, timeout_s: float) -> None:
        """Send a request, starting the process if there is none; `poll` gives the outcome.

        The process is killed if that takes longer than `timeout_s`.

        Raises:
            FrameError: The request can't be sent.
        """
        if self._busy:
            raise RuntimeError("the worker has a request")
        data = framed(request)
        self._deadline_ns = self._clock.mono_ns() + round(timeout_s * NS_PER_S)
        gone = self._process is None or self._interrupted or self._process.poll() is not None
        self._busy, self._interrupted = True, False
        if gone:
            self._end()
            self._start()
        self._unsent = memoryview(data)

    def poll(self, wait_s: float) -> Reply | Lost | None:
        """Wait up to `wait_s` for the request's outcome; None if there is none yet.

        A lost or idle process is killed.
        """
        self._reap()
        if not self._busy:
            self._end_if_idle()
            return None
        outcome = self._outcome(wait_s)
        if outcome is not None:
            self._busy, self._since_ns = False, self._clock.mono_ns()
        if isinstance(outcome, Lost):
            self._end()
        return outcome

    def interrupt(self) -> None:
        """Kill the process: a request in progress is lost. For any thread."""
        process = self._process
        self._interrupted = True
        if process is not None:
            process.kill()

    def close(self) -> None:
        """Kill the process, and wait briefly for its end."""
        self._busy = False
        self._end()
        for process in self._ending:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_END_S)
        self._reap()

    def _start(self) -> None:
        self._ready, self._frames = False, FrameBuffer(MOST_REPLY_BYTES)
        try:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,  # an interrupt from the terminal is the parent's to handle
            )
        except OSError as error:
            self._start_error = str(error)
            return
        for fd in _pipe_fds(self._process):
            os.set_blocking(fd, False)

    def _outcome(self, wait_s: float) -> Reply | Lost | None:
        process = self._process
        if process is None:
            return _not_started(self._start_error)
        ended = self._exchange(process, wait_s)
        try:
            reply = self._next_reply()
        except FrameError as error:
            return Lost(how=Loss.DIED, reason=f"the analysis worker talks nonsense: {error}")
        if reply is not None:
            return reply
        if ended:
            return self._end_of(process)
        if self._clock.mono_ns() >= self._deadline_ns:
            return Lost(how=Loss.TOO_SLOW, reason="it took longer than analysis.timeout_s")
        return None

    def _exchange(self, process: subprocess.Popen[bytes], wait_s: float) -> bool:
        """Write and read what the pipes allow; return whether the output has ended."""
        stdin_fd, stdout_fd = _pipe_fds(process)
        poll = select.poll()
        poll.register(stdout_fd, select.POLLIN)
        if self._unsent:
            poll.register(stdin_fd, select.POLLOUT)
        left_ns = max(self._deadline_ns - self._clock.mono_ns(), 0)
        poll.poll(min(round(wait_s * 1000), left_ns // NS_PER_MS))
        with suppress(BlockingIOError, BrokenPipeError):  # the output shows a broken pipe too
            while self._unsent:
                self._unsent = self._unsent[os.write(stdin_fd, self._unsent) :]
        with suppress(BlockingIOError):
            while data := os.read(stdout_fd, _PIPE_BYTES):
                self._frames.feed(data)
            return True
        return False

    def _next_reply(self) -> Reply | None:
        while (body := self._frames.next_frame()) is not None:
            sent = sent_of(body)
            if not isinstance(sent, Ready):
                return sent
            self._ready = True
        return None

    def _end_of(self, process: subprocess.Popen[bytes]) -> Lost:
        """Find out why the worker ended before its reply."""
        try:
            status: int | None = process.wait(_END_S)
        except subprocess.TimeoutExpired:
            status = None
        if self._interrupted:
            return Lost(how=Loss.INTERRUPTED, reason="the analysis was stopped")
        if not self._ready:
            return _not_started(f"status {status}")
        return Lost(how=Loss.DIED, reason=f"the analysis worker died over it (status {status})")

    def _end_if_idle(self) -> None:
        idle = self._clock.mono_ns() - self._since_ns >= self._idle_ns
        if self._process is not None and (idle or self._process.poll() is not None):
            self._end()

    def _end(self) -> None:
        """Kill the process, if there is one."""
        process, self._process = self._process, None
        self._unsent = memoryview(b"")
        if process is None:
            return
        process.kill()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        self._ending.append(process)
        self._reap()

    def _reap(self) -> None:
        """Forget killed processes that have ended; others are checked again later."""
        self._ending = [process for process in self._ending if process.poll() is None]


def _pipe_fds(process: subprocess.Popen[bytes]) -> tuple[int, int]:
    """Return the descriptors of the process's standard input and output."""
    if process.stdin is None or process.stdout is None:
        raise RuntimeError("the worker was started without pipes")
    return process.stdin.fileno(), process.stdout.fileno()


def _not_started(why: str) -> Lost:
    return Lost(how=Loss.NOT_STARTED, reason=f"the analysis worker does not start: {why}")
