"""Health of the agent itself, and the guard that catches exceptions of its parts.

A back end that never started, or a full disk, is no problem of the agent itself.
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

#: A part that has not worked for this long has stalled.
_STALLED_NS: Final = 10 * NS_PER_S


class Health:
    """Collects signs of life and faults of the agent's parts (`model.services.Health`)."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._worked_ns: dict[str, int] = {}
        self._alive: dict[str, Callable[[], bool]] = {}
        self._lost_driver: str | None = None
        self._faults: Counter[GuardedPart] = Counter()
        self._lock = threading.Lock()

    def beat(self, part: str) -> None:
        """Store that a part of the main loop works now; after its first beat it must not stall."""
        self._worked_ns[part] = self._clock.mono_ns()

    def watch(self, part: str, is_alive: Callable[[], bool]) -> None:
        """Check from now on that a thread is alive."""
        self._alive[part] = is_alive

    def note_lost_driver(self, reason: str | None) -> None:
        """Store why a driver that had worked stays lost; None if it does not."""
        self._lost_driver = reason

    def note_fault(self, part: GuardedPart) -> None:
        """Count an exception that a part survived; for any thread."""
        with self._lock:
            self._faults[part] += 1

    def faults(self) -> Mapping[GuardedPart, int]:
        """Return the counts of survived exceptions since the start, by part; for any thread."""
        with self._lock:
            return {part: self._faults[part] for part in GuardedPart}

    def trouble(self) -> str | None:
        """Return why the agent is not healthy, as text for people; None if it is."""
        now_ns = self._clock.mono_ns()
        for part, worked_ns in tuple(self._worked_ns.items()):
            if now_ns - worked_ns > _STALLED_NS:
                return f"{part} has not worked for {(now_ns - worked_ns) / NS_PER_S:.0f} s"
        for part, is_alive in tuple(self._alive.items()):
            if not is_alive():
                return f"the {part} thread has ended"
        return self._lost_driver


class Guard:
    """Runs a part of the main loop; its exceptions are counted, and logged once a minute.

    Args:
        health: Gets the part's beats and faults.
    """

    def __init__(self, part: GuardedPart, name: str, clock: Clock, health: Health) -> None:
        self._part = part
        self._name = name
        self._health = health
        self._logging = RepeatLimiter(clock)
        health.beat(name)

    def run(self, work: Callable[[], object]) -> bool:
        """Call `work` once; return whether it succeeded.

        Raises:
            ConfigError: The work raised it: only another configuration helps.
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
