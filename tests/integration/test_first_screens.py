"""The first screens in docs/reading-a-report.md are what a report on each public trace prints.

`python -m tests.integration.test_first_screens` writes them again; the words that judge them stay.
"""

import contextlib
import io
import re
from pathlib import Path

import pytest

from chopperd.cli import run
from tests.conftest import SHARED
from tests.tools import ROOT

PAGE = ROOT / "docs" / "reading-a-report.md"
#: A file's name on a line of its own, then its first screen.
_SCREEN = re.compile(r"^`(\S+\.json\.gz)`\n\n```\n(.*?)```\n", re.MULTILINE | re.DOTALL)


def first_screen(traces: Path, name: str) -> str:
    """Return the lines of a report before its first table."""
    printed = io.StringIO()
    with contextlib.chdir(traces), contextlib.redirect_stdout(printed):
        assert run(["report", name]) == 0
    return printed.getvalue().partition("\n\n")[0] + "\n"


def written_again(page: str, traces: Path) -> str:
    """Return the page with the screens of now."""
    return _SCREEN.sub(lambda m: f"`{m[1]}`\n\n```\n{first_screen(traces, m[1])}```\n", page)


@pytest.mark.corpus
def test_the_page_has_the_first_screen_of_every_public_trace(shared: Path) -> None:
    page, traces = PAGE.read_text(encoding="utf-8"), shared / "traces"
    shown = {match[1] for match in _SCREEN.finditer(page)}
    assert shown == {path.name for path in traces.glob("*.json.gz")}
    assert written_again(page, traces) == page


if __name__ == "__main__":
    PAGE.write_text(written_again(PAGE.read_text(encoding="utf-8"), SHARED / "traces"), "utf-8")
