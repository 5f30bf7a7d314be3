"""Asking the applications in process, as one user or another."""

import asyncio
from dataclasses import dataclass
from typing import Any

import httpx
from starlette.types import ASGIApp, Receive, Scope, Send

from chopperd.api.peers import Peer, UnixPeer, UnknownPeer


@dataclass
class Seen:
    """Puts a peer into the state of each request, as the server does."""

    app: ASGIApp
    peer: Peer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app({**scope, "state": {"peer": self.peer}}, receive, send)


def ask(
    app: ASGIApp, method: str, url: str, *, uid: int | None = None, **how: Any
) -> httpx.Response:
    """The answer to one request of a user; None: nobody knows whose it is."""

    async def go() -> httpx.Response:
        peer = UnknownPeer() if uid is None else UnixPeer(uid)
        transport = httpx.ASGITransport(Seen(app, peer))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.request(method, url, **how)

    return asyncio.run(go())
