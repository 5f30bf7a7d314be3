"""Connections: who is at the other end, how long it may let us wait, how many there may be."""

import asyncio
from typing import Any, Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from chopperd.api.peers import peer_of
from chopperd.api.problems import MEDIA_TYPE, ProblemError

MOST_CONNECTIONS: Final = 64
#: Most bytes of a request's line and headers.
MOST_HEAD_BYTES: Final = 16 * 1024
#: Of a body that is sent in 10 s; less is too slow.
_LEAST_BYTES: Final = 10 * 1024
_GONE: Final[Message] = {"type": "http.disconnect"}


class Connections:
    """All that are open: past a number of them, who has let us wait longest gives way.

    So nobody is kept out by many that ask nothing. Where all are at work, newcomers are refused.

    Args:
        patience_s: How long a client may take to ask, to read 64 KiB, or to send 10 KiB.
    """

    def __init__(self, patience_s: float) -> None:
        self.patience_s = patience_s
        self._open: set[asyncio.Transport] = set()
        #: Since when, longest first.
        self._waiting: dict[asyncio.Transport, float] = {}

    def open(self, connection: asyncio.Transport) -> bool:
        """Whether there is place for one more; it is open then."""
        if len(self._open) >= MOST_CONNECTIONS:
            if not self._waiting:
                return False
            self.abort(next(iter(self._waiting)))
        self._open.add(connection)
        self.wait_for(connection)
        return True

    def wait_for(self, connection: asyncio.Transport) -> None:
        """Wait for its other end from now on."""
        self._waiting.pop(connection, None)
        if connection in self._open:
            self._waiting[connection] = asyncio.get_running_loop().time()

    def stop_waiting_for(self, connection: asyncio.Transport) -> None:
        """It is our turn."""
        self._waiting.pop(connection, None)

    def is_waiting_for(self, connection: asyncio.Transport) -> bool:
        """Whether it is the other end's turn."""
        return connection in self._waiting

    def close(self, connection: asyncio.Transport) -> None:
        """Forget it."""
        self._waiting.pop(connection, None)
        self._open.discard(connection)

    def abort(self, connection: asyncio.Transport) -> None:
        """End it at once."""
        self.close(connection)
        connection.abort()

    def abort_slow(self) -> None:
        """End those that we have waited for too long."""
        too_long_s = asyncio.get_running_loop().time() - self.patience_s
        for each in [each for each, since_s in self._waiting.items() if since_s < too_long_s]:
            self.abort(each)

    def abort_all(self) -> None:
        """End all at once."""
        for each in tuple(self._open):
            self.abort(each)


class ApiProtocol(H11Protocol):
    """uvicorn's HTTP/1.1, which puts connection and peer into the state of each request.

    `connections` of the application's state is where it is counted.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._state = dict(app_state)
        self._connections: Connections = app_state["connections"]
        super().__init__(config, server_state, self._state, _loop)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Note who connected; one too many is sent away."""
        super().connection_made(transport)
        peer = peer_of(transport.get_extra_info("socket"))
        self._state |= {"connection": transport, "peer": peer}
        if not self._connections.open(transport):
            self._refuse(ProblemError(503, "too many connections are open: try later"))

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        super().connection_lost(exc)
        self._connections.close(self.transport)

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP, or has too long a head; break off where an answer is due."""
        if self._connections.is_waiting_for(self.transport):
            self._refuse(ProblemError(400, f"{msg} A head may have {MOST_HEAD_BYTES} bytes."))
        else:
            self._connections.abort(self.transport)

    def _refuse(self, problem: ProblemError) -> None:
        """Answer without the application, and close."""
        body = problem.body()
        head = (
            f"HTTP/1.1 {problem.status} \r\nContent-Type: {MEDIA_TYPE}\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()


class Patient:
    """An application whose clients are cut off where they send or read too slowly.

    Args:
        app: It; it sends bodies in pieces of 64 KiB.
        connections: Where they are counted.
    """

    def __init__(self, app: ASGIApp, connections: Connections) -> None:
        self._app = app
        self._connections = connections

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, as long as the client goes on."""
        connections, connection = self._connections, scope["state"]["connection"]
        loop = asyncio.get_running_loop()
        left_s: float | None = connections.patience_s

        async def receive_in_time() -> Message:
            nonlocal left_s
            start_s = loop.time()
            try:
                async with asyncio.timeout(left_s):
                    message = await receive()
            except TimeoutError:
                connections.abort(connection)
                return _GONE
            if left_s is not None:
                earned_s = connections.patience_s * len(message.get("body", b"")) / _LEAST_BYTES
                left_s = min(left_s - loop.time() + start_s + earned_s, connections.patience_s)
            if not message.get("more_body", False):
                left_s = None
            return message

        async def send_in_time(message: Message) -> None:
            # The next request may begin before the last piece is sent.
            connections.wait_for(connection)
            await send(message)
            if message["type"] == "http.response.start" or message.get("more_body", False):
                connections.stop_waiting_for(connection)

        connections.stop_waiting_for(connection)
        await self._app(scope, receive_in_time, send_in_time)
