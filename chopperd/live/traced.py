"""Sums of times and losses over captures by GPU, as counters that never fall."""

from collections import OrderedDict
from collections.abc import Container, Hashable, Iterable, Mapping
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, TypeVar

from msgspec.structs import asdict, replace

from chopperd.clock import Clock
from chopperd.live.gpu_track import sum_by_key
from chopperd.model.devices import GpuProcess
from chopperd.model.kinds import CAUSE_BY_LABEL
from chopperd.model.live import MEMORY_SUMS, TracedMemory, TracedTotals
from chopperd.model.report import ReportDocument
from chopperd.model.report_rows import Row
from chopperd.units import NS_PER_S, seconds_from_ns

if TYPE_CHECKING:  # the agent starts without numpy
    from chopperd.model.memory import RankMemory

#: A capture is recent until this long after its end.
RECENT_NS: Final = 15 * 60 * NS_PER_S
#: Traced devices whose report may still change; far more than come within the time above.
_MOST_COUNTED: Final = 1024
#: The sums among a GPU's totals.
_SUMS: Final = ("window_s", "lost_s", "kernel_s", "kernel_lost_s", "memory")

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class _Traced:
    """Key of one device of one trace; the trace's capture may change."""

    job: str | None
    run: str | None
    rank: int | None
    device: int | None
    start_unix_ns: int


class TracedLedger:
    """Sums times and losses over captures, by GPU; for any thread.

    A sum over the last 15 minutes would fall when a capture leaves it, and Prometheus reads a
    falling counter as a restart. So all captures are summed, and a GPU's sums are shown only while
    its newest capture is recent. A device that is reported again, as another trace of its capture
    came, adds its increase.

    The sums are also hidden once the process of the newest capture has left the GPU. That is known
    only of a process that was listed there under the pid of its trace: in a container the trace's
    pids belong to another namespace than the driver's.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = Lock()
        self._sums: dict[str, TracedTotals] = {}
        self._counted: OrderedDict[_Traced, TracedTotals] = OrderedDict()
        self._pids: dict[str, int | None] = {}
        self._listed_unix_ns: dict[tuple[str, int], int] = {}

    def add(self, document: ReportDocument) -> None:
        """Add the devices of a report that are known GPUs and ended in the last 15 minutes."""
        since_ns = self._clock.unix_ns() - RECENT_NS
        with self._lock:
            for row in document.totals:
                if row.gpu is None or row.start_unix_ns is None:
                    continue
                found = _found(row, row.start_unix_ns, _memory_of(row, document))
                if found.last_capture_unix_ns > since_ns:
                    traced = _Traced(row.job, row.run, row.rank, row.device, row.start_unix_ns)
                    self._count(row.gpu, traced, found)
                    if found.last_capture_unix_ns >= self._sums[row.gpu].last_capture_unix_ns:
                        self._pids[row.gpu] = _pid_of(row, document)

    def recent(
        self, processes: Mapping[str, Iterable[GpuProcess] | None] | None = None
    ) -> Mapping[str, TracedTotals]:
        """Return sums by GPU label, of GPUs with a recent capture whose process has not left.

        Also stores which processes are on the GPUs now (None: unknown).
        """
        now_ns = self._clock.unix_ns()
        since_ns = now_ns - RECENT_NS
        listed = {
            gpu: {process.pid for process in those}
            for gpu, those in (processes or {}).items()
            if those is not None
        }
        with self._lock:
            self._note_listed(listed, now_ns)
            return {
                gpu: sums
                for gpu, sums in self._sums.items()
                if sums.last_capture_unix_ns > since_ns and not self._has_left(gpu, listed)
            }

    def _note_listed(self, listed: Mapping[str, Iterable[int]], now_ns: int) -> None:
        """Record which processes were on which GPU, and forget those not seen for 15 minutes."""
        for gpu, pids in listed.items():
            self._listed_unix_ns.update({(gpu, pid): now_ns for pid in pids})
        for process, seen_ns in tuple(self._listed_unix_ns.items()):
            if seen_ns <= now_ns - RECENT_NS:
                del self._listed_unix_ns[process]

    def _has_left(self, gpu: str, listed: Mapping[str, Container[int]]) -> bool:
        """Whether the process of the newest capture was on the GPU and is gone."""
        pid = self._pids.get(gpu)
        if pid is None or gpu not in listed:
            return False
        return pid not in listed[gpu] and (gpu, pid) in self._listed_unix_ns

    def _count(self, gpu: str, traced: _Traced, found: TracedTotals) -> None:
        before = self._counted.pop(traced, None)
        added = found if before is None else _increase(before, found)
        self._sums[gpu] = _sum(self._sums[gpu], added) if gpu in self._sums else added
        self._counted[traced] = found if before is None else _sum(before, added)
        if len(self._counted) > _MOST_COUNTED:
            self._counted.popitem(last=False)


def _pid_of(row: Row, document: ReportDocument) -> int | None:
    """Return the pid of a row's process; None if it is not known, or there are several."""
    key = row.rank, row.device
    pids = {each.pid for each in document.devices if (each.rank, each.device) == key}
    return pids.pop() if len(pids) == 1 else None


def _memory_of(row: Row, document: ReportDocument) -> "RankMemory | None":
    """Return the memory of a row's device; None if it is unknown, or of several processes."""
    key = row.rank, row.device, row.gpu
    found = [each for each in document.memory if (each.rank, each.device, each.gpu) == key]
    return found[0] if len(found) == 1 else None


def _memory_sums(memory: "RankMemory | None") -> dict[str, float]:
    """Sum over the steps whose segment calls and retries are both known; empty without any.

    Sums that leave out a figure of some steps would make the figure per step too low.
    """
    steps = memory.steps[memory.warm_up_steps :] if memory is not None else ()
    sums: dict[str, float] = {}
    for step in steps:
        values = step.segment_allocs, step.segment_frees, step.segment_ns, step.retries
        allocs, frees, length_ns, retries = values
        if allocs is None or frees is None or length_ns is None or retries is None:
            continue
        figures = 1, allocs + frees, seconds_from_ns(length_ns), retries
        sums = sum_by_key(sums, dict(zip(MEMORY_SUMS, figures, strict=True)))
    return sums


def _found(row: Row, start_unix_ns: int, memory: "RankMemory | None") -> TracedTotals:
    """Convert a report's row of one device to totals; unknown times are left out."""
    waterfall_ns = asdict(row.waterfall_ns) if row.waterfall_ns else {}
    by_cause_ns = row.dvfs.by_cause_ns or {}
    return TracedTotals(
        window_s=_sums_s(waterfall_ns.items()),
        lost_s=_sums_s((CAUSE_BY_LABEL[label], ns) for label, ns in by_cause_ns.items()),
        kernel_s=_sums_s((family.class_, family.time_ns) for family in row.families),
        kernel_lost_s=_sums_s((each.class_, each.lost_ns) for each in row.classes),
        last_capture_unix_ns=start_unix_ns + (row.window_ns or 0),
        compute_ratio=(row.compute_ns or 0) / row.busy_ns if row.busy_ns else None,
        memory=_memory_sums(memory),
        last_memory=None
        if memory is None
        else TracedMemory(
            peak_allocated_bytes=memory.peak_allocated_bytes,
            peak_reserved_bytes=memory.peak_reserved_bytes,
            cv_reserved=memory.cv_reserved,
            verdict=memory.verdict,
        ),
    )


def _sums_s(times_ns: Iterable[tuple[Key, int | None]]) -> dict[Key, float]:
    """Sum times by key, in s; None is left out."""
    sums_ns: dict[Key, int] = {}
    for key, time_ns in times_ns:
        if time_ns is not None:
            sums_ns[key] = sums_ns.get(key, 0) + time_ns
    return {key: seconds_from_ns(time_ns) for key, time_ns in sums_ns.items()}


def _sum(one: TracedTotals, other: TracedTotals) -> TracedTotals:
    newest = max(other, one, key=lambda each: each.last_capture_unix_ns)
    sums = {name: sum_by_key(getattr(one, name), getattr(other, name)) for name in _SUMS}
    return replace(newest, **sums)


def _increase(before: TracedTotals, now: TracedTotals) -> TracedTotals:
    """Compute the increase of each sum since it was last counted; a decrease counts as 0."""
    rises: dict[str, Any] = {}
    for name in _SUMS:
        counted, sums = getattr(before, name), getattr(now, name)
        rises[name] = {key: max(0.0, each - counted.get(key, 0.0)) for key, each in sums.items()}
    return replace(now, **rises)
