"""Answers from what was analysed: jobs, steps, kernels, reports; of each viewer's own jobs."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from http import HTTPStatus
from typing import Final

from starlette.responses import Response

from chopperd.api.accept import best_media_type
from chopperd.api.models import Jobs, Step, StepKernels, Steps
from chopperd.api.node import FROM, TO
from chopperd.api.parameters import defaulted, in_path, line, one_of, optional, whole
from chopperd.api.problems import (
    Extras,
    ParameterProblem,
    ProblemError,
    StepCandidate,
    bad_parameters,
)
from chopperd.api.routing import Call, json_response
from chopperd.api.services import DocumentForm
from chopperd.model.captures import DeviceKernels, StepQuery
from chopperd.model.report import ReportDocument, Row
from chopperd.model.row_parts import PARTS_BY, without_parts

_MAX_INT32: Final = 2**31 - 1
_MAX_INT64: Final = 2**63 - 1
_FAMILIES: Final = "families"
_FORMS: Final[Mapping[str, DocumentForm]] = {
    "application/json": "json",
    "text/plain": "text",
    "text/csv": "csv",
}
REPORT_MEDIA_TYPES: Final = tuple(_FORMS)

JOB: Final = optional("job", line(), "only of this job")
JOB_ID: Final = in_path("job", line(), "name of a job")
RUN: Final = optional(
    "run", line(), "only of this run; most have no name, as a job has one run at a time"
)
RANK: Final = optional("rank", whole(0, _MAX_INT32), "only of this rank")
GPU_LABEL: Final = optional("gpu", line(128), "only of the GPU with this label")
LIMIT: Final = defaulted("limit", whole(1, 1000), 100, "most entries to give")
CURSOR: Final = optional("cursor", line(512), "where the page before ended")
STEP: Final = in_path("step", whole(0, _MAX_INT64), "number of a step")
BY: Final = defaulted("by", one_of(*PARTS_BY), "family", "what to sum kernels by")
INCLUDE: Final = optional(
    "include", one_of(_FAMILIES), "also give kernels by family, operation, layer and phase"
)


def jobs(call: Call) -> Response:
    """All jobs."""
    return json_response(Jobs(jobs=call.services.steps.jobs(call.viewer)))


def job(call: Call) -> Response:
    """One job."""
    for each in call.services.steps.jobs(call.viewer):
        if each.job == call[JOB_ID]:
            return json_response(each)
    raise _not_found("job")


def steps(call: Call) -> Response:
    """Steps, page by page."""
    query = StepQuery(
        job=call[JOB],
        run=call[RUN],
        rank=call[RANK],
        gpu=call[GPU_LABEL],
        from_unix_ns=call[FROM],
        to_unix_ns=call[TO],
    )
    try:
        page = call.services.steps.steps(query, call.viewer, limit=call[LIMIT], cursor=call[CURSOR])
    except ValueError as error:
        problem = ParameterProblem(parameter=CURSOR.name, detail="is none that a page gave")
        raise bad_parameters(problem) from error
    return json_response(Steps(steps=_brief_rows(page.steps), cursor=page.cursor))


def step(call: Call) -> Response:
    """One step on all devices."""
    query = StepQuery(job=call[JOB], run=call[RUN], rank=call[RANK], gpu=call[GPU_LABEL])
    rows = call.services.steps.step(call[STEP], query, call.viewer)
    if not rows:
        raise _not_found("step")
    job_name, run = _only_one((each.job, each.run) for each in rows)
    if call[INCLUDE] != _FAMILIES:
        rows = _brief_rows(rows)
    return json_response(Step(step=call[STEP], job=job_name, run=run, rows=rows))


def kernels(call: Call) -> Response:
    """The kernels of the capture that a step lies in."""
    query = StepQuery(job=call[JOB], run=call[RUN], rank=call[RANK], gpu=call[GPU_LABEL])
    devices = call.services.steps.kernels(call[STEP], query, call.viewer)
    if not devices:
        raise _not_found("step")
    _only_one((each.job, each.run) for each in devices)
    return json_response(
        StepKernels(
            step=call[STEP], by=call[BY], devices=tuple(_only(call[BY], each) for each in devices)
        )
    )


def latest_report(call: Call) -> Response:
    """The report on the newest capture, in the form that the client likes best."""
    media_type = best_media_type(call.request.headers.get("accept"), REPORT_MEDIA_TYPES)
    if media_type is None:
        detail = f"a report is had as {', '.join(REPORT_MEDIA_TYPES)}"
        raise ProblemError(HTTPStatus.NOT_ACCEPTABLE, detail)
    document = call.services.steps.latest_document(call[JOB], call.viewer)
    if document is None:
        raise _not_found("report, or no trace was analysed yet,")
    if call[INCLUDE] != _FAMILIES:
        document = _brief(document)
    body = call.services.render_document(document, _FORMS[media_type])
    return Response(body, media_type=media_type, headers={"vary": "accept"})


def _not_found(what: str) -> ProblemError:
    return ProblemError(HTTPStatus.NOT_FOUND, f"no such {what} among the jobs that you may see")


def _only_one(owners: Iterable[tuple[str | None, str | None]]) -> tuple[str | None, str | None]:
    """The one job and run that all are of.

    Raises:
        ProblemError: They are of several; names them.
    """
    candidates = list(dict.fromkeys(owners))
    if len(candidates) == 1:
        return candidates[0]
    raise ProblemError(
        HTTPStatus.CONFLICT,
        "several jobs or runs have this step: say which with ?job= and ?run=",
        extras=Extras(candidates=[StepCandidate(job=job, run=run) for job, run in candidates]),
    )


def _only(by: str, device: DeviceKernels) -> DeviceKernels:
    """The device with one of its lists."""
    return replace(
        device,
        families=device.families if by == "family" else (),
        by_operation=device.by_operation if by == "operation" else (),
        by_layer=device.by_layer if by == "layer" else (),
        by_phase=device.by_phase if by == "phase" else (),
    )


def _brief_rows(rows: Iterable[Row]) -> tuple[Row, ...]:
    return tuple(map(without_parts, rows))


def _brief(document: ReportDocument) -> ReportDocument:
    """The document without the long lists of its rows."""
    return replace(
        document,
        totals=_brief_rows(document.totals),
        steps=_brief_rows(document.steps),
        host=(),
    )
