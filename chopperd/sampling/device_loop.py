"""The loop that reads one GPU: it waits for a tick, reads, records, and outlives driver faults."""

import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, TypeAlias

from chopperd.clock import Clock, RepeatLimiter
from chopperd.devices.base import DeviceBackend
from chopperd.errors import DeviceError, DeviceLostError
from chopperd.model.devices import DeviceReading, GpuInfo, ReadScope
from chopperd.sampling.memory.gpu_writer import GpuWriter
from chopperd.sampling.memory.layout import GpuState, Pace
from chopperd.sampling.memory.slow_state import GpuSideWriter
from chopperd.sampling.orders import OrderBook
from chopperd.sampling.pace import Kept, Pacer
from chopperd.sampling.schedule import Schedule, Tick, period_ns_of, staggered_schedule
from chopperd.sampling.settings import SamplerSettings
from chopperd.units import NS_PER_MS, NS_PER_S

# Who waits for the ticks of one GPU: hands each look that Python is to make to its loop.

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


# The loop that reads one GPU: waits for a tick, reads, records; outlives any driver trouble.
#
# Who waits, and makes the looks that go as planned, is in `tick_runner` and `native`.

logger = logging.getLogger(__name__)

#: How long a loop rests after a fault of its own.
_REST_NS = NS_PER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopParts:
    """Where one loop stands among others, and who does parts of its work.

    Attributes:
        place: Which of how many GPUs, so that their reads do not coincide.
        side: Takes values that are no part of a sample; None: they are dropped.
        ticks: Waits for ticks, and makes looks where it can; None: Python.
    """

    place: tuple[int, int] = (0, 1)
    side: GpuSideWriter | None = None
    ticks: TickRunner | None = None


class DeviceLoop:
    """Reads one GPU until it is told to stop.

    Args:
        backend: Reads the GPU; this loop is the only one to ask it for this GPU.
        device: The GPU as the back end knows it.
        gpu: The GPU's part of the shared memory.
        settings: Rates and limits.
        clock: Tells and waits for the time.
        stop: Set when sampling shall end.
        orders: What the agent asks for meanwhile.
        parts: Its place, and who does what of its work.
    """

    def __init__(
        self,
        backend: DeviceBackend,
        device: GpuInfo,
        gpu: GpuWriter,
        settings: SamplerSettings,
        clock: Clock,
        stop: threading.Event,
        *,
        orders: OrderBook | None = None,
        parts: LoopParts | None = None,
    ) -> None:
        self._backend = backend
        self._device = device
        self._gpu = gpu
        self._settings = settings
        self._clock = clock
        self._pacer = Pacer(settings, orders or OrderBook())
        self._noted_count = gpu.written_count
        self._schedules_count = 0
        self._slowed: tuple[Pace, int] | None = None
        self._slow_period_ns = period_ns_of(settings.slow_hz)
        self._logging = RepeatLimiter(clock)
        self._is_lost = False
        parts = parts or LoopParts()
        self._place = parts.place
        self._side = parts.side
        self._signs = StopSigns(gpu, clock, stop)
        self._ticks = parts.ticks or PythonTicks(gpu, clock, self._signs, self._pacer.has_news)

    def run(self) -> None:
        """Sample until stopped, or until another sampler process has taken over."""
        self._gpu.set_state(GpuState.UP)
        while self._goes_on():
            pass

    def _goes_on(self) -> bool:
        """Sample by one schedule; False if told to stop. A fault of our own costs a rest only."""
        try:
            return self._take_up_pace() and self._follow(self._new_schedule())
        except Exception:  # else the GPU stays unread, quietly, for as long as the process lives
            self._gpu.unexpected_count += 1
            self._gpu.set_state(GpuState.LOST if self._is_lost else GpuState.UP)  # no call any more
            if self._logging.is_due("fault"):
                logger.exception("GPU %s: sampling failed", self._device.gpu)
            return self._signs.wait_until(self._clock.mono_ns() + _REST_NS)

    def _follow(self, schedule: Schedule) -> bool:
        """Sample by a schedule while that is to be kept to; False if told to stop meanwhile."""
        self._ticks.begin(schedule)
        now_ns = self._clock.mono_ns()
        while not self._pacer.has_news(now_ns):
            look = self._ticks.next(self._pacer.look_at_mono_ns, self._pacer.look_at_driver_ns)
            if self._signs.is_over():
                return False
            now_ns = self._clock.mono_ns()
            self._note_unseen()
            if look is not None and not self._pacer.has_news(now_ns):
                now_ns = self._take(look)
            if self._is_lost:
                return self._wait_until_found()
            self._pacer.judge(now_ns, self._gpu.driver_ns)
        return True

    def _note_unseen(self) -> None:
        """Let the pacer see what was read without Python."""
        if self._gpu.written_count > self._noted_count:
            self._pacer.note_records(self._gpu.records(self._noted_count))
            self._noted_count = self._gpu.written_count

    def _take(self, look: Look) -> int:
        """Read and record; the time when that is done."""
        scope = look.scope
        started_ns = self._clock.mono_ns()
        self._gpu.begin_call(started_ns, scope)
        reading = self._read(scope)
        ended_ns = self._clock.mono_ns()
        self._pacer.note(ended_ns, reading)
        if reading is None:
            self._gpu.end_call(ended_ns - started_ns, scope)
            return ended_ns
        t_mono_ns = (started_ns + ended_ns) // 2
        self._gpu.write(
            reading,
            t_mono_ns=t_mono_ns,
            span_ns=ended_ns - started_ns,
            late_ns=started_ns - look.deadline_mono_ns,
            scope=scope,
        )
        self._noted_count = self._gpu.written_count
        if scope is ReadScope.FULL and self._side is not None:
            self._side.write_state(reading, t_mono_ns)
        return ended_ns

    def _read(self, scope: ReadScope) -> DeviceReading | None:
        """One look at the GPU; None if it failed, which is counted."""
        try:
            return self._backend.read(self._device, scope)
        except DeviceLostError as error:
            self._gpu.note_failure(error)
            self._lose(error)
        except DeviceError as error:
            self._gpu.note_failure(error)
            self._gpu.transient_count += 1
            self._warn_rarely("GPU %s: read failed: %s", self._device.gpu, error)
        except Exception as error:  # noqa: BLE001 - a vendor library's fault must not end the loop
            self._gpu.note_failure(error)
            self._gpu.unexpected_count += 1
            self._warn_rarely("GPU %s: read failed: %s", self._device.gpu, error)
        return None

    def _lose(self, error: DeviceLostError) -> None:
        self._is_lost = True
        self._gpu.losses_count += 1
        self._gpu.set_state(GpuState.LOST)
        logger.warning("GPU %s is lost: %s", self._device.gpu, error)

    def _wait_until_found(self) -> bool:
        """Look for the lost GPU now and then; False if told to stop first."""
        probe_every_ns = round(self._settings.probe_every_s * NS_PER_S)
        while self._is_lost:
            if not self._signs.wait_until(self._clock.mono_ns() + probe_every_ns):
                return False
            if not self._take_up_pace():
                return False
            self._is_lost = not self._answers()
        logger.warning("GPU %s is back", self._device.gpu)
        self._gpu.set_state(GpuState.UP)
        return True

    def _answers(self) -> bool:
        """Whether the lost GPU can be read again; nothing is recorded or counted."""
        self._gpu.begin_call(self._clock.mono_ns(), ReadScope.FULL)
        try:
            self._backend.read(self._device, ReadScope.FULL)
        except Exception:  # noqa: BLE001 - whatever it is, the GPU is still lost
            return False
        finally:
            self._gpu.set_state(GpuState.LOST)
        return True

    def _take_up_pace(self) -> bool:
        """Decide what to keep to and say so; waits while that is no driver call.

        False if told to stop first.
        """
        while True:
            now_ns = self._clock.mono_ns()
            kept = self._pacer.decide(now_ns)
            self._publish(kept)
            if kept.pace is not Pace.QUIET:
                return True
            if not self._signs.wait_until(kept.until_mono_ns, self._pacer.has_news):
                return False

    def _new_schedule(self) -> Schedule:
        """Ticks from now on, at the period that is to be kept."""
        position, device_count = self._place
        self._schedules_count += 1
        return staggered_schedule(
            start_mono_ns=self._clock.mono_ns(),
            period_ns=self._pacer.kept.period_ns,
            slow_period_ns=self._slow_period_ns,
            # Each draws its own points: they must not repeat with what brings about the changes.
            seed=self._settings.seed + self._schedules_count - 1,
            position=position,
            device_count=device_count,
        )

    def _publish(self, kept: Kept) -> None:
        """Say what is kept to, and where the budget is why also in the log."""
        self._gpu.set_period_ns(self._pacer.asked_period_ns, kept.period_ns, kept.pace)
        slowed = kept.pace, kept.period_ns
        is_slowed = kept.pace in {Pace.BUDGET, Pace.BURST} and kept.period_ns != kept.wanted_ns
        if is_slowed and slowed != self._slowed:
            self._slowed = slowed
            self._warn_rarely(
                "GPU %s: driver calls took %.1f %% of the time; sampling at %.3g, not %.3g Hz",
                self._device.gpu,
                100 * self._pacer.spent_ratio,
                NS_PER_S / kept.period_ns,
                NS_PER_S / kept.wanted_ns,
            )

    def _warn_rarely(self, message: str, *values: object) -> None:
        """Log a trouble that may come again and again, at most once a minute."""
        if self._logging.is_due(message):
            logger.warning(message, *values)
