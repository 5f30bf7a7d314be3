"""What the real promtool says of a whole scrape, and that what is published of it is up to date."""

import shutil
import subprocess

import pytest

from chopperd.export.metric import Profile
from tests.exposition import rendered
from tests.fakes.snapshots import full_snapshot
from tests.scrape_shape import GOLDEN, whole_shape


def promtool(text: str) -> "subprocess.CompletedProcess[str]":
    program = shutil.which("promtool")
    assert program, "promtool is missing: make prometheus"
    return subprocess.run(
        [program, "check", "metrics"], input=text, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("profile", Profile)
def test_promtool_has_nothing_to_say(profile: Profile) -> None:
    done = promtool(rendered(full_snapshot(8, hung=True), profile))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_promtool_would_say_if_something_were_wrong() -> None:
    done = promtool("# TYPE x_total gauge\nx_total 1\n")
    assert done.returncode != 0
    assert "x_total" in done.stderr + done.stdout


def test_names_types_and_labels_are_the_golden_ones() -> None:
    assert GOLDEN.read_text().splitlines() == whole_shape(), "if meant: make reference"
