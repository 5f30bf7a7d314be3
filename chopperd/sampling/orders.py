"""What the agent asks of a running sampler, as lines on a pipe: sent without waiting, and read."""

import logging
import os
import threading
from array import array
from typing import Final, TypeAlias

import msgspec

from chopperd.clock import Clock, RepeatLimiter
from chopperd.errors import ConfigError
from chopperd.units import NS_PER_S

# A word in memory by which waits are cut short, also those that Python does not see.


class Interrupt:
    """Counts what came up; whoever waits looks up within a nap when the count has changed.

    Attributes:
        address: Where the count is (int64), for code that is not Python.
    """

    def __init__(self) -> None:
        self._word = array("q", [0])
        self._lock = threading.Lock()
        self.address = self._word.buffer_info()[0]

    @property
    def count(self) -> int:
        """How often something came up."""
        return self._word[0]

    def raise_(self) -> None:
        """Let all that wait look up: for a stop, or an order."""
        with self._lock:
            self._word[0] += 1


# What the agent asks of a running sampler, as lines on the pipe that is its standard input.
#
# An order holds until its time, over successors of the process as well; another of its kind takes
# its place.

#: No order holds for longer than this, whatever it says.
LONGEST_NS: Final = 60 * NS_PER_S
#: No order is as long as this; a longer line is none.
_LONGEST_LINE_BYTES: Final = 1024
_LOWEST_HZ, _HIGHEST_HZ = 0.1, 1000.0


class Burst(msgspec.Struct, frozen=True, kw_only=True, tag="burst"):
    """Read at another rate until a time, with the budget that bursts have.

    Attributes:
        hz: The rate.
        until_mono_ns: CLOCK_MONOTONIC.
    """

    hz: float
    until_mono_ns: int


class Quiet(msgspec.Struct, frozen=True, kw_only=True, tag="quiet"):
    """Make no driver call until a time (self-A/B): what sampling costs shows in the steps."""

    until_mono_ns: int


Order: TypeAlias = Burst | Quiet

_DECODER: Final[msgspec.json.Decoder[Order]] = msgspec.json.Decoder(Order)


def encoded(order: Order) -> bytes:
    """The order as a line."""
    return msgspec.json.encode(order) + b"\n"


def decoded(line: bytes) -> Order:
    """The order of a line.

    Raises:
        ConfigError: It is none.
    """
    try:
        order = _DECODER.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError([f"not an order: {error}"]) from error
    if isinstance(order, Burst) and not _LOWEST_HZ <= order.hz <= _HIGHEST_HZ:
        raise ConfigError([f"not an order: {order.hz} Hz"])
    return order


class OrderLines:
    """Cuts what comes through the pipe into lines, however it comes; keeps little of what is none.

    What follows on too long a line is skipped up to the line's end.
    """

    def __init__(self) -> None:
        self._held = b""
        self._is_skipping = False

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that are whole now, without their ends."""
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
    """The orders that stand; one thread takes them, any may ask.

    A burst goes before a quiet time: whoever asked for samples gets them.

    Attributes:
        version: Grows with each order, so that a change is seen at little cost.
        interrupt: Raised at each order, so that nobody waits on for long.
    """

    def __init__(self) -> None:
        self.version = 0
        self.interrupt = Interrupt()
        self._burst: Burst | None = None
        self._quiet: Quiet | None = None

    def take(self, order: Order, now_mono_ns: int) -> None:
        """Let an order stand in place of the one of its kind; one whose time is over ends that."""
        latest_ns = now_mono_ns + LONGEST_NS
        until_ns = min(order.until_mono_ns, latest_ns)
        if isinstance(order, Burst):
            self._burst = Burst(hz=order.hz, until_mono_ns=until_ns)
        else:
            self._quiet = Quiet(until_mono_ns=until_ns)
        self.version += 1
        self.interrupt.raise_()

    def burst(self, now_mono_ns: int) -> Burst | None:
        """The burst that holds now; None if none does."""
        burst = self._burst
        return burst if burst is not None and now_mono_ns < burst.until_mono_ns else None

    def quiet(self, now_mono_ns: int) -> Quiet | None:
        """The quiet time that holds now; None if none does, or a burst goes before it."""
        quiet = self._quiet
        if quiet is None or now_mono_ns >= quiet.until_mono_ns or self.is_burst(now_mono_ns):
            return None
        return quiet

    def is_burst(self, now_mono_ns: int) -> bool:
        """Whether a burst holds: what is not sampling waits."""
        return self.burst(now_mono_ns) is not None

    def is_quiet(self, now_mono_ns: int) -> bool:
        """Whether no driver call at all is to be made."""
        return self.quiet(now_mono_ns) is not None

    def allows_rare_calls(self, now_mono_ns: int) -> bool:
        """Whether calls that are not part of sampling (processes, trouble) may be made now."""
        return not self.is_burst(now_mono_ns) and not self.is_quiet(now_mono_ns)

    def standing(self, now_mono_ns: int) -> tuple[Order, ...]:
        """All orders whose time is not over, as a successor must be told them."""
        orders: tuple[Order | None, ...] = (self._burst, self._quiet)
        return tuple(
            order for order in orders if order is not None and now_mono_ns < order.until_mono_ns
        )


# The agent's end of the pipe that brings a sampler its orders; it never waits for the sampler.

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
