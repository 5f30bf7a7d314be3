"""What the agent's own processes cost, from /proc."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from chopperd.clock import Clock
from chopperd.model.live import ProcessLive
from chopperd.units import NS_PER_S

#: Fields of /proc/PID/stat after the command, which may hold spaces. Source: proc(5), counted from
#: `state`, field 3.
_USER_TICKS: Final = 14 - 3
_SYSTEM_TICKS: Final = 15 - 3
_THREADS: Final = 20 - 3
_STARTED_TICKS: Final = 22 - 3
_RESIDENT_PAGES: Final = 24 - 3


def process_live(pid: int, clock: Clock) -> ProcessLive | None:
    """What a process costs now; None if it does not exist, or has ended and was not waited for.

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
    return ProcessLive(
        cpu_s=(int(fields[_USER_TICKS]) + int(fields[_SYSTEM_TICKS])) / ticks_per_s,
        resident_bytes=int(fields[_RESIDENT_PAGES]) * os.sysconf("SC_PAGE_SIZE"),
        open_fds=open_fds,
        threads=int(fields[_THREADS]),
        started_unix_ns=now.unix_ns - age_ns,
    )


@dataclass(slots=True)
class _Role:
    """The processes that have had one role."""

    pid: int | None = None
    earlier_cpu_s: float = 0.0
    newest: ProcessLive | None = None


class ProcessCosts:
    """What the processes of each role cost; their CPU time goes on over replacements.

    Args:
        clock: Tells the time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._roles: dict[str, _Role] = {}

    def look(self, pids: Mapping[str, int | None]) -> dict[str, ProcessLive]:
        """The cost by role, of all roles that ever had a process.

        Args:
            pids: The process of each role now; None where there is none.
        """
        for name, pid in pids.items():
            if pid is not None or name in self._roles:
                self._update(self._roles.setdefault(name, _Role()), pid)
        return {
            name: replace(role.newest, cpu_s=role.earlier_cpu_s + role.newest.cpu_s)
            for name, role in self._roles.items()
            if role.newest is not None
        }

    def _update(self, role: _Role, pid: int | None) -> None:
        present = None if pid is None else process_live(pid, self._clock)
        if role.newest is not None and (present is None or pid != role.pid):
            role.earlier_cpu_s += role.newest.cpu_s
            role.newest = _ended(role.newest)
        role.pid = pid
        role.newest = present or role.newest


def _ended(process: ProcessLive) -> ProcessLive:
    """A process that is gone: it costs nothing more."""
    return replace(process, cpu_s=0.0, resident_bytes=0, open_fds=0, threads=0)
