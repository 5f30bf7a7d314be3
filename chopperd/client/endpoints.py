"""Where an agent of this node may answer: Unix sockets, then loopback TCP."""

import socket
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Final, TypeAlias

from chopperd.config.paths import readable_runtime_folders
from chopperd.config.sections import Config

SOCKET_NAME: Final = "api.sock"
_HOST: Final = "localhost"
#: Where to knock for a server that listens on every address.
_LOOPBACK: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}
_LISTENING: Final = "0A"


@dataclass(frozen=True, slots=True)
class SocketEndpoint:
    """A Unix socket, by which the agent knows the user who asks."""

    path: Path

    def __str__(self) -> str:
        """As people write it."""
        return str(self.path)

    def connect(self, timeout_s: float) -> HTTPConnection:
        """An open connection.

        Raises:
            OSError: Nothing listens there, or this user may not connect.
        """
        connection = HTTPConnection(_HOST, timeout=timeout_s)
        connection.sock = _connected_socket(self.path, timeout_s)
        return connection

    def server_uids(self) -> frozenset[int]:
        """The user who may make a socket in that folder: its owner; empty if that is anyone."""
        try:
            folder = self.path.parent.stat()
        except OSError:
            return frozenset()
        is_for_all = folder.st_mode & stat.S_IWOTH
        return frozenset() if is_for_all else frozenset({folder.st_uid})


@dataclass(frozen=True, slots=True)
class TcpEndpoint:
    """An IP address and a port."""

    address: str
    port: int

    def __str__(self) -> str:
        """As people and configurations write it."""
        shown = f"[{self.address}]" if ":" in self.address else self.address
        return f"{shown}:{self.port}"

    def connect(self, timeout_s: float) -> HTTPConnection:
        """An open connection.

        Raises:
            OSError: Nothing listens there.
        """
        connection = HTTPConnection(self.address, self.port, timeout=timeout_s)
        connection.connect()
        return connection

    def server_uids(self) -> frozenset[int]:
        """The users who listen on this port: anyone may, where no agent does."""
        return frozenset(_uids_listening_on(self.port))


Endpoint: TypeAlias = SocketEndpoint | TcpEndpoint


def api_endpoints(config: Config) -> tuple[Endpoint, ...]:
    """Where the API may answer, best first."""
    sockets = (SocketEndpoint(folder / SOCKET_NAME) for folder in readable_runtime_folders(config))
    return (*sockets, *_tcp_endpoints(config.api.listen))


def metrics_endpoints(config: Config) -> tuple[Endpoint, ...]:
    """Where the metrics may answer."""
    return _tcp_endpoints(config.metrics.listen)


def _tcp_endpoints(listen: str) -> tuple[TcpEndpoint, ...]:
    """Where to find what listens as configured; none for "nowhere", or a port not known before."""
    address, _, port = listen.rpartition(":")
    bare = address.removeprefix("[").removesuffix("]")
    if not port or int(port) == 0:
        return ()
    return (TcpEndpoint(_LOOPBACK.get(bare, bare), int(port)),)


def _connected_socket(path: Path, timeout_s: float) -> socket.socket:
    opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        opened.settimeout(timeout_s)
        opened.connect(str(path))
    except OSError:
        opened.close()
        raise
    return opened


def _uids_listening_on(port: int) -> Iterator[int]:
    """Whose sockets listen on a port of this machine, at any address.

    Source: Linux, proc(5) `/proc/net/tcp`.
    """
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        try:
            lines = table.read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for fields in map(str.split, lines):
            if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                yield int(fields[7])
