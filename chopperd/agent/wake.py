"""The wait between two turns of the main loop, which a signal or another thread can cut short."""

import os
import select
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

from chopperd.clock import Clock
from chopperd.units import NS_PER_S

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Wake:
    """A wait that ends early when `call` is called, from any thread or signal handler.

    An Event would not do: setting one in a signal handler can deadlock with the wait on it.
    """

    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def call(self) -> None:
        """End the wait in progress, or the next."""
        if self._fd >= 0:
            os.eventfd_write(self._fd, 1)

    def wait_until(self, deadline_mono_ns: int, clock: Clock) -> None:
        """Return at the deadline, or sooner when called."""
        remaining_s = max(0.0, (deadline_mono_ns - clock.mono_ns()) / NS_PER_S)
        if select.select([self._fd], [], [], remaining_s)[0]:
            os.eventfd_read(self._fd)

    def close(self) -> None:
        """Let go of it; later calls do nothing."""
        fd, self._fd = self._fd, -1
        os.close(fd)


@contextmanager
def stopped_by_signals(stop: Callable[[int], None]) -> Iterator[None]:
    """Have SIGTERM, SIGINT and SIGHUP call `stop` with their number, in the main thread.

    One that is ignored, as `nohup` has it, stays so.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, _frame: FrameType | None) -> None:
        stop(number)

    heeded = [each for each in _SIGNALS if signal.getsignal(each) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handle) for number in heeded}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
