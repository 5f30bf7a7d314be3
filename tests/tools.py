"""Programs of the system that tests run."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def needed(program: str) -> str:
    """The program's path; its absence skips the test, and is a failure in CI."""
    found = shutil.which(program)
    if found is None:
        if os.environ.get("CI"):
            pytest.fail(f"{program} is not installed")
        pytest.skip(f"{program} is not installed")
    return found


def output(*command: str | Path) -> str:
    """What a command prints; it must succeed."""
    program, *arguments = command
    done = subprocess.run(
        [needed(str(program)), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout
