"""The life of the agent's process: systemd notifications, signals, the end of threads."""

import logging
import os
import select
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Final

from chopperd.clock import Clock
from chopperd.config.paths import ServiceManager
from chopperd.units import NS_PER_S

logger = logging.getLogger(__name__)

#: Each message while starting extends the service manager's timeout by this; and how often.
_STARTING_S: Final = 30
_STARTING_EVERY_NS: Final = 5 * NS_PER_S


class Notifier:
    """Sends notifications to systemd, if it started the agent; a lost message is no error.

    Source: sd_notify(3).
    """

    def __init__(self, manager: ServiceManager, clock: Clock) -> None:
        self._address = _address(manager.notify_address)
        # The watchdog is reset twice in the period that systemd asks for.
        self._watchdog_ns = manager.watchdog_s and manager.watchdog_s * NS_PER_S / 2
        self._clock = clock
        self._due_ns = 0
        self._starting_due_ns = 0
        self._status = ""

    def starting(self) -> None:
        """Extend the start timeout: opening a large or damaged store takes long.

        Source: sd_notify(3), EXTEND_TIMEOUT_USEC.
        """
        now_ns = self._clock.mono_ns()
        if now_ns >= self._starting_due_ns:
            self._starting_due_ns = now_ns + _STARTING_EVERY_NS
            self._send(f"EXTEND_TIMEOUT_USEC={_STARTING_S * 1_000_000}")

    def ready(self) -> None:
        """Report to systemd that the agent serves."""
        self._send("READY=1")

    def stopping(self) -> None:
        """Report to systemd that the agent is about to end."""
        self._send("STOPPING=1")

    def status(self, text: str) -> None:
        """Set the line in `systemctl status`; sent only if it has changed."""
        if text != self._status:
            self._status = text
            self._send(f"STATUS={' '.join(text.splitlines())}")

    def alive(self) -> None:
        """Reset the watchdog when that is due; call it only while the agent is healthy."""
        now_ns = self._clock.mono_ns()
        if self._watchdog_ns and now_ns >= self._due_ns:
            self._due_ns = now_ns + round(self._watchdog_ns)
            self._send("WATCHDOG=1")

    def _send(self, message: str) -> None:
        if self._address is None:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            try:
                sender.sendto(message.encode(), self._address)
            except OSError as error:
                logger.debug("the service manager does not listen: %s", error)


def _address(given: str | None) -> str | None:
    if given is None or not given.startswith(("@", "/")):
        return None
    return f"\0{given[1:]}" if given.startswith("@") else given


_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Wake:
    """A wait until a deadline, which `call` ends early from any thread or signal handler.

    An Event is unsuitable: setting it in a signal handler can deadlock with the wait.
    """

    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def call(self) -> None:
        """End the present wait, or the next."""
        if self._fd >= 0:
            os.eventfd_write(self._fd, 1)

    def wait_until(self, deadline_mono_ns: int, clock: Clock) -> None:
        """Return at the deadline, or earlier when called."""
        remaining_s = max(0.0, (deadline_mono_ns - clock.mono_ns()) / NS_PER_S)
        if select.select([self._fd], [], [], remaining_s)[0]:
            os.eventfd_read(self._fd)

    def close(self) -> None:
        """Release the wait's descriptor; `call` does nothing afterwards."""
        fd, self._fd = self._fd, -1
        os.close(fd)


@contextmanager
def stopped_by_signals(stop: Callable[[int], None]) -> Iterator[None]:
    """Let SIGTERM, SIGINT and SIGHUP call `stop` with their number, in the main thread.

    An ignored signal, as under `nohup`, stays ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, _frame: FrameType | None) -> None:
        stop(number)

    handled = [each for each in _SIGNALS if signal.getsignal(each) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handle) for number in handled}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def end_within(
    ends: Mapping[str, Callable[[], object]], timeout_s: float, clock: Clock
) -> tuple[str, ...]:
    """Call all `ends` in parallel and wait; return the names of those that did not end in time."""
    threads = {
        name: threading.Thread(target=end, name=f"chopperd-end-{name}", daemon=True)
        for name, end in ends.items()
    }
    deadline_ns = clock.mono_ns() + round(timeout_s * NS_PER_S)
    for thread in threads.values():
        thread.start()
    for thread in threads.values():
        thread.join(max(0.0, (deadline_ns - clock.mono_ns()) / NS_PER_S))
    late = tuple(name for name, thread in threads.items() if thread.is_alive())
    if late:
        logger.warning("did not end within %.1f s and is left: %s", timeout_s, ", ".join(late))
    return late
