"""The loop that reads one GPU: waits for a tick, reads, records; outlives any driver trouble."""

import logging
import threading
from typing import Final

from chopperd.clock import Clock
from chopperd.devices.base import DeviceBackend
from chopperd.errors import DeviceError, DeviceLostError
from chopperd.model.devices import DeviceReading, GpuInfo, ReadScope
from chopperd.sampling.budget import DriverBudget
from chopperd.sampling.integrals import LiveIntegrals
from chopperd.sampling.layout import GpuState
from chopperd.sampling.ring import GpuWriter
from chopperd.sampling.schedule import Schedule, Tick, period_ns_of, staggered_schedule
from chopperd.sampling.settings import SamplerSettings
from chopperd.units import NS_PER_MS, NS_PER_S

logger = logging.getLogger(__name__)

#: A wait is cut into naps of this length, so that a stop is seen soon.
_NAP_NS: Final = 250 * NS_PER_MS
#: A trouble that lasts is logged once in this time.
_LOG_EVERY_NS: Final = 60 * NS_PER_S


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
            longest_period_ns=self._slow_period_ns,
        )
        self._integrals = LiveIntegrals(device)
        self._integrated_count = 0
        self._integrate_at_ns = 0
        self._trouble_logged_ns: int | None = None
        self._is_lost = False

    def run(self) -> None:
        """Sample until stopped, or until another sampler process has taken over."""
        self._resume_totals()
        schedule = self._new_schedule()
        period = -1
        while True:
            tick = schedule.next_tick(self._clock.mono_ns(), period)
            period = tick.period
            if tick.missed_count:
                self._gpu.count("missed", tick.missed_count)
            if not self._wait_until(tick.deadline_mono_ns):
                break
            if self._take(tick):
                schedule, period = self._new_schedule(), -1
            if self._is_lost and not self._wait_until_found():
                break
        self._integrate()

    def _take(self, tick: Tick) -> bool:
        """Read and record one tick; whether the period to keep has changed by it."""
        started_ns = self._clock.mono_ns()
        if started_ns >= tick.end_mono_ns:  # woken too late: this period has no read
            self._gpu.count("missed")
            return False
        reading, ended_ns = self._read(tick.scope, started_ns)
        self._gpu.count("ticks")
        if reading is not None:
            self._gpu.write(
                reading,
                t_mono_ns=(started_ns + ended_ns) // 2,
                span_ns=ended_ns - started_ns,
                late_ns=started_ns - tick.deadline_mono_ns,
                scope=tick.scope,
            )
        if ended_ns >= self._integrate_at_ns:
            self._integrate()
        return self._budget.spend(ended_ns, ended_ns - started_ns)

    def _read(self, scope: ReadScope, started_ns: int) -> tuple[DeviceReading | None, int]:
        """One look at the GPU and when it ended; None if it failed, which is counted."""
        reading = None
        self._gpu.begin_call(started_ns, scope)
        try:
            reading = self._backend.read(self._device, scope)
        except DeviceLostError as error:
            self._lose(error)
        except DeviceError as error:
            self._gpu.count("transient_errors")
            self._log_trouble(error)
        except Exception as error:  # noqa: BLE001 - a vendor library's fault must not end the loop
            self._gpu.count("unexpected_errors")
            self._log_trouble(error)
        ended_ns = self._clock.mono_ns()
        self._gpu.end_call(ended_ns - started_ns)
        return reading, ended_ns

    def _lose(self, error: DeviceLostError) -> None:
        if not self._is_lost:
            logger.warning("GPU %s is lost: %s", self._device.gpu, error)
            self._gpu.count("losses")
            self._gpu.set_state(GpuState.LOST)
        self._is_lost = True

    def _wait_until_found(self) -> bool:
        """Look for the lost GPU now and then; False if told to stop first."""
        probe_every_ns = round(self._settings.probe_every_s * NS_PER_S)
        while self._wait_until(self._clock.mono_ns() + probe_every_ns):
            self._is_lost = False
            reading, _ = self._read(ReadScope.FULL, self._clock.mono_ns())
            if reading is not None:
                logger.warning("GPU %s is back", self._device.gpu)
                self._gpu.set_state(GpuState.UP)
                return True
            self._is_lost = True
        return False

    def _wait_until(self, deadline_ns: int) -> bool:
        """Wait in naps; False as soon as sampling shall end."""
        while not self._stop.is_set() and self._gpu.is_current():
            nap_end_ns = self._clock.mono_ns() + _NAP_NS
            if nap_end_ns >= deadline_ns:
                self._clock.sleep_until(deadline_ns)
                return not self._stop.is_set()
            self._clock.sleep_until(nap_end_ns)
        return False

    def _new_schedule(self) -> Schedule:
        """Ticks from now on, at the period that the budget allows."""
        position, device_count = self._place
        period_ns = self._budget.period_ns
        asked_ns = period_ns_of(self._settings.hz)
        if period_ns != asked_ns:
            logger.warning(
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
            unseen_count = self._gpu.written_count() - self._integrated_count
            self._integrals.resume(totals, held[: max(0, len(held) - unseen_count)])
        self._gpu.set_state(GpuState.UP)

    def _integrate(self) -> None:
        """Bring the live integrals up to the newest record."""
        every_ns = round(self._settings.totals_every_s * NS_PER_S)
        self._integrate_at_ns = self._clock.mono_ns() + every_ns
        records = self._gpu.records(self._integrated_count)
        self._integrated_count = self._gpu.written_count()
        self._integrals.add(records, self._budget.period_ns)
        self._gpu.write_totals(self._integrals.totals, self._integrated_count)

    def _log_trouble(self, error: Exception) -> None:
        """Log a failed read, at most once a minute; all of them are counted."""
        now_ns = self._clock.mono_ns()
        if self._trouble_logged_ns is None or now_ns - self._trouble_logged_ns > _LOG_EVERY_NS:
            self._trouble_logged_ns = now_ns
            logger.warning("GPU %s: read failed: %s", self._device.gpu, error)
