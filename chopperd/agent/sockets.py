"""The agent's listening sockets: opened before anything else starts, so that a clash is an error.

Clients that come before the web stack is up wait in the sockets' queues.
"""

import errno
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from chopperd.agent.owners import owner_of_port, owner_of_socket
from chopperd.config.sections import Config
from chopperd.errors import ConfigError

SOCKET_NAME: Final = "api.sock"
#: Longest path that fits a Unix socket address.
#: Source: unix(7), `sun_path` with its final NUL.
_LONGEST_PATH_BYTES: Final = 107
_BACKLOG: Final = 128
#: Whoever connects is asked for his user id.
_SOCKET_MODE: Final = 0o666


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """Where the agent answers; None where it does not."""

    metrics: tuple[str, int] | None
    api: tuple[str, int] | None
    api_socket: Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sockets:
    """Listening sockets; None where the configuration wants none or none can be had.

    Attributes:
        metrics: For Prometheus.
        api: Loopback TCP of the API.
        api_local: Unix socket of the API.
        local_path: The path of `api_local`.
    """

    metrics: socket.socket | None
    api: socket.socket | None
    api_local: socket.socket | None
    local_path: Path

    @property
    def addresses(self) -> Addresses:
        """Where they listen; ports as bound, also where any port was asked for."""
        return Addresses(
            metrics=_name(self.metrics),
            api=_name(self.api),
            api_socket=self.local_path if self.api_local else None,
        )

    def close(self) -> None:
        """Stop listening."""
        if self.api_local is not None:
            with suppress(OSError):
                self.local_path.unlink()
        for listener in (self.metrics, self.api, self.api_local):
            if listener is not None:
                listener.close()


def opened_sockets(config: Config, runtime: Path, *, with_local: bool) -> Sockets:
    """All sockets of an agent, listening.

    Args:
        config: Says where to listen.
        runtime: Folder of the Unix socket.
        with_local: Whether to have one; not where the folder can't be written to.

    Raises:
        ConfigError: Some can't be had: lists each with whose it is.
    """
    problems = list(_refused(config))
    path = runtime / SOCKET_NAME
    sockets = Sockets(
        metrics=_attempt(lambda: _on_port("metrics.listen", config.metrics.listen), problems),
        api=_attempt(lambda: _on_port("api.listen", config.api.listen), problems),
        api_local=_attempt(lambda: _at_path(path), problems) if with_local else None,
        local_path=path,
    )
    if problems:
        sockets.close()
        raise ConfigError(problems)
    return sockets


def _attempt(
    listen: Callable[[], socket.socket | None], problems: list[str]
) -> socket.socket | None:
    try:
        return listen()
    except ConfigError as error:
        problems.extend(error.problems)
        return None


def _refused(config: Config) -> Iterator[str]:
    """What must not be listened at."""
    address, port = _split(config.api.listen)
    if port is not None and not config.api.insecure and not ip_address(address).is_loopback:
        yield (
            f"api.listen: {config.api.listen} is not loopback, and anyone there could read the "
            "API; listen at 127.0.0.1, or set api.insecure = true"
        )


def _on_port(key: str, where: str) -> socket.socket | None:
    """A TCP socket that listens where the setting `key` says."""
    address, port = _split(where)
    if port is None:
        return None
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            problem = f"{key}: {where} is in use by {owner_of_port(port)}"
        else:
            problem = f"{key}: can't listen at {where}: {error.strerror}"
        raise ConfigError([problem]) from error
    return listener


def _at_path(path: Path) -> socket.socket:
    """A Unix socket that listens at a path; one that a dead agent left is taken away first."""
    if len(os.fsencode(path)) > _LONGEST_PATH_BYTES:
        raise ConfigError(
            [
                f"paths.runtime: {path} is too long for a socket "
                f"({_LONGEST_PATH_BYTES} bytes at most)"
            ]
        )
    owner = owner_of_socket(path)
    if owner is not None:
        raise ConfigError([f"paths.runtime: {path} is in use by {owner}"])
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.unlink(missing_ok=True)
        listener.bind(str(path))
        path.chmod(_SOCKET_MODE)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigError([f"paths.runtime: can't listen at {path}: {error.strerror}"]) from error
    return listener


def _split(where: str) -> tuple[str, int | None]:
    """Address and port of `ADDRESS:PORT`; no port where there is to be no socket."""
    address, _, port = where.rpartition(":")
    return address.strip("[]"), int(port) if port else None


def _name(listener: socket.socket | None) -> tuple[str, int] | None:
    if listener is None:
        return None
    address, port = listener.getsockname()[:2]
    return str(address), int(port)
