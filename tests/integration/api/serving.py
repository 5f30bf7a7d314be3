"""Real listeners on real sockets, and raw clients of them."""

import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from starlette.types import ASGIApp

from chopperd.agent.sockets import bind_tcp, bind_unix
from chopperd.api.listeners import Listener

IMPATIENT_S = 0.5
PATIENT_S = 10.0


@contextmanager
def serving(
    app: ASGIApp, sockets: Sequence[socket.socket], timeout_s: float = IMPATIENT_S
) -> Iterator[Listener]:
    listener = Listener(app, sockets, "api", timeout_s=timeout_s)
    listener.start()
    try:
        yield listener
    finally:
        assert listener.stop(5.0)


def loopback() -> socket.socket:
    return bind_tcp("127.0.0.1:0", key="api.listen", only_loopback=True)


def unix_socket(folder: Path) -> socket.socket:
    return bind_unix(folder / "api.sock")


def connected(listening: socket.socket, timeout_s: float = 10.0) -> socket.socket:
    client = socket.socket(listening.family, socket.SOCK_STREAM)
    client.settimeout(timeout_s)
    client.connect(listening.getsockname())
    return client


def head(method: str, target: str, *lines: str) -> bytes:
    return "\r\n".join([f"{method} {target} HTTP/1.1", "Host: localhost", *lines, "", ""]).encode()


def read_all(client: socket.socket) -> bytes:
    """Everything until the other end closes; a reset ends it too."""
    data = bytearray()
    try:
        while piece := client.recv(65_536):
            data += piece
    except ConnectionResetError:
        pass
    return bytes(data)


def read_until(client: socket.socket, ending: bytes) -> bytes:
    data = bytearray()
    while ending not in data:
        piece = client.recv(65_536)
        assert piece, f"closed after {bytes(data)!r}"
        data += piece
    return bytes(data)


def exchange(listening: socket.socket, request: bytes) -> bytes:
    """The answer to a request that asks for the connection to be closed after it."""
    with connected(listening) as client:
        client.sendall(request)
        return read_all(client)


def seconds_since(start: float) -> float:
    return time.monotonic() - start
