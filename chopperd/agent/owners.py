"""Who listens at a port or socket that is in use, for an error that helps."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from typing import Final

_TABLES: Final = ("/proc/net/tcp", "/proc/net/tcp6")
#: State and inode in a row of these tables. Source: proc(5), `/proc/net/tcp`.
_LISTENING: Final = "0A"
_LOCAL_COLUMN, _STATE_COLUMN, _INODE_COLUMN = 1, 3, 9
_CONNECT_S: Final = 0.5
#: Process, user and group id. Source: unix(7), `SO_PEERCRED`.
_UCRED: Final = Struct("3i")


def owner_of_port(port: int) -> str:
    """The process that listens at a TCP port, for people."""
    inodes = {f"socket:[{inode}]" for inode in _listening_inodes(port)}
    for process in Path("/proc").glob("[0-9]*"):
        if inodes & _open_sockets(process):
            return _described(int(process.name))
    return "another process (only root may see which)" if os.geteuid() else "another process"


def owner_of_socket(path: Path) -> str | None:
    """The process that listens at a Unix socket, for people; None if there is none."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(_CONNECT_S)
        try:
            client.connect(str(path))
        except TimeoutError:
            return "a process that does not answer"
        except OSError:
            return None
        pid, _, _ = _UCRED.unpack(client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        return _described(pid)


def _listening_inodes(port: int) -> Iterator[str]:
    for table in _TABLES:
        try:
            rows = Path(table).read_text(encoding="ascii").splitlines()[1:]
        except OSError:  # no IPv6
            continue
        for row in rows:
            columns = row.split()
            local_port = int(columns[_LOCAL_COLUMN].rpartition(":")[2], 16)
            if local_port == port and columns[_STATE_COLUMN] == _LISTENING:
                yield columns[_INODE_COLUMN]


def _open_sockets(process: Path) -> set[str]:
    """The sockets that a process has open; none where that may not be seen."""
    found = set()
    try:
        for entry in (process / "fd").iterdir():
            found.add(str(entry.readlink()))
    except OSError:
        pass
    return found


def _described(pid: int) -> str:
    try:
        name = Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        name = "a process"
    return f"{name} (pid {pid})"
