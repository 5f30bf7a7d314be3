"""A listener: one application on some sockets, served by a thread and an event loop of its own."""

import asyncio
import logging
import math
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

import h11
from starlette.types import ASGIApp
from uvicorn import Config, Server

from chopperd.api.binding import unlink_if_ours
from chopperd.api.connections import MOST_HEAD_BYTES, ApiProtocol, Connections, Patient
from chopperd.errors import ChopperdError

logger = logging.getLogger(__name__)

_START_TIMEOUT_S: Final = 5.0
_PATIENCE_S: Final = 10.0
_LOOK_EVERY_S: Final = 0.5
_POLL_S: Final = 0.01
#: How long answers in progress may take to end when the listener stops; then how long it takes
#: until connections that were cut off are gone.
_GRACE_S: Final = 0.4
_AFTER_CUT_S: Final = 0.2


class Listener:
    """Serves an application until it is stopped.

    Threads: `chopperd-NAME`, and `chopperd-NAME-pool_*` for what blocks; all from the start.

    Args:
        app: What to serve.
        sockets: Where; they listen already, and are closed by `stop`.
        name: Of its threads: "api", "metrics".
        blocking_threads: How many calls that block may run at a time.
        patience_s: How long a client may take to ask, to read 64 KiB, or to send 10 KiB.
    """

    def __init__(
        self,
        app: ASGIApp,
        sockets: Sequence[socket.socket],
        name: str,
        *,
        blocking_threads: int = 2,
        patience_s: float = _PATIENCE_S,
    ) -> None:
        self._sockets = list(sockets)
        self._files = [_file_of(each) for each in sockets if each.family == socket.AF_UNIX]
        self._name = name
        self._blocking_threads = blocking_threads
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_up = threading.Event()
        self._server = _Server(app, Connections(patience_s), self._is_up.set)
        # Daemonic: a listener that is stuck must not keep the agent from ending.
        self._thread = threading.Thread(target=self._run, name=f"chopperd-{name}", daemon=True)

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where it can be reached: URLs, and paths of Unix sockets."""
        return tuple(_address(each) for each in self._sockets)

    @property
    def is_serving(self) -> bool:
        """Whether its thread runs."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Serve.

        Raises:
            ChopperdError: It does not come up.
        """
        self._thread.start()
        self._is_up.wait(_START_TIMEOUT_S)
        if not self._server.started:
            raise ChopperdError(f"the {self._name} listener does not start; the log says why")

    def stop(self, timeout_s: float = 1.0) -> bool:
        """Stop, also with answers in progress; whether all its threads have ended in time."""
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
        """A pool whose threads all run already, so that their number never changes."""
        count = self._blocking_threads
        if not count:
            return None
        pool = ThreadPoolExecutor(count, thread_name_prefix=f"chopperd-{self._name}-pool")
        all_there = threading.Barrier(count)
        wait([pool.submit(all_there.wait, _START_TIMEOUT_S) for _ in range(count)])
        return pool


class _Server(Server):
    """uvicorn's server, stopped by an event instead of looking ten times a second for a flag."""

    def __init__(self, app: ASGIApp, open_: Connections, is_up: Callable[[], None]) -> None:
        super().__init__(_config(Patient(app, open_), open_.patience_s))
        self.stopping = asyncio.Event()
        self._open = open_
        self._tell_that_it_is_up = is_up

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve; requests see `stopping` in their state."""
        self.lifespan.state |= {"stopping": self.stopping, "connections": self._open}
        await super().startup(sockets)
        await self.on_tick(0)
        self._tell_that_it_is_up()

    async def main_loop(self) -> None:
        """Look after the connections until it is to stop."""
        while not await self._is_stopping_within(_LOOK_EVERY_S):
            await self.on_tick(0)  # brings the Date header up to date
            self._open.abort_slow()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let answers in progress end for a moment, then cut them off."""
        for server in self.servers:
            server.close()
        for each in sockets or ():
            each.close()
        for connection in tuple(self.server_state.connections):
            with suppress(h11.LocalProtocolError):  # it can't end in order, and is cut off
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
        """Return when no connection and no request is left, or after a time."""
        state, loop = self.server_state, asyncio.get_running_loop()
        end_s = loop.time() + timeout_s
        while (state.connections or state.tasks) and loop.time() < end_s:
            await asyncio.sleep(_POLL_S)


def _finish_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Wait for requests whose connection is gone but whose call still blocks in the pool."""
    left = asyncio.all_tasks(loop)
    if left:
        loop.run_until_complete(asyncio.wait(left))


def _config(app: ASGIApp, keep_alive_s: float) -> Config:
    """How uvicorn serves: nothing of its own in logs or headers, no trust in forwarded ones."""
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
