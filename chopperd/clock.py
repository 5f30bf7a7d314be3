"""The only module that reads or waits on a clock; all other code is given a `Clock`.

Also holds `RepeatLimiter`, which needs only a clock, for modules that may import little else.
"""

import time
from typing import Final, Protocol

from msgspec import Struct

from chopperd.units import NS_PER_S, TimeTriple

_REPEAT_EVERY_NS: Final = 60 * NS_PER_S


class Clock(Protocol):
    """Interface to the time: the system's clocks in the product, scripted ones in tests."""

    def mono_ns(self) -> int:
        """Return CLOCK_MONOTONIC in ns."""
        ...

    def unix_ns(self) -> int:
        """Return CLOCK_REALTIME in ns since 1970."""
        ...

    def triple(self) -> TimeTriple:
        """Read the three system clocks back to back."""
        ...

    def sleep_until(self, deadline_mono_ns: int) -> None:
        """Sleep until CLOCK_MONOTONIC is at `deadline_mono_ns`; return at once if it has passed."""
        ...


class SystemClock(Struct, frozen=True):
    """The machine's clocks."""

    def mono_ns(self) -> int:
        """Return CLOCK_MONOTONIC in ns."""
        return time.clock_gettime_ns(time.CLOCK_MONOTONIC)

    def unix_ns(self) -> int:
        """Return CLOCK_REALTIME in ns since 1970."""
        return time.clock_gettime_ns(time.CLOCK_REALTIME)

    def triple(self) -> TimeTriple:
        """Read the three clocks; MONOTONIC is the middle of two reads around the others."""
        before = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        real = time.clock_gettime_ns(time.CLOCK_REALTIME)
        boot = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        after = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        return TimeTriple(unix_ns=real, mono_ns=(before + after) // 2, boot_ns=boot)

    def sleep_until(self, deadline_mono_ns: int) -> None:
        """Sleep until CLOCK_MONOTONIC is at `deadline_mono_ns`; return at once if it has passed."""
        remaining_ns = deadline_mono_ns - self.mono_ns()
        if remaining_ns > 0:
            time.sleep(remaining_ns / NS_PER_S)


class RepeatLimiter:
    """Limits repeated messages: the first is due at once, then one a minute for each key.

    Args:
        clock: The time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._said_ns: dict[str, int] = {}

    def is_due(self, what: str = "") -> bool:
        """Whether a message of this key is due now; if so, stores the time as that of its last."""
        now_ns = self._clock.mono_ns()
        said_ns = self._said_ns.get(what)
        if said_ns is not None and now_ns - said_ns < _REPEAT_EVERY_NS:
            return False
        self._said_ns[what] = now_ns
        return True
