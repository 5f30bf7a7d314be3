"""Traces over HTTP: what became of them, and handing one in."""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from http import HTTPStatus
from typing import Final, TypeVar

from starlette.requests import ClientDisconnect
from starlette.responses import Response

from chopperd.api.models import Traces, TraceTaken
from chopperd.api.parameters import DEVICE_MAP_TEXT, file_name, in_path, line, optional
from chopperd.api.problems import ParameterProblem, ProblemError, bad_parameters, retry_later
from chopperd.api.routing import Call, json_response
from chopperd.api.steps import LIMIT
from chopperd.errors import IngestError, IngestReason
from chopperd.model.captures import TraceEntry
from chopperd.model.services import Upload

V = TypeVar("V")

_LONGEST_PATH: Final = 1024
_DEFAULT_NAME: Final = "upload"
#: Written to disk at a time; each upload in progress holds so much.
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
UPLOAD_JOB: Final = optional("job", file_name(128), "job that the trace is of")
DEVICE_MAP: Final = optional(
    "device_map",
    DEVICE_MAP_TEXT,
    "which GPU each device of the trace is, [RANK:]DEVICE=GPU,... or pci; a known trace is "
    "analysed again",
)
PATH: Final = optional(
    "path", line(_LONGEST_PATH), "take this file of the node, under ingest.roots; no body"
)


def traces(call: Call) -> Response:
    """Traces, newest first."""
    return json_response(Traces(traces=call.services.steps.traces(call.viewer, limit=call[LIMIT])))


def trace(call: Call) -> Response:
    """One trace."""
    found = call.services.steps.trace(call[TRACE_ID], call.viewer)
    if found is None:
        raise ProblemError(HTTPStatus.NOT_FOUND, "no such trace among those that you may see")
    return json_response(found)


async def take_trace(call: Call) -> Response:
    """Take a trace: the body, or a file of this node."""
    try:
        with call.uploads.one():
            path = call[PATH]
            entry, is_new = await (_take_body(call) if path is None else _take_file(call, path))
    except IngestError as error:
        raise _refusal(error) from error
    except ClientDisconnect as error:
        detail = "the connection ended before the trace did"
        raise ProblemError(HTTPStatus.BAD_REQUEST, detail) from error
    return json_response(
        TraceTaken(id=entry.id, state=entry.state),
        status=HTTPStatus.ACCEPTED if is_new else HTTPStatus.OK,
        headers={"location": f"/api/v1/traces/{entry.id}"},
    )


async def _take_file(call: Call, path: str) -> tuple[TraceEntry, bool]:
    """Take a copy of a file of this node."""
    if call[NAME] is not None:
        problem = ParameterProblem(parameter=NAME.name, detail="goes with a body, not with 'path'")
        raise bad_parameters(problem)
    ingest, job, uid = call.services.ingest, call[UPLOAD_JOB], call.viewer.uid
    device_map = call[DEVICE_MAP]
    if uid is None and not call.viewer.is_admin:
        detail = "it can't be told whether you may read that file: send its bytes"
        raise ProblemError(HTTPStatus.FORBIDDEN, detail)
    return await _in_pool(
        lambda: ingest.take_file(path, job=job, owner_uid=uid, device_map=device_map)
    )


async def _take_body(call: Call) -> tuple[TraceEntry, bool]:
    """Take the body, piece by piece; nothing of it is kept if it does not come to its end."""
    upload = await _in_pool(
        lambda: call.services.ingest.open_upload(
            name=call[NAME] or _DEFAULT_NAME,
            job=call[UPLOAD_JOB],
            owner_uid=call.viewer.uid,
            expected_bytes=_declared_bytes(call),
            device_map=call[DEVICE_MAP],
        )
    )
    is_finished = False
    try:
        await _write_body(call, upload)
        taken = await _in_pool(upload.finish)
        is_finished = True
    finally:
        if not is_finished:
            await _in_pool(upload.abort)
    return taken


async def _write_body(call: Call, upload: Upload) -> None:
    held = bytearray()
    async for piece in call.request.stream():
        held += piece
        if len(held) >= _CHUNK_BYTES:
            await _in_pool(partial(upload.write, bytes(held)))
            held.clear()
    if held:
        await _in_pool(partial(upload.write, bytes(held)))


def _declared_bytes(call: Call) -> int | None:
    """The length that the client says the body has."""
    text = call.request.headers.get("content-length", "")
    return int(text) if text.isdecimal() and len(text) < 20 else None


def _refusal(error: IngestError) -> ProblemError:
    status = _STATUS_OF_REASON[error.reason]
    if status is HTTPStatus.SERVICE_UNAVAILABLE:
        return retry_later(str(error), after_s=10)
    return ProblemError(status, str(error))


async def _in_pool(work: Callable[[], V]) -> V:
    return await asyncio.get_running_loop().run_in_executor(None, work)
