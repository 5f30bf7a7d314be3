"""The loop that reads one GPU: waits for a tick, reads, records; outlives any driver trouble."""

import logging
import threading
from typing import Final

from chopperd.clock import Clock, RepeatLimiter
from chopperd.devices.base import DeviceBackend
from chopperd.errors import DeviceError, DeviceLostError
from chopperd.model.devices import DeviceReading, GpuInfo, ReadScope
from chopperd.sampling.gpu_writer import GpuWriter
from chopperd.sampling.integrals import LiveIntegrals
from chopperd.sampling.layout import GpuState, Pace
from chopperd.sampling.orders import OrderBook
from chopperd.sampling.pace import Kept, LongestPeriod, Pacer
from chopperd.sampling.schedule import Schedule, Tick, period_ns_of, staggered_schedule
from chopperd.sampling.settings import SamplerSettings
from chopperd.units import NS_PER_MS, NS_PER_S

logger = logging.getLogger(__name__)

#: A wait is cut into naps of this length, so that a stop or an order is seen soon.
_NAP_NS: Final = 250 * NS_PER_MS


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
        place: Which of how many GPUs, so that their reads do not coincide.
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
        place: tuple[int, int] = (0, 1),
    ) -> None:
        self._backend = backend
        self._device = device
        self._gpu = gpu
        self._settings = settings
        self._clock = clock
        self._stop = stop
        self._place = place
        self._pacer = Pacer(settings, orders or OrderBook())
        self._longest_period = LongestPeriod()
        self._schedules_count = 0
        self._slowed: tuple[Pace, int] | None = None
        self._slow_period_ns = period_ns_of(settings.slow_hz)
        self._integrals = LiveIntegrals(device)
        self._integrated_count = 0
        self._integrate_at_ns = 0
        self._logging = RepeatLimiter(clock)
        self._is_lost = False
        self._owes_full_read = False

    def run(self) -> None:
        """Sample until stopped, or until another sampler process has taken over."""
        self._resume_totals()
        while self._take_up_pace() and self._follow(self._new_schedule()):
            pass
        self._integrate(self._clock.mono_ns())

    def _follow(self, schedule: Schedule) -> bool:
        """Sample by a schedule while that is to be kept to; False if told to stop meanwhile."""
        now_ns = self._clock.mono_ns()
        for tick in schedule.ticks():
            if now_ns >= tick.end_mono_ns:
                self._miss(tick)
                continue
            if not self._wait_until(tick.deadline_mono_ns, now_ns):
                return False
            if self._pacer.has_news(tick.deadline_mono_ns):
                return True
            now_ns = self._take(tick)
            if self._is_lost:
                return self._wait_until_found()
            if now_ns >= self._integrate_at_ns:
                self._integrate(now_ns)
            self._pacer.judge(now_ns, self._gpu.driver_ns)
            if self._pacer.has_news(now_ns):
                return True
        return True

    def _take(self, tick: Tick) -> int:
        """Read and record one tick; the time when that is done."""
        started_ns = self._clock.mono_ns()
        if started_ns >= tick.end_mono_ns:  # woken too late: this period has no read
            self._miss(tick)
            return started_ns
        scope = ReadScope.FULL if self._owes_full_read else tick.scope
        self._owes_full_read = False
        self._gpu.begin_call(started_ns, scope)
        reading = self._read(scope)
        ended_ns = self._clock.mono_ns()
        self._pacer.note(ended_ns, reading)
        if reading is None:
            self._gpu.end_call(ended_ns - started_ns, scope)
        else:
            self._gpu.write(
                reading,
                t_mono_ns=(started_ns + ended_ns) // 2,
                span_ns=ended_ns - started_ns,
                late_ns=started_ns - tick.deadline_mono_ns,
                scope=scope,
            )
        return ended_ns

    def _miss(self, tick: Tick) -> None:
        """Count a period without a read; what only a full one would have read, the next reads."""
        self._gpu.missed_count += 1
        self._owes_full_read |= tick.scope is ReadScope.FULL

    def _read(self, scope: ReadScope) -> DeviceReading | None:
        """One look at the GPU; None if it failed, which is counted."""
        try:
            return self._backend.read(self._device, scope)
        except DeviceLostError as error:
            self._lose(error)
        except DeviceError as error:
            self._gpu.transient_count += 1
            self._warn_rarely("GPU %s: read failed: %s", self._device.gpu, error)
        except Exception as error:  # noqa: BLE001 - a vendor library's fault must not end the loop
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
            now_ns = self._clock.mono_ns()
            if not self._wait_until(now_ns + probe_every_ns, now_ns, heeds_orders=False):
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

    def _wait_until(self, deadline_ns: int, now_ns: int, *, heeds_orders: bool = True) -> bool:
        """Wait in naps, no longer once the pace may change; False as soon as sampling shall end."""
        while deadline_ns - now_ns > _NAP_NS:
            if heeds_orders and self._pacer.has_news(now_ns):
                return True
            self._clock.sleep_until(now_ns + _NAP_NS)
            if self._stop.is_set() or not self._gpu.is_current():
                return False
            now_ns = self._clock.mono_ns()
        self._clock.sleep_until(deadline_ns)
        return not self._stop.is_set() and self._gpu.is_current()

    def _take_up_pace(self) -> bool:
        """Decide what to keep to and say so; waits while that is no driver call.

        False if told to stop first.
        """
        while True:
            now_ns = self._clock.mono_ns()
            before_ns = self._pacer.kept.period_ns
            kept = self._pacer.decide(now_ns)
            if kept.period_ns != before_ns and self._gpu.written_count > self._integrated_count:
                self._integrate(now_ns)  # what was read before has its own gaps
            self._publish(kept)
            if kept.pace is not Pace.QUIET:
                return True
            if not self._wait_until(kept.until_mono_ns, now_ns):
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
        self._longest_period.note(kept.period_ns)
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

    def _resume_totals(self) -> None:
        """Go on from the totals of the sampler before this one, if there was one."""
        self._integrated_count, totals = self._gpu.totals()
        if totals is not None:
            held = self._gpu.records(0)
            unseen_count = self._gpu.written_count - self._integrated_count
            self._integrals.resume(totals, held[: max(0, len(held) - unseen_count)])
        self._gpu.set_state(GpuState.UP)

    def _integrate(self, now_ns: int) -> None:
        """Bring the live integrals up to the newest record."""
        self._integrate_at_ns = now_ns + round(self._settings.totals_every_s * NS_PER_S)
        records = self._gpu.records(self._integrated_count)
        self._integrated_count = self._gpu.written_count
        self._integrals.add(records, self._longest_period.taken_ns())
        self._gpu.write_totals(self._integrals.totals, self._integrated_count)

    def _warn_rarely(self, message: str, *values: object) -> None:
        """Log a trouble that may come again and again, at most once a minute."""
        if self._logging.is_due(message):
            logger.warning(message, *values)
