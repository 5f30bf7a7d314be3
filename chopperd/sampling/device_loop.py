"""The loop that reads one GPU: waits for a tick, reads, records; outlives any driver trouble."""

import logging
import threading
from typing import Final

from chopperd.clock import Clock, RepeatLimiter
from chopperd.devices.base import DeviceBackend
from chopperd.errors import DeviceError, DeviceLostError
from chopperd.model.devices import DeviceReading, GpuInfo, ReadScope
from chopperd.sampling.budget import DriverBudget
from chopperd.sampling.gpu_writer import GpuWriter
from chopperd.sampling.integrals import LiveIntegrals
from chopperd.sampling.layout import GpuState
from chopperd.sampling.schedule import Schedule, Tick, period_ns_of, staggered_schedule
from chopperd.sampling.settings import SamplerSettings
from chopperd.units import NS_PER_MS, NS_PER_S

logger = logging.getLogger(__name__)

#: A wait is cut into naps of this length, so that a stop is seen soon.
_NAP_NS: Final = 250 * NS_PER_MS
#: What driver calls take is judged over so long: over less, single slow reads would swing it.
_JUDGE_EVERY_NS: Final = 5 * NS_PER_S


class DeviceLoop:
    """Reads one GPU until it is told to stop.

    Args:
        backend: Reads the GPU; this loop is the only one to ask it for this GPU.
        device: The GPU as the back end knows it.
        gpu: The GPU's part of the shared memory.
        settings: Rates and limits.
        clock: Tells and waits for the time.
        stop: Set when sampling shall end.
        position, device_count: Which of how many GPUs, so that their reads do not coincide.
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
        position: int = 0,
        device_count: int = 1,
    ) -> None:
        self._backend = backend
        self._device = device
        self._gpu = gpu
        self._settings = settings
        self._clock = clock
        self._stop = stop
        self._place = position, device_count
        self._slow_period_ns = period_ns_of(settings.slow_hz)
        self._budget = DriverBudget(
            budget_ratio=settings.budget_ratio,
            asked_period_ns=period_ns_of(settings.hz),
            # Also where every read is full: a driver that is slow must have somewhere to go.
            longest_period_ns=max(self._slow_period_ns, NS_PER_S),
        )
        self._integrals = LiveIntegrals(device)
        self._integrated_count = 0
        self._integrate_at_ns = 0
        self._judge_at_ns = 0
        self._logging = RepeatLimiter(clock)
        self._is_lost = False
        self._owes_full_read = False

    def run(self) -> None:
        """Sample until stopped, or until another sampler process has taken over."""
        self._resume_totals()
        while self._follow(self._new_schedule()):
            pass
        self._integrate(self._clock.mono_ns())

    def _follow(self, schedule: Schedule) -> bool:
        """Sample by a schedule while it fits; False if told to stop meanwhile."""
        now_ns = self._clock.mono_ns()
        for tick in schedule.ticks():
            if now_ns >= tick.end_mono_ns:
                self._miss(tick)
                continue
            if not self._wait_until(tick.deadline_mono_ns, now_ns):
                return False
            now_ns = self._take(tick)
            if self._is_lost:
                return self._wait_until_found()
            if now_ns >= self._integrate_at_ns:
                self._integrate(now_ns)
            if now_ns >= self._judge_at_ns and self._judge(now_ns):
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
            if not self._wait_until(now_ns + probe_every_ns, now_ns):
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

    def _wait_until(self, deadline_ns: int, now_ns: int) -> bool:
        """Wait in naps; False as soon as sampling shall end."""
        while deadline_ns - now_ns > _NAP_NS:
            self._clock.sleep_until(now_ns + _NAP_NS)
            if self._stop.is_set() or not self._gpu.is_current():
                return False
            now_ns = self._clock.mono_ns()
        self._clock.sleep_until(deadline_ns)
        return not self._stop.is_set() and self._gpu.is_current()

    def _new_schedule(self) -> Schedule:
        """Ticks from now on, at the period that the budget allows."""
        position, device_count = self._place
        period_ns = self._budget.period_ns
        asked_ns = period_ns_of(self._settings.hz)
        if period_ns != asked_ns:
            self._warn_rarely(
                "GPU %s: driver calls took %.1f %% of the time; sampling at %.3g, not %.3g Hz",
                self._device.gpu,
                100 * self._budget.spent_ratio,
                NS_PER_S / period_ns,
                self._settings.hz,
            )
        self._gpu.set_period_ns(asked_ns, period_ns)
        return staggered_schedule(
            start_mono_ns=self._clock.mono_ns(),
            period_ns=period_ns,
            slow_period_ns=self._slow_period_ns,
            seed=self._settings.seed,
            position=position,
            device_count=device_count,
        )

    def _resume_totals(self) -> None:
        """Go on from the totals of the sampler before this one, if there was one."""
        self._integrated_count, totals = self._gpu.totals()
        if totals is not None:
            held = self._gpu.records(0)
            unseen_count = self._gpu.written_count - self._integrated_count
            self._integrals.resume(totals, held[: max(0, len(held) - unseen_count)])
        self._gpu.set_state(GpuState.UP)

    def _judge(self, now_ns: int) -> bool:
        """Look at what driver calls take; whether the period to keep has changed by it."""
        self._judge_at_ns = now_ns + _JUDGE_EVERY_NS
        return self._budget.judge(now_ns, self._gpu.driver_ns)

    def _integrate(self, now_ns: int) -> None:
        """Bring the live integrals up to the newest record."""
        self._integrate_at_ns = now_ns + round(self._settings.totals_every_s * NS_PER_S)
        records = self._gpu.records(self._integrated_count)
        self._integrated_count = self._gpu.written_count
        self._integrals.add(records, self._budget.period_ns)
        self._gpu.write_totals(self._integrals.totals, self._integrated_count)

    def _warn_rarely(self, message: str, *values: object) -> None:
        """Log a trouble that may come again and again, at most once a minute."""
        if self._logging.is_due(message):
            logger.warning(message, *values)
