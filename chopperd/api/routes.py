"""The table of all routes: serving, documentation and access rules are derived from it."""

from collections.abc import Mapping
from functools import partial
from http import HTTPStatus
from types import MappingProxyType
from typing import Final

from chopperd.api import models, node, openapi, pages, steps
from chopperd.api.access import Access
from chopperd.api.parameters import FROM, LIMIT, TO, Parameter
from chopperd.api.routing import Handler, Method, Reply, Route, at_once, in_pool
from chopperd.model.captures import JobEntry, TraceEntry
from chopperd.model.comparison import ComparisonDocument
from chopperd.model.report import ReportDocument

_NONE: Final[Mapping[int, str]] = MappingProxyType({})
_UNAVAILABLE: Final = HTTPStatus.SERVICE_UNAVAILABLE
_NO_STORE: Final[Mapping[int, str]] = {_UNAVAILABLE: "There is no store; the detail says why"}
_NO_STEP: Final[Mapping[int, str]] = {
    HTTPStatus.NOT_FOUND: "No such step among the jobs that the caller may see",
    HTTPStatus.CONFLICT: "Several jobs or runs have this step; `candidates` names them",
    **_NO_STORE,
}
_NO_GPU: Final[Mapping[int, str]] = {HTTPStatus.NOT_FOUND: "No such GPU"}
_NO_FORMAT: Final = "`Accept` requests none of the formats"
_STEP_QUERY: Final = (steps.JOB, steps.RUN, steps.RANK, steps.GPU_LABEL)


def _none_seen(what: str) -> Mapping[int, str]:
    """Return the refusals where there is no such thing among those that the caller may see."""
    return {HTTPStatus.NOT_FOUND: f"No {what} among those that the caller may see", **_NO_STORE}


def _ok(help_text: str, *media_types: str, holds: type | None = None) -> tuple[Reply]:
    types = media_types or ("application/json",)
    return (Reply(status=HTTPStatus.OK, help=help_text, holds=holds, media_types=types),)


def _route(
    path: str,
    handler: Handler,
    replies: type | tuple[Reply, ...],
    parameters: tuple[Parameter[object], ...] = (),
    refusals: Mapping[int, str] = _NONE,
    *,
    method: Method = "GET",
    access: Access = Access.ANYONE,
    is_large: bool = False,
) -> Route:
    """Make a row of the table; a type as `replies` is that of a JSON answer."""
    return Route(
        path=path,
        method=method,
        summary=(handler.__doc__ or "").removesuffix("."),
        handler=handler,
        access=access,
        parameters=parameters,
        replies=_ok("The answer", holds=replies) if isinstance(replies, type) else replies,
        refusals=refusals,
        is_large=is_large,
        takes_bytes=access is Access.UPLOADER,
    )


_large: Final = partial(_route, is_large=True)
_viewers: Final = partial(_route, access=Access.VIEWER)
_large_for_viewers: Final = partial(_large, access=Access.VIEWER)
_admins: Final = partial(_route, access=Access.ADMIN)

HEALTH_ROUTES: Final = (
    _route(
        "/metrics",
        at_once(node.metrics),
        _ok("Metrics", "text/plain", "application/openmetrics-text"),
        refusals={_UNAVAILABLE: "The newest values are too old"},
    ),
    _route(
        "/healthz",
        at_once(node.healthz),
        models.Well,
        refusals={_UNAVAILABLE: "It is not; the detail says why"},
    ),
    _route(
        "/readyz",
        at_once(node.readyz),
        models.Well,
        refusals={_UNAVAILABLE: "None has; the detail says why"},
    ),
)

_NODE_ROUTES: Final = (
    _route("/api/v1/status", at_once(node.status), models.Status),
    _route(
        "/api/v1/viewer",
        node.viewer,
        models.Caller,
        refusals={HTTPStatus.UNAUTHORIZED: "The token is wrong"},
    ),
    _route("/api/v1/gpus", at_once(node.gpus), models.Gpus),
    _route("/api/v1/gpus/{gpu}", at_once(node.gpu), models.Gpu, (node.GPU,), _NO_GPU),
    _large(
        "/api/v1/gpus/{gpu}/samples",
        in_pool(node.samples),
        models.GpuHistory,
        (node.GPU, FROM, TO, node.POINTS),
        _NO_GPU,
    ),
    _large(
        "/api/v1/drops",
        in_pool(node.drops),
        models.Drops,
        (node.GPU_OR_NONE, FROM, TO, LIMIT),
        _NO_STORE,
    ),
    _route(
        "/api/v1/stream",
        node.stream,
        _ok(
            "Events; each has one such object as data", node.STREAM_TYPE, holds=models.SnapshotEvent
        ),
        refusals={_UNAVAILABLE: "Too many streams are open"},
    ),
)

_STEP_ROUTES: Final = (
    _viewers("/api/v1/jobs", in_pool(steps.jobs), models.Jobs, refusals=_NO_STORE),
    _viewers(
        "/api/v1/jobs/{job}", in_pool(steps.job), JobEntry, (steps.JOB_ID,), _none_seen("such job")
    ),
    _large_for_viewers(
        "/api/v1/steps",
        in_pool(steps.steps),
        models.Steps,
        (*_STEP_QUERY, FROM, TO, LIMIT, steps.CURSOR),
        _NO_STORE,
    ),
    _large_for_viewers(
        "/api/v1/steps/{step}",
        in_pool(steps.step),
        models.Step,
        (steps.STEP, *_STEP_QUERY, steps.INCLUDE),
        _NO_STEP,
    ),
    _large_for_viewers(
        "/api/v1/steps/{step}/kernels",
        in_pool(steps.kernels),
        models.StepKernels,
        (steps.STEP, *_STEP_QUERY, steps.BY),
        _NO_STEP,
    ),
    _large_for_viewers(
        "/api/v1/report/latest",
        in_pool(steps.latest_report),
        _ok("The report", *steps.REPORT_MEDIA_TYPES, holds=ReportDocument),
        (steps.JOB, steps.CAPTURE, steps.INCLUDE),
        {**_none_seen("report"), HTTPStatus.NOT_ACCEPTABLE: _NO_FORMAT},
    ),
    _large_for_viewers(
        "/api/v1/findings",
        in_pool(steps.findings),
        models.Findings,
        (steps.JOB, LIMIT),
        _none_seen("such job"),
    ),
    _large_for_viewers(
        "/api/v1/fsdp",
        in_pool(steps.memory),
        models.Memory,
        (steps.JOB, LIMIT),
        _none_seen("such job"),
    ),
    _large_for_viewers(
        "/api/v1/compare",
        in_pool(steps.compare),
        ComparisonDocument,
        (steps.JOB_A, steps.JOB_B, steps.ALLOW),
        {
            **_none_seen("such job"),
            HTTPStatus.CONFLICT: "They are not to be compared; the detail says why",
        },
    ),
)

_TRACE_ROUTES: Final = (
    _large_for_viewers("/api/v1/traces", in_pool(steps.traces), models.Traces, (LIMIT,), _NO_STORE),
    _route(
        "/api/v1/traces",
        steps.take_trace,
        (
            Reply(status=HTTPStatus.ACCEPTED, help="It was accepted", holds=models.TraceTaken),
            Reply(status=HTTPStatus.OK, help="The same bytes were known", holds=models.TraceTaken),
        ),
        (steps.NAME, steps.UPLOAD_JOB, steps.DEVICE_MAP, steps.PATH),
        {
            HTTPStatus.NOT_FOUND: "There is no such file",
            HTTPStatus.CONFLICT: "This agent accepts no traces",
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "It is too large",
            _UNAVAILABLE: "Too many uploads are in progress",
            HTTPStatus.INSUFFICIENT_STORAGE: "There is not enough disk for it",
        },
        method="POST",
        access=Access.UPLOADER,
    ),
    _viewers(
        "/api/v1/traces/{trace}",
        in_pool(steps.trace),
        TraceEntry,
        (steps.TRACE_ID,),
        _none_seen("such trace"),
    ),
)

_PAUSE_ROUTES: Final = (
    _route("/api/v1/pause", at_once(node.pause_state), models.PauseState),
    _admins(
        "/api/v1/pause",
        in_pool(node.pause),
        _ok("It is paused", holds=models.PauseState),
        (node.FOR, node.REASON),
        method="POST",
    ),
    _admins(
        "/api/v1/pause",
        in_pool(node.resume),
        (Reply(status=HTTPStatus.NO_CONTENT, help="The agent continues", media_types=()),),
        method="DELETE",
    ),
)

_PAGE_ROUTES: Final = (
    _route("/", in_pool(pages.page), _ok("Page", "text/html")),
    _route(
        "/page/{asset}",
        in_pool(pages.page_file),
        _ok("A file", *pages.PAGE_MEDIA_TYPES),
        (pages.PAGE_FILE,),
    ),
    _large("/openapi.json", in_pool(openapi.openapi), _ok("OpenAPI 3.1")),
    _route("/docs", in_pool(pages.docs), _ok("Page", "text/html")),
    _large(
        "/docs/{file}",
        in_pool(pages.docs_file),
        _ok("A file", *pages.DOCS_MEDIA_TYPES),
        (pages.DOCS_FILE,),
    ),
)

ROUTES: Final = (
    *_NODE_ROUTES,
    *_STEP_ROUTES,
    *_TRACE_ROUTES,
    *_PAUSE_ROUTES,
    *HEALTH_ROUTES,
    *_PAGE_ROUTES,
)
