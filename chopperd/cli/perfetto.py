"""Serve one file on loopback, once, for the Perfetto UI in a browser.

Source: perfetto.dev/docs, "Deep linking to the Perfetto UI": the UI fetches what `url` names; its
content policy allows http://127.0.0.1:9001 beside https, and the server must allow its origin.
"""

import webbrowser
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from secrets import token_urlsafe
from shutil import copyfileobj
from typing import Final
from urllib.parse import quote

from chopperd.errors import ConfigError

UI: Final = "https://ui.perfetto.dev"
PORT: Final = 9001
_HOST: Final = "127.0.0.1"


class _Once(HTTPServer):
    """Serves `file` under a path that only the link knows; `is_done` once it was fetched."""

    allow_reuse_address = True
    is_done = False

    def __init__(self, file: Path, port: int) -> None:
        super().__init__((_HOST, port), _Handler)
        self.file = file
        # Other users of this machine reach loopback too.
        self.path = f"/{token_urlsafe()}/{quote(file.name)}"

    @property
    def link(self) -> str:
        return f"{UI}/#!/?url=http://{self.host}{self.path}"

    @property
    def host(self) -> str:
        return f"{_HOST}:{self.server_port}"

    def handle_error(self, *_args: object) -> None:
        """Say nothing: a client that leaves early may come again."""


class _Handler(BaseHTTPRequestHandler):
    server: _Once
    timeout = 60  # of a client that does not go on

    def do_GET(self) -> None:
        if not self._is_meant():
            return
        with self.server.file.open("rb") as file:
            self._begin(HTTPStatus.OK)
            self.send_header("Content-Type", "application/octet-stream")
            self.send_header("Content-Length", str(self.server.file.stat().st_size))
            self.end_headers()
            copyfileobj(file, self.wfile)
        self.server.is_done = True

    def do_OPTIONS(self) -> None:
        """Answer Chromium's question whether a page of the network may fetch from this machine."""
        if self._is_meant():
            self._begin(HTTPStatus.NO_CONTENT)
            self.send_header("Access-Control-Allow-Methods", "GET")
            self.send_header("Access-Control-Allow-Private-Network", "true")
            self.end_headers()

    def _is_meant(self) -> bool:
        """Whether the request is for the file, under this server's own name; refuses others."""
        if self.headers.get("Host") == self.server.host and self.path == self.server.path:
            return True
        self.send_error(HTTPStatus.NOT_FOUND)
        return False

    def _begin(self, status: HTTPStatus) -> None:
        self.send_response(status)
        self.send_header("Access-Control-Allow-Origin", UI)
        self.send_header("Vary", "Origin")
        self.send_header("Cache-Control", "no-store")

    def log_message(self, *_args: object) -> None:
        """Say nothing: the terminal is the user's."""


def show_in_perfetto(file: Path, write: Callable[[str], None], port: int = PORT) -> None:
    """Open a file in the Perfetto UI: serve it on loopback until it was fetched once.

    From another `port` than the default, browsers do not let the UI fetch it.

    Raises:
        ConfigError: The one port that the UI may fetch from is in use.
    """
    try:
        server = _Once(file, port)
    except OSError as error:
        problem = f"--open: port {port} of {_HOST}, the only one that the UI may use, is in use"
        raise ConfigError([f"{problem} ({error.strerror}); open {file} in {UI} by hand"]) from error
    with server:
        write(f"{server.link}\nserved once; Ctrl-C ends it\n")
        if _is_graphical():
            webbrowser.open(server.link)
        while not server.is_done:
            server.handle_request()


def _is_graphical() -> bool:
    """Whether there is a browser other than one in this terminal, which would take it over."""
    try:
        browser = webbrowser.get()
    except webbrowser.Error:
        return False
    return type(browser) is not webbrowser.GenericBrowser
