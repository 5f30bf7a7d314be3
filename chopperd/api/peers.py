"""Who is at the other end of a connection."""

import socket
import struct
from typing import Final, Protocol

from chopperd.api.proc_net import Address, uid_of_client

_CREDENTIALS: Final = struct.Struct("iII")
#: Uids that stand for "one that has no number here": unset, and of another user namespace.
_NOBODY_IN_PARTICULAR: Final = frozenset({2**32 - 1, 65_534})


class Peer(Protocol):
    """The other end of a connection."""

    def uid(self) -> int | None:
        """The user there; None if it can't be told. May read files."""
        ...


class UnixPeer:
    """The other end of a Unix socket.

    Args:
        uid: As the kernel noted it when the connection was made.
    """

    def __init__(self, uid: int) -> None:
        self._uid = _known(uid)

    def uid(self) -> int | None:
        """The user who connected."""
        return self._uid


class TcpPeer:
    """The other end of a TCP connection.

    It is looked up at most once, while the connection stands: its port may be another's later.

    Args:
        client: Its address.
        server: Ours.
    """

    def __init__(self, client: Address, server: Address) -> None:
        self._client = client
        self._server = server
        self._uid: int | None = None
        self._is_looked_up = False

    def uid(self) -> int | None:
        """The user whose socket it is, where that is a process of this machine."""
        if not self._is_looked_up:
            self._uid = _known(uid_of_client(self._client, self._server))
            self._is_looked_up = True
        return self._uid


class UnknownPeer:
    """Somebody of whom nothing is known."""

    def uid(self) -> int | None:
        """None."""
        return None


def peer_of(connection: socket.socket) -> Peer:
    """Who is at the other end of a connected socket."""
    try:
        if connection.family == socket.AF_UNIX:
            return UnixPeer(credentials(connection)[1])
        client, server = connection.getpeername(), connection.getsockname()
        return TcpPeer(client[:2], server[:2])
    except OSError:
        return UnknownPeer()


def credentials(connection: socket.socket) -> tuple[int, int]:
    """Process id and uid at the other end of a Unix socket.

    Source: Linux, unix(7) `SO_PEERCRED`.
    """
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(data)
    return pid, uid


def _known(uid: int | None) -> int | None:
    return None if uid in _NOBODY_IN_PARTICULAR else uid
