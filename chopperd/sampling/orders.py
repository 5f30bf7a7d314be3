"""Orders from the agent to a running sampler, as lines on a pipe that are sent without waiting."""

import logging
import os
import threading
from array import array
from typing import Final, TypeAlias

import msgspec

from chopperd.clock import Clock, RepeatLimiter
from chopperd.errors import ConfigError
from chopperd.units import NS_PER_S


class Interrupt:
    """A counter in memory whose change ends waits early, also those of the C library.

    A wait checks the count at each nap (250 ms at most).
    """

    def __init__(self) -> None:
        self._word = array("q", [0])
        self._lock = threading.Lock()
        self.address = self._word.buffer_info()[0]  # for code that is not Python

    @property
    def count(self) -> int:
        """How often `raise_` was called."""
        return self._word[0]

    def raise_(self) -> None:
        """Add 1 to the count, which ends all waits: for a stop, or an order."""
        with self._lock:
            self._word[0] += 1


#: No order holds for longer than this.
LONGEST_NS: Final = 60 * NS_PER_S
#: Longer lines are skipped: no order is as long as this.
_LONGEST_LINE_BYTES: Final = 1024
_LOWEST_HZ, _HIGHEST_HZ = 0.1, 1000.0


class Burst(msgspec.Struct, frozen=True, kw_only=True, tag="burst"):
    """Order: read at another rate until a time, with the driver budget of bursts."""

    hz: float  # the rate
    until_mono_ns: int  # CLOCK_MONOTONIC


class Quiet(msgspec.Struct, frozen=True, kw_only=True, tag="quiet"):
    """Order: make no driver call until a time, so that a self-A/B shows what sampling costs."""

    until_mono_ns: int


Order: TypeAlias = Burst | Quiet

_DECODER: Final[msgspec.json.Decoder[Order]] = msgspec.json.Decoder(Order)


def encoded(order: Order) -> bytes:
    """Encode an order as one line of JSON."""
    return msgspec.json.encode(order) + b"\n"


def decoded(line: bytes) -> Order:
    """Decode one line into an order.

    Raises:
        ConfigError: The line is not an order, or its rate is out of range.
    """
    try:
        order = _DECODER.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError([f"not an order: {error}"]) from error
    if isinstance(order, Burst) and not _LOWEST_HZ <= order.hz <= _HIGHEST_HZ:
        raise ConfigError([f"not an order: {order.hz} Hz"])
    return order


class OrderLines:
    """Splits the data of the pipe into lines; a line that is too long is skipped."""

    def __init__(self) -> None:
        self._held = b""
        self._is_skipping = False

    def feed(self, data: bytes) -> list[bytes]:
        """Add data from the pipe; return the lines that are now complete, without line ends."""
        *whole, self._held = (self._held + data).split(b"\n")
        if whole and self._is_skipping:
            self._is_skipping = False
            del whole[0]
        if len(self._held) > _LONGEST_LINE_BYTES:
            self._is_skipping = True
        if self._is_skipping:
            self._held = b""
        return [line for line in whole if line]


class OrderBook:
    """The orders in force; one thread adds them with `take`, any thread may query.

    An order holds until its time, also for the next sampler processes; a newer one of its kind
    replaces it. A burst goes before a quiet time: who requested samples gets them.
    """

    def __init__(self) -> None:
        self.version = 0  # grows with each order, so that a change is cheap to see
        self.interrupt = Interrupt()  # raised at each order, so that nobody waits on
        self._burst: Burst | None = None
        self._quiet: Quiet | None = None

    def take(self, order: Order, now_mono_ns: int) -> None:
        """Store an order in place of the last of its kind, and end all waits.

        The order lasts 60 s at most; one whose time is over cancels the last of its kind.
        """
        until_ns = min(order.until_mono_ns, now_mono_ns + LONGEST_NS)
        if isinstance(order, Burst):
            self._burst = Burst(hz=order.hz, until_mono_ns=until_ns)
        else:
            self._quiet = Quiet(until_mono_ns=until_ns)
        self.version += 1
        self.interrupt.raise_()

    def burst(self, now_mono_ns: int) -> Burst | None:
        """The burst in force at this time; None if there is none."""
        burst = self._burst
        return burst if burst is not None and now_mono_ns < burst.until_mono_ns else None

    def quiet(self, now_mono_ns: int) -> Quiet | None:
        """The quiet time in force; None if there is none, or a burst overrides it."""
        quiet = self._quiet
        if quiet is None or now_mono_ns >= quiet.until_mono_ns or self.burst(now_mono_ns):
            return None
        return quiet

    def allows_rare_calls(self, now_mono_ns: int) -> bool:
        """Whether calls that are not part of sampling (processes, faults) may be made now."""
        return not self.in_force(now_mono_ns)

    def in_force(self, now_mono_ns: int) -> tuple[Order, ...]:
        """All orders whose time is not over, to send to the next sampler process."""
        orders = (self._burst, self._quiet)
        return tuple(each for each in orders if each and now_mono_ns < each.until_mono_ns)


logger = logging.getLogger(__name__)

_NO_PIPE: Final = -1


class OrderSender:
    """Sends orders to one sampler process after another, without waiting.

    Each new process gets the orders that still hold. If the pipe is full, the order is dropped and
    that is logged: a sampler that does not read has a worse problem.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._book = OrderBook()
        self._limiter = RepeatLimiter(clock)
        self._pipe_fd = _NO_PIPE

    def attach(self, pipe_fd: int) -> None:
        """Send to this pipe from now on, starting with the orders in force.

        Makes the pipe non-blocking; the caller still has to close it.
        """
        os.set_blocking(pipe_fd, False)
        self._pipe_fd = pipe_fd
        for order in self._book.in_force(self._clock.mono_ns()):
            self._send(order)

    def detach(self) -> None:
        """Send to no one until the next `attach`; to be called before the pipe is closed."""
        self._pipe_fd = _NO_PIPE

    def send(self, order: Order) -> bool:
        """Store an order and send it; return whether a process got it now.

        The next process gets it in any case.
        """
        self._book.take(order, self._clock.mono_ns())
        return self._pipe_fd != _NO_PIPE and self._send(order)

    def _send(self, order: Order) -> bool:
        try:
            os.write(self._pipe_fd, encoded(order))  # shorter than PIPE_BUF: all of it or nothing
        except BlockingIOError:
            if self._limiter.is_due():
                logger.warning("the sampler does not take its orders; one is dropped: %s", order)
            return False
        except BrokenPipeError:  # it has ended; the next process gets the order
            return False
        return True
