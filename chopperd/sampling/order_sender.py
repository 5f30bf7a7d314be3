"""The agent's end of the pipe that brings a sampler its orders; it never waits for the sampler."""

import logging
import os
from typing import Final

from chopperd.clock import Clock, RepeatLimiter
from chopperd.sampling.orders import Order, OrderBook, encoded

logger = logging.getLogger(__name__)

_NO_PIPE: Final = -1


class OrderSender:
    """Hands orders to one sampler process after another.

    Each new process is told the orders that still hold. What a full pipe does not take is dropped,
    and said: a sampler that does not read is in worse trouble.

    Args:
        clock: Tells the time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._book = OrderBook()
        self._limiter = RepeatLimiter(clock)
        self._pipe_fd = _NO_PIPE

    def attach(self, pipe_fd: int) -> None:
        """Send to this pipe from now on, and first what still holds; it stays the caller's."""
        os.set_blocking(pipe_fd, False)
        self._pipe_fd = pipe_fd
        for order in self._book.standing(self._clock.mono_ns()):
            self._send(order)

    def detach(self) -> None:
        """Send to no one until the next `attach`; to be called before the pipe is closed."""
        self._pipe_fd = _NO_PIPE

    def send(self, order: Order) -> bool:
        """Send an order; whether a process was given it. One that comes later is, in any case."""
        self._book.take(order, self._clock.mono_ns())
        return self._pipe_fd != _NO_PIPE and self._send(order)

    def _send(self, order: Order) -> bool:
        try:
            os.write(self._pipe_fd, encoded(order))  # shorter than PIPE_BUF: all of it or nothing
        except BlockingIOError:
            if self._limiter.is_due():
                logger.warning("the sampler does not take its orders; one is dropped: %s", order)
            return False
        except BrokenPipeError:  # it has ended; its successor will be told
            return False
        return True
