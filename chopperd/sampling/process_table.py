"""Table of the processes that used each GPU, with their facts from /proc; not for hot loops.

For readers of the ring: the sampler asks the drivers, files are read here.
"""

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from chopperd.clock import Clock
from chopperd.model.devices import GpuInfo
from chopperd.model.samples import VISIBLE_NAMES, ProcessRow
from chopperd.sampling.memory.slow_state import SlowState
from chopperd.units import NS_PER_S, TimeTriple

#: Most rows; the process that ended first is dropped first.
_MOST_ROWS: Final = 512
#: Most processes listed as descendants of one.
_MOST_DESCENDANTS: Final = 256
_MOST_BYTES: Final = 1 << 18
_LONGEST_VALUE: Final = 4096
#: Field 22 of /proc/PID/stat, counted from the one after the name. Source: proc(5).
_START_TICKS: Final = 19
#: Two tables' start times of the same process differ by less than this.
_SAME_START_NS: Final = 2 * NS_PER_S
_SETTLED_NS: Final = 10 * NS_PER_S
_PROC: Final = Path("/proc")


class _Known(Struct):
    """A process's row, and whether /proc must be read again for it.

    `ticks` is the start of its process in clock ticks, None where /proc does not show it;
    `is_settled`: the process was old when it was read, so that nothing of it changes any more.
    """

    row: ProcessRow
    ticks: int | None
    is_settled: bool = False


class ProcessTable:
    """A table of the processes that were seen; to be used by one thread."""

    def __init__(self, clock: Clock, proc: Path = _PROC) -> None:
        self._clock, self._proc = clock, proc
        self._tick_ns = NS_PER_S // os.sysconf("SC_CLK_TCK")
        self._live: dict[int, _Known] = {}
        self._gone: list[ProcessRow] = []
        self._listed_mono_ns: dict[int, int] = {}

    def rows(self) -> tuple[ProcessRow, ...]:
        """Return all rows, ended processes first."""
        return (*self._gone, *(known.row for known in self._live.values()))

    def follow(
        self, gpus: Sequence[GpuInfo], slow_states: Sequence[SlowState]
    ) -> tuple[ProcessRow, ...]:
        """Update the table from the drivers' latest lists, one a GPU; return the rows of `update`.

        Does nothing and returns an empty tuple if no driver listed processes since the last call.
        """
        listed: dict[int, dict[str, int | None]] = {}
        is_new = False
        for slot, (gpu, slow_state) in enumerate(zip(gpus, slow_states, strict=True)):
            if slow_state.processes_mono_ns is None:
                continue
            is_new |= slow_state.processes_mono_ns > self._listed_mono_ns.get(slot, 0)
            self._listed_mono_ns[slot] = slow_state.processes_mono_ns
            for process in slow_state.processes:
                held = listed.setdefault(process.pid, {})
                held[gpu.uuid or gpu.gpu] = process.memory_used_bytes
        return self.update(listed) if is_new else ()

    def update(
        self, listed: Mapping[int, Mapping[str, int | None]], others: Iterable[int] = ()
    ) -> tuple[ProcessRow, ...]:
        """Read processes from /proc; return the rows of those that live now or ended since.

        `listed` gives the memory in bytes by GPU of each process that a driver lists.
        """
        triple = self._clock.triple()
        ended_count = len(self._gone)
        for pid in {*listed, *others, *self._live}:
            self._update_one(pid, listed.get(pid), triple)
        rows = (*self._gone[ended_count:], *(known.row for known in self._live.values()))
        while len(self._gone) + len(self._live) > _MOST_ROWS:
            if self._gone:
                del self._gone[0]
            else:
                del self._live[next(iter(self._live))]
        return rows

    def _update_one(
        self, pid: int, held: Mapping[str, int | None] | None, triple: TimeTriple
    ) -> None:
        ticks = self._start_ticks(pid)
        known = self._live.get(pid)
        if known is not None and known.ticks != ticks:
            self._end(pid, known, triple, ticks)
            known = None
        if ticks is None and held is None:
            if known is not None:
                self._end(pid, known, triple, None)
            return
        if known is None:
            started_ns = None if ticks is None else self._start_unix_ns(ticks, triple)
            known = _Known(ProcessRow(pid=pid, started_unix_ns=started_ns), ticks)
        row, is_settled = known.row, known.is_settled
        if ticks is not None and not is_settled:
            row = self._read(row)
            # Between fork and exec a process has its parent's environment.
            is_settled = triple.unix_ns - (row.started_unix_ns or 0) > _SETTLED_NS
        if held is not None:
            row = replace(row, listed_unix_ns=triple.unix_ns, gpus=_most(row.gpus, held))
        self._live[pid] = _Known(row, ticks, is_settled)

    def _end(self, pid: int, known: _Known, triple: TimeTriple, ticks: int | None) -> None:
        """Move a process to the ended ones; it ended no later than the next of its pid began."""
        gone_ns = triple.unix_ns if ticks is None else self._start_unix_ns(ticks, triple)
        self._gone.append(replace(known.row, gone_unix_ns=min(gone_ns, triple.unix_ns)))
        del self._live[pid]

    def _start_unix_ns(self, ticks: int, triple: TimeTriple) -> int:
        """Convert a process's start, in clock ticks since boot, to Unix time in ns."""
        return triple.unix_ns - triple.boot_ns + ticks * self._tick_ns

    def _read(self, row: ProcessRow) -> ProcessRow:
        """Return the row updated from /proc; fields that can't be read stay as they are."""
        folder = self._proc / str(row.pid)
        environment = _environment(folder)
        ns_pids = _ns_pids(folder) or row.ns_pids or (row.pid,)
        found = replace(row, ns_pids=ns_pids, container=self._in_container(folder, row.container))
        if environment is not None:
            visible = {name: v for name, v in environment.items() if name in VISIBLE_NAMES}
            found = replace(found, visible=visible)
        hosts = self._hosts(folder, environment or {}, is_near=len(ns_pids) == 1)
        return replace(found, hosts=tuple(dict.fromkeys(filter(None, (*row.hosts, *hosts)))))

    def _in_container(self, folder: Path, before: bool | None) -> bool | None:
        """Whether the root folder differs from ours and from that of pid 1; `before` if unknown."""
        try:
            root = _identity(folder / "root")
        except OSError:
            return before
        for other in (Path("/"), self._proc / "1" / "root"):
            with suppress(OSError):
                if _identity(other) == root:
                    return False
        return True

    def _hosts(
        self, folder: Path, environment: Mapping[str, str], *, is_near: bool
    ) -> Iterator[str]:
        """Yield the host names that the process may see; some may be empty."""
        try:
            is_ours = (folder / "ns/uts").readlink() == (self._proc / "self/ns/uts").readlink()
        except OSError:
            is_ours = is_near
        if is_ours:
            yield os.uname().nodename
        else:
            yield _text(folder / "root/etc/hostname").strip()[:255]
        yield environment.get("HOSTNAME", "")

    def _start_ticks(self, pid: int) -> int | None:
        """Return a process's start in clock ticks since boot; None where no process runs."""
        fields = _text(self._proc / str(pid) / "stat").rpartition(")")[2].split()
        is_alive = len(fields) > _START_TICKS and fields[0] not in "ZX"
        return int(fields[_START_TICKS]) if is_alive else None


def descendants(pid: int, proc: Path = _PROC) -> list[int]:
    """List the pids that a process started, directly or through others; 256 at most.

    Source: proc(5), /proc/PID/task/TID/children.
    """
    found: list[int] = []
    waiting = [pid]
    while waiting and len(found) < _MOST_DESCENDANTS:
        tasks = proc / str(waiting.pop()) / "task"
        with suppress(OSError):
            children = " ".join(_text(task / "children") for task in tasks.iterdir())
            own = [int(each) for each in children.split() if each.isdecimal()]
            found += own
            waiting += own
    return found[:_MOST_DESCENDANTS]


def merged_processes(rows: Iterable[ProcessRow]) -> tuple[ProcessRow, ...]:
    """Merge rows noted over time into one per process; a later process ends the earlier of its pid.

    The rows are in the order in which they were noted.
    """
    by_pid: dict[int, list[ProcessRow]] = {}
    for row in rows:
        known = by_pid.setdefault(row.pid, [])
        place = next((n for n, other in enumerate(known) if _is_same(other, row)), None)
        if place is None:
            known.append(row)
        else:
            known[place] = _both(known[place], row)
    found: list[ProcessRow] = []
    for known in by_pid.values():
        known.sort(key=lambda row: row.started_unix_ns or 0)
        for row, later in zip(known, [*known[1:], None], strict=True):
            begin_ns = later.started_unix_ns if later is not None else None
            gones = [each for each in (row.gone_unix_ns, begin_ns) if each is not None]
            found.append(replace(row, gone_unix_ns=min(gones, default=None)))
    return tuple(found)


def _is_same(a: ProcessRow, b: ProcessRow) -> bool:
    if a.started_unix_ns is None or b.started_unix_ns is None:
        return a.started_unix_ns is b.started_unix_ns
    return abs(a.started_unix_ns - b.started_unix_ns) < _SAME_START_NS


def _both(before: ProcessRow, now: ProcessRow) -> ProcessRow:
    """Merge two rows of one process, noted one after the other."""
    return replace(
        now,
        started_unix_ns=before.started_unix_ns,
        gone_unix_ns=now.gone_unix_ns or before.gone_unix_ns,
        listed_unix_ns=now.listed_unix_ns or before.listed_unix_ns,
        gpus=_most(before.gpus, now.gpus),
        visible=before.visible if now.visible is None else now.visible,
    )


def _most(before: Mapping[str, int | None], now: Mapping[str, int | None]) -> dict[str, int | None]:
    """Return the most memory in bytes seen on each GPU."""
    most = dict(before)
    for gpu, size in now.items():
        known = most.get(gpu)
        most[gpu] = size if known is None else max(known, size or 0)
    return most


def _environment(folder: Path) -> dict[str, str] | None:
    """Read a process's visible-device variables and HOSTNAME; None if unreadable or oversized."""
    try:
        with (folder / "environ").open("rb") as file:
            data = file.read(_MOST_BYTES)
    except OSError:
        return None
    wanted: Collection[str] = {*VISIBLE_NAMES, "HOSTNAME"}
    pairs = (each.decode(errors="replace").partition("=") for each in data.split(b"\0"))
    found = {name: value for name, _, value in pairs if name in wanted}
    is_whole = bool(data) and all(len(value) <= _LONGEST_VALUE for value in found.values())
    return found if is_whole and len(data) < _MOST_BYTES else None


def _ns_pids(folder: Path) -> tuple[int, ...]:
    """Read a process's pid in each namespace, ours first; empty if not known. Source: proc(5)."""
    lines = _text(folder / "status").splitlines()
    pids = next((line.split()[1:] for line in lines if line.startswith("NSpid:")), [])
    return tuple(int(pid) for pid in pids if pid.isdecimal())


def _identity(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino


def _text(path: Path) -> str:
    """Read a file's text; empty if it can't be read."""
    try:
        with path.open("rb") as file:
            return file.read(_MOST_BYTES).decode(errors="replace")
    except OSError:
        return ""
