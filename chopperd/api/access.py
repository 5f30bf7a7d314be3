"""Who asks, and who may ask for what, and from where: peers, administrators, hosts, origins.

A uid means nothing across containers: two of them may both run as 1000, and root inside one is not
root of the machine. So whoever connects to the Unix socket from a container has an identity of its
own there, a negative number that stands for container and uid together.
"""

import grp
import hashlib
import os
import pwd
import re
import socket
import stat
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from hmac import compare_digest
from pathlib import Path
from typing import Final

from chopperd.errors import ConfigError
from chopperd.model.captures import Viewer

_ROOT_UID: Final = 0
_LEAST_TOKEN_BYTES: Final = 16
_MOST_TOKEN_BYTES: Final = 4096
_LOCAL_HOSTS: Final = ("localhost", "127.0.0.1", "[::1]")
_CREDENTIALS: Final = struct.Struct("iII")
#: The part of a control group's path that names a container, up to its end. Sources: the layouts of
#: containerd, CRI-O, Docker and Podman, with systemd's slices or without.
_CONTAINER: Final = re.compile(r".*[0-9a-f]{64}[^/]*|.*/(?:lxc|machine)[./-][^/]+")
#: So that it stays exact as a number in JSON.
_IDENTITY_BYTES: Final = 6
#: Uids that stand for "one that has no number here": unset, and of another user namespace.
_NOBODY_IN_PARTICULAR: Final = frozenset({2**32 - 1, 65_534})


class Access(Enum):
    """Who may use a route.

    `ANYONE`: figures that name no job and no kernel. `VIEWER`: users, who see what is theirs, and
    administrators. `UPLOADER`: the same, to hand in what becomes theirs. `ADMIN`: administrators.
    """

    ANYONE = "anyone"
    VIEWER = "viewer"
    UPLOADER = "uploader"
    ADMIN = "admin"


def is_member(uid: int, group: str) -> bool:
    """Whether a user is in a group, also as one of many; False where either has no name here."""
    try:
        wanted = grp.getgrnam(group).gr_gid
    except KeyError:
        return False
    return is_member_of(uid, wanted)


def is_member_of(uid: int, gid: int) -> bool:
    """The same by the group's number."""
    try:
        user = pwd.getpwuid(uid)
    except KeyError:
        return False
    return gid in os.getgrouplist(user.pw_name, user.pw_gid)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessPolicy:
    """Who is an administrator, and by which names the API may be called.

    Attributes:
        agent_uid: The user that the agent runs as.
        admin_group: Group whose members are administrators; it need not exist.
        token: What makes its bearer an administrator; None if nothing does.
        hosts: Names in a `Host` header to answer to (`host_names`).
        is_member: Whether a user is in a group; may read files.
    """

    agent_uid: int
    admin_group: str
    token: str | None = field(default=None, repr=False)
    hosts: frozenset[str] = frozenset(_LOCAL_HOSTS)
    is_member: Callable[[int, str], bool] = is_member

    def accepts_token(self, token: str) -> bool:
        """Whether it is the token; takes as long for a wrong one."""
        expected = self.token
        return expected is not None and compare_digest(token.encode(), expected.encode())

    def viewer(self, uid: int | None, *, has_token: bool) -> Viewer:
        """What a user, or a bearer of the token, may see and do."""
        return Viewer(uid=uid, is_admin=has_token or (uid is not None and self._is_admin(uid)))

    def _is_admin(self, uid: int) -> bool:
        if uid < 0:  # inside a container: its names of users and groups are not ours
            return False
        return uid in (_ROOT_UID, self.agent_uid) or self.is_member(uid, self.admin_group)

    def answers_to(self, host: str) -> bool:
        """Whether a `Host` header names us, with any port."""
        return host_of(host) in self.hosts


def host_names(listen: str, allowed: Iterable[str]) -> frozenset[str]:
    """The names to answer to: the local ones, the address listened on, and those allowed.

    Args:
        listen: "ADDRESS:PORT", or "" for none.
        allowed: Names without ports; addresses of IPv6 with or without brackets.
    """
    names = [host_of(listen), *map(_bracketed, allowed)]
    return frozenset([*_LOCAL_HOSTS, *(name.lower() for name in names if name)])


def host_of(authority: str) -> str:
    """The host of "host:port" or "host", in lower case, without a dot at its end."""
    if authority.startswith("["):
        host, bracket, port = authority.partition("]")
        is_whole = bracket and (port == "" or port.startswith(":"))
        return (host + bracket).lower() if is_whole else ""
    return authority.partition(":")[0].lower().removesuffix(".")


def is_same_origin(origin: str, host: str) -> bool:
    """Whether an `Origin` header names the very host and port that a `Host` header does.

    A page of another port of this machine is somebody else's, as far as can be told.
    """
    scheme, separator, authority = origin.lower().partition("://")
    return bool(separator) and scheme in ("http", "https") and authority == host.lower()


def read_token(path: str) -> str:
    """The token in a file that only its owner can read.

    Raises:
        ConfigError: It can't be read, others can read it, or it is too short to be a secret.
    """
    key = f'api.token_file is "{path}"'
    try:
        with Path(path).open("rb") as file:
            status = os.fstat(file.fileno())
            data = file.read(_MOST_TOKEN_BYTES)
    except OSError as error:
        raise ConfigError([f"{key}: {error.strerror}"]) from error
    if status.st_uid not in (_ROOT_UID, os.geteuid()):
        raise ConfigError([f"{key}: must belong to the agent's user or to root"])
    if stat.S_IMODE(status.st_mode) & (stat.S_IRWXO | stat.S_IWGRP):
        raise ConfigError([f"{key}: others can read or change it; chmod 0600 it"])
    token = data.decode("ascii", errors="replace").strip()
    if len(token) < _LEAST_TOKEN_BYTES or not token.isascii() or not token.isprintable():
        raise ConfigError([f"{key}: must hold at least {_LEAST_TOKEN_BYTES} printable characters"])
    return token


def _bracketed(name: str) -> str:
    return f"[{name}]" if ":" in name and not name.startswith("[") else name


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
