"""The node as a stream of server-sent events."""

import asyncio
from collections.abc import AsyncIterator
from typing import Final

import msgspec
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from chopperd.api.models import event_of
from chopperd.api.places import Places
from chopperd.api.problems import ProblemError
from chopperd.api.routing import Call
from chopperd.model.services import SnapshotSource

MEDIA_TYPE: Final = "text/event-stream"
_EVERY_S: Final = 1.0
_HEARTBEAT_AFTER: Final = 10
_HEARTBEAT: Final = b": no news\n\n"
_END: Final = b"event: end\ndata: {}\n\n"


class _EventStream(StreamingResponse):
    """A streamed answer that takes one of a bounded number of places."""

    def __init__(self, events: AsyncIterator[bytes], places: Places) -> None:
        super().__init__(events, media_type=MEDIA_TYPE, headers={"x-accel-buffering": "no"})
        self._places = places

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with self._places.one():
                await super().__call__(scope, receive, send)
        except ProblemError as problem:
            await problem.response()(scope, receive, send)


async def stream(call: Call) -> Response:
    """An event each second, until the client or the agent goes."""
    if call.request.method == "HEAD":
        return Response(media_type=MEDIA_TYPE)
    stopping: asyncio.Event = getattr(call.request.state, "stopping", None) or asyncio.Event()
    return _EventStream(_events(call.services.snapshots, stopping), call.streams)


async def _events(snapshots: SnapshotSource, stopping: asyncio.Event) -> AsyncIterator[bytes]:
    """Each new snapshot; a comment where there is none for long; word of the end."""
    seen_mono_ns, quiet = None, 0
    while True:
        snapshot = snapshots.latest()
        if snapshot.taken_mono_ns != seen_mono_ns:
            seen_mono_ns, quiet = snapshot.taken_mono_ns, 0
            yield b"event: snapshot\ndata: " + msgspec.json.encode(event_of(snapshot)) + b"\n\n"
        elif (quiet := quiet + 1) % _HEARTBEAT_AFTER == 0:
            yield _HEARTBEAT
        if await _is_set_within(stopping, _EVERY_S):
            yield _END
            return


async def _is_set_within(event: asyncio.Event, timeout_s: float) -> bool:
    try:
        async with asyncio.timeout(timeout_s):
            return await event.wait()
    except TimeoutError:
        return False
