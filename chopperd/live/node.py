"""Live state of the node, from the sampler's shared memory, and cost of chopperd's processes."""

import os
from collections import OrderedDict, defaultdict
from collections.abc import Container, Hashable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, TypeVar

from msgspec.structs import asdict, replace

from chopperd.clock import Clock
from chopperd.errors import StoreError
from chopperd.live.drops import DropQueue
from chopperd.live.gpu_track import GpuTrack, sum_by_key
from chopperd.live.readings import WINDOW_NS, window_excess_s
from chopperd.model import live
from chopperd.model.devices import GpuProcess
from chopperd.model.kinds import CAUSE_BY_LABEL
from chopperd.model.live import MEMORY_SUMS, TracedMemory, TracedTotals
from chopperd.model.report import ReportDocument
from chopperd.model.report_rows import Row
from chopperd.sampling.memory.layout import RingDescription, SamplerState
from chopperd.sampling.memory.ring import merged_gpus, places_of
from chopperd.sampling.memory.ring_reader import RingReader
from chopperd.sampling.schedule import period_ns_of
from chopperd.units import NS_PER_S, seconds_from_ns

if TYPE_CHECKING:  # the agent starts without numpy
    from chopperd.model.memory import RankMemory

#: A window is closed this long after its end, when its last records are there.
_GRACE_NS: Final = NS_PER_S
#: In these conditions there is a sampler process, whose calls can hang.
_WITH_PROCESS: Final = frozenset({live.SamplerCondition.RUNNING, live.SamplerCondition.HUNG})
#: A sampler in these states does not use the driver any more.
_WITHOUT_DRIVER: Final = frozenset({SamplerState.STOPPED, SamplerState.FAILED, SamplerState.SILENT})


class LiveNode:
    """Follows the node over sampler processes and rings; counts never fall. For one thread.

    GPUs are identified by UUID. One that goes away keeps its position and its label. `drops` of
    the busy clock are to be stored, by any thread; `backend` is the one asked for, until one is
    in use.
    """

    def __init__(
        self, clock: Clock, *, version: str, node: str, backend: str | None, slow_hz: float
    ) -> None:
        self.drops = DropQueue()
        self._clock = clock
        self._version = version
        self._node = node
        self._slow_period_ns = period_ns_of(slow_hz)
        self._started_unix_ns = clock.unix_ns()
        self._reader: RingReader | None = None
        self._description = RingDescription(backend=backend or "")
        self._tracks: list[GpuTrack] = []
        self._slots: list[GpuTrack] = []
        self._window_end_ns = clock.mono_ns() // WINDOW_NS * WINDOW_NS + WINDOW_NS

    def follow(self, reader: RingReader | None) -> None:
        """Switch to this shared memory; None if there is none.

        Call it before a reader is closed. The same memory in a larger file counts as the same.
        """
        if reader is self._reader:
            return
        before, self._reader = self._reader, reader
        if before is not None and reader is not None and before.identity == reader.identity:
            return
        self._slots = []
        for track in self._tracks:
            track.leave_ring()

    def snapshot(
        self, sampler: live.SamplerLive, traced: Mapping[str, live.TracedTotals] | None = None
    ) -> live.NodeSnapshot:
        """Read new samples and return the node's state; call it about once a second.

        Also queues drops for the store. The agent's other parts are not in the snapshot.
        `traced` has sums over recent captures, by GPU label.
        """
        traced = traced or {}
        if self._reader is not None:
            self._drain(self._reader)
        now = self._clock.triple()
        self._close_windows(now.mono_ns, traced)
        for track in self._tracks:
            self.drops.put(track.drops.news(track.info, now))
        has_driver = self._reader is not None and self._reader.state not in _WITHOUT_DRIVER
        has_process = sampler.condition in _WITH_PROCESS
        gpus = tuple(
            track.live(now, has_driver=has_driver, has_process=has_process)
            for track in self._tracks
        )
        return live.NodeSnapshot(
            taken_unix_ns=now.unix_ns,
            taken_mono_ns=now.mono_ns,
            started_unix_ns=self._started_unix_ns,
            version=self._version,
            node=self._node,
            backend=self._description.backend or None,
            backend_up=any(gpu.up for gpu in gpus),
            chosen=self._description.chosen,
            driver=self._description.driver,
            simulated=self._description.simulated,
            gpus=gpus,
            sampler=sampler,
            traced=traced,
        )

    def _drain(self, reader: RingReader) -> None:
        try:
            description = reader.description()
        except StoreError:  # its writer died meanwhile; the next process writes it again
            description = self._description
        if description.gpus and (description != self._description or not self._slots):
            self._description = description
            self._slots = self._tracks_of(description)
        for slot, track in enumerate(self._slots):
            track.follow(reader, slot)

    def _tracks_of(self, description: RingDescription) -> list[GpuTrack]:
        """Return the track of each slot; create one for each new GPU."""
        known = merged_gpus([track.info for track in self._tracks], description.gpus)
        for track, info in zip(self._tracks, known, strict=False):
            track.know(info)
        for info in known[len(self._tracks) :]:
            self._tracks.append(GpuTrack(info, self._slow_period_ns))
        indices = places_of(description.gpus, known)
        return [self._tracks[index] for index in indices if index is not None]

    def _close_windows(self, now_mono_ns: int, traced: Mapping[str, live.TracedTotals]) -> None:
        """Compare GPUs over each window that has ended."""
        while now_mono_ns >= self._window_end_ns + _GRACE_NS:
            clocks = [track.close_window(self._window_end_ns) for track in self._tracks]
            captures = [traced.get(track.info.gpu) for track in self._tracks]
            ratios = [None if each is None else each.compute_ratio for each in captures]
            losses_s = window_excess_s(clocks, ratios)
            for track, clock, lost_s in zip(self._tracks, clocks, losses_s, strict=True):
                track.note_window(clock, lost_s)
            self._window_end_ns += WINDOW_NS


#: Fields of /proc/PID/stat after the command, which may hold spaces. Source: proc(5), counted from
#: `state`, field 3.
_USER_TICKS: Final = 14 - 3
_SYSTEM_TICKS: Final = 15 - 3
_THREADS: Final = 20 - 3
_STARTED_TICKS: Final = 22 - 3
_RESIDENT_PAGES: Final = 24 - 3


def process_live(pid: int, clock: Clock) -> live.ProcessLive | None:
    """Read CPU time, memory, files and threads of a process; None if it is gone or a zombie.

    Source: /proc/PID/stat (clock ticks since boot, CLOCK_BOOTTIME; pages), /proc/PID/fd.
    """
    folder = Path("/proc") / str(pid)
    try:
        fields = (folder / "stat").read_text().rpartition(") ")[2].split()
        open_fds = sum(1 for _ in (folder / "fd").iterdir())
    except OSError:
        return None
    if fields[0] == "Z":
        return None
    ticks_per_s = os.sysconf("SC_CLK_TCK")
    now = clock.triple()
    age_ns = now.boot_ns - int(fields[_STARTED_TICKS]) * NS_PER_S // ticks_per_s
    return live.ProcessLive(
        cpu_s=(int(fields[_USER_TICKS]) + int(fields[_SYSTEM_TICKS])) / ticks_per_s,
        resident_bytes=int(fields[_RESIDENT_PAGES]) * os.sysconf("SC_PAGE_SIZE"),
        open_fds=open_fds,
        threads=int(fields[_THREADS]),
        started_unix_ns=now.unix_ns - age_ns,
    )


class ProcessCosts:
    """Reads the cost of each role's process; CPU time adds up over replaced processes."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        #: By role: the newest process, and CPU time of earlier ones.
        self._newest: dict[str, tuple[int | None, live.ProcessLive]] = {}
        self._earlier_cpu_s: defaultdict[str, float] = defaultdict(float)

    def read(self, pids: Mapping[str, int | None]) -> dict[str, live.ProcessLive]:
        """Read the present cost by role, of all roles that ever had a process.

        `pids` has None where a role has no process now.
        """
        for name, pid in pids.items():
            present = None if pid is None else process_live(pid, self._clock)
            last_pid, last = self._newest.get(name, (None, None))
            if last is not None and (present is None or pid != last_pid):
                self._earlier_cpu_s[name] += last.cpu_s
                last = replace(last, cpu_s=0.0, resident_bytes=0, open_fds=0, threads=0)
            if (newest := present or last) is not None:
                self._newest[name] = pid, newest
        return {
            name: replace(newest, cpu_s=self._earlier_cpu_s[name] + newest.cpu_s)
            for name, (_, newest) in self._newest.items()
        }


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
