"""A small HTTP server that answers as it is told, on a Unix socket or on loopback."""

import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import msgspec


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What is sent; a body that is cut ends before the announced length."""

    body: bytes = b""
    status: int = 200
    media_type: str = "application/json"
    cut_bytes: int = 0


def as_json(value: object, status: int = 200) -> Reply:
    """A reply of JSON."""
    return Reply(body=msgspec.json.encode(value), status=status)


def problem(status: int, detail: str) -> Reply:
    """A refusal as RFC 9457 has it."""
    body = msgspec.json.encode({"title": "No", "status": status, "detail": detail})
    return Reply(body=body, status=status, media_type="application/problem+json")


@dataclass(slots=True)
class FakeAgent:
    """What it answers, by path without query, and what it was asked."""

    replies: Mapping[str, Reply | Callable[[str], Reply]]
    asked: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    def reply(self, target: str, headers: Mapping[str, str]) -> Reply:
        """The answer to one request, which is noted."""
        self.asked.append(target)
        self.headers.append(dict(headers))
        known = self.replies.get(target.partition("?")[0])
        if known is None:
            return problem(404, f"there is no {target}")
        return known if isinstance(known, Reply) else known(target)


class _SocketServer(HTTPServer):
    address_family = socket.AF_UNIX

    def server_bind(self) -> None:
        """Bind; a socket's address has no host and port to look up."""
        self.socket.bind(self.server_address)
        self.server_name, self.server_port = "localhost", 0


def _handler(agent: FakeAgent) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            reply = agent.reply(self.path, dict(self.headers))
            self.send_response(reply.status)
            self.send_header("Content-Type", reply.media_type)
            self.send_header("Content-Length", str(len(reply.body) + reply.cut_bytes))
            self.end_headers()
            self.wfile.write(reply.body)

        do_POST = do_GET  # noqa: N815 - named by the protocol

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    return Handler


@contextmanager
def serving(agent: FakeAgent, path: Path | None = None) -> Iterator[int]:
    """Answer on a Unix socket, or where none is given on loopback; gives the port (0)."""
    handler = _handler(agent)
    if path is None:
        server = HTTPServer(("127.0.0.1", 0), handler)
    else:
        server = _SocketServer(str(path), handler)  # type: ignore[arg-type]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
