"""Who is at the other end of a connection: a user of this machine, or one inside a container.

A uid means nothing across containers: two of them may both run as 1000, and root inside one is not
root of the machine. So whoever connects to the Unix socket from a container has an identity of its
own there, a negative number that stands for container and uid together.
"""

import hashlib
import os
import re
import socket
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_CREDENTIALS: Final = struct.Struct("iII")
_ROOT_UID: Final = 0
#: The part of a control group's path that names a container, up to its end. Sources: the layouts of
#: containerd, CRI-O, Docker and Podman, with systemd's slices or without.
_CONTAINER: Final = re.compile(r".*[0-9a-f]{64}[^/]*|.*/(?:lxc|machine)[./-][^/]+")
#: So that it stays exact as a number in JSON.
_IDENTITY_BYTES: Final = 6
#: Uids that stand for "one that has no number here": unset, and of another user namespace.
_NOBODY_IN_PARTICULAR: Final = frozenset({2**32 - 1, 65_534})


class UnixPeer:
    """The other end of a Unix socket.

    Args:
        pid: As the kernel noted it when the connection was made; 0 if it has none here.
        uid: Likewise.

    Attributes:
        uid: The user who connected; below 0 inside a container, None if its container is unknown.
    """

    def __init__(self, pid: int, uid: int) -> None:
        self.uid = _owner_of(pid, uid)


def peer_of(connection: socket.socket | None) -> UnixPeer | None:
    """Who is at the other end of a connection; None over TCP, which tells nobody's uid."""
    if connection is None or connection.family != socket.AF_UNIX:
        return None
    try:
        return UnixPeer(*credentials(connection))
    except OSError:
        return None


def credentials(connection: socket.socket) -> tuple[int, int]:
    """Process id and uid at the other end of a Unix socket.

    Source: Linux, unix(7) `SO_PEERCRED`.
    """
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(data)
    return pid, uid


def program_name(pid: int, proc: Path = Path("/proc")) -> str:
    """The name of a process, for people."""
    try:
        return (proc / str(pid) / "comm").read_text(errors="replace").strip()
    except OSError:
        return "unknown"


def _known(uid: int) -> int | None:
    return None if uid in _NOBODY_IN_PARTICULAR else uid


@dataclass(frozen=True, slots=True)
class _Home:
    """Where a process lives; namespaces are None where they may not be read.

    `depth` counts the process id namespaces from ours down to its own.
    """

    container: str | None
    depth: int
    uid_map: str
    pid_namespace: str | None
    cgroup_namespace: str | None


def _owner_of(pid: int, uid: int) -> int | None:
    """The uid of a process of our own namespaces or of the machine; else a number for both.

    None where it can't be told, as of a process whose id can't be seen from here.
    """
    known_uid = _known(uid)
    if known_uid is None:
        return None
    try:
        peer, own = _home(pid), _home(os.getpid())
    except (OSError, ValueError):
        return None
    if not _is_inside(peer, own, known_uid):
        return known_uid
    identity = f"{peer.container} {peer.pid_namespace} {uid}".encode()
    return -1 - int.from_bytes(hashlib.sha256(identity).digest()[:_IDENTITY_BYTES])


def _is_inside(peer: _Home, own: _Home, uid: int) -> bool:
    """Whether a process runs inside a container that is not ours.

    For users but root, a user namespace is none: the kernel gives their uid of the machine.
    """
    if peer.depth > own.depth or peer.container not in (None, own.container):
        return True
    pairs = (
        (peer.pid_namespace, own.pid_namespace),
        (peer.cgroup_namespace, own.cgroup_namespace if own.container is None else None),
    )
    if any(a is not None and b is not None and a != b for a, b in pairs):
        return True
    return uid == _ROOT_UID and peer.uid_map != own.uid_map


def _home(pid: int) -> _Home:
    """Where a process lives.

    Source: proc(5): /proc/PID/cgroup, status (NSpid), uid_map, ns/.

    Raises:
        OSError: There is no such process, or it may not be read.
        ValueError: The kernel writes something else.
    """
    if pid <= 0:
        raise ValueError("the process can't be seen from here")
    folder = Path("/proc") / str(pid)
    status = (folder / "status").read_text()
    (ids,) = re.findall(r"^NSpid:(.*)$", status, re.MULTILINE)
    return _Home(
        container=_container((folder / "cgroup").read_text()),
        depth=len(ids.split()),
        uid_map=" ".join((folder / "uid_map").read_text().split()),
        pid_namespace=_namespace(folder, "pid"),
        cgroup_namespace=_namespace(folder, "cgroup"),
    )


def _container(groups: str) -> str | None:
    """The container that lines of /proc/PID/cgroup name; None if they name none."""
    paths = (line.split(":", 2)[-1] for line in groups.splitlines())
    found = (_CONTAINER.match(path) for path in paths)
    return next((each[0].rpartition("/")[2] for each in found if each), None)


def _namespace(folder: Path, kind: str) -> str | None:
    try:
        return str((folder / "ns" / kind).readlink())
    except OSError:
        return None
