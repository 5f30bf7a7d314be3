"""Listeners: serve an application on sockets in a thread of its own, with client timeouts."""

import asyncio
import logging
import math
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final

import h11
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn import Config, Server
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from chopperd.api.access import peer_of
from chopperd.api.routing import PROBLEM_MEDIA_TYPE, ProblemError, is_set_within
from chopperd.errors import ChopperdError

MOST_CONNECTIONS: Final = 64
#: Most bytes of a request's line and headers.
MOST_HEAD_BYTES: Final = 16 * 1024
#: Least bytes of a body that a client has to send within the timeout.
_LEAST_BYTES: Final = 10 * 1024
_GONE: Final[Message] = {"type": "http.disconnect"}
logger = logging.getLogger(__name__)

_START_TIMEOUT_S: Final = 5.0
_TIMEOUT_S: Final = 10.0
_CHECK_EVERY_S: Final = 0.5
_POLL_S: Final = 0.01
#: When the listener stops: how long answers in progress may take, and then the closing of
#: connections that were cut off.
_GRACE_S: Final = 0.4
_AFTER_CUT_S: Final = 0.2


class Connections:
    """All open connections; at their limit, a new one replaces the one idle for longest.

    So idle clients can't lock others out. If none is idle, the new one is refused. A client may
    take `timeout_s` to ask, to read 64 KiB, or to send 10 KiB.
    """

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._open: set[asyncio.Transport] = set()
        #: When waiting for each client began, in s of the loop's clock; longest first.
        self._waiting: dict[asyncio.Transport, float] = {}

    def open(self, connection: asyncio.Transport) -> bool:
        """Add a connection; return False if there are too many. May abort the longest idle one."""
        if len(self._open) >= MOST_CONNECTIONS:
            if not self._waiting:
                return False
            self.abort(next(iter(self._waiting)))
        self._open.add(connection)
        self.wait_for(connection)
        return True

    def wait_for(self, connection: asyncio.Transport) -> None:
        """Start the timeout of a connection's client, if the connection is open."""
        self._waiting.pop(connection, None)
        if connection in self._open:
            self._waiting[connection] = asyncio.get_running_loop().time()

    def stop_waiting_for(self, connection: asyncio.Transport) -> None:
        """Stop the timeout of a connection's client: the server has to act."""
        self._waiting.pop(connection, None)

    def is_waiting_for(self, connection: asyncio.Transport) -> bool:
        """Whether the client of a connection has to act."""
        return connection in self._waiting

    def close(self, connection: asyncio.Transport) -> None:
        """Remove a connection from the open ones, without closing it."""
        self._waiting.pop(connection, None)
        self._open.discard(connection)

    def abort(self, connection: asyncio.Transport) -> None:
        """Remove a connection and close it at once."""
        self.close(connection)
        connection.abort()

    def abort_slow(self) -> None:
        """Abort the connections whose clients exceeded the timeout."""
        too_long_s = asyncio.get_running_loop().time() - self.timeout_s
        for each in [each for each, since_s in self._waiting.items() if since_s < too_long_s]:
            self.abort(each)

    def abort_all(self) -> None:
        """Abort all connections."""
        for each in tuple(self._open):
            self.abort(each)


class ApiProtocol(H11Protocol):
    """HTTP/1.1 protocol of uvicorn that adds connection and peer to each request's state.

    Each connection registers itself in `connections` of the application's state.
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
        """Register the connection and its peer, or refuse it if there are too many."""
        super().connection_made(transport)
        peer = peer_of(transport.get_extra_info("socket"))
        self._state |= {"connection": transport, "peer": peer}
        if not self._connections.open(transport):
            self._refuse(ProblemError(503, "too many connections are open: try later"))

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the connection from the open ones."""
        super().connection_lost(exc)
        self._connections.close(self.transport)

    def send_400_response(self, msg: str) -> None:
        """Refuse invalid HTTP and too long headers; close at once if an answer is in progress."""
        if self._connections.is_waiting_for(self.transport):
            self._refuse(ProblemError(400, f"{msg} Headers may have {MOST_HEAD_BYTES} bytes."))
        else:
            self._connections.abort(self.transport)

    def _refuse(self, problem: ProblemError) -> None:
        """Send an error response without the application, and close the connection."""
        body = problem.body()
        head = (
            f"HTTP/1.1 {problem.status} \r\nContent-Type: {PROBLEM_MEDIA_TYPE}\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()


class TimedApp:
    """Wraps an application and aborts connections whose clients send or read too slowly.

    It must send bodies in pieces of 64 KiB.
    """

    def __init__(self, app: ASGIApp, connections: Connections) -> None:
        self._app = app
        self._connections = connections

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application for one request; abort the connection if its client is too slow."""
        connections, connection = self._connections, scope["state"]["connection"]
        loop = asyncio.get_running_loop()
        left_s: float | None = connections.timeout_s

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
                earned_s = connections.timeout_s * len(message.get("body", b"")) / _LEAST_BYTES
                left_s = min(left_s - loop.time() + start_s + earned_s, connections.timeout_s)
            if not message.get("more_body", False):
                left_s = None
            return message

        async def send_in_time(message: Message) -> None:
            # The client's next request may begin before the last piece is sent.
            connections.wait_for(connection)
            await send(message)
            if message["type"] == "http.response.start" or message.get("more_body", False):
                connections.stop_waiting_for(connection)

        connections.stop_waiting_for(connection)
        await self._app(scope, receive_in_time, send_in_time)


class Listener:
    """Serves an application in a thread until it is stopped.

    Threads: `chopperd-NAME`, and `chopperd-NAME-pool_*` for blocking calls; all from the start.
    `stop` closes the sockets; `timeout_s` as in `Connections`.
    """

    def __init__(
        self,
        app: ASGIApp,
        sockets: Sequence[socket.socket],
        name: str,
        *,
        blocking_threads: int = 2,
        timeout_s: float = _TIMEOUT_S,
    ) -> None:
        self._sockets = list(sockets)
        unix = [Path(each.getsockname()) for each in sockets if each.family == socket.AF_UNIX]
        self._inodes = {path: path.lstat().st_ino for path in unix}
        self._name = name
        self._blocking_threads = blocking_threads
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_up = threading.Event()
        self._server = _Server(app, Connections(timeout_s), self._is_up.set)
        # Daemonic: a listener that hangs must not stop the agent from ending.
        self._thread = threading.Thread(target=self._run, name=f"chopperd-{name}", daemon=True)

    @property
    def is_serving(self) -> bool:
        """Whether the listener's thread runs."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Start the thread and wait until it serves.

        Raises:
            ChopperdError: The listener did not start in time.
        """
        self._thread.start()
        self._is_up.wait(_START_TIMEOUT_S)
        if not self._server.started:
            raise ChopperdError(f"the {self._name} listener does not start; the log says why")

    def stop(self, timeout_s: float = 1.0) -> bool:
        """Stop, aborting answers in progress; return whether all threads ended in time."""
        if self._loop is None:
            self._close_sockets()
        elif self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._server.stopping.set)
            self._thread.join(timeout_s)
        for path, inode in self._inodes.items():
            unlink_if_ours(path, inode)
        if self._thread.is_alive():
            logger.warning("the %s listener has not stopped in %.1f s", self._name, timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        with closing(asyncio.SelectorEventLoop()) as loop:
            self._loop = loop
            pool = self._filled_pool(self._blocking_threads) if self._blocking_threads else None
            try:
                if pool is not None:
                    loop.set_default_executor(pool)
                loop.run_until_complete(self._server.serve(sockets=self._sockets))
                # Requests whose connection has ended but whose call still blocks in the pool.
                if left := asyncio.all_tasks(loop):
                    loop.run_until_complete(asyncio.wait(left))
            except Exception:  # the thread's guard: the agent goes on without it
                logger.exception("the %s listener failed", self._name)
            finally:
                self._close_sockets()
                self._is_up.set()
                if pool is not None:
                    pool.shutdown(wait=True, cancel_futures=True)

    def _close_sockets(self) -> None:
        for each in self._sockets:
            each.close()

    def _filled_pool(self, count: int) -> ThreadPoolExecutor:
        """Return a pool with all threads started, so that their number is constant."""
        pool = ThreadPoolExecutor(count, thread_name_prefix=f"chopperd-{self._name}-pool")
        all_there = threading.Barrier(count)
        wait([pool.submit(all_there.wait, _START_TIMEOUT_S) for _ in range(count)])
        return pool


def unlink_if_ours(path: Path, inode: int) -> None:
    """Remove a socket's file, unless another agent has put its own there."""
    try:
        if path.lstat().st_ino == inode:
            path.unlink()
    except FileNotFoundError:
        return


class _Server(Server):
    """Uvicorn's server, stopped by an event instead of a flag polled ten times a second."""

    def __init__(self, app: ASGIApp, open_: Connections, is_up: Callable[[], None]) -> None:
        super().__init__(_config(TimedApp(app, open_), open_.timeout_s))
        self.stopping = asyncio.Event()
        self._open = open_
        self._is_up = is_up

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to serve; put `stopping` and `connections` into the state of requests."""
        self.lifespan.state |= {"stopping": self.stopping, "connections": self._open}
        await super().startup(sockets)
        await self.on_tick(0)
        self._is_up()

    async def main_loop(self) -> None:
        """Abort slow connections regularly until the server is stopped."""
        while not await is_set_within(self.stopping, _CHECK_EVERY_S):
            await self.on_tick(0)  # updates the Date header
            self._open.abort_slow()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the sockets, let answers in progress end for a moment, then abort them."""
        for server in self.servers:
            server.close()
        for each in sockets or ():
            each.close()
        for connection in tuple(self.server_state.connections):
            with suppress(h11.LocalProtocolError):  # can't be closed properly: cut off below
                connection.shutdown()
        await self._are_gone_within(_GRACE_S)
        self._open.abort_all()
        await self._are_gone_within(_AFTER_CUT_S)

    async def _are_gone_within(self, timeout_s: float) -> None:
        """Wait until no connection and no request remains, at most `timeout_s`."""
        state, loop = self.server_state, asyncio.get_running_loop()
        end_s = loop.time() + timeout_s
        while (state.connections or state.tasks) and loop.time() < end_s:
            await asyncio.sleep(_POLL_S)


def _config(app: ASGIApp, keep_alive_s: float) -> Config:
    """Return uvicorn's settings: no logs or headers of its own, no trust in forwarded headers."""
    return Config(
        app,
        http=ApiProtocol,
        ws="none",
        loop="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        log_level="error",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=math.ceil(keep_alive_s),
        h11_max_incomplete_event_size=MOST_HEAD_BYTES,
    )
