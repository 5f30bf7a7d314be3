"""The loop that reads one GPU: waits for a tick, reads, records; outlives any driver trouble.

Who waits, and makes the looks that go as planned, is in `tick_runner` and `native`.
"""

import logging
import threading
from dataclasses import dataclass
from typing import Final

from chopperd.clock import Clock, RepeatLimiter
from chopperd.devices.base import DeviceBackend
from chopperd.errors import DeviceError, DeviceLostError
from chopperd.model.devices import DeviceReading, GpuInfo, ReadScope
from chopperd.sampling.budget import DriverBudget
from chopperd.sampling.gpu_writer import GpuWriter
from chopperd.sampling.layout import GpuState
from chopperd.sampling.schedule import Schedule, period_ns_of, staggered_schedule
from chopperd.sampling.settings import SamplerSettings
from chopperd.sampling.side import GpuSideWriter
from chopperd.sampling.tick_runner import Look, PythonTicks, StopSigns, TickRunner
from chopperd.sampling.totals import PythonTotals, RunningTotals
from chopperd.units import NS_PER_S

logger = logging.getLogger(__name__)

#: What driver calls take is judged over so long: over less, single slow reads would swing it.
_JUDGE_EVERY_NS: Final = 5 * NS_PER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopParts:
    """Who does parts of one loop's work.

    Attributes:
        side: Takes values that are no part of a sample; None: they are dropped.
        ticks: Waits for ticks, and makes looks where it can; None: Python.
        totals: Integrates; None: Python.
    """

    side: GpuSideWriter | None = None
    ticks: TickRunner | None = None
    totals: RunningTotals | None = None


class DeviceLoop:
    """Reads one GPU until it is told to stop.

    Args:
        backend: Reads the GPU; this loop is the only one to ask it for this GPU.
        device: The GPU as the back end knows it.
        gpu: The GPU's part of the shared memory.
        settings: Rates and limits.
        clock: Tells and waits for the time.
        stop: Set when sampling shall end.
        place: Which of how many GPUs, so that their reads do not coincide.
        parts: Who does what of the loop's work.
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
        place: tuple[int, int] = (0, 1),
        parts: LoopParts | None = None,
    ) -> None:
        self._backend = backend
        self._device = device
        self._gpu = gpu
        self._settings = settings
        self._clock = clock
        self._place = place
        self._slow_period_ns = period_ns_of(settings.slow_hz)
        self._budget = DriverBudget(
            budget_ratio=settings.budget_ratio,
            asked_period_ns=period_ns_of(settings.hz),
            longest_period_ns=self._slow_period_ns,
        )
        self._judge_at_ns = 0
        self._logging = RepeatLimiter(clock)
        self._is_lost = False
        parts = parts or LoopParts()
        totals_every_ns = round(settings.totals_every_s * NS_PER_S)
        self._side = parts.side
        self._signs = StopSigns(gpu, clock, stop)
        self._ticks = parts.ticks or PythonTicks(gpu, clock, self._signs)
        self._totals = parts.totals or PythonTotals(device, gpu, totals_every_ns)

    def run(self) -> None:
        """Sample until stopped, or until another sampler process has taken over."""
        self._totals.resume()
        self._gpu.set_state(GpuState.UP)
        while self._follow(self._new_schedule()):
            pass
        self._totals.update(self._clock.mono_ns())

    def _follow(self, schedule: Schedule) -> bool:
        """Sample by a schedule while it fits; False if told to stop meanwhile."""
        self._ticks.begin(schedule)
        while True:
            look = self._ticks.next(self._judge_at_ns)
            if self._signs.is_over():
                return False
            now_ns = self._clock.mono_ns() if look is None else self._take(look)
            if self._is_lost:
                return self._wait_until_found()
            self._totals.update_if_due(now_ns)
            if now_ns >= self._judge_at_ns and self._judge(now_ns):
                return True

    def _take(self, look: Look) -> int:
        """Read and record; the time when that is done."""
        scope = look.scope
        started_ns = self._clock.mono_ns()
        self._gpu.begin_call(started_ns, scope)
        reading = self._read(scope)
        ended_ns = self._clock.mono_ns()
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
        if scope is ReadScope.FULL and self._side is not None:
            self._side.write_state(reading, t_mono_ns)
        return ended_ns

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
            if not self._signs.wait_until(self._clock.mono_ns() + probe_every_ns):
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

    def _judge(self, now_ns: int) -> bool:
        """Look at what driver calls take; whether the period to keep has changed by it."""
        self._judge_at_ns = now_ns + _JUDGE_EVERY_NS
        return self._budget.judge(now_ns, self._gpu.driver_ns)

    def _warn_rarely(self, message: str, *values: object) -> None:
        """Log a trouble that may come again and again, at most once a minute."""
        if self._logging.is_due(message):
            logger.warning(message, *values)
