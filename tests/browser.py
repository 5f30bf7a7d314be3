"""A real Chromium that tests look at pages with."""

import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, sync_playwright

from tests.tools import needed

_FLAGS: Final = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


@dataclass(frozen=True, slots=True)
class Seen:
    """A page, what its console complained of, and every address that it asked for."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@contextmanager
def chromium() -> Iterator[Browser]:
    """Run a browser with a profile of its own."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=needed("chromium"), args=list(_FLAGS), headless=True
        )
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def looking(
    browser: Browser,
    address: str,
    *,
    width: int = 1440,
    height: int = 900,
    scheme: Literal["light", "dark"] = "light",
    scripts: bool = True,
) -> Iterator[Seen]:
    """Open an address in a fresh context, and keep what it complains of and asks for."""
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme=scheme,
        java_script_enabled=scripts,
    )
    seen = Seen(context.new_page())
    seen.page.on("console", lambda line: _keep(seen, line.type, line.text))
    seen.page.on("pageerror", lambda error: seen.complaints.append(str(error)))
    seen.page.on("request", lambda request: seen.requests.append(request.url))
    try:
        seen.page.goto(address)
        yield seen
    finally:
        context.close()


def _keep(seen: Seen, kind: str, text: str) -> None:
    if kind in ("error", "warning"):
        seen.complaints.append(text)


@contextmanager
def forwarded(path: Path) -> Iterator[str]:
    """Forward a port of loopback to a Unix socket, as `ssh -L` does; give its address.

    The socket may go and come again: a connection meanwhile is closed.
    """

    class Forward(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            client: socket.socket = self.request
            with suppress(OSError), socket.socket(socket.AF_UNIX) as server:
                server.connect(str(path))
                answers = threading.Thread(target=_copy, args=(server, client), daemon=True)
                answers.start()
                _copy(client, server)
                answers.join()

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Forward) as listening:
        listening.daemon_threads = True
        thread = threading.Thread(target=listening.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.server_address[1]}"
        finally:
            listening.shutdown()
            thread.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65_536):
            target.sendall(data)
    for each in (source, target):
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


def serious(page: Page) -> list[str]:
    """What axe-core finds on a page that is serious or critical: rule and elements."""
    found = Axe().run(page).response["violations"]
    return [
        f"{each['id']}: {[node['html'] for node in each['nodes']]}"
        for each in found
        if each["impact"] in ("serious", "critical")
    ]
