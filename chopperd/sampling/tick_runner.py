"""Who waits for the ticks of one GPU: hands each look that Python is to make to its loop."""

import threading
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, Protocol, TypeAlias

from chopperd.clock import Clock
from chopperd.model.devices import ReadScope
from chopperd.sampling.memory.gpu_writer import GpuWriter
from chopperd.sampling.schedule import Schedule, Tick
from chopperd.units import NS_PER_MS

#: A wait is cut into naps of this length, so that a stop or an order is seen soon.
_NAP_NS: Final = 250 * NS_PER_MS


#: Whether something has come up by a time (CLOCK_MONOTONIC, ns) that waiting is to be cut for.
HasNews: TypeAlias = Callable[[int], bool]


class Look(NamedTuple):
    """A look at the GPU that is due now.

    Attributes:
        deadline_mono_ns: When it should have begun.
        scope: How much to read.
    """

    deadline_mono_ns: int
    scope: ReadScope


class TickRunner(Protocol):
    """Follows a schedule for one GPU's loop, in its thread."""

    def begin(self, schedule: Schedule) -> None:
        """Follow this schedule from now on, from its first tick."""
        ...

    def next(self, until_mono_ns: int, until_driver_ns: int) -> Look | None:
        """Wait for what comes next: a look to make now; None where the loop is to look around.

        That is when waiting was interrupted, when sampling shall end, or, in a runner that makes
        looks itself, after the first one that ended at `until_mono_ns` or later, or by which driver
        calls had taken `until_driver_ns` in all.
        """
        ...


class StopSigns:
    """Tells whether one GPU's loop is to end, and waits for as long as it is not.

    Args:
        gpu: The GPU's part of the shared memory, which another writer may take over.
        clock: Tells and waits for the time.
        stop: Set when sampling shall end.
    """

    def __init__(self, gpu: GpuWriter, clock: Clock, stop: threading.Event) -> None:
        self._gpu = gpu
        self._clock = clock
        self._stop = stop

    def is_over(self) -> bool:
        """Whether sampling shall end."""
        return self._stop.is_set() or not self._gpu.is_current()

    def wait_until(self, deadline_mono_ns: int, has_news: HasNews | None = None) -> bool:
        """Wait in naps, no longer once there is news; False as soon as sampling shall end."""
        now_ns = self._clock.mono_ns()
        while deadline_mono_ns - now_ns > _NAP_NS:
            if has_news is not None and has_news(now_ns):
                return True
            self._clock.sleep_until(now_ns + _NAP_NS)
            if self.is_over():
                return False
            now_ns = self._clock.mono_ns()
        self._clock.sleep_until(deadline_mono_ns)
        return not self.is_over()


class PythonTicks:
    """Waits in Python, and leaves every look to the loop.

    Args:
        gpu: Counts the ticks that were missed.
        clock: Tells the time.
        signs: Wait, and tell when to end.
        has_news: Cuts waits short: the look that comes then is early, and not to be made.
    """

    def __init__(
        self, gpu: GpuWriter, clock: Clock, signs: StopSigns, has_news: HasNews | None = None
    ) -> None:
        self._gpu = gpu
        self._clock = clock
        self._signs = signs
        self._has_news = has_news
        self._ticks: Iterator[Tick] = iter(())
        self._owes_full_read = False

    def begin(self, schedule: Schedule) -> None:
        """Follow this schedule from now on."""
        self._ticks = schedule.ticks()

    def next(self, until_mono_ns: int, until_driver_ns: int) -> Look | None:  # noqa: ARG002 - it makes no look itself
        """The next look; None when sampling shall end."""
        for tick in self._ticks:
            in_time = self._clock.mono_ns() < tick.end_mono_ns
            if in_time and not self._signs.wait_until(tick.deadline_mono_ns, self._has_news):
                return None
            if self._clock.mono_ns() >= tick.end_mono_ns:  # or woken too late: it has no read
                self._miss(tick)
                continue
            scope = ReadScope.FULL if self._owes_full_read else tick.scope
            self._owes_full_read = False
            return Look(tick.deadline_mono_ns, scope)
        return None

    def _miss(self, tick: Tick) -> None:
        """Count a period without a read; what only a full one would have read, the next reads."""
        self._gpu.missed_count += 1
        self._owes_full_read |= tick.scope is ReadScope.FULL
