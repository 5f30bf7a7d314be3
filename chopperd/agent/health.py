"""Whether the agent itself is well, and the guard that keeps its parts going.

A back end that never came up, or a disk that is full, is no trouble of the agent's own.
"""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from chopperd.clock import Clock, RepeatLimiter
from chopperd.errors import ConfigError
from chopperd.model.live import GuardedPart
from chopperd.units import NS_PER_S

logger = logging.getLogger(__name__)

#: A part that has not worked for so long has stalled.
_STALLED_NS: Final = 10 * NS_PER_S


class Health:
    """How the agent's parts fare (`model.services.Health`).

    Args:
        clock: Tells the time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._worked_ns: dict[str, int] = {}
        self._alive: dict[str, Callable[[], bool]] = {}
        self._lost_driver: str | None = None
        self._faults: Counter[GuardedPart] = Counter()
        self._lock = threading.Lock()

    def beat(self, part: str) -> None:
        """Note that a part of the main loop works now; from its first time on it must go on."""
        self._worked_ns[part] = self._clock.mono_ns()

    def watch(self, part: str, is_alive: Callable[[], bool]) -> None:
        """Look after a thread from now on."""
        self._alive[part] = is_alive

    def note_lost_driver(self, reason: str | None) -> None:
        """Say that a driver that had worked stays lost, and why; None if it does not."""
        self._lost_driver = reason

    def note_fault(self, part: GuardedPart) -> None:
        """Count a fault that a part has outlived; for any thread."""
        with self._lock:
            self._faults[part] += 1

    def faults(self) -> Mapping[GuardedPart, int]:
        """How many there were since the start, by part; for any thread."""
        with self._lock:
            return {part: self._faults[part] for part in GuardedPart}

    def trouble(self) -> str | None:
        """Why the agent is not well, for people; None if it is."""
        now_ns = self._clock.mono_ns()
        for part, worked_ns in tuple(self._worked_ns.items()):
            if now_ns - worked_ns > _STALLED_NS:
                return f"{part} has not worked for {(now_ns - worked_ns) / NS_PER_S:.0f} s"
        for part, is_alive in tuple(self._alive.items()):
            if not is_alive():
                return f"the {part} thread has ended"
        return self._lost_driver


class Guard:
    """Runs a part again and again, whatever it raises: counts it, and logs it now and then.

    Args:
        part: The part.
        name: Its name, for people.
        clock: Tells the time.
        health: Learns when the part has worked, and of its faults.
    """

    def __init__(self, part: GuardedPart, name: str, clock: Clock, health: Health) -> None:
        self._part = part
        self._name = name
        self._health = health
        self._logging = RepeatLimiter(clock)
        health.beat(name)

    def run(self, work: Callable[[], object]) -> bool:
        """Do the work once; whether it succeeded.

        Raises:
            ConfigError: The work did: nothing but another configuration mends that.
        """
        try:
            work()
        except ConfigError:
            raise
        except Exception:
            self._health.note_fault(self._part)
            if self._logging.is_due():
                count = self._health.faults()[self._part]
                logger.exception("%s failed (%d times so far)", self._name, count)
            return False
        self._health.beat(self._name)
        return True
