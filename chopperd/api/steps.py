"""Request handlers about the caller's jobs, steps, kernels, reports and traces; uploads."""

from collections.abc import Iterable, Mapping
from functools import partial
from http import HTTPStatus
from typing import Final, get_args

from msgspec.structs import replace
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from chopperd import __version__
from chopperd.api import models
from chopperd.api.parameters import (
    DEVICE_MAP_TEXT,
    FROM,
    LIMIT,
    TO,
    best_media_type,
    defaulted,
    file_name,
    in_path,
    line,
    one_of,
    optional,
    whole,
)
from chopperd.api.routing import (
    Call,
    DocumentForm,
    ParameterProblem,
    ProblemError,
    StepCandidate,
    bad_parameters,
    json_response,
    pooled,
    retry_later,
)
from chopperd.correlate.compared_reports import compare as compare_reports
from chopperd.errors import IncomparableError, IngestError, IngestReason
from chopperd.model.captures import StepQuery, TraceEntry
from chopperd.model.comparison import Allowed
from chopperd.model.report import FIELDS, PARTS_BY, ReportDocument, without_parts
from chopperd.model.report_rows import Row
from chopperd.model.services import Upload

_MAX_INT32: Final = 2**31 - 1
_MAX_INT64: Final = 2**63 - 1
_FAMILIES: Final = "families"
_FORMS: Final[Mapping[str, DocumentForm]] = {
    "application/json": "json",
    "text/plain": "text",
    "text/csv": "csv",
    "text/markdown": "markdown",
    "text/html": "html",
}
REPORT_MEDIA_TYPES: Final = tuple(_FORMS)
_PAGE: Final = "text/html"
#: A page has its style and script inside, and says itself which ones.
PAGE_POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "frame-ancestors 'none'"
)

JOB: Final = optional("job", line(), "only this job")
JOB_ID: Final = in_path("job", line(), "name of a job")
RUN: Final = optional(
    "run", line(), "only this run; most have no name, as a job has one run at a time"
)
CAPTURE: Final = optional(
    "capture", whole(0, _MAX_INT64), "not the newest capture but this one, as traces name it"
)
RANK: Final = optional("rank", whole(0, _MAX_INT32), "only this rank")
GPU_LABEL: Final = optional("gpu", line(128), "only the GPU with this label")
CURSOR: Final = optional("cursor", line(512), "the cursor that the previous page gave")
STEP: Final = in_path("step", whole(0, _MAX_INT64), "number of a step")
BY: Final = defaulted("by", one_of(*PARTS_BY), "family", "what kernels are summed by")
INCLUDE: Final = optional(
    "include", one_of(_FAMILIES), "add kernels by family, operation, layer and phase"
)
JOB_A: Final = optional("a", line(), "the job that is compared with; default: the newest")
JOB_B: Final = optional("b", line(), "the job that is compared; default: the newest")
ALLOW: Final = optional(
    "allow", one_of(*get_args(Allowed)), "compare although these differ between the jobs"
)

_LONGEST_PATH: Final = 1024
_DEFAULT_NAME: Final = "upload"
#: Written to disk at a time, and buffered by each upload in progress.
_CHUNK_BYTES: Final = 2**18
_STATUS_OF_REASON: Final[Mapping[IngestReason, HTTPStatus]] = {
    IngestReason.OFF: HTTPStatus.CONFLICT,
    IngestReason.TOO_LARGE: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    IngestReason.NO_ROOM: HTTPStatus.INSUFFICIENT_STORAGE,
    IngestReason.FORBIDDEN: HTTPStatus.FORBIDDEN,
    IngestReason.NOT_FOUND: HTTPStatus.NOT_FOUND,
    IngestReason.BUSY: HTTPStatus.SERVICE_UNAVAILABLE,
}

TRACE_ID: Final = in_path("trace", line(64), "id of a trace")
NAME: Final = optional("name", file_name(), "file name of the trace in the body")
UPLOAD_JOB: Final = optional("job", file_name(128), "job of the trace")
DEVICE_MAP: Final = optional(
    "device_map",
    DEVICE_MAP_TEXT,
    "GPU of each device in the trace: [RANK:]DEVICE=GPU,... or pci; analyses a known trace again",
)
PATH: Final = optional(
    "path", line(_LONGEST_PATH), "use this file of the node, under ingest.roots, without a body"
)


def jobs(call: Call) -> Response:
    """Jobs that traces came from, newest first."""
    return json_response(models.Jobs(jobs=call.services.steps.jobs(call.viewer)))


def job(call: Call) -> Response:
    """One job."""
    for each in call.services.steps.jobs(call.viewer):
        if each.job == call[JOB_ID]:
            return json_response(each)
    raise _not_found("job")


def steps(call: Call) -> Response:
    """Steps, newest first, without their kernels."""
    query = replace(_query(call), from_unix_ns=call[FROM], to_unix_ns=call[TO])
    try:
        page = call.services.steps.steps(query, call.viewer, limit=call[LIMIT], cursor=call[CURSOR])
    except ValueError as error:
        problem = ParameterProblem(parameter=CURSOR.name, detail="is not the cursor of a page")
        raise bad_parameters(problem) from error
    return json_response(models.Steps(steps=_brief_rows(page.steps), cursor=page.cursor))


def step(call: Call) -> Response:
    """One step on all devices."""
    rows = call.services.steps.step(call[STEP], _query(call), call.viewer)
    if not rows:
        raise _not_found("step")
    job_name, run = _only_one((each.job, each.run) for each in rows)
    if call[INCLUDE] != _FAMILIES:
        rows = _brief_rows(rows)
    return json_response(models.Step(step=call[STEP], job=job_name, run=run, rows=rows))


def kernels(call: Call) -> Response:
    """The kernels that a step launched on each device."""
    by, devices = call[BY], call.services.steps.kernels(call[STEP], _query(call), call.viewer)
    if not devices:
        raise _not_found("step")
    _only_one((each.job, each.run) for each in devices)
    unwanted = {FIELDS[kind]: () for kind in PARTS_BY if kind != by}
    only = tuple(replace(each, **unwanted) for each in devices)
    return json_response(models.StepKernels(step=call[STEP], by=by, devices=only))


def latest_report(call: Call) -> Response:
    """The report on the newest capture, in the format that `Accept` requests."""
    media_type = best_media_type(call.request.headers.get("accept"), REPORT_MEDIA_TYPES)
    if media_type is None:
        detail = f"reports are available as {', '.join(REPORT_MEDIA_TYPES)}"
        raise ProblemError(HTTPStatus.NOT_ACCEPTABLE, detail)
    source, capture = call.services.steps, call[CAPTURE]
    document = source.latest_document(call[JOB], call.viewer, capture)
    if document is None:
        raise _not_found("report, or no trace was analysed yet,")
    # A page is one file with all in it, which is compared with others later.
    if call[INCLUDE] != _FAMILIES and media_type != _PAGE:
        totals, rows = _brief_rows(document.totals), _brief_rows(document.steps)
        document = replace(document, totals=totals, steps=rows, host=())
    body = call.services.render_document(document, _FORMS[media_type])
    headers = {"vary": "accept"}
    if media_type == _PAGE:
        headers["content-security-policy"] = PAGE_POLICY
    return Response(body, media_type=media_type, headers=headers)


def _newest(call: Call) -> list[tuple[str | None, ReportDocument]]:
    """Return the report on each job's newest capture, of those asked for."""
    source, wanted = call.services.steps, call[JOB]
    every = [each.job for each in source.jobs(call.viewer) if wanted in (None, each.job)]
    names = list(dict.fromkeys(every))[: call[LIMIT]]
    found = [(name, source.latest_document(name, call.viewer)) for name in names]
    # Asked for the job without a name, the source gives the newest report of any.
    reports = [
        (name, each)
        for name, each in found
        if each is not None and (name is not None or each.trace.job is None)
    ]
    if wanted is not None and not reports:
        raise _not_found("job, or none of its traces was analysed yet,")
    return reports


def findings(call: Call) -> Response:
    """What to do about each job: the findings of the report on its newest capture."""
    found = (
        models.JobFindings(
            job=name, run=each.trace.run, time=each.generated.time, findings=each.findings
        )
        for name, each in _newest(call)
    )
    return json_response(models.Findings(jobs=tuple(found)))


def memory(call: Call) -> Response:
    """Device memory of each job by rank, with the clock of its steps: its newest capture's."""
    found = (
        models.JobMemory(
            job=name,
            run=each.trace.run,
            time=each.generated.time,
            framework=each.framework.name,
            memory=each.memory,
        )
        for name, each in _newest(call)
    )
    return json_response(models.Memory(jobs=tuple(found)))


def compare(call: Call) -> Response:
    """The newest reports of two jobs compared: whether `b` is slower than `a`, and where."""
    source = call.services.steps
    found = [source.latest_document(call[job], call.viewer) for job in (JOB_A, JOB_B)]
    documents = [[each] for each in found if each is not None]
    if len(documents) < len(found):
        raise _not_found("job, or none of its traces was analysed yet,")
    asked = call[ALLOW]
    allow = () if asked is None else (asked,)
    try:
        return json_response(compare_reports(documents, version=__version__, allow=allow))
    except IncomparableError as error:
        hint = f"; to compare them all the same: allow={error.allow}" if error.allow else ""
        raise ProblemError(HTTPStatus.CONFLICT, f"{error}{hint}") from error


def _query(call: Call) -> StepQuery:
    return StepQuery(job=call[JOB], run=call[RUN], rank=call[RANK], gpu=call[GPU_LABEL])


def _not_found(what: str) -> ProblemError:
    return ProblemError(HTTPStatus.NOT_FOUND, f"no such {what} among the jobs that you may see")


def _only_one(owners: Iterable[tuple[str | None, str | None]]) -> tuple[str | None, str | None]:
    """Return the job and run that all rows share."""
    candidates = list(dict.fromkeys(owners))
    if len(candidates) == 1:
        return candidates[0]
    raise ProblemError(
        HTTPStatus.CONFLICT,
        "several jobs or runs have this step: choose with ?job= and ?run=",
        candidates=[StepCandidate(job=job, run=run) for job, run in candidates],
    )


def _brief_rows(rows: Iterable[Row]) -> tuple[Row, ...]:
    return tuple(map(without_parts, rows))


def traces(call: Call) -> Response:
    """Traces that the agent received, newest first."""
    return json_response(
        models.Traces(traces=call.services.steps.traces(call.viewer, limit=call[LIMIT]))
    )


def trace(call: Call) -> Response:
    """One trace."""
    found = call.services.steps.trace(call[TRACE_ID], call.viewer)
    if found is None:
        raise ProblemError(HTTPStatus.NOT_FOUND, "no such trace among those that you may see")
    return json_response(found)


async def take_trace(call: Call) -> Response:
    """Upload a Kineto trace, plain or compressed, or name a file of the node."""
    try:
        with call.shared.uploads.one():
            path = call[PATH]
            entry, is_new = await (_take_body(call) if path is None else _take_file(call, path))
    except IngestError as error:
        raise _refusal(error) from error
    except ClientDisconnect as error:
        detail = "the connection ended before the end of the trace"
        raise ProblemError(HTTPStatus.BAD_REQUEST, detail) from error
    return json_response(
        models.TraceTaken(id=entry.id, state=entry.state),
        status=HTTPStatus.ACCEPTED if is_new else HTTPStatus.OK,
        headers={"location": f"/api/v1/traces/{entry.id}"},
    )


async def _take_file(call: Call, path: str) -> tuple[TraceEntry, bool]:
    """Receive a copy of a file of this node; return its entry, and whether it is new."""
    if call[NAME] is not None:
        problem = ParameterProblem(parameter=NAME.name, detail="needs a body, not 'path'")
        raise bad_parameters(problem)
    ingest, job, uid = call.services.ingest, call[UPLOAD_JOB], call.viewer.uid
    device_map = call[DEVICE_MAP]
    if uid is None and not call.viewer.is_admin:
        detail = "it is not known whether you may read that file: send its bytes"
        raise ProblemError(HTTPStatus.FORBIDDEN, detail)
    return await pooled(
        lambda: ingest.take_file(path, job=job, owner_uid=uid, device_map=device_map)
    )


async def _take_body(call: Call) -> tuple[TraceEntry, bool]:
    """Receive the body in pieces; discard an incomplete one; return its entry, and if it is new."""
    upload = await pooled(
        lambda: call.services.ingest.open_upload(
            name=call[NAME] or _DEFAULT_NAME,
            job=call[UPLOAD_JOB],
            owner_uid=call.viewer.uid,
            expected_bytes=_declared_bytes(call),
            device_map=call[DEVICE_MAP],
        )
    )
    try:
        await _write_body(call, upload)
        return await pooled(upload.finish)
    except BaseException:
        await pooled(upload.abort)
        raise


async def _write_body(call: Call, upload: Upload) -> None:
    held = bytearray()
    async for piece in call.request.stream():
        held += piece
        if len(held) >= _CHUNK_BYTES:
            await pooled(partial(upload.write, bytes(held)))
            held.clear()
    if held:
        await pooled(partial(upload.write, bytes(held)))


def _declared_bytes(call: Call) -> int | None:
    """Return the body's length as declared by the client; None if absent or invalid."""
    text = call.request.headers.get("content-length", "")
    return int(text) if text.isdecimal() and len(text) < 20 else None


def _refusal(error: IngestError) -> ProblemError:
    status = _STATUS_OF_REASON[error.reason]
    if status is HTTPStatus.SERVICE_UNAVAILABLE:
        return retry_later(str(error), after_s=10)
    return ProblemError(status, str(error))
