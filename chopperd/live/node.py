"""Live state of the node, from the sampler's shared memory, and cost of chopperd's processes."""

import os
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from chopperd.clock import Clock
from chopperd.errors import StoreError
from chopperd.live.drops import DropQueue
from chopperd.live.gpu_track import GpuTrack
from chopperd.live.readings import WINDOW_NS, window_excess_s
from chopperd.model import live
from chopperd.sampling.memory.layout import RingDescription, SamplerState
from chopperd.sampling.memory.ring import merged_gpus, places_of
from chopperd.sampling.memory.ring_reader import RingReader
from chopperd.sampling.schedule import period_ns_of
from chopperd.units import NS_PER_S

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
