"""A real Chromium that tests look at pages with."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Literal

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
) -> Iterator[Seen]:
    """Open an address in a fresh context, and keep what it complains of and asks for."""
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
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
