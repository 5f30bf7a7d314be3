"""The web applications of API and metrics: routes, error responses, checks of every request."""

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import cache
from http import HTTPStatus
from typing import Final

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as StarletteRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from chopperd.api.access import AccessPolicy, is_same_origin
from chopperd.api.openapi import openapi_document
from chopperd.api.routes import HEALTH_ROUTES, ROUTES
from chopperd.api.routing import (
    ApiServices,
    Call,
    ProblemError,
    Route,
    Shared,
    Slots,
    read_values,
    viewer_of,
)
from chopperd.errors import StoreError

logger = logging.getLogger(__name__)

MOST_STREAMS: Final = 16
#: All ranks of a node may upload their traces at once.
MOST_UPLOADS: Final = 16
MOST_LARGE_ANSWERS: Final = 8
_PIECE_BYTES: Final = 64 * 1024
_MOST_URL_BYTES: Final = 4096
_MOST_HEADER_BYTES: Final = 16 * 1024
_SAFE_HEADERS: Final[Mapping[bytes, bytes]] = {
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
    b"cache-control": b"no-store",
    b"content-security-policy": b"default-src 'none'; frame-ancestors 'none'",
    b"cross-origin-resource-policy": b"same-origin",
}


def build_api(services: ApiServices) -> Starlette:
    """Build the web application of the API, which includes the routes of the metrics listener."""
    return _application(services, ROUTES, Middleware(_Gate, access=services.access))


def build_metrics(services: ApiServices) -> Starlette:
    """Build the application of the metrics listener: metrics and health, under any host name."""
    return _application(services, HEALTH_ROUTES, Middleware(_Gate, access=None))


def _application(services: ApiServices, routes: Sequence[Route], gate: Middleware) -> Starlette:
    by_path: dict[str, dict[str, Route]] = {}
    for route in routes:
        by_path.setdefault(route.path, {})[route.method] = route
    shared = Shared(
        services=services,
        description=cache(lambda: msgspec.json.encode(openapi_document(routes))),
        streams=Slots(MOST_STREAMS, "streams"),
        uploads=Slots(MOST_UPLOADS, "uploads"),
        large_answers=asyncio.Semaphore(MOST_LARGE_ANSWERS),
    )
    application = Starlette(
        routes=[
            StarletteRoute(path, _Endpoint(group, shared), methods=list(group))
            for path, group in by_path.items()
        ],
        middleware=[gate],
        exception_handlers={HTTPException: _framework_problem},
    )
    application.router.redirect_slashes = False
    return application


async def _framework_problem(_request: Request, error: Exception) -> Response:
    """Return the error response for paths and methods that do not exist."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    headers = error.headers if isinstance(error, HTTPException) else None
    details = {
        HTTPStatus.NOT_FOUND: "no such path; /openapi.json describes all of them",
        HTTPStatus.METHOD_NOT_ALLOWED: "no such method of this path; see the Allow header",
    }
    detail = details.get(HTTPStatus(status), HTTPStatus(status).phrase)
    return ProblemError(status, detail, headers=headers).response()


class _Endpoint:
    """Answers requests for one path; logs, counts and reports unexpected errors."""

    def __init__(self, group: Mapping[str, Route], shared: Shared) -> None:
        self._group = group
        self._shared = shared

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        route = self._group["GET" if request.method == "HEAD" else request.method]
        # An answer stays in memory until the client has read it.
        async with self._shared.large_answers if route.is_large else nullcontext():
            response = await self._response(route, request)
            await response(scope, receive, send)

    async def _response(self, route: Route, request: Request) -> Response:
        try:
            return await route.handler(await self._call(route, request))
        except ProblemError as problem:
            return problem.response()
        except StoreError as error:
            return ProblemError(HTTPStatus.SERVICE_UNAVAILABLE, str(error)).response()
        except Exception:  # a request's guard: the agent goes on
            logger.exception("%s %s failed", route.method, route.path)
            self._shared.services.failed(route.path)
            detail = "an unexpected error in the agent; see its log"
            return ProblemError(HTTPStatus.INTERNAL_SERVER_ERROR, detail).response()

    async def _call(self, route: Route, request: Request) -> Call:
        """Check access and parameters of a request and return it as a `Call`."""
        viewer = await viewer_of(request, route.access, self._shared.services.access)
        query = request.scope["query_string"].decode("latin-1")
        values = read_values(route.parameters, request.path_params, query)
        return Call(shared=self._shared, request=request, viewer=viewer, values=values)


class _Gate:
    """Checks the size, host name (unless `access` is None) and origin of requests; adds headers."""

    def __init__(self, app: ASGIApp, access: AccessPolicy | None) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = dict(message.get("headers", ()))
                extra = [each for each in _SAFE_HEADERS.items() if each[0] not in own]
                message = {**message, "headers": [*message.get("headers", ()), *extra]}
            for each in _pieces(message):
                await send(each)

        problem = _refusal(Request(scope), self._access) if scope["type"] == "http" else None
        answer = problem.response() if problem is not None else self._app
        await answer(scope, receive, send_safely)


def _refusal(request: Request, access: AccessPolicy | None) -> ProblemError | None:
    """Return why a request is refused: too large, ambiguous, misdirected; None if it is not."""
    scope, headers = request.scope, request.headers
    if len(scope["path"]) + len(scope["query_string"]) > _MOST_URL_BYTES:
        detail = f"path and query may have {_MOST_URL_BYTES} bytes"
        return ProblemError(HTTPStatus.REQUEST_URI_TOO_LONG, detail)
    if sum(len(name) + len(value) for name, value in scope["headers"]) > _MOST_HEADER_BYTES:
        detail = f"headers may have {_MOST_HEADER_BYTES} bytes"
        return ProblemError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, detail)
    # A proxy may see its end elsewhere than this server.
    if "content-length" in headers and "transfer-encoding" in headers:
        detail = "Content-Length and Transfer-Encoding exclude each other: send one of them"
        return ProblemError(HTTPStatus.BAD_REQUEST, detail, headers={"connection": "close"})
    host, origin = headers.get("host", ""), headers.get("origin")
    if access is not None and not access.answers_to(host):
        detail = "the Host header names another host; add it to api.allowed_hosts if it is this one"
        return ProblemError(HTTPStatus.MISDIRECTED_REQUEST, detail)
    if access is not None and origin is not None and not is_same_origin(origin, host):
        return ProblemError(HTTPStatus.FORBIDDEN, "pages of other origins may not use this API")
    return None


def _pieces(message: Message) -> Iterator[Message]:
    """Split a message with a large body; the server waits for the client between the pieces."""
    body = message.get("body", b"")
    if len(body) <= _PIECE_BYTES:
        yield message
        return
    starts = range(0, len(body), _PIECE_BYTES)
    for start in starts:
        more = message.get("more_body", False) or start != starts[-1]
        yield {**message, "body": body[start : start + _PIECE_BYTES], "more_body": more}
