"""Open and remove the sockets that the agent listens on."""

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
    """Return a socket that listens on "ADDRESS:PORT"; port 0 takes any that is free.

    `key` is the configuration's, for errors.

    Raises:
        ConfigError: Another program listens there, or the address can't be used.
    """
    host = listen.rpartition(":")[0].strip("[]")
    if only_loopback and not ipaddress.ip_address(host).is_loopback:
        problem = "other machines could use it; listen on 127.0.0.1, or set api.insecure"
        raise ConfigError([f'{key} is "{listen}": {problem}'])
    try:
        listening = _bound(listen)
        listening.listen(_BACKLOG)
    except OSError as error:
        in_use = "another program listens there already; `ss -ltnp` names it"
        why = in_use if error.errno == errno.EADDRINUSE else error.strerror or str(error)
        raise ConfigError([f'{key} is "{listen}": {why}']) from error
    listening.setblocking(False)
    return listening


def is_in_use(listen: str) -> bool:
    """Whether something listens at "ADDRESS:PORT"."""
    try:
        _bound(listen).close()
    except OSError as error:
        return error.errno == errno.EADDRINUSE
    return False


def _bound(listen: str) -> socket.socket:
    """Return a socket bound to "ADDRESS:PORT"; raises OSError."""
    host, _, port = listen.rpartition(":")
    host = host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sends at once (TCP_NODELAY) only where the socket names its protocol; without it each
    # answer waits for the client's delayed acknowledgement, 40 ms.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, int(port)))
    except OSError:
        bound.close()
        raise
    return bound


def bind_unix(path: Path) -> socket.socket:
    """Return a Unix socket that listens at a path, writable for every user.

    The file of an agent that has ended is replaced.

    Raises:
        ConfigError: Another agent answers there, the path is no socket, or it can't be made.
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


def _clear(path: Path) -> None:
    """Remove a socket file on which nobody answers; raise `ConfigError` for anything else."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ConfigError([f"{path} exists and is not a socket"])
    if (other := _answering(path)) is not None:
        raise ConfigError([f"another agent answers on {path}: {other}"])
    path.unlink()


def _answering(path: Path) -> str | None:
    """Return the pid and program that listen on a Unix socket; None if nothing listens."""
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
