"""Threads for rare driver calls: update periods of sensors; processes, faults, changes of GPUs.

Each call may take long or hang; the GPUs' own threads and the clock triples go on meanwhile.
Sensors are read back to back while the GPU works, as values do not change on one that does not;
tested with simulated sensors and a compiled fake driver, not on a GPU.
"""

import logging
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import nan
from typing import Final, TypeVar

import numpy as np

from chopperd.clock import Clock, RepeatLimiter
from chopperd.correlate.clock.sensor_updates import sensor_period
from chopperd.devices.base import (
    CountsImplausible,
    DeviceBackend,
    ExplainsTrouble,
    ListsProcesses,
    NoticesChanges,
    ProbesFields,
    ReadsSensors,
    SensorRead,
)
from chopperd.model.devices import GpuInfo, SensorTiming
from chopperd.sampling.memory.gpu_writer import GpuWriter
from chopperd.sampling.memory.layout import TIMED_SENSORS, GpuState
from chopperd.sampling.memory.slow_state import SlowStateWriter
from chopperd.sampling.settings import SamplerSettings
from chopperd.units import NS_PER_MS, NS_PER_S

#: How long the sensors of a GPU are read back to back, and the time between two rounds of reads.
PROBE_NS: Final = 1500 * NS_PER_MS
ROUND_NS: Final = (1 * NS_PER_MS, 2 * NS_PER_MS)
_CLOSE_NS: Final = 3 * NS_PER_MS
#: The first probe comes this long after the start.
FIRST_NS: Final = 2 * NS_PER_S
#: If the GPU was idle, its probe is tried again after this.
WORK_NS: Final = 5 * NS_PER_S
#: A probe ends early after this share of the driver budget, or this much driver time.
_BUDGET_SHARE: Final = 0.25
MOST_DRIVER_NS: Final = 300 * NS_PER_MS
_BUSY_RATIO: Final = 0.5
_SENSOR_NAP_S: Final = 1.0
#: A turn that lasts longer than this hangs in the driver.
_HUNG_NS: Final = 2 * PROBE_NS
_ACTIVITY: Final = "activity_ratio"
_POWER: Final = "power_w"
#: The averaging window of a value, by its source, where that is known without a probe.
_POWER_WINDOW_NS: Final[Mapping[str | None, int]] = {"average_1s": NS_PER_S}


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedGpu:
    """A GPU as the back end knows it, its label, and its parts of the shared memory."""

    device: GpuInfo
    label: str
    gpu: GpuWriter
    slow_state: SlowStateWriter


class SensorReading:
    """Collects values of several sensors that are read in turn."""

    def __init__(self, reads: Mapping[str, SensorRead], clock: Clock) -> None:
        self.driver_ns = 0  # time in driver calls up to now
        self.answers = False  # whether any read gave a value
        self._reads = reads
        self._clock = clock
        self._rows: dict[str, list[tuple[int, float]]] = {name: [] for name in reads}

    def take(self) -> None:
        """Read each sensor once, and store the values with their times."""
        for name, read in self._reads.items():
            started_ns = self._clock.mono_ns()
            value = read()
            ended_ns = self._clock.mono_ns()
            self.driver_ns += ended_ns - started_ns
            self.answers |= value is not None
            self._rows[name].append(((started_ns + ended_ns) // 2, nan if value is None else value))

    def last(self, name: str) -> float:
        """Return the newest value of a sensor; NaN where it did not answer."""
        return self._rows[name][-1][1]

    def period_ns(self, name: str) -> int | None:
        """Return a sensor's update period as its values show it, ns; None if they do not.

        For values that are new at each read it is the period of the reads, if that is 3 ms at most.
        """
        if not self._rows[name]:  # the probe ended before it began
            return None
        t_ns, values = (np.array(column) for column in zip(*self._rows[name], strict=True))
        found = sensor_period(t_ns, values)
        if found is None or not (found.is_resolved or found.period_ns <= _CLOSE_NS):
            return None
        return found.period_ns


class SensorProbe:
    """Measures the update periods of one GPU's sensors until all are known, each `again_s`.

    Driver calls may take the share `budget_ratio` of the time.
    """

    def __init__(
        self,
        backend: ReadsSensors,
        gpu: WatchedGpu,
        clock: Clock,
        stop: threading.Event,
        *,
        again_s: float,
        budget_ratio: float,
    ) -> None:
        self._backend, self._gpu = backend, gpu
        self._clock, self._stop = clock, stop
        self._again_ns = round(again_s * NS_PER_S)
        budget_ns = _BUDGET_SHARE * budget_ratio * self._again_ns
        self._most_driver_ns = min(MOST_DRIVER_NS, round(budget_ns))
        self._open = list(TIMED_SENSORS)
        self._due_ns = clock.mono_ns() + FIRST_NS
        self._draw = random.Random(gpu.device.uuid)

    @property
    def is_done(self) -> bool:
        """Whether the periods of all sensors were found."""
        return not self._open

    def turn(self) -> None:
        """Probe the GPU and publish what was found, if a probe is due, allowed and useful now."""
        now_ns = self._clock.mono_ns()
        if not self._open or now_ns < self._due_ns or self._stop.is_set():
            return
        reads = self._backend.sensor_reads(self._gpu.device)
        if not self._is_useful(reads):
            self._due_ns = now_ns + WORK_NS
            return
        self._due_ns = now_ns + self._again_ns
        wanted = {name: reads[name] for name in self._open if name in reads}
        self._note(self._read_for_a_while(wanted), wanted)

    def _is_useful(self, reads: Mapping[str, SensorRead]) -> bool:
        """Whether there are sensors and the GPU is at least half busy, where it reports that."""
        if _ACTIVITY not in reads:
            return bool(reads)
        activity = SensorReading({_ACTIVITY: reads[_ACTIVITY]}, self._clock)
        activity.take()
        self._gpu.slow_state.add_driver_ns(activity.driver_ns)
        return not activity.last(_ACTIVITY) < _BUSY_RATIO

    def _read_for_a_while(self, reads: Mapping[str, SensorRead]) -> SensorReading:
        """Read back to back for 1.5 s; ends early at a stop, or if too costly, or unanswered."""
        reading = SensorReading(reads, self._clock)
        counted_ns = 0
        end_ns = self._clock.mono_ns() + PROBE_NS
        while (now_ns := self._clock.mono_ns()) < end_ns and not self._stop.is_set():
            reading.take()
            self._gpu.slow_state.add_driver_ns(reading.driver_ns - counted_ns)
            counted_ns = reading.driver_ns
            if counted_ns > self._most_driver_ns or not reading.answers:
                logger.info("GPU %s: a probe of its sensors ended early", self._gpu.device.gpu)
                break
            self._clock.sleep_until(now_ns + self._draw.randint(*ROUND_NS))
        return reading

    def _note(self, reading: SensorReading, names: Iterable[str]) -> None:
        """Publish the periods found; sensors without one are probed again later."""
        timing = {}
        window_ns = _POWER_WINDOW_NS.get(self._gpu.device.power_source)
        for name in names:
            period_ns = reading.period_ns(name)
            if period_ns is not None:
                self._open.remove(name)
            elif name == _POWER:
                period_ns = self._buffered_ns(name)
            timing[name] = SensorTiming(
                period_ns=period_ns, window_ns=window_ns if name == _POWER else None
            )
        self._gpu.slow_state.write_timing(timing)
        shown = ", ".join(
            f"{name} {'unknown' if ns is None else f'{ns / NS_PER_MS:.3g} ms'}"
            for name, ns in ((name, each.period_ns) for name, each in timing.items())
        )
        logger.info("GPU %s: sensors update each %s", self._gpu.device.gpu, shown)

    def _buffered_ns(self, name: str) -> int | None:
        """Ask for the period of the driver's buffered samples, ns; None if not known.

        Used for power only, not for a clock that did not change: a read may show it sooner than
        those samples.
        """
        if not isinstance(self._backend, ProbesFields):
            return None
        started_ns = self._clock.mono_ns()
        period_ns = self._backend.buffered_period_ns(self._gpu.device, name)
        self._gpu.slow_state.add_driver_ns(self._clock.mono_ns() - started_ns)
        return period_ns


class SensorWatch:
    """Probes the sensors of all GPUs, one after the other, in a thread of its own."""

    def __init__(
        self,
        backend: DeviceBackend,
        gpus: Sequence[WatchedGpu],
        settings: SamplerSettings,
        clock: Clock,
        stop: threading.Event,
    ) -> None:
        self._stop, self._clock = stop, clock
        self._turn_started_ns: int | None = None
        self._logging = RepeatLimiter(clock)  # it may come again each second
        again_s = settings.sensors_every_s
        self._probes: list[SensorProbe] = []
        if again_s is not None and isinstance(backend, ReadsSensors):
            ratio = settings.budget_ratio
            self._probes += (
                SensorProbe(backend, gpu, clock, stop, again_s=again_s, budget_ratio=ratio)
                for gpu in gpus
            )

    @property
    def has_work(self) -> bool:
        """Whether there are GPUs to probe: the back end can read sensors singly."""
        return bool(self._probes)

    def hangs(self, now_mono_ns: int) -> bool:
        """Whether a probe has lasted so long that its driver call hangs; for any thread."""
        started_ns = self._turn_started_ns
        return started_ns is not None and now_mono_ns - started_ns > _HUNG_NS

    def run(self) -> None:
        """Probe the GPUs that are due, until all periods are known or `stop` is set."""
        while not all(probe.is_done for probe in self._probes) and not self._stop.wait(
            _SENSOR_NAP_S
        ):
            for probe in self._probes:
                self._turn_started_ns = self._clock.mono_ns()
                try:
                    probe.turn()
                except Exception:  # a vendor library's fault must not end the thread
                    if self._logging.is_due():
                        logger.exception("a probe of sensors failed")
                finally:
                    self._turn_started_ns = None


logger = logging.getLogger(__name__)

Answer = TypeVar("Answer")

#: Pause between two checks: waking costs most, and a lost GPU may be logged this much later.
_NAP_S: Final = 2.0
#: Processes and faults are first listed this long after the start, which is busy.
_FIRST_NS: Final = NS_PER_S
#: In this time processes are listed more often: what `record` has started may not last longer.
_YOUNG_NS: Final = 30 * NS_PER_S
_SOON_NS: Final = 3 * NS_PER_S


class DriverWatch:
    """Makes the rare driver calls (processes, faults, changes) that the back end supports.

    `on_change` gets a message that says which GPUs came or went.
    """

    def __init__(
        self,
        backend: DeviceBackend,
        gpus: Sequence[WatchedGpu],
        settings: SamplerSettings,
        clock: Clock,
        stop: threading.Event,
        *,
        on_change: Callable[[str], None],
    ) -> None:
        self._backend = backend
        self._gpus = tuple(gpus)
        self._clock = clock
        self._stop = stop
        self._on_change = on_change
        self._processes_every_ns = round(settings.processes_every_s * NS_PER_S)
        self._watch_every_ns = round(settings.watch_every_s * NS_PER_S)
        self._start_ns = start_ns = clock.mono_ns()
        self._processes_at_ns = self._faults_at_ns = start_ns + _FIRST_NS
        self._changes_at_ns = start_ns + self._watch_every_ns
        self._explained: set[str] = set()
        self._logged: dict[str, str | None] = {}
        self._invalid: dict[str, int] = {}
        self._logging = RepeatLimiter(clock)

    @property
    def has_work(self) -> bool:
        """Whether the back end supports any of these calls."""
        known = ListsProcesses | ExplainsTrouble | NoticesChanges | CountsImplausible
        return isinstance(self._backend, known)

    def run(self) -> None:
        """Make due calls every 2 s until `stop` is set; an exception is logged only."""
        while not self._stop.wait(_NAP_S):
            try:
                self.ask(self._clock.mono_ns())
            except Exception:  # a fault in what was found must not end the thread
                if self._logging.is_due("ask"):
                    logger.exception("a rare driver call failed")

    def ask(self, now_ns: int) -> None:
        """Make the calls that are due at this time (CLOCK_MONOTONIC, ns)."""
        self._count_invalid()
        if now_ns >= self._processes_at_ns:
            is_young = now_ns - self._start_ns < _YOUNG_NS
            longest_ns = _SOON_NS if is_young else self._processes_every_ns
            self._processes_at_ns = now_ns + min(self._processes_every_ns, longest_ns)
            self._list_processes()
        is_due = now_ns >= self._faults_at_ns
        if is_due:
            self._faults_at_ns = now_ns + self._watch_every_ns
        self._explain(all_gpus=is_due)
        if now_ns >= self._changes_at_ns:
            self._changes_at_ns = now_ns + self._watch_every_ns
            self._notice_changes()

    def _list_processes(self) -> None:
        backend = self._backend
        if not isinstance(backend, ListsProcesses):
            return
        for each in self._gpus:
            if each.gpu.state is not GpuState.UP:
                continue
            found = self._timed(each, partial(backend.processes, each.device))
            if found is not None:
                each.slow_state.write_processes(found, self._clock.mono_ns())

    def _count_invalid(self) -> None:
        """Publish how many more values were dropped as impossible."""
        if not isinstance(self._backend, CountsImplausible):
            return
        totals: Counter[str] = Counter()
        for (label, _), count in self._backend.implausible_total().items():
            totals[label] += count
        for each in self._gpus:
            count = totals[each.device.gpu]
            if count != self._invalid.get(each.label, 0):
                each.slow_state.add_invalid(count - self._invalid.get(each.label, 0))
                self._invalid[each.label] = count

    def _explain(self, *, all_gpus: bool) -> None:
        """Ask for the faults of all GPUs, or of those newly lost; publish and log them."""
        backend = self._backend
        if not isinstance(backend, ExplainsTrouble):
            return
        for each in self._gpus:
            is_new = each.gpu.state is GpuState.LOST and each.label not in self._explained
            if all_gpus or is_new:
                if each.gpu.state is GpuState.LOST:
                    self._explained.add(each.label)
                else:
                    self._explained.discard(each.label)
                trouble = self._timed(each, partial(backend.trouble, each.device))
                each.slow_state.write_trouble(trouble)
                self._log(each.label, trouble)

    def _log(self, label: str, trouble: str | None) -> None:
        """Log a GPU's fault if it is not the one logged last."""
        if trouble == self._logged.get(label):
            return
        self._logged[label] = trouble
        text = "the driver reports no fault any more" if trouble is None else trouble
        logger.warning("GPU %s: %s", label, text)

    def _notice_changes(self) -> None:
        backend = self._backend
        if not isinstance(backend, NoticesChanges) or not self._gpus:
            return
        change = self._timed(self._gpus[0], backend.changed)
        if change is not None:
            self._on_change(change)

    def _timed(self, each: WatchedGpu, ask: Callable[[], Answer | None]) -> Answer | None:
        """Make a driver call and count its time; return its answer, None if it fails."""
        started_ns = self._clock.mono_ns()
        try:
            return ask()
        except Exception as error:  # noqa: BLE001 - a vendor library's fault must not end the thread
            if self._logging.is_due(each.label):
                logger.warning("GPU %s: a rare driver call failed: %s", each.label, error)
        finally:
            each.slow_state.add_driver_ns(self._clock.mono_ns() - started_ns)
        return None
