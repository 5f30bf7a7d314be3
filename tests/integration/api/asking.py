"""Asking the applications in process, as one user or another."""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field

import httpx
from starlette.types import ASGIApp, Receive, Scope, Send

from chopperd.api.access import UnixPeer


@dataclass
class WithState:
    """Puts what the server knows into the state of each request."""

    app: ASGIApp
    state: dict[str, object] = field(default_factory=dict)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app({**scope, "state": dict(self.state)}, receive, send)


def client(app: ASGIApp, **state: object) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(WithState(app, state))
    return httpx.AsyncClient(transport=transport, base_url="http://localhost")


#: As `uid` of one who asks by the Unix socket from a process that has no id here.
ELSEWHERE = -1


def ask(
    app: ASGIApp,
    method: str,
    url: str,
    *,
    uid: int | None = None,
    content: bytes | AsyncIterator[bytes] | None = None,
    headers: Mapping[str, str] | None = None,
) -> httpx.Response:
    """The answer to one request of a user; None: nobody knows whose it is."""

    async def go() -> httpx.Response:
        peer = None if uid is None else UnixPeer(os.getpid(), uid)
        peer = UnixPeer(0, 0) if uid == ELSEWHERE else peer
        async with client(app, peer=peer) as asking:
            return await asking.request(method, url, content=content, headers=headers)

    return asyncio.run(go())


def check_problem(answer: httpx.Response, status: int) -> dict[str, object]:
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    problem: dict[str, object] = answer.json()
    assert problem["status"] == status
    assert problem["title"]
    return problem
