"""Listeners: an application on some sockets, in its own thread, with timeouts for clients."""

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
from chopperd.api.binding import unlink_if_ours
from chopperd.api.routing import PROBLEM_MEDIA_TYPE, ProblemError
from chopperd.errors import ChopperdError

MOST_CONNECTIONS: Final = 64
#: Most bytes of a request's line and headers.
MOST_HEAD_BYTES: Final = 16 * 1024
#: Least of a body to be sent within the timeout.
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

    So idle clients can't lock others out. If none is idle, the new one is refused.

    Args:
        timeout_s: How long a client may take to ask, to read 64 KiB, or to send 10 KiB.
    """

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._open: set[asyncio.Transport] = set()
        #: Since when we wait for the client, longest first.
        self._waiting: dict[asyncio.Transport, float] = {}

    def open(self, connection: asyncio.Transport) -> bool:
        """Add a connection; False if there are too many."""
        if len(self._open) >= MOST_CONNECTIONS:
            if not self._waiting:
                return False
            self.abort(next(iter(self._waiting)))
        self._open.add(connection)
        self.wait_for(connection)
        return True

    def wait_for(self, connection: asyncio.Transport) -> None:
        """Start the timeout of its client."""
        self._waiting.pop(connection, None)
        if connection in self._open:
            self._waiting[connection] = asyncio.get_running_loop().time()

    def stop_waiting_for(self, connection: asyncio.Transport) -> None:
        """Stop the timeout: it is our turn."""
        self._waiting.pop(connection, None)

    def is_waiting_for(self, connection: asyncio.Transport) -> bool:
        """Whether it is the client's turn."""
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
        """End those whose client was too slow."""
        too_long_s = asyncio.get_running_loop().time() - self.timeout_s
        for each in [each for each, since_s in self._waiting.items() if since_s < too_long_s]:
            self.abort(each)

    def abort_all(self) -> None:
        """Abort all connections."""
        for each in tuple(self._open):
            self.abort(each)


class ApiProtocol(H11Protocol):
    """uvicorn's HTTP/1.1 protocol, which adds connection and peer to the state of each request.

    It is registered in `connections` of the application's state.
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
        """Forget it."""
        super().connection_lost(exc)
        self._connections.close(self.transport)

    def send_400_response(self, msg: str) -> None:
        """Refuse invalid HTTP and too long headers; close at once if an answer is in progress."""
        if self._connections.is_waiting_for(self.transport):
            self._refuse(ProblemError(400, f"{msg} Headers may have {MOST_HEAD_BYTES} bytes."))
        else:
            self._connections.abort(self.transport)

    def _refuse(self, problem: ProblemError) -> None:
        """Answer without the application, and close."""
        body = problem.body()
        head = (
            f"HTTP/1.1 {problem.status} \r\nContent-Type: {PROBLEM_MEDIA_TYPE}\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()


class TimedApp:
    """An application whose clients are cut off if they send or read too slowly.

    It must send bodies in pieces of 64 KiB.
    """

    def __init__(self, app: ASGIApp, connections: Connections) -> None:
        self._app = app
        self._connections = connections

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, unless the client is too slow."""
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
    """Serves an application until it is stopped.

    Threads: `chopperd-NAME`, and `chopperd-NAME-pool_*` for blocking calls; all from the start.

    Args:
        app: The application.
        sockets: Listening already; closed by `stop`.
        name: Of its threads: "api", "metrics".
        blocking_threads: Most blocking calls at a time.
        timeout_s: How long a client may take to ask, to read 64 KiB, or to send 10 KiB.
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
        self._files = [_file_of(each) for each in sockets if each.family == socket.AF_UNIX]
        self._name = name
        self._blocking_threads = blocking_threads
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_up = threading.Event()
        self._server = _Server(app, Connections(timeout_s), self._is_up.set)
        # Daemonic: a listener that hangs must not stop the agent from ending.
        self._thread = threading.Thread(target=self._run, name=f"chopperd-{name}", daemon=True)

    @property
    def addresses(self) -> tuple[str, ...]:
        """Its addresses: URLs, and paths of Unix sockets."""
        return tuple(_address(each) for each in self._sockets)

    @property
    def is_serving(self) -> bool:
        """Whether its thread runs."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Serve.

        Raises:
            ChopperdError: It did not start in time.
        """
        self._thread.start()
        self._is_up.wait(_START_TIMEOUT_S)
        if not self._server.started:
            raise ChopperdError(f"the {self._name} listener does not start; the log says why")

    def stop(self, timeout_s: float = 1.0) -> bool:
        """Stop, cutting off answers in progress; whether all its threads ended in time."""
        if self._loop is None:
            self._close_sockets()
        elif self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._server.stopping.set)
            self._thread.join(timeout_s)
        for path, inode in self._files:
            unlink_if_ours(path, inode)
        if self._thread.is_alive():
            logger.warning("the %s listener has not stopped in %.1f s", self._name, timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        with closing(asyncio.SelectorEventLoop()) as loop:
            self._loop = loop
            pool = self._filled_pool()
            try:
                if pool is not None:
                    loop.set_default_executor(pool)
                loop.run_until_complete(self._server.serve(sockets=self._sockets))
                _finish_tasks(loop)
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

    def _filled_pool(self) -> ThreadPoolExecutor | None:
        """A pool whose threads all run from the start, so that their number never changes."""
        count = self._blocking_threads
        if not count:
            return None
        pool = ThreadPoolExecutor(count, thread_name_prefix=f"chopperd-{self._name}-pool")
        all_there = threading.Barrier(count)
        wait([pool.submit(all_there.wait, _START_TIMEOUT_S) for _ in range(count)])
        return pool


class _Server(Server):
    """uvicorn's server, stopped by an event instead of a flag that is polled ten times a second."""

    def __init__(self, app: ASGIApp, open_: Connections, is_up: Callable[[], None]) -> None:
        super().__init__(_config(TimedApp(app, open_), open_.timeout_s))
        self.stopping = asyncio.Event()
        self._open = open_
        self._is_up = is_up

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve, with `stopping` in the state of requests."""
        self.lifespan.state |= {"stopping": self.stopping, "connections": self._open}
        await super().startup(sockets)
        await self.on_tick(0)
        self._is_up()

    async def main_loop(self) -> None:
        """Cut slow connections off until the server is stopped."""
        while not await self._is_stopping_within(_CHECK_EVERY_S):
            await self.on_tick(0)  # updates the Date header
            self._open.abort_slow()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let answers in progress end for a moment, then cut them off."""
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

    async def _is_stopping_within(self, timeout_s: float) -> bool:
        try:
            async with asyncio.timeout(timeout_s):
                return await self.stopping.wait()
        except TimeoutError:
            return False

    async def _are_gone_within(self, timeout_s: float) -> None:
        """Return when no connection and no request remains, or after a timeout."""
        state, loop = self.server_state, asyncio.get_running_loop()
        end_s = loop.time() + timeout_s
        while (state.connections or state.tasks) and loop.time() < end_s:
            await asyncio.sleep(_POLL_S)


def _finish_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Wait for requests whose connection has ended but whose call still blocks in the pool."""
    left = asyncio.all_tasks(loop)
    if left:
        loop.run_until_complete(asyncio.wait(left))


def _config(app: ASGIApp, keep_alive_s: float) -> Config:
    """Uvicorn's settings: no logs and headers of its own, no trust in forwarded headers."""
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


def _file_of(listening: socket.socket) -> tuple[Path, int]:
    path = Path(listening.getsockname())
    return path, path.lstat().st_ino


def _address(listening: socket.socket) -> str:
    if listening.family == socket.AF_UNIX:
        return str(listening.getsockname())
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
