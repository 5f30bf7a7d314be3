"""Access control: peers of connections, administrators, host names and origins.

A uid means nothing across containers: two of them may both run as 1000, and root inside one is not
root of the machine. So a peer in a container that connects to the Unix socket gets an identity of
its own, a negative number that identifies container and uid together.
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
from typing import Final, NamedTuple

from chopperd.errors import ConfigError
from chopperd.model.captures import Viewer

_ROOT_UID: Final = 0
_LEAST_TOKEN_BYTES: Final = 16
_MOST_TOKEN_BYTES: Final = 4096
_LOCAL_HOSTS: Final = ("localhost", "127.0.0.1", "[::1]")
_CREDENTIALS: Final = struct.Struct("iII")
#: The start of a control group's path, up to the end of the part that names a container. Sources:
#: the layouts of containerd, CRI-O, Docker and Podman, with systemd's slices or without.
_CONTAINER: Final = re.compile(r".*[0-9a-f]{64}[^/]*|.*/(?:lxc|machine)[./-][^/]+")
#: Short enough to be exact as a number in JSON.
_IDENTITY_BYTES: Final = 6
#: Uids without a meaning here: unset, and of another user namespace.
_NOBODY_IN_PARTICULAR: Final = frozenset({2**32 - 1, 65_534})


class Access(Enum):
    """Level of access that a route requires.

    `ANYONE`: data without names of jobs and kernels. `VIEWER`: users, who see their own jobs, and
    administrators. `UPLOADER`: the same, to upload traces. `ADMIN`: administrators.
    """

    ANYONE = "anyone"
    VIEWER = "viewer"
    UPLOADER = "uploader"
    ADMIN = "admin"


def is_member(uid: int, group: str) -> bool:
    """Whether a user is in a group, primary or not; False if user or group is unknown."""
    try:
        return is_member_of(uid, grp.getgrnam(group).gr_gid)
    except KeyError:
        return False


def is_member_of(uid: int, gid: int) -> bool:
    """Whether a user is in the group with this number."""
    try:
        user = pwd.getpwuid(uid)
    except KeyError:
        return False
    return gid in os.getgrouplist(user.pw_name, user.pw_gid)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessPolicy:
    """Rules for who is an administrator, and which host names the API answers to."""

    agent_uid: int
    admin_group: str  # its members are administrators; need not exist
    #: Makes its bearer an administrator.
    token: str | None = field(default=None, repr=False)
    #: Names in a `Host` header to answer to (`host_names`).
    hosts: frozenset[str] = frozenset(_LOCAL_HOSTS)
    #: Whether a user is in a group; may read files.
    is_member: Callable[[int, str], bool] = is_member

    def accepts_token(self, token: str) -> bool:
        """Whether `token` is the administrators' token, compared in constant time."""
        expected = self.token
        return expected is not None and compare_digest(token.encode(), expected.encode())

    def viewer(self, uid: int | None, *, has_token: bool) -> Viewer:
        """Return the rights of a user (uid < 0: in a container) or of a bearer of the token."""
        is_admin = has_token or (
            uid is not None
            and uid >= 0
            and (uid in (_ROOT_UID, self.agent_uid) or self.is_member(uid, self.admin_group))
        )
        return Viewer(uid=uid, is_admin=is_admin)

    def answers_to(self, host: str) -> bool:
        """Whether a `Host` header contains one of this server's names, with any port."""
        return host_of(host) in self.hosts


def host_names(listen: str, allowed: Iterable[str]) -> frozenset[str]:
    """Return the host names to answer to: local ones, that of "ADDRESS:PORT", and those allowed.

    Addresses of IPv6 may be allowed with or without brackets.
    """
    bracketed = (f"[{name}]" if ":" in name and name[0] != "[" else name for name in allowed)
    names = [host_of(listen), *bracketed]
    return frozenset([*_LOCAL_HOSTS, *(name.lower() for name in names if name)])


def host_of(authority: str) -> str:
    """Return the host of "host:port" or "host" in lower case, without a final dot."""
    if authority.startswith("["):
        host, bracket, port = authority.partition("]")
        is_whole = bracket and (port == "" or port.startswith(":"))
        return (host + bracket).lower() if is_whole else ""
    return authority.partition(":")[0].lower().removesuffix(".")


def is_same_origin(origin: str, host: str) -> bool:
    """Whether an `Origin` header has the host and port of the `Host` header.

    A page from another port of this machine may belong to somebody else.
    """
    scheme, separator, authority = origin.lower().partition("://")
    return bool(separator) and scheme in ("http", "https") and authority == host.lower()


def read_token(path: str) -> str:
    """Return the token in a file that only its owner and group can read.

    Raises:
        ConfigError: The file can't be read, is open to others, or its token is too short.
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


class UnixPeer:
    """Process at the other end of a Unix socket, by its pid (0: not visible here) and uid.

    `uid` is its user; < 0 inside a container, None if its container is unknown.
    """

    def __init__(self, pid: int, uid: int) -> None:
        self.uid = _owner_of(pid, uid)


def peer_of(connection: socket.socket | None) -> UnixPeer | None:
    """Return the peer of a connection; None if unknown: TCP does not identify users."""
    if connection is None or connection.family != socket.AF_UNIX:
        return None
    try:
        return UnixPeer(*credentials(connection))
    except OSError:
        return None


def credentials(connection: socket.socket) -> tuple[int, int]:
    """Return the process id and uid at the other end of a Unix socket.

    Source: Linux, unix(7) `SO_PEERCRED`.
    """
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(data)
    return pid, uid


def program_name(pid: int, proc: Path = Path("/proc")) -> str:
    """Return the name of a process, or "unknown"."""
    try:
        return (proc / str(pid) / "comm").read_text(errors="replace").strip()
    except OSError:
        return "unknown"


class _Home(NamedTuple):
    """Container and namespaces that a process runs in; namespaces are None if unreadable."""

    container: str | None
    depth: int  # process id namespaces from ours down to its own
    uid_map: str
    pid_namespace: str | None
    cgroup_namespace: str | None


def _owner_of(pid: int, uid: int) -> int | None:
    """Return the uid of a process, or a number < 0 for container and uid if it is in a container.

    None if unknown, for example if the process is not visible from here.
    """
    if uid in _NOBODY_IN_PARTICULAR:
        return None
    try:
        peer, own = _home(pid), _home(os.getpid())
    except (OSError, ValueError):
        return None
    if not _is_inside(peer, own, uid):
        return uid
    identity = f"{peer.container} {peer.pid_namespace} {uid}".encode()
    return -1 - int.from_bytes(hashlib.sha256(identity).digest()[:_IDENTITY_BYTES])


def _is_inside(peer: _Home, own: _Home, uid: int) -> bool:
    """Whether a process runs in a container that is not ours.

    A user namespace alone counts for root only: for other users the kernel gives the machine's uid.
    """
    if peer.depth > own.depth or peer.container not in (None, own.container):
        return True
    pairs = (
        (peer.pid_namespace, own.pid_namespace),
        (peer.cgroup_namespace, own.cgroup_namespace if own.container is None else None),
    )
    is_apart = any(a is not None and b is not None and a != b for a, b in pairs)
    return is_apart or (uid == _ROOT_UID and peer.uid_map != own.uid_map)


def _home(pid: int) -> _Home:
    """Read the container and namespaces of a process.

    Source: proc(5): /proc/PID/cgroup, status (NSpid), uid_map, ns/.
    """
    if pid <= 0:
        raise ValueError("the process is not visible from here")
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
    """Return the container named in the lines of /proc/PID/cgroup; None if there is none."""
    paths = (line.split(":", 2)[-1] for line in groups.splitlines())
    found = (_CONTAINER.match(path) for path in paths)
    return next((each[0].rpartition("/")[2] for each in found if each), None)


def _namespace(folder: Path, kind: str) -> str | None:
    try:
        return str((folder / "ns" / kind).readlink())
    except OSError:
        return None
