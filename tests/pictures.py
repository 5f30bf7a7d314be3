"""Make the pictures of docs/pictures: `python -m tests.pictures`, or `make pictures`.

A real demo in a real browser. There is no Grafana here, so the boards have no picture.
"""

import base64
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import Final, Literal

from playwright.sync_api import Browser, Page

from tests.browser import chromium, looking
from tests.e2e.running import Chopperd
from tests.e2e.test_demo_agent import Staying, staying
from tests.tools import ROOT

PICTURES: Final = ROOT / "docs" / "pictures"
MOST_BYTES: Final = 150_000
#: The demo slows a GPU down in its second capture, and the drawn minute is to be full.
SECONDS: Final = "4"
FULL_MS: Final = 75_000
SLOW_MS: Final = 120_000
PHONE_HEIGHT: Final = 1700
QUALITY: Final = 74
SCHEMES: Final[tuple[tuple[str, int, Literal["light", "dark"]], ...]] = (
    ("live-page", 1440, "light"),
    ("live-page-phone", 390, "dark"),
)


def main() -> int:
    """Make all pictures; return 1 if one is too large to be in a repository."""
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        chopperd = Chopperd.under(Path(folder), {"CHOPPERD_NODE__NAME": "sim-node-01"})
        demo = staying(chopperd, "--seconds", SECONDS)
        try:
            live_page(browser, demo.url("page"))
            report(browser, demo, Path(folder))
        finally:
            demo.process.terminate()
            demo.process.communicate(timeout=30)
    large = [path for path in PICTURES.iterdir() if path.stat().st_size > MOST_BYTES]
    for path in large:
        print(f"{path} has {path.stat().st_size} bytes", file=sys.stderr)
    return bool(large)


def live_page(browser: Browser, address: str) -> None:
    """Take the live page once its last minute is drawn, and a drop was found."""
    for name, width, scheme in SCHEMES:
        with looking(browser, address, width=width, scheme=scheme) as seen:
            page = seen.page
            page.wait_for_selector("section[aria-label^='Clock drops'] td", timeout=SLOW_MS)
            page.click("text=1 min")
            page.wait_for_timeout(FULL_MS if width > 1000 else 15_000)
            page.wait_for_selector("text=Have the cooling of GPU 5 checked", timeout=SLOW_MS)
            take(page, name, None if width > 1000 else PHONE_HEIGHT)


def report(browser: Browser, demo: Staying, folder: Path) -> None:
    """Take the first screen of an HTML report in both schemes."""
    address, _, token = demo.url("page").partition("/#token=")
    headers = {"Authorization": f"Bearer {token}", "Accept": "text/html"}
    asked = urllib.request.Request(f"{address}/api/v1/report/latest", headers=headers)
    file = folder / "report.html"
    with urllib.request.urlopen(asked, timeout=60) as answer:
        file.write_bytes(answer.read())
    for name, scheme in (("report", "light"), ("report-dark", "dark")):
        with looking(browser, file.as_uri(), height=1200, scheme=scheme) as seen:  # type: ignore[arg-type]
            seen.page.wait_for_timeout(1000)
            take(seen.page, name, height=1200)


def take(page: Page, name: str, height: int | None = None) -> None:
    """Write the page, or as much as is this high, as a WebP file."""
    page.evaluate("() => scrollTo(0, 0)")  # strips stay at the top of what is seen
    size = page.evaluate(
        "() => [document.documentElement.clientWidth, document.documentElement.scrollHeight]"
    )
    clip = {"x": 0, "y": 0, "width": size[0], "height": height or size[1], "scale": 1}
    asked = {"format": "webp", "quality": QUALITY, "clip": clip, "captureBeyondViewport": True}
    shot = page.context.new_cdp_session(page).send("Page.captureScreenshot", asked)
    (PICTURES / f"{name}.webp").write_bytes(base64.b64decode(shot["data"]))


if __name__ == "__main__":
    sys.exit(main())
