"""The only place that reads or waits on a clock; everything else is handed a `Clock`.

What is decided by nothing but a clock is here too, for those that may import no one else.
"""

import time
from dataclasses import dataclass
from typing import Final, Protocol

from chopperd.units import NS_PER_S, TimeTriple

_REPEAT_EVERY_NS: Final = 60 * NS_PER_S


class Clock(Protocol):
    """What code that needs the time is given: real in the product, scripted in tests."""

    def mono_ns(self) -> int:
        """CLOCK_MONOTONIC in ns."""
        ...

    def unix_ns(self) -> int:
        """CLOCK_REALTIME in ns since 1970."""
        ...

    def triple(self) -> TimeTriple:
        """The three system clocks, read back to back."""
        ...

    def sleep_until(self, deadline_mono_ns: int) -> None:
        """Return at or just after `deadline_mono_ns` of CLOCK_MONOTONIC."""
        ...


@dataclass(frozen=True, slots=True)
class SystemClock:
    """The machine's clocks."""

    def mono_ns(self) -> int:
        """CLOCK_MONOTONIC in ns."""
        return time.clock_gettime_ns(time.CLOCK_MONOTONIC)

    def unix_ns(self) -> int:
        """CLOCK_REALTIME in ns since 1970."""
        return time.clock_gettime_ns(time.CLOCK_REALTIME)

    def triple(self) -> TimeTriple:
        """The three system clocks; MONOTONIC is the middle of the two reads around the others."""
        before = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        real = time.clock_gettime_ns(time.CLOCK_REALTIME)
        boot = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        after = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        return TimeTriple(unix_ns=real, mono_ns=(before + after) // 2, boot_ns=boot)

    def sleep_until(self, deadline_mono_ns: int) -> None:
        """Return at or just after `deadline_mono_ns` of CLOCK_MONOTONIC."""
        remaining_ns = deadline_mono_ns - self.mono_ns()
        if remaining_ns > 0:
            time.sleep(remaining_ns / NS_PER_S)


class RepeatLimiter:
    """Says when what comes again and again is to be said: the first time, then once a minute.

    Args:
        clock: Tells the time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._said_ns: dict[str, int] = {}

    def is_due(self, what: str = "") -> bool:
        """Whether to say it now; if so, it counts as said."""
        now_ns = self._clock.mono_ns()
        said_ns = self._said_ns.get(what)
        if said_ns is not None and now_ns - said_ns < _REPEAT_EVERY_NS:
            return False
        self._said_ns[what] = now_ns
        return True
