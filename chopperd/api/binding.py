"""Sockets to listen on, and why one can't be had."""

import errno
import ipaddress
import socket
import stat
from pathlib import Path
from typing import Final

from chopperd.errors import ConfigError

_BACKLOG: Final = 128
_PROBE_S: Final = 1.0
_EVERYONE: Final = 0o666


def bind_tcp(listen: str, *, key: str, only_loopback: bool = False) -> socket.socket:
    """A socket that listens on "ADDRESS:PORT".

    Args:
        listen: Numeric address and port; port 0 takes any that is free.
        key: The key of the configuration that says so, for errors.
        only_loopback: Whether other machines must not reach it.

    Raises:
        ConfigError: Something else listens there, or the address is not to be had.
    """
    host, _, port = listen.rpartition(":")
    host = host.strip("[]")
    if only_loopback and not ipaddress.ip_address(host).is_loopback:
        raise ConfigError(
            [
                f'{key} is "{listen}": anyone who reaches it could ask; listen on 127.0.0.1, or '
                "set api.insecure"
            ]
        )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sends at once (TCP_NODELAY) only where the socket names its protocol; without it each
    # answer waits for the client's delayed acknowledgement, 40 ms.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, int(port)))
        listening.listen(_BACKLOG)
    except OSError as error:
        listening.close()
        raise ConfigError([f'{key} is "{listen}": {_why(error)}']) from error
    listening.setblocking(False)
    return listening


def is_in_use(listen: str) -> bool:
    """Whether something listens at "ADDRESS:PORT", so that nobody else can."""
    host, _, port = listen.rpartition(":")
    host = host.strip("[]")
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, int(port)))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False


def bind_unix(path: Path) -> socket.socket:
    """A Unix socket that listens at a path, for every user: who they are is seen when they connect.

    A file that a dead agent left is replaced.

    Raises:
        ConfigError: Another agent answers there, something else is there, or it can't be made.
    """
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _clear(path)
        listening.bind(str(path))
        path.chmod(_EVERYONE)
        listening.listen(_BACKLOG)
    except OSError as error:
        listening.close()
        raise ConfigError([f"the socket {path}: {error.strerror or error}"]) from error
    except ConfigError:
        listening.close()
        raise
    listening.setblocking(False)
    return listening


def unlink_if_ours(path: Path, inode: int) -> None:
    """Remove a socket's file, unless another agent has put its own there."""
    try:
        if path.lstat().st_ino == inode:
            path.unlink()
    except FileNotFoundError:
        return


def _why(error: OSError) -> str:
    if error.errno != errno.EADDRINUSE:
        return error.strerror or str(error)
    return "another program listens there already; `ss -ltnp` names it"


def _clear(path: Path) -> None:
    """Remove a socket on which nobody answers.

    Raises:
        ConfigError: Somebody does, or it is no socket.
    """
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ConfigError([f"{path} is in the way: it is no socket"])
    if (other := _answering(path)) is not None:
        raise ConfigError([f"another agent answers on {path}: {other}"])
    path.unlink()


def _answering(path: Path) -> str | None:
    """Pid and program that listen on a Unix socket; None if none do."""
    # Loads numpy with the model of reports, which must not delay the sampler's start.
    from chopperd.api.access import credentials, program_name

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PROBE_S)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return None
        pid, _ = credentials(probe)
        return f"pid {pid} ({program_name(pid)})"
