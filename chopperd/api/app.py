"""The applications: routes, refusals of every kind, and the checks that all requests pass."""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Final, TypeAlias

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as StarletteRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from chopperd.api.access import AccessPolicy, is_same_origin
from chopperd.api.places import Places
from chopperd.api.problems import ProblemError
from chopperd.api.routes import HEALTH_ROUTES, ROUTES
from chopperd.api.routing import Call, Route, read_values, viewer_of
from chopperd.api.services import ApiServices

Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]

logger = logging.getLogger(__name__)

MOST_STREAMS: Final = 16
MOST_UPLOADS: Final = 4
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
    """The API, with everything that the metrics listener serves too."""
    return _application(services, ROUTES, Middleware(_Gate, access=services.access))


def build_metrics(services: ApiServices) -> Starlette:
    """Metrics and health only: no names, nothing to change, under any host name."""
    return _application(services, HEALTH_ROUTES, Middleware(_Gate, access=None))


def _application(services: ApiServices, routes: Sequence[Route], gate: Middleware) -> Starlette:
    by_path: dict[str, dict[str, Route]] = {}
    for route in routes:
        by_path.setdefault(route.path, {})[route.method] = route
    server = _Server(services, routes)
    application = Starlette(
        routes=[
            StarletteRoute(path, server.endpoint(group), methods=list(group))
            for path, group in by_path.items()
        ],
        middleware=[gate],
        exception_handlers={HTTPException: _framework_problem},
    )
    application.router.redirect_slashes = False
    return application


async def _framework_problem(_request: Request, error: Exception) -> Response:
    """What the framework refuses by itself: paths and methods that do not exist."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    headers = error.headers if isinstance(error, HTTPException) else None
    details = {
        HTTPStatus.NOT_FOUND: "there is nothing here; /openapi.json describes what there is",
        HTTPStatus.METHOD_NOT_ALLOWED: "this can't be done here; see the Allow header",
    }
    detail = details.get(HTTPStatus(status), HTTPStatus(status).phrase)
    return ProblemError(status, detail, headers=headers).response()


class _Server:
    """Answers requests by routes; what goes wrong unexpectedly is logged, counted, and said."""

    def __init__(self, services: ApiServices, routes: Sequence[Route]) -> None:
        self._services = services
        self._routes = routes
        self._streams = Places(MOST_STREAMS, "streams")
        self._uploads = Places(MOST_UPLOADS, "places for uploads")

    def endpoint(self, group: Mapping[str, Route]) -> Endpoint:
        """What answers the requests for one path, by its routes for each method."""

        async def answer(request: Request) -> Response:
            route = group["GET" if request.method == "HEAD" else request.method]
            try:
                return await self._answer(route, request)
            except ProblemError as problem:
                return problem.response()
            except Exception:  # a request's guard: the agent goes on
                logger.exception("%s %s failed", route.method, route.path)
                self._services.failed(route.path)
                detail = "a fault of the agent; its log says more"
                return ProblemError(HTTPStatus.INTERNAL_SERVER_ERROR, detail).response()

        return answer

    async def _answer(self, route: Route, request: Request) -> Response:
        """The answer, once the caller may and the parameters are well."""
        viewer = await viewer_of(request, route.access, self._services.access)
        call = Call(
            services=self._services,
            request=request,
            viewer=viewer,
            values=read_values(route.parameters, request.path_params, request.url.query),
            routes=self._routes,
            streams=self._streams,
            uploads=self._uploads,
        )
        return await route.handler(call)


class _Gate:
    """What every request passes: its size, the name it calls us by, and the page it comes from.

    Args:
        app: What is behind.
        access: Knows our names; None: any will do.
    """

    def __init__(self, app: ASGIApp, access: AccessPolicy | None) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = dict(message.get("headers", ()))
                extra = [each for each in _SAFE_HEADERS.items() if each[0] not in own]
                message = {**message, "headers": [*message.get("headers", ()), *extra]}
            await send(message)

        problem = self._problem(Request(scope)) if scope["type"] == "http" else None
        answer = problem.response() if problem is not None else self._app
        await answer(scope, receive, send_safely)

    def _problem(self, request: Request) -> ProblemError | None:
        """Why a request goes no further; None if it does."""
        return _too_large(request.scope) or (
            _misdirected(request, self._access) if self._access is not None else None
        )


def _misdirected(request: Request, access: AccessPolicy) -> ProblemError | None:
    """Why a request was not meant for us, or not by who seems to send it."""
    host, origin = request.headers.get("host", ""), request.headers.get("origin")
    if not access.answers_to(host):
        detail = "the Host header names another host; add it to api.allowed_hosts if it is ours"
        return ProblemError(HTTPStatus.MISDIRECTED_REQUEST, detail)
    if origin is not None and not is_same_origin(origin, host):
        return ProblemError(HTTPStatus.FORBIDDEN, "pages of other origins may not ask here")
    return None


def _too_large(scope: Scope) -> ProblemError | None:
    if len(scope["path"]) + len(scope["query_string"]) > _MOST_URL_BYTES:
        detail = f"path and query may have {_MOST_URL_BYTES} bytes"
        return ProblemError(HTTPStatus.REQUEST_URI_TOO_LONG, detail)
    if sum(len(name) + len(value) for name, value in scope["headers"]) > _MOST_HEADER_BYTES:
        detail = f"headers may have {_MOST_HEADER_BYTES} bytes"
        return ProblemError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, detail)
    return None
