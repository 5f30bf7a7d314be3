"""Who may ask for what, and from where: administrators, owners, hosts and origins."""

import grp
import os
import pwd
import stat
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
