"""The loop that samples one GPU: waits for a tick, reads, records, and survives driver faults."""

import logging
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from chopperd.clock import Clock, RepeatLimiter
from chopperd.devices.base import DeviceBackend
from chopperd.errors import DeviceError, DeviceLostError
from chopperd.model.devices import DeviceReading, GpuInfo, ReadScope
from chopperd.sampling.memory.gpu_writer import GpuWriter
from chopperd.sampling.memory.layout import GpuState, Pace
from chopperd.sampling.memory.slow_state import SlowStateWriter
from chopperd.sampling.schedule import Pacer, Schedule, Tick, period_ns_of, staggered_schedule
from chopperd.sampling.settings import SamplerSettings
from chopperd.units import NS_PER_MS, NS_PER_S

if TYPE_CHECKING:
    from chopperd.sampling.native.ticks import NativeTicks

logger = logging.getLogger(__name__)

#: A wait is cut into naps of this length, so that a stop takes effect soon.
_NAP_NS: Final = 250 * NS_PER_MS
#: Pause after an unexpected exception in the loop.
_REST_NS: Final = NS_PER_S


class DueRead(NamedTuple):
    """A read of the GPU that is due now: when it should have begun, and how much to read."""

    deadline_mono_ns: int
    scope: ReadScope


class StopSignal:
    """Whether one GPU's loop must end: a stop was requested, or another writer has taken over."""

    def __init__(self, gpu: GpuWriter, clock: Clock, stop: threading.Event) -> None:
        self._gpu = gpu
        self._clock = clock
        self._stop = stop

    def is_set(self) -> bool:
        """Whether sampling must end: `stop` is set, or another writer has taken over."""
        return self._stop.is_set() or not self._gpu.is_current()

    def wait_until(self, deadline_mono_ns: int) -> bool:
        """Wait until the deadline; False as soon as sampling must end."""
        now_ns = self._clock.mono_ns()
        while deadline_mono_ns - now_ns > _NAP_NS:
            self._clock.sleep_until(now_ns + _NAP_NS)
            if self.is_set():
                return False
            now_ns = self._clock.mono_ns()
        self._clock.sleep_until(deadline_mono_ns)
        return not self.is_set()


class PythonTicks:
    """Ticks in Python: waits, and leaves every read to the loop."""

    def __init__(self, gpu: GpuWriter, clock: Clock, stop: StopSignal) -> None:
        self._gpu = gpu
        self._clock = clock
        self._stop = stop
        self._ticks: Iterator[Tick] = iter(())
        self._owes_full_read = False

    def begin(self, schedule: Schedule) -> None:
        """Follow this schedule from now on, from its first tick."""
        self._ticks = schedule.ticks()

    def next(self, until_mono_ns: int, until_driver_ns: int) -> DueRead | None:  # noqa: ARG002 - it makes no read itself
        """Wait for the next tick and return its read; None when sampling must end.

        A tick whose time has passed is counted as missed; if it was to be a full read, the next
        read is full.
        """
        for tick in self._ticks:
            in_time = self._clock.mono_ns() < tick.end_mono_ns
            if in_time and not self._stop.wait_until(tick.deadline_mono_ns):
                return None
            if self._clock.mono_ns() >= tick.end_mono_ns:  # or woken too late: it has no read
                self._gpu.missed_count += 1
                # A missed full read is made up for by the next read.
                self._owes_full_read |= tick.scope is ReadScope.FULL
                continue
            scope = ReadScope.FULL if self._owes_full_read else tick.scope
            self._owes_full_read = False
            return DueRead(tick.deadline_mono_ns, scope)
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopParts:
    """The parts that a GPU's loop can be given; each has a default."""

    #: (position of this GPU, number of GPUs), so that their reads do not coincide.
    place: tuple[int, int] = (0, 1)
    #: Takes values that are not part of a sample; None: they are dropped.
    slow_state: SlowStateWriter | None = None
    ticks: "NativeTicks | None" = None  # waits for ticks and makes reads; None: in Python


class DeviceLoop:
    """Samples one GPU until `stop` is set; only this loop asks the back end for this GPU."""

    def __init__(
        self,
        backend: DeviceBackend,
        device: GpuInfo,
        gpu: GpuWriter,
        settings: SamplerSettings,
        clock: Clock,
        stop: threading.Event,
        parts: LoopParts | None = None,
    ) -> None:
        parts = parts or LoopParts()
        self._backend = backend
        self._device = device
        self._gpu = gpu
        self._settings = settings
        self._clock = clock
        self._place = parts.place
        self._slow_state = parts.slow_state
        self._pacer = Pacer(settings)
        self._stop = StopSignal(gpu, clock, stop)
        self._ticks = parts.ticks or PythonTicks(gpu, clock, self._stop)
        self._logging = RepeatLimiter(clock)
        self._noted_count = gpu.written_count
        self._schedules_count = 0
        self._slowed_ns: int | None = None
        self._is_lost = False

    def run(self) -> None:
        """Sample until stopped, or until another sampler process has taken over."""
        self._gpu.set_state(GpuState.UP)
        while self._follow_one_schedule():
            pass

    def _follow_one_schedule(self) -> bool:
        """Sample by one schedule; survives any exception. False if sampling must end."""
        try:
            self._take_up_pace()
            return self._follow(self._new_schedule())
        except Exception:  # else the GPU stays unread for as long as the process lives
            self._gpu.unexpected_count += 1
            self._gpu.set_state(GpuState.LOST if self._is_lost else GpuState.UP)  # no call any more
            if self._logging.is_due("fault"):
                logger.exception("GPU %s: sampling failed", self._device.gpu)
            return self._stop.wait_until(self._clock.mono_ns() + _REST_NS)

    def _follow(self, schedule: Schedule) -> bool:
        """Sample by a schedule until another pace is due; False if sampling must end."""
        pacer = self._pacer
        self._ticks.begin(schedule)
        now_ns = self._clock.mono_ns()
        while not pacer.is_outdated:
            due = self._ticks.next(pacer.review_at_mono_ns, pacer.review_at_driver_ns)
            if self._stop.is_set():
                return False
            now_ns = self._clock.mono_ns()
            if self._gpu.written_count > self._noted_count:  # read without Python
                pacer.note_records(self._gpu.records(self._noted_count))
                self._noted_count = self._gpu.written_count
            if due is not None and not pacer.is_outdated:
                now_ns = self._read_and_record(due)
            if self._is_lost:
                return self._wait_until_found()
            pacer.judge(now_ns, self._gpu.driver_ns)
        return True

    def _read_and_record(self, due: DueRead) -> int:
        """Read the GPU and write the record; return when the read ended (CLOCK_MONOTONIC, ns)."""
        scope = due.scope
        started_ns = self._clock.mono_ns()
        self._gpu.begin_call(started_ns, scope)
        reading = self._read(scope)
        ended_ns = self._clock.mono_ns()
        span_ns, late_ns = ended_ns - started_ns, started_ns - due.deadline_mono_ns
        self._pacer.note(ended_ns, reading)
        if reading is None:
            self._gpu.end_call(span_ns, scope)
            return ended_ns
        t_mono_ns = (started_ns + ended_ns) // 2
        self._gpu.write(reading, t_mono_ns=t_mono_ns, span_ns=span_ns, late_ns=late_ns, scope=scope)
        self._noted_count = self._gpu.written_count
        if scope is ReadScope.FULL and self._slow_state is not None:
            self._slow_state.write_state(reading, t_mono_ns)
        return ended_ns

    def _read(self, scope: ReadScope) -> DeviceReading | None:
        """Read the GPU once; None if that failed, which is counted (the GPU may be marked lost)."""
        try:
            return self._backend.read(self._device, scope)
        except DeviceLostError as error:
            self._gpu.note_failure(error)
            self._is_lost = True
            self._gpu.losses_count += 1
            self._gpu.set_state(GpuState.LOST)
            logger.warning("GPU %s is lost: %s", self._device.gpu, error)
        except Exception as error:  # noqa: BLE001 - a vendor library's fault must not end the loop
            self._gpu.note_failure(error)
            if isinstance(error, DeviceError):
                self._gpu.transient_count += 1
            else:
                self._gpu.unexpected_count += 1
            self._warn_rarely("GPU %s: read failed: %s", self._device.gpu, error)
        return None

    def _wait_until_found(self) -> bool:
        """Probe the lost GPU from time to time until it answers; False if sampling must end."""
        probe_every_ns = round(self._settings.probe_every_s * NS_PER_S)
        while self._is_lost:
            next_ns = self._clock.mono_ns() + probe_every_ns
            if not self._stop.wait_until(next_ns):
                return False
            self._take_up_pace()
            self._is_lost = not self._answers()
        logger.warning("GPU %s is back", self._device.gpu)
        self._gpu.set_state(GpuState.UP)
        return True

    def _answers(self) -> bool:
        """Whether the lost GPU can be read again; nothing is recorded or counted."""
        self._gpu.begin_call(self._clock.mono_ns(), ReadScope.FULL)
        try:
            self._backend.read(self._device, ReadScope.FULL)
        except Exception:  # noqa: BLE001 - for any reason, the GPU is still lost
            return False
        finally:
            self._gpu.set_state(GpuState.LOST)
        return True

    def _new_schedule(self) -> Schedule:
        """Make a schedule that starts now, at the present pace, with a seed of its own."""
        position, device_count = self._place
        self._schedules_count += 1
        return staggered_schedule(
            start_mono_ns=self._clock.mono_ns(),
            period_ns=self._pacer.decision.period_ns,
            slow_period_ns=period_ns_of(self._settings.slow_hz),
            # A new seed each, as read times must not repeat in step with the cause of pace changes.
            seed=self._settings.seed + self._schedules_count - 1,
            position=position,
            device_count=device_count,
        )

    def _take_up_pace(self) -> None:
        """Decide on a pace and publish it; log it where the driver budget slows it down."""
        decision, asked_ns = self._pacer.decide(), self._pacer.asked_period_ns
        self._gpu.set_period_ns(asked_ns, decision.period_ns, decision.pace)
        if decision.pace is Pace.BUDGET and decision.period_ns != self._slowed_ns:
            self._slowed_ns = decision.period_ns
            self._warn_rarely(
                "GPU %s: sampled at %.3g, not %.3g Hz: at that rate driver calls would take "
                "%.3g %% of the time, %.3g %% are allowed",
                self._device.gpu,
                NS_PER_S / decision.period_ns,
                NS_PER_S / asked_ns,
                100 * self._pacer.budget.asked_ratio,
                100 * self._pacer.budget.budget_ratio,
            )

    def _warn_rarely(self, message: str, *values: object) -> None:
        """Log a problem that may come again and again, at most once a minute."""
        if self._logging.is_due(message):
            logger.warning(message, *values)
