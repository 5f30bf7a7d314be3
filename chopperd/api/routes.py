"""The table of all routes: serving, documentation and access rules are derived from it."""

from collections.abc import Mapping
from functools import partial
from http import HTTPStatus
from types import MappingProxyType
from typing import Final

from chopperd.api import node, openapi, steps
from chopperd.api.access import Access
from chopperd.api.models import (
    Drops,
    Findings,
    Gpu,
    GpuHistory,
    Gpus,
    Jobs,
    PauseState,
    SnapshotEvent,
    Status,
    Step,
    StepKernels,
    Steps,
    Traces,
    TraceTaken,
    Well,
)
from chopperd.api.parameters import FROM, LIMIT, TO, Parameter
from chopperd.api.routing import Handler, Method, Reply, Route, at_once, in_pool
from chopperd.model.captures import JobEntry, TraceEntry
from chopperd.model.report import ReportDocument

_V1: Final = "/api/v1"
_NONE: Final[Mapping[int, str]] = MappingProxyType({})
_UNAVAILABLE: Final = HTTPStatus.SERVICE_UNAVAILABLE
_NO_STORE: Final[Mapping[int, str]] = {_UNAVAILABLE: "There is no store; the detail says why"}
_NO_STEP: Final[Mapping[int, str]] = {
    HTTPStatus.NOT_FOUND: "No such step among the jobs that the caller may see",
    HTTPStatus.CONFLICT: "Several jobs or runs have this step; `candidates` names them",
    **_NO_STORE,
}
_NO_GPU: Final[Mapping[int, str]] = {HTTPStatus.NOT_FOUND: "No such GPU"}
_STEP_QUERY: Final = (steps.JOB, steps.RUN, steps.RANK, steps.GPU_LABEL)


def _ok(help_text: str, *media_types: str, holds: type | None = None) -> tuple[Reply]:
    types = media_types or ("application/json",)
    return (Reply(status=HTTPStatus.OK, help=help_text, holds=holds, media_types=types),)


def _route(  # noqa: PLR0913 - the columns of the table
    path: str,
    summary: str,
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
        summary=summary,
        handler=handler,
        access=access,
        parameters=parameters,
        replies=_ok("The answer", holds=replies) if isinstance(replies, type) else replies,
        refusals=refusals,
        is_large=is_large,
        takes_bytes=access is Access.UPLOADER,
    )


_viewers: Final = partial(_route, access=Access.VIEWER)
_admins: Final = partial(_route, access=Access.ADMIN)

HEALTH_ROUTES: Final = (
    _route(
        "/metrics",
        "Metrics for Prometheus",
        at_once(node.metrics),
        _ok("Metrics", "text/plain", "application/openmetrics-text"),
        refusals={_UNAVAILABLE: "The newest values are too old"},
    ),
    _route(
        "/healthz",
        "Whether the agent itself is healthy",
        at_once(node.healthz),
        Well,
        refusals={_UNAVAILABLE: "It is not; the detail says why"},
    ),
    _route(
        "/readyz",
        "Whether any GPU has a fresh sample",
        at_once(node.readyz),
        Well,
        refusals={_UNAVAILABLE: "None has; the detail says why"},
    ),
)

_NODE_ROUTES: Final = (
    _route(f"{_V1}/status", "The agent and its node now", at_once(node.status), Status),
    _route(f"{_V1}/gpus", "All GPUs now", at_once(node.gpus), Gpus),
    _route(f"{_V1}/gpus/{{gpu}}", "One GPU now", at_once(node.gpu), Gpu, (node.GPU,), _NO_GPU),
    _route(
        f"{_V1}/gpus/{{gpu}}/samples",
        "Samples of one GPU over a time, by default the last ten minutes",
        in_pool(node.samples),
        GpuHistory,
        (node.GPU, FROM, TO, node.POINTS),
        _NO_GPU,
        is_large=True,
    ),
    _route(
        f"{_V1}/drops",
        "Drops of busy clocks below those of the minute before, newest first",
        in_pool(node.drops),
        Drops,
        (node.GPU_OR_NONE, FROM, TO, LIMIT),
        _NO_STORE,
        is_large=True,
    ),
    _route(
        f"{_V1}/stream",
        "The node each second, as server-sent events named `snapshot`",
        node.stream,
        _ok("Events; each has one such object as data", node.STREAM_TYPE, holds=SnapshotEvent),
        refusals={_UNAVAILABLE: "Too many streams are open"},
    ),
)

_STEP_ROUTES: Final = (
    _viewers(
        f"{_V1}/jobs",
        "Jobs that traces came from, newest first",
        in_pool(steps.jobs),
        Jobs,
        refusals=_NO_STORE,
    ),
    _viewers(
        f"{_V1}/jobs/{{job}}",
        "One job",
        in_pool(steps.job),
        JobEntry,
        (steps.JOB_ID,),
        {HTTPStatus.NOT_FOUND: "No such job among those that the caller may see", **_NO_STORE},
    ),
    _viewers(
        f"{_V1}/steps",
        "Steps, newest first, without their kernels",
        in_pool(steps.steps),
        Steps,
        (*_STEP_QUERY, FROM, TO, LIMIT, steps.CURSOR),
        _NO_STORE,
        is_large=True,
    ),
    _viewers(
        f"{_V1}/steps/{{step}}",
        "One step on all devices",
        in_pool(steps.step),
        Step,
        (steps.STEP, *_STEP_QUERY, steps.INCLUDE),
        _NO_STEP,
        is_large=True,
    ),
    _viewers(
        f"{_V1}/steps/{{step}}/kernels",
        "The kernels that a step launched on each device",
        in_pool(steps.kernels),
        StepKernels,
        (steps.STEP, *_STEP_QUERY, steps.BY),
        _NO_STEP,
        is_large=True,
    ),
    _viewers(
        f"{_V1}/report/latest",
        "The report on the newest capture, in the format that `Accept` requests",
        in_pool(steps.latest_report),
        _ok("The report", *steps.REPORT_MEDIA_TYPES, holds=ReportDocument),
        (steps.JOB, steps.INCLUDE),
        {
            HTTPStatus.NOT_FOUND: "No report among those that the caller may see",
            HTTPStatus.NOT_ACCEPTABLE: "`Accept` requests none of the formats",
            **_NO_STORE,
        },
        is_large=True,
    ),
    _viewers(
        f"{_V1}/findings",
        "What to do about each job: the findings of the report on its newest capture",
        in_pool(steps.findings),
        Findings,
        (steps.JOB, LIMIT),
        {HTTPStatus.NOT_FOUND: "No such job among those that the caller may see", **_NO_STORE},
        is_large=True,
    ),
)

_TRACE_ROUTES: Final = (
    _viewers(
        f"{_V1}/traces",
        "Traces that the agent received, newest first",
        in_pool(steps.traces),
        Traces,
        (LIMIT,),
        _NO_STORE,
        is_large=True,
    ),
    _route(
        f"{_V1}/traces",
        "Upload a Kineto trace, plain or compressed, or name a file of the node",
        steps.take_trace,
        (
            Reply(status=HTTPStatus.ACCEPTED, help="It was accepted", holds=TraceTaken),
            Reply(status=HTTPStatus.OK, help="The same bytes were known", holds=TraceTaken),
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
        f"{_V1}/traces/{{trace}}",
        "One trace",
        in_pool(steps.trace),
        TraceEntry,
        (steps.TRACE_ID,),
        {HTTPStatus.NOT_FOUND: "No such trace among those that the caller may see", **_NO_STORE},
    ),
)

_PAUSE_ROUTES: Final = (
    _route(f"{_V1}/pause", "Whether the agent is paused", at_once(node.pause_state), PauseState),
    _admins(
        f"{_V1}/pause",
        "Pause sampling, captures and analysis at once",
        in_pool(node.pause),
        _ok("It is paused", holds=PauseState),
        (node.FOR, node.REASON),
        method="POST",
    ),
    _admins(
        f"{_V1}/pause",
        "End the pause",
        in_pool(node.resume),
        (Reply(status=HTTPStatus.NO_CONTENT, help="The agent continues", media_types=()),),
        method="DELETE",
    ),
)

_PAGE_ROUTES: Final = (
    _route(
        "/openapi.json",
        "This description",
        in_pool(openapi.openapi),
        _ok("OpenAPI 3.1"),
        is_large=True,
    ),
    _route("/docs", "This description as a page", in_pool(openapi.docs), _ok("Page", "text/html")),
    _route(
        "/docs/{file}",
        "A file of that page",
        in_pool(openapi.docs_file),
        _ok("A file", *openapi.FILE_MEDIA_TYPES),
        (openapi.FILE,),
        is_large=True,
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
