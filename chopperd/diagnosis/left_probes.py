"""Processes of earlier looks at the driver that were left alone in it, and are in it still."""

import os
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")
#: `_probe`, and `_probe_amd`.
_ARGUMENTS: Final = b"\0-m\0chopperd\0_probe"
#: Place of `starttime`, in clock ticks since boot, among the fields of `stat` after the name.
_START_FIELD: Final = 19


def left_probes(older_than_s: float, proc: Path = _PROC) -> tuple[int, ...]:
    """Those of this user, lowest number first.

    Who started one waits for a limited time only, so that age alone tells that it was left.

    Args:
        older_than_s: More than what any of them is waited for.
        proc: Where processes are seen.

    Source: proc(5): `uptime`, and `starttime` of `stat`.
    """
    now_s = float((proc / "uptime").read_text().split()[0])
    pids = sorted(int(folder.name) for folder in proc.glob("[0-9]*"))
    return tuple(pid for pid in pids if _is_left(proc / str(pid), now_s - older_than_s))


def _is_left(folder: Path, before_s: float) -> bool:
    try:
        is_ours = folder.stat().st_uid == os.geteuid()
        if not is_ours or _ARGUMENTS not in (folder / "cmdline").read_bytes():
            return False
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
    except OSError:  # it has ended meanwhile
        return False
    return int(fields[_START_FIELD]) / os.sysconf("SC_CLK_TCK") < before_s
