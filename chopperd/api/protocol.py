"""The server's end of one HTTP connection: who is at the other end, and slow ones cut off."""

import asyncio
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState

from chopperd.api.peers import peer_of
from chopperd.api.problems import MEDIA_TYPE, ProblemError

MOST_CONNECTIONS: Final = 64
#: Most bytes of a request's line and headers.
MOST_HEAD_BYTES: Final = 16 * 1024
_LEAST_BYTES: Final = 10 * 1024


class Stage(Enum):
    """What a connection waits for."""

    HEAD = "the rest of a request's head"
    BODY = "the rest of a request's body"
    REST = "the rest of a body that nobody reads any more"
    ANSWER = "the answer to be read"
    WORK = "us"
    CLOSE = "the end"


_IDLE: Final = frozenset({Stage.HEAD, Stage.REST, Stage.ANSWER})


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a connection may stay in a stage without at least `_LEAST_BYTES` of progress."""

    head_s: float = 10.0
    body_s: float = 10.0
    rest_s: float = 5.0
    answer_s: float = 10.0
    close_s: float = 5.0

    def with_stage_s(self, stage: Stage) -> float:
        """For a stage, s."""
        of = {
            Stage.HEAD: self.head_s,
            Stage.BODY: self.body_s,
            Stage.REST: self.rest_s,
            Stage.ANSWER: self.answer_s,
            Stage.CLOSE: self.close_s,
        }
        return of.get(stage, float("inf"))


class ApiProtocol(H11Protocol):
    """HTTP/1.1 that tells the application its peer, and keeps the number of connections bounded.

    Past it the one that has let us wait longest gives way: who holds many and asks nothing keeps
    nobody out. Where all are at work, the newcomer is refused.

    It reads more of the state of uvicorn's protocol than uvicorn documents: tests on real sockets
    hold each use of it.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._received_bytes = 0
        self._stage: tuple[Stage, object] = (Stage.HEAD, None)
        self._stage_since_s = self.loop.time()
        self._stage_mark_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Note who connected; one too many is sent away."""
        super().connection_made(transport)
        self.app_state = {**self.app_state, "peer": peer_of(transport.get_extra_info("socket"))}
        if not self._has_place():
            self._refuse(ProblemError(503, "too many connections are open: try later"))

    def data_received(self, data: bytes) -> None:
        """Take what came, unless the connection was refused."""
        self._received_bytes += len(data)
        if not self.transport.is_closing():
            super().data_received(data)

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP, or has too long a head."""
        if not self._is_answered:
            self.transport.abort()
            return
        self._refuse(ProblemError(400, f"{msg} A head may have {MOST_HEAD_BYTES} bytes."))

    def _has_place(self) -> bool:
        """Whether we may stay; another may have had to go for that."""
        others = [
            each
            for each in self.connections
            if isinstance(each, ApiProtocol) and each is not self and not each.is_leaving
        ]
        if len(others) < MOST_CONNECTIONS:
            return True
        idle = [each for each in others if each.is_idle]
        if not idle:
            return False
        min(idle, key=lambda each: each.stage_since_s).transport.abort()
        return True

    @property
    def is_leaving(self) -> bool:
        """Whether the connection is as good as gone."""
        return self.transport.is_closing()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under work or on its way to us that somebody would miss."""
        return self._where()[0] in _IDLE

    @property
    def stage_since_s(self) -> float:
        """When it began to wait for what it waits for, by the event loop's clock."""
        return self._stage_since_s

    def _refuse(self, problem: ProblemError) -> None:
        """Answer without the application, and close."""
        body = problem.body()
        head = (
            f"HTTP/1.1 {problem.status} \r\nContent-Type: {MEDIA_TYPE}\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()

    def shutdown(self) -> None:
        """Close as soon as the answer in progress, if there is one, is given."""
        try:
            super().shutdown()
        except h11.LocalProtocolError:
            self.transport.abort()

    def cut_off_if_slow(self, patience: Patience) -> None:
        """End the connection if it has waited too long for its other end."""
        now_s = self.loop.time()
        stage, progress_bytes = self._where()
        is_new = self._stage != (stage, self.cycle)
        if is_new or progress_bytes - self._stage_mark_bytes >= _LEAST_BYTES:
            self._stage, self._stage_since_s = (stage, self.cycle), now_s
            self._stage_mark_bytes = progress_bytes
        elif now_s - self._stage_since_s > patience.with_stage_s(stage):
            self.transport.abort()

    @property
    def _is_answered(self) -> bool:
        """Whether no request is in progress."""
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is None or cycle.response_complete

    def _where(self) -> tuple[Stage, int]:
        """The stage, and how many bytes the other end has brought or taken in it."""
        if self.transport.is_closing():
            return Stage.CLOSE, 0
        is_answered = self._is_answered
        if self.conn.their_state is h11.SEND_BODY:
            if is_answered:
                return Stage.REST, 0
            return (Stage.WORK if self.flow.read_paused else Stage.BODY), self._received_bytes
        if self.flow.write_paused:
            return Stage.ANSWER, -self.transport.get_write_buffer_size()
        return (Stage.HEAD if is_answered else Stage.WORK), 0
