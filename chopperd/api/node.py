"""Request handlers about the node: status, GPUs, samples, drops, metrics, health, stream, pause."""

import asyncio
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Final

import msgspec
from isal import igzip
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from chopperd.api.access import Access
from chopperd.api.history import LONGEST_NS, MOST_POINTS, history
from chopperd.api.models import (
    Caller,
    Drops,
    PauseState,
    Well,
    event_of,
    gpu_of,
    gpus_of,
    status_of,
)
from chopperd.api.parameters import (
    FROM,
    LIMIT,
    TO,
    accepts_gzip,
    defaulted,
    duration,
    in_path,
    line,
    optional,
    whole,
)
from chopperd.api.routing import (
    ApiServices,
    Call,
    ParameterProblem,
    ProblemError,
    Slots,
    bad_parameters,
    is_set_within,
    json_response,
    retry_later,
    viewer_of,
)
from chopperd.model.captures import DropQuery
from chopperd.model.live import GpuLive, NodeSnapshot, Pause
from chopperd.model.services import SnapshotSource
from chopperd.units import NS_PER_S

_READY_AGE_NS: Final = 5 * NS_PER_S
_METRICS_AGE_NS: Final = 10 * NS_PER_S
_DEFAULT_SPAN_NS: Final = 600 * NS_PER_S
_GZIP_LEVEL: Final = 1

GPU: Final = in_path("gpu", line(128), "label, UUID or PCI bus id of a GPU")
POINTS: Final = defaulted("points", whole(1, MOST_POINTS), 600, "most points to return")
GPU_OR_NONE: Final = optional("gpu", line(128), "only the GPU with this label or UUID")
STREAM_TYPE: Final = "text/event-stream"
_EVERY_S: Final = 1.0
_HEARTBEAT_AFTER: Final = 10
_HEARTBEAT: Final = b": no news\n\n"
_END: Final = b"event: end\ndata: {}\n\n"
_LONGEST_PAUSE_S: Final = 30 * 86_400.0

FOR: Final = optional("for", duration(_LONGEST_PAUSE_S), "length; by default until it is ended")
REASON: Final = optional("reason", line(200), "why, for people")


async def viewer(call: Call) -> Response:
    """Who you are to the agent, and so whose jobs you may see."""
    try:
        found = await viewer_of(call.request, Access.VIEWER, call.services.access)
    except ProblemError:
        if "authorization" in call.request.headers:
            raise
        found = call.viewer  # over TCP without a token: nobody in particular
    known = found.is_admin or found.uid is not None
    return json_response(Caller(known=known, uid=found.uid, is_admin=found.is_admin))


def status(call: Call) -> Response:
    """The agent and its node now."""
    services = call.services
    snapshot = services.snapshots.latest()
    age_ns, trouble = snapshot_age_ns(services, snapshot), services.health.trouble()
    return json_response(status_of(snapshot, age_ns=age_ns, trouble=trouble))


def gpus(call: Call) -> Response:
    """All GPUs now."""
    return json_response(gpus_of(call.services.snapshots.latest()))


def gpu(call: Call) -> Response:
    """One GPU now."""
    return json_response(gpu_of(_found(call.services.snapshots.latest(), call[GPU])))


def samples(call: Call) -> Response:
    """Samples of one GPU over a time, by default the last ten minutes."""
    label = _found(call.services.snapshots.latest(), call[GPU]).info.gpu
    start, end, points = call[FROM], call[TO], call[POINTS]
    to_ns = end if end is not None else call.services.clock.unix_ns()
    from_ns = start if start is not None else max(to_ns - _DEFAULT_SPAN_NS, 0)
    if not 0 < to_ns - from_ns <= LONGEST_NS:
        longest = f"must be before 'to' by at most {LONGEST_NS // (86_400 * NS_PER_S)} days"
        raise bad_parameters(ParameterProblem(parameter="from", detail=longest))
    return json_response(history(call.services.samples, label, from_ns, to_ns, points))


def metrics(call: Call) -> Response:
    """Metrics for Prometheus."""
    services = call.services
    age_ns = snapshot_age_ns(services, services.snapshots.latest())
    if age_ns > _METRICS_AGE_NS:
        raise retry_later(f"the newest values are {age_ns / NS_PER_S:.0f} s old", after_s=5)
    body, media_type = services.metrics(call.request.headers.get("accept"))
    headers = {"content-type": media_type, "vary": "accept, accept-encoding"}
    if accepts_gzip(call.request.headers.get("accept-encoding")):
        body, headers["content-encoding"] = igzip.compress(body, _GZIP_LEVEL), "gzip"
    return Response(body, headers=headers)


def healthz(call: Call) -> Response:
    """Whether the agent itself is healthy."""
    trouble = call.services.health.trouble()
    if trouble is not None:
        raise ProblemError(HTTPStatus.SERVICE_UNAVAILABLE, trouble)
    return json_response(Well())


def readyz(call: Call) -> Response:
    """Whether any GPU has a fresh sample."""
    snapshot = call.services.snapshots.latest()
    age_ns = snapshot_age_ns(call.services, snapshot)
    if age_ns > _READY_AGE_NS:
        raise retry_later(f"the newest values are {age_ns / NS_PER_S:.0f} s old", after_s=1)
    if not snapshot.backend_up:
        reason = snapshot.sampler.reason or f"sampling is {snapshot.sampler.condition}"
        raise retry_later(f"no GPU has a fresh sample: {reason}", after_s=1)
    return json_response(Well())


def snapshot_age_ns(services: ApiServices, snapshot: NodeSnapshot) -> int:
    """Return the age of a snapshot in ns, by the monotonic clock."""
    return max(services.clock.mono_ns() - snapshot.taken_mono_ns, 0)


def _found(snapshot: NodeSnapshot, key: str) -> GpuLive:
    """Return the GPU with this label, UUID or PCI bus id; raise `ProblemError` if there is none."""
    for each in snapshot.gpus:
        if key == each.info.gpu:
            return each
    wanted = key.lower()
    for each in snapshot.gpus:
        pci = (each.info.pci_bus_id or "").lower()
        # NVIDIA writes the PCI domain with 8 digits, Linux with 4.
        if wanted in (each.info.uuid.lower(), pci) or (pci and wanted == pci[4:]):
            return each
    known = ", ".join(each.info.gpu for each in snapshot.gpus) or "none"
    raise ProblemError(HTTPStatus.NOT_FOUND, f"no such GPU; there are: {known}")


def drops(call: Call) -> Response:
    """Drops of busy clocks below those of the minute before, newest first."""
    query = DropQuery(gpu=call[GPU_OR_NONE], from_unix_ns=call[FROM], to_unix_ns=call[TO])
    return json_response(Drops(drops=call.services.drops.drops(query, limit=call[LIMIT])))


class _EventStream(StreamingResponse):
    """Streaming response that takes one of a limited number of slots while it is open."""

    def __init__(self, events: AsyncIterator[bytes], slots: Slots) -> None:
        super().__init__(events, media_type=STREAM_TYPE, headers={"x-accel-buffering": "no"})
        self._slots = slots

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with self._slots.one():
                await super().__call__(scope, receive, send)
        except ProblemError as problem:
            await problem.response()(scope, receive, send)


async def stream(call: Call) -> Response:
    """The node each second, as server-sent events named `snapshot`."""
    if call.request.method == "HEAD":
        return Response(media_type=STREAM_TYPE)
    stopping: asyncio.Event = getattr(call.request.state, "stopping", None) or asyncio.Event()
    return _EventStream(_events(call.services.snapshots, stopping), call.shared.streams)


async def _events(snapshots: SnapshotSource, stopping: asyncio.Event) -> AsyncIterator[bytes]:
    """Yield an event for each new snapshot, comments when there is none, and a final event."""
    seen_mono_ns, quiet = None, 0
    while True:
        snapshot = snapshots.latest()
        if snapshot.taken_mono_ns != seen_mono_ns:
            seen_mono_ns, quiet = snapshot.taken_mono_ns, 0
            yield b"event: snapshot\ndata: " + msgspec.json.encode(event_of(snapshot)) + b"\n\n"
        elif (quiet := quiet + 1) % _HEARTBEAT_AFTER == 0:
            yield _HEARTBEAT
        if await is_set_within(stopping, _EVERY_S):
            yield _END
            return


def pause_state(call: Call) -> Response:
    """Whether the agent is paused."""
    return json_response(_state(call.services.snapshots.latest().pause))


def pause(call: Call) -> Response:
    """Pause sampling, captures and analysis at once."""
    uid = call.viewer.uid
    by_whom = "requested over the API" + (f" by uid {uid}" if uid is not None else "")
    return json_response(_state(call.services.pause.pause(call[REASON] or by_whom, call[FOR])))


def resume(call: Call) -> Response:
    """End the pause."""
    call.services.pause.resume()
    return Response(status_code=HTTPStatus.NO_CONTENT)


def _state(pause: Pause | None) -> PauseState:
    if pause is None:
        return PauseState(paused=False)
    return PauseState(paused=True, reason=pause.reason, until_unix_ns=pause.until_unix_ns)
