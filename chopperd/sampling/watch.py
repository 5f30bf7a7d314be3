"""The thread for rare driver calls: processes, faults, GPUs that came or went.

Each call may take long or hang; the GPUs' own threads and the clock triples go on meanwhile.
"""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from chopperd.clock import Clock, RepeatLimiter
from chopperd.devices.base import (
    CountsImplausible,
    DeviceBackend,
    ExplainsTrouble,
    ListsProcesses,
    NoticesChanges,
)
from chopperd.sampling.memory.gpu_writer import GpuWriter
from chopperd.sampling.memory.layout import GpuState
from chopperd.sampling.sensor_probe import ProbedGpu
from chopperd.sampling.settings import SamplerSettings
from chopperd.units import NS_PER_S

logger = logging.getLogger(__name__)

Answer = TypeVar("Answer")

#: Pause between two checks: waking costs most, and a lost GPU may be logged this much later.
_NAP_S: Final = 2.0
#: Processes and faults are first listed this long after the start, which is busy.
_FIRST_NS: Final = NS_PER_S
#: In this time processes are listed more often: what `record` has started may not last longer.
_YOUNG_NS: Final = 30 * NS_PER_S
_SOON_NS: Final = 3 * NS_PER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedGpu(ProbedGpu):
    """A GPU as the back end knows it, its label, and its parts of the shared memory."""

    label: str
    gpu: GpuWriter


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
