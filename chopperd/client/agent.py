"""Client of this node's agent: one method for each request, answers as typed values."""

import os
import socket
import stat
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPResponse
from pathlib import Path
from typing import Final, TypeAlias, TypeVar
from urllib.parse import urlencode

import msgspec
from msgspec.structs import asdict

from chopperd.api import models
from chopperd.api.access import is_member_of
from chopperd.config.paths import SOCKET_NAME, readable_runtime_folders
from chopperd.config.sections import Config
from chopperd.errors import AgentRefusedError, AgentUnreachableError
from chopperd.model.captures import GpuDrop, JobEntry, StepQuery, TraceEntry
from chopperd.model.live import NodeSnapshot
from chopperd.model.report import ReportDocument
from chopperd.model.report_rows import Row

_HOST: Final = "localhost"
#: Where to connect to a server that listens on every address.
_LOOPBACK: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}
_LISTENING: Final = "0A"
_ROOT_UID: Final = 0
_FIRST_FAILURE: Final = 400
_PROBLEM_BYTES: Final = 64 * 1024
_START_ONE: Final = "start one with `chopperd run`"

Query = Mapping[str, str | int | None]


@dataclass(frozen=True, slots=True)
class SocketEndpoint:
    """Unix socket of an agent, which identifies the connecting user."""

    path: Path

    def __str__(self) -> str:
        """Return the path."""
        return str(self.path)

    def connect(self, timeout_s: float) -> HTTPConnection:
        """Connect, and return the open connection.

        Raises:
            OSError: Nothing listens there, or this user may not connect.
        """
        opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            opened.settimeout(timeout_s)
            opened.connect(str(self.path))
        except OSError:
            opened.close()
            raise
        connection = HTTPConnection(_HOST, timeout=timeout_s)
        connection.sock = opened
        return connection

    def server_uids(self) -> frozenset[int]:
        """Return the user who may make a socket in the folder: its owner; empty if anyone may."""
        try:
            folder = self.path.parent.stat()
        except OSError:
            return frozenset()
        is_for_all = folder.st_mode & stat.S_IWOTH
        return frozenset() if is_for_all else frozenset({folder.st_uid})


@dataclass(frozen=True, slots=True)
class TcpEndpoint:
    """IP address and port of an agent."""

    address: str
    port: int

    def __str__(self) -> str:
        """Return "ADDRESS:PORT" as in the configuration."""
        shown = f"[{self.address}]" if ":" in self.address else self.address
        return f"{shown}:{self.port}"

    def connect(self, timeout_s: float) -> HTTPConnection:
        """Connect, and return the open connection.

        Raises:
            OSError: Nothing listens there.
        """
        connection = HTTPConnection(self.address, self.port, timeout=timeout_s)
        connection.connect()
        return connection

    def server_uids(self) -> frozenset[int]:
        """Return the users whose sockets listen on this port; any user may if no agent runs."""
        return frozenset(_uids_listening_on(self.port))


Endpoint: TypeAlias = SocketEndpoint | TcpEndpoint


def api_endpoints(config: Config) -> tuple[Endpoint, ...]:
    """Return the possible addresses of the API, best first."""
    sockets = (SocketEndpoint(folder / SOCKET_NAME) for folder in readable_runtime_folders(config))
    return (*sockets, *_tcp_endpoints(config.api.listen))


def metrics_endpoints(config: Config) -> tuple[Endpoint, ...]:
    """Return the possible addresses of the metrics listener."""
    return _tcp_endpoints(config.metrics.listen)


def _tcp_endpoints(listen: str) -> tuple[TcpEndpoint, ...]:
    """Return the address of a configured listener; empty if it is off or its port is not fixed."""
    address, _, port = listen.rpartition(":")
    bare = address.removeprefix("[").removesuffix("]")
    if not port or int(port) == 0:
        return ()
    return (TcpEndpoint(_LOOPBACK.get(bare, bare), int(port)),)


def _uids_listening_on(port: int) -> Iterator[int]:
    """Yield the users whose sockets listen on a port of this machine, at any address.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """Administrators' token, and the owner, group and mode of its file."""

    text: str = field(repr=False)
    owner_uid: int
    group_gid: int
    mode: int

    def is_known_to(self, uids: Iterable[int]) -> bool:
        """Whether all of these users, at least one, can read the token's file."""
        for_group = self.mode & stat.S_IRGRP
        known = [
            uid in (_ROOT_UID, self.owner_uid)
            or bool(for_group and is_member_of(uid, self.group_gid))
            for uid in uids
        ]
        return bool(known) and all(known)


def read_token(path: str | None) -> Token | None:
    """Read the token in a file; None if there is none or this user may not read it."""
    if path is None:
        return None
    try:
        with Path(path).open(encoding="ascii") as file:
            status, text = os.fstat(file.fileno()), file.read().strip()
    except (OSError, UnicodeDecodeError):
        return None
    if not text:
        return None
    return Token(text=text, owner_uid=status.st_uid, group_gid=status.st_gid, mode=status.st_mode)


class _Problem(msgspec.Struct):
    """Fields of an RFC 9457 problem that the client uses."""

    title: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Transport:
    """Sends HTTP requests to the first endpoint of the agent that accepts a connection."""

    endpoints: Sequence[Endpoint]  # best first
    #: Of administrators; sent only to servers that can read it themselves.
    token: Token | None = None
    timeout_s: float = 5.0  # longest wait to connect, and for each part of an answer

    def fetch(self, path: str, query: Query | None = None, *, accept: str = "*/*") -> bytes:
        """Send a GET request and return the body of the successful answer.

        Raises:
            AgentUnreachableError: Nobody answers.
            AgentRefusedError: The agent refuses; says why.
        """
        with self.opened(path, query, accept=accept) as response:
            try:
                return response.read()
            except (OSError, HTTPException) as error:
                message = f"the agent ended the connection: {_reason(error)}"
                raise AgentUnreachableError(message) from error

    @contextmanager
    def opened(
        self, path: str, query: Query | None = None, *, accept: str = "*/*"
    ) -> Iterator[HTTPResponse]:
        """Send a GET request and give the successful answer, its body unread; closed afterwards.

        Raises:
            AgentUnreachableError: Nobody answers.
            AgentRefusedError: The agent refuses; says why.
        """
        given = {name: value for name, value in (query or {}).items() if value is not None}
        target = f"{path}?{urlencode(given)}" if given else path
        endpoint, connection = self._connect()
        with closing(connection):
            try:
                connection.request("GET", target, headers=self._headers(accept, endpoint))
                response = connection.getresponse()
            except (OSError, HTTPException) as error:
                message = f"the server at {endpoint} does not answer: {_reason(error)}"
                raise AgentUnreachableError(message) from error
            with response:
                if response.status >= _FIRST_FAILURE:
                    raise AgentRefusedError(_refusal(response), status=response.status)
                yield response

    def _connect(self) -> tuple[Endpoint, HTTPConnection]:
        tried: list[str] = []
        for endpoint in self.endpoints:
            try:
                return endpoint, endpoint.connect(self.timeout_s)
            except OSError as error:
                tried.append(f"{endpoint} ({_reason(error)})")
        where = f" at {', '.join(tried)}" if tried else ": no address is configured"
        raise AgentUnreachableError(f"no agent answers{where}; {_START_ONE}")

    def _headers(self, accept: str, endpoint: Endpoint) -> dict[str, str]:
        headers = {"Accept": accept, "Connection": "close"}
        if self.token is not None and self.token.is_known_to(endpoint.server_uids()):
            headers["Authorization"] = f"Bearer {self.token.text}"
        return headers


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error) or type(error).__name__


def _refusal(response: HTTPResponse) -> str:
    """Return why the agent refuses, by its problem document if it sent one."""
    try:
        problem = msgspec.json.decode(response.read(_PROBLEM_BYTES), type=_Problem)
    except (msgspec.MsgspecError, OSError, HTTPException):
        problem = _Problem()
    said = problem.detail or problem.title or response.reason
    verdict = "has none" if response.status == HTTPStatus.NOT_FOUND else "refuses"
    return f"the agent {verdict}: {said} (HTTP {response.status})"


Answer = TypeVar("Answer")

_API: Final = "/api/v1"
_JSON: Final = "application/json"
_NEWS: Final = b"event: snapshot"
_PAGE_ROWS: Final = 1000


@dataclass(frozen=True, slots=True)
class AgentClient:
    """Sends requests to the agent of this node.

    Any request may raise `AgentUnreachableError` or `AgentRefusedError`, with one line for people.
    """

    api: Transport
    exposition: Transport  # the metrics

    @staticmethod
    def of(config: Config) -> "AgentClient":
        """Return a client of the agent at its configured addresses."""
        api = api_endpoints(config)
        return AgentClient(
            api=Transport(api, token=read_token(config.api.token_file)),
            exposition=Transport((*api, *metrics_endpoints(config))),
        )

    def status(self) -> models.Status:
        """Request the status of the agent."""
        return self.status_and_json()[0]

    def status_and_json(self) -> tuple[models.Status, bytes]:
        """Request the status of the agent; return it parsed and as JSON."""
        body = self.api.fetch(f"{_API}/status", accept=_JSON)
        return _decoded(body, models.Status), body

    def gpus(self) -> models.Gpus:
        """Request the present state of all GPUs."""
        return self._get("/gpus", models.Gpus)

    def snapshot(self) -> NodeSnapshot:
        """Request the present state of the agent and its GPUs, in two requests."""
        return models.snapshot_of(self.status(), self.gpus())

    def snapshots(self) -> Generator[NodeSnapshot]:
        """Yield the state of agent and GPUs whenever the agent takes a snapshot.

        Raises:
            AgentUnreachableError: The agent or the connection has ended.
        """
        with self.api.opened(f"{_API}/stream", accept="text/event-stream") as events:
            try:
                for line in events:
                    if line.rstrip() == _NEWS:
                        yield self.snapshot()
            except (OSError, HTTPException) as error:
                raise AgentUnreachableError("the agent broke off its stream") from error
        raise AgentUnreachableError("the agent has ended")

    def report_latest(self, job: str | None = None) -> ReportDocument:
        """Request the report on the newest capture, of a job or of any, with kernel families."""
        return self._get("/report/latest", ReportDocument, {"job": job, "include": "families"})

    def steps(self, query: StepQuery, *, limit: int, cursor: str | None = None) -> models.Steps:
        """Request a page of step rows, newest first; `cursor` is that of the previous page."""
        asked = {name.removesuffix("_unix_ns"): value for name, value in asdict(query).items()}
        return self._get("/steps", models.Steps, {**asked, "limit": limit, "cursor": cursor})

    def last_steps(self, query: StepQuery, count: int) -> tuple[Row, ...]:
        """Request all rows of the last `count` steps that match, oldest step first."""
        found: list[Row] = []
        cursor: str | None = None
        while True:
            page = self.steps(query, limit=_PAGE_ROWS, cursor=cursor)
            found += page.steps
            cursor = page.cursor
            if cursor is None or len(_step_keys(found)) > count:
                break
        wanted = {key: nth for nth, key in enumerate(reversed(_step_keys(found)[:count]))}
        # Within a step by rank, then device; unknown first.
        found.sort(key=lambda row: (_number(row.rank), _number(row.device)))
        chosen = [row for row in found if _step_key(row) in wanted]
        return tuple(sorted(chosen, key=lambda row: wanted[_step_key(row)]))

    def traces(self, limit: int = _PAGE_ROWS) -> tuple[TraceEntry, ...]:
        """Request the traces that the agent received, newest first."""
        return self._get("/traces", models.Traces, {"limit": limit}).traces

    def jobs(self) -> tuple[JobEntry, ...]:
        """Request the jobs that traces came from, newest first."""
        return self._get("/jobs", models.Jobs).jobs

    def drops(self, *, gpu: str | None, limit: int) -> tuple[GpuDrop, ...]:
        """Request drops of busy clocks, newest first; only of one GPU if `gpu` is given."""
        return self._get("/drops", models.Drops, {"gpu": gpu, "limit": limit}).drops

    def metrics(self) -> str:
        """Request the metrics in Prometheus's text format."""
        return self.exposition.fetch("/metrics").decode()

    def _get(
        self, path: str, answer: type[Answer], query: Mapping[str, str | int | None] | None = None
    ) -> Answer:
        return _decoded(self.api.fetch(f"{_API}{path}", query, accept=_JSON), answer)


def _decoded(body: bytes, answer: type[Answer]) -> Answer:
    try:
        return msgspec.json.decode(body, type=answer)
    except msgspec.MsgspecError as error:
        message = f"the answer is not from a chopperd agent of this version: {error}"
        raise AgentUnreachableError(message) from error


def _step_keys(rows: Sequence[Row]) -> list[tuple[str | None, str | None, int | None]]:
    """Return job, run and number of each step in the rows, in the order of first occurrence."""
    return list(dict.fromkeys(map(_step_key, rows)))


def _number(value: int | None) -> int:
    return -1 if value is None else value


def _step_key(row: Row) -> tuple[str | None, str | None, int | None]:
    return row.job, row.run, row.step
