"""Routes, and how requests are parsed, authorised, answered or refused.

Refusals are `application/problem+json` (RFC 9457), raised as `ProblemError` and answered by `app`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from http import HTTPStatus
from typing import Final, Literal, TypeAlias, TypeVar, cast
from urllib.parse import parse_qsl

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from chopperd.api.access import Access, AccessPolicy, UnixPeer
from chopperd.api.parameters import Parameter
from chopperd.clock import Clock
from chopperd.model.captures import Viewer
from chopperd.model.report import ReportDocument
from chopperd.model.services import (
    DropSource,
    Health,
    Ingest,
    PauseControl,
    SampleSource,
    SnapshotSource,
    StepSource,
)

DocumentForm: TypeAlias = Literal["json", "text", "csv", "markdown", "html"]
PROBLEM_MEDIA_TYPE: Final = "application/problem+json"
V = TypeVar("V")
Method: TypeAlias = Literal["GET", "POST", "DELETE"]

_BEARER: Final = "bearer"
_MOST_PARAMETERS: Final = 32
_NOBODY: Final = Viewer(uid=None, is_admin=False)
_SEND_THE_TOKEN: Final = "send 'Authorization: Bearer TOKEN' with the token of api.token_file"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiServices:
    """Everything that request handlers use to answer."""

    snapshots: SnapshotSource
    steps: StepSource
    drops: DropSource
    samples: SampleSource
    ingest: Ingest
    pause: PauseControl
    health: Health
    render_document: Callable[[ReportDocument, DocumentForm], str]
    #: The metrics by an `Accept` header, and their media type; must not block.
    metrics: Callable[[str | None], tuple[bytes, str]]
    clock: Clock
    access: AccessPolicy
    #: Called with the path of a route at each unexpected error in it.
    failed: Callable[[str], None] = lambda _path: None


class ParameterProblem(msgspec.Struct, frozen=True, kw_only=True):
    """An invalid parameter of a request, and why."""

    parameter: str
    detail: str


class StepCandidate(msgspec.Struct, frozen=True, kw_only=True):
    """A job and run with a step of an ambiguous number."""

    job: str | None
    run: str | None


class Problem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a request was refused.

    `title` and `status` are always given; `errors` and `candidates` if they help to ask again.
    """

    title: str
    status: int
    detail: str | None = None
    errors: tuple[ParameterProblem, ...] = ()
    candidates: tuple[StepCandidate, ...] = ()


class ProblemError(Exception):
    """Raised to refuse a request; `detail` is what is wrong and what to do, for people."""

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        headers: Mapping[str, str] | None = None,
        errors: Sequence[ParameterProblem] = (),
        candidates: Sequence[StepCandidate] = (),
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.headers = headers
        self._problem = Problem(
            title=HTTPStatus(status).phrase,
            status=status,
            detail=detail,
            errors=tuple(errors),
            candidates=tuple(candidates),
        )

    def body(self) -> bytes:
        """Return the problem as JSON."""
        return msgspec.json.encode(self._problem)

    def response(self) -> Response:
        """Return the response that reports the problem."""
        return Response(self.body(), self.status, self.headers, PROBLEM_MEDIA_TYPE)


def bad_parameters(*problems: ParameterProblem) -> ProblemError:
    """Return the error for a request with invalid parameters."""
    detail = "; ".join(f"{each.parameter}: {each.detail}" for each in problems)
    return ProblemError(HTTPStatus.BAD_REQUEST, detail, errors=problems)


def retry_later(detail: str, *, after_s: int) -> ProblemError:
    """Return the error for a request that may succeed after `after_s` seconds."""
    headers = {"Retry-After": str(after_s)}
    return ProblemError(HTTPStatus.SERVICE_UNAVAILABLE, detail, headers=headers)


class Slots:
    """Limit on simultaneous uses, named `what` ("streams") in errors; for one event loop."""

    def __init__(self, limit: int, what: str) -> None:
        self._limit = limit
        self._what = what
        self._taken = 0

    @contextmanager
    def one(self) -> Iterator[None]:
        """Use one slot during the block.

        Raises:
            ProblemError: All slots are in use.
        """
        if self._taken >= self._limit:
            raise retry_later(f"all {self._limit} {self._what} are in use: try later", after_s=10)
        self._taken += 1
        try:
            yield
        finally:
            self._taken -= 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """State shared by all routes of an application."""

    services: ApiServices
    description: Callable[[], bytes]  # the OpenAPI document of the routes as JSON
    streams: Slots
    uploads: Slots
    large_answers: asyncio.Semaphore


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request with parsed parameters, whose caller may make it."""

    shared: Shared
    request: Request
    viewer: Viewer  # the caller; anonymous where anyone may call
    values: Mapping[str, object]  # by parameter name

    @property
    def services(self) -> ApiServices:
        """Everything that is needed to answer."""
        return self.shared.services

    def __getitem__(self, parameter: Parameter[V]) -> V:
        """Return the value of one of the route's parameters."""
        return cast(V, self.values[parameter.name])


Handler: TypeAlias = Callable[[Call], Awaitable[Response]]
Answer: TypeAlias = Callable[[Call], Response]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A successful response that a route may give."""

    status: int
    help: str
    holds: type | None = None  # type of its JSON; None for any, and for other formats
    media_types: tuple[str, ...] = ("application/json",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A path and method with its parameters, required access and possible responses."""

    path: str  # with its parameters in braces
    method: Method  # GET also answers HEAD
    summary: str  # the first line of the handler's docstring
    handler: Handler
    access: Access
    parameters: tuple[Parameter[object], ...] = ()  # any other is refused
    replies: tuple[Reply, ...]
    #: Statuses of problems and when they occur, besides those of every route.
    refusals: Mapping[int, str]
    takes_bytes: bool = False
    is_large: bool = False  # whether an answer may take megabytes


def at_once(answer: Answer) -> Handler:
    """Make a handler from a function that never blocks; it runs in the event loop."""

    @wraps(answer)
    async def handle(call: Call) -> Response:
        return answer(call)

    return handle


def in_pool(answer: Answer) -> Handler:
    """Make a handler from a function that may block; it runs in the event loop's thread pool."""

    @wraps(answer)
    async def handle(call: Call) -> Response:
        return await pooled(lambda: answer(call))

    return handle


async def pooled(work: Callable[[], V]) -> V:
    """Run blocking work in the event loop's thread pool."""
    return await asyncio.get_running_loop().run_in_executor(None, work)


async def is_set_within(event: asyncio.Event, timeout_s: float) -> bool:
    """Wait for an event; return whether it is set in time."""
    try:
        async with asyncio.timeout(timeout_s):
            return await event.wait()
    except TimeoutError:
        return False


def json_response(
    value: object, *, status: int = HTTPStatus.OK, headers: Mapping[str, str] | None = None
) -> Response:
    """Return a value as a JSON response; NaN, which means unknown, becomes `null`."""
    return Response(msgspec.json.encode(value), status, headers, "application/json")


def read_values(
    parameters: Sequence[Parameter[object]], path: Mapping[str, str], query: str
) -> dict[str, object]:
    """Parse a request's parameters from its path's parts and its query; return them by name.

    Raises:
        ProblemError: Names all parameters that are unknown, given twice or invalid.
    """
    given = dict(path)
    problems = []
    known = {each.name: each for each in parameters}
    for name, text in _query_pairs(query):
        parameter = known.get(name)
        if parameter is None or parameter.where != "query":
            problems.append(ParameterProblem(parameter=name[:64], detail="no such parameter"))
        elif name in given:
            problems.append(ParameterProblem(parameter=name, detail="is given twice"))
        given[name] = text
    values = {each.name: each.default for each in parameters}
    for name in given.keys() & known.keys():
        try:
            values[name] = known[name].kind.read(given[name])
        except ValueError as error:
            problems.append(ParameterProblem(parameter=name, detail=str(error)))
    if problems:
        raise bad_parameters(*problems)
    return values


def _query_pairs(query: str) -> list[tuple[str, str]]:
    try:
        return parse_qsl(
            query, keep_blank_values=True, errors="strict", max_num_fields=_MOST_PARAMETERS
        )
    except ValueError as error:
        detail = f"the query is invalid: {error}"
        raise ProblemError(HTTPStatus.BAD_REQUEST, detail) from error


async def viewer_of(request: Request, access: Access, policy: AccessPolicy) -> Viewer:
    """Return the caller, if allowed; without rights where anyone may call.

    Raises:
        ProblemError: The caller is not allowed; says how to get access.
    """
    if access is Access.ANYONE:
        return _NOBODY
    peer: UnixPeer | None = getattr(request.state, "peer", None)
    has_token = _has_token(request, policy)
    uid = peer.uid if peer else None
    viewer = await pooled(lambda: policy.viewer(uid, has_token=has_token))
    if viewer.is_admin:
        return viewer
    if viewer.uid is None:
        if access is Access.UPLOADER and peer is not None:
            return viewer  # any user of the node may, as in the inbox; only administrators see it
        detail = "the caller can't be identified: connect through the agent's Unix socket, or "
        raise _unauthorized(detail + _SEND_THE_TOKEN)
    if access is Access.ADMIN:
        who = f"uid {viewer.uid}" if viewer.uid >= 0 else "a user inside a container"
        detail = (
            f"{who} is not an administrator: be root, the agent's own user or in the "
            f"group {policy.admin_group}, or {_SEND_THE_TOKEN}"
        )
        raise ProblemError(HTTPStatus.FORBIDDEN, detail)
    return viewer


def _has_token(request: Request, policy: AccessPolicy) -> bool:
    """Whether the request has the token; raises `ProblemError` for a wrong one."""
    header = request.headers.get("authorization")
    if header is None:
        return False
    scheme, _, token = header.strip().partition(" ")
    if scheme.lower() != _BEARER or not policy.accepts_token(token.strip()):
        raise _unauthorized("the token is not that of api.token_file")
    return True


def _unauthorized(detail: str) -> ProblemError:
    headers = {"WWW-Authenticate": 'Bearer realm="chopperd"'}
    return ProblemError(HTTPStatus.UNAUTHORIZED, detail, headers=headers)
