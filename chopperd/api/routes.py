"""The one table of routes: what is served, documented and allowed is all read from it."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

from chopperd.api import node, openapi, steps
from chopperd.api.access import Access
from chopperd.api.models import (
    Drops,
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
from chopperd.api.parameters import FROM, LIMIT, TO
from chopperd.api.routing import Reply, Route, at_once, in_pool
from chopperd.model.captures import JobEntry, TraceEntry
from chopperd.model.report import ReportDocument

_V1: Final = "/api/v1"
_METRICS_MEDIA_TYPES: Final = ("text/plain", "application/openmetrics-text")
_AMBIGUOUS: Final = "Several jobs or runs have this step; `candidates` names them"
_NO_STEP: Final = "No such step among the jobs that the caller may see"
_NO_GPU: Final = "No such GPU"
_NO_STORE: Final[Mapping[int, str]] = {
    HTTPStatus.SERVICE_UNAVAILABLE: "There is no store; the detail says why"
}
_STALE: Final = "The newest values are too old to stand for now"


def _ok(reply: type, help_text: str = "The answer") -> tuple[Reply, ...]:
    return (Reply(status=HTTPStatus.OK, help=help_text, holds=reply),)


HEALTH_ROUTES: Final = (
    Route(
        path="/metrics",
        method="GET",
        summary="Metrics for Prometheus",
        handler=at_once(node.metrics),
        access=Access.ANYONE,
        replies=(Reply(status=HTTPStatus.OK, help="Metrics", media_types=_METRICS_MEDIA_TYPES),),
        refusals={HTTPStatus.SERVICE_UNAVAILABLE: _STALE},
    ),
    Route(
        path="/healthz",
        method="GET",
        summary="Whether the agent itself is well",
        handler=at_once(node.healthz),
        access=Access.ANYONE,
        replies=_ok(Well),
        refusals={HTTPStatus.SERVICE_UNAVAILABLE: "It is not; the detail says why"},
    ),
    Route(
        path="/readyz",
        method="GET",
        summary="Whether any GPU has a fresh sample",
        handler=at_once(node.readyz),
        access=Access.ANYONE,
        replies=_ok(Well),
        refusals={HTTPStatus.SERVICE_UNAVAILABLE: "None has; the detail says why"},
    ),
)

_NODE_ROUTES: Final = (
    Route(
        path=f"{_V1}/status",
        method="GET",
        summary="The agent and its node now",
        handler=at_once(node.status),
        access=Access.ANYONE,
        replies=_ok(Status),
        refusals={},
    ),
    Route(
        path=f"{_V1}/gpus",
        method="GET",
        summary="All GPUs now",
        handler=at_once(node.gpus),
        access=Access.ANYONE,
        replies=_ok(Gpus),
        refusals={},
    ),
    Route(
        path=f"{_V1}/gpus/{{gpu}}",
        method="GET",
        summary="One GPU now",
        handler=at_once(node.gpu),
        access=Access.ANYONE,
        parameters=(node.GPU,),
        replies=_ok(Gpu),
        refusals={HTTPStatus.NOT_FOUND: _NO_GPU},
    ),
    Route(
        path=f"{_V1}/gpus/{{gpu}}/samples",
        method="GET",
        summary="Samples of one GPU over a time, the last ten minutes if none is given",
        handler=in_pool(node.samples),
        is_large=True,
        access=Access.ANYONE,
        parameters=(node.GPU, FROM, TO, node.POINTS),
        replies=_ok(GpuHistory),
        refusals={HTTPStatus.NOT_FOUND: _NO_GPU},
    ),
    Route(
        path=f"{_V1}/drops",
        method="GET",
        summary="Drops of busy clocks below what they were in the minute before, newest first",
        handler=in_pool(node.drops),
        is_large=True,
        access=Access.ANYONE,
        parameters=(node.GPU_OR_NONE, FROM, TO, LIMIT),
        replies=_ok(Drops),
        refusals=_NO_STORE,
    ),
    Route(
        path=f"{_V1}/stream",
        method="GET",
        summary="The node each second, as server-sent events named `snapshot`",
        handler=node.stream,
        access=Access.ANYONE,
        replies=(
            Reply(
                status=HTTPStatus.OK,
                help="Events; the data of each is one such object",
                holds=SnapshotEvent,
                media_types=(node.STREAM_MEDIA_TYPE,),
            ),
        ),
        refusals={HTTPStatus.SERVICE_UNAVAILABLE: "Too many streams are open"},
    ),
)

_STEP_ROUTES: Final = (
    Route(
        path=f"{_V1}/jobs",
        method="GET",
        summary="Jobs that traces came from, newest first",
        handler=in_pool(steps.jobs),
        access=Access.VIEWER,
        replies=_ok(Jobs),
        refusals=_NO_STORE,
    ),
    Route(
        path=f"{_V1}/jobs/{{job}}",
        method="GET",
        summary="One job",
        handler=in_pool(steps.job),
        access=Access.VIEWER,
        parameters=(steps.JOB_ID,),
        replies=_ok(JobEntry),
        refusals={
            HTTPStatus.NOT_FOUND: "No such job among those that the caller may see",
            **_NO_STORE,
        },
    ),
    Route(
        path=f"{_V1}/steps",
        method="GET",
        summary="Steps, newest first, without their kernels",
        handler=in_pool(steps.steps),
        is_large=True,
        access=Access.VIEWER,
        parameters=(
            steps.JOB,
            steps.RUN,
            steps.RANK,
            steps.GPU_LABEL,
            FROM,
            TO,
            LIMIT,
            steps.CURSOR,
        ),
        replies=_ok(Steps),
        refusals=_NO_STORE,
    ),
    Route(
        path=f"{_V1}/steps/{{step}}",
        method="GET",
        summary="One step on all devices",
        handler=in_pool(steps.step),
        is_large=True,
        access=Access.VIEWER,
        parameters=(
            steps.STEP,
            steps.JOB,
            steps.RUN,
            steps.RANK,
            steps.GPU_LABEL,
            steps.INCLUDE,
        ),
        replies=_ok(Step),
        refusals={HTTPStatus.NOT_FOUND: _NO_STEP, HTTPStatus.CONFLICT: _AMBIGUOUS, **_NO_STORE},
    ),
    Route(
        path=f"{_V1}/steps/{{step}}/kernels",
        method="GET",
        summary="What each device ran in the capture that a step lies in",
        handler=in_pool(steps.kernels),
        is_large=True,
        access=Access.VIEWER,
        parameters=(
            steps.STEP,
            steps.JOB,
            steps.RUN,
            steps.RANK,
            steps.GPU_LABEL,
            steps.BY,
        ),
        replies=_ok(StepKernels),
        refusals={HTTPStatus.NOT_FOUND: _NO_STEP, HTTPStatus.CONFLICT: _AMBIGUOUS, **_NO_STORE},
    ),
    Route(
        path=f"{_V1}/report/latest",
        method="GET",
        summary="The report on the newest capture, in the form that `Accept` asks for",
        handler=in_pool(steps.latest_report),
        is_large=True,
        access=Access.VIEWER,
        parameters=(steps.JOB, steps.INCLUDE),
        replies=(
            Reply(
                status=HTTPStatus.OK,
                help="The report",
                holds=ReportDocument,
                media_types=steps.REPORT_MEDIA_TYPES,
            ),
        ),
        refusals={
            HTTPStatus.NOT_FOUND: "No report among those that the caller may see",
            HTTPStatus.NOT_ACCEPTABLE: "`Accept` asks for none of the forms",
            **_NO_STORE,
        },
    ),
)

_TRACE_ROUTES: Final = (
    Route(
        path=f"{_V1}/traces",
        method="GET",
        summary="Traces that were taken in, newest first",
        handler=in_pool(steps.traces),
        is_large=True,
        access=Access.VIEWER,
        parameters=(LIMIT,),
        replies=_ok(Traces),
        refusals=_NO_STORE,
    ),
    Route(
        path=f"{_V1}/traces",
        method="POST",
        summary="Hand in a Kineto trace: its bytes, as they are or compressed, or a path",
        handler=steps.take_trace,
        access=Access.UPLOADER,
        parameters=(steps.NAME, steps.UPLOAD_JOB, steps.DEVICE_MAP, steps.PATH),
        replies=(
            Reply(status=HTTPStatus.ACCEPTED, help="It was taken", holds=TraceTaken),
            Reply(status=HTTPStatus.OK, help="The same bytes were known", holds=TraceTaken),
        ),
        refusals={
            HTTPStatus.NOT_FOUND: "There is no such file",
            HTTPStatus.CONFLICT: "Traces are not taken in here",
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "It is too large",
            HTTPStatus.SERVICE_UNAVAILABLE: "Too much is going on",
            HTTPStatus.INSUFFICIENT_STORAGE: "There is no room for it",
        },
        takes_bytes=True,
    ),
    Route(
        path=f"{_V1}/traces/{{trace}}",
        method="GET",
        summary="One trace",
        handler=in_pool(steps.trace),
        access=Access.VIEWER,
        parameters=(steps.TRACE_ID,),
        replies=_ok(TraceEntry),
        refusals={
            HTTPStatus.NOT_FOUND: "No such trace among those that the caller may see",
            **_NO_STORE,
        },
    ),
)

_PAUSE_ROUTES: Final = (
    Route(
        path=f"{_V1}/pause",
        method="GET",
        summary="Whether the agent is paused",
        handler=at_once(node.pause_state),
        access=Access.ANYONE,
        replies=_ok(PauseState),
        refusals={},
    ),
    Route(
        path=f"{_V1}/pause",
        method="POST",
        summary="Pause sampling, captures and analysis at once",
        handler=in_pool(node.pause),
        access=Access.ADMIN,
        parameters=(node.FOR, node.REASON),
        replies=_ok(PauseState, "It is paused"),
        refusals={},
    ),
    Route(
        path=f"{_V1}/pause",
        method="DELETE",
        summary="Go on",
        handler=in_pool(node.resume),
        access=Access.ADMIN,
        replies=(Reply(status=HTTPStatus.NO_CONTENT, help="It goes on", media_types=()),),
        refusals={},
    ),
)

_PAGE_ROUTES: Final = (
    Route(
        path="/openapi.json",
        method="GET",
        summary="This description",
        handler=in_pool(openapi.openapi),
        is_large=True,
        access=Access.ANYONE,
        replies=(Reply(status=HTTPStatus.OK, help="OpenAPI 3.1"),),
        refusals={},
    ),
    Route(
        path="/docs",
        method="GET",
        summary="This description, for people",
        handler=in_pool(openapi.docs),
        access=Access.ANYONE,
        replies=(Reply(status=HTTPStatus.OK, help="A page", media_types=("text/html",)),),
        refusals={},
    ),
    Route(
        path="/docs/{file}",
        method="GET",
        summary="What the page is made of",
        handler=in_pool(openapi.docs_file),
        is_large=True,
        access=Access.ANYONE,
        parameters=(openapi.FILE,),
        replies=(Reply(status=HTTPStatus.OK, help="A file", media_types=openapi.FILE_MEDIA_TYPES),),
        refusals={},
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
