"""Fixtures that every layer of tests shares."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

# Before anything imports it: its assertions are to say what they saw.
pytest.register_assert_rewrite("chopperd.testing")

SHARED = Path(os.environ.get("CHOPPERD_SHARED", Path(__file__).parents[2] / "shared"))


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of public inputs (traces, cases); its absence is a failure in CI."""
    if not SHARED.is_dir():
        if os.environ.get("CI"):
            pytest.fail(f"the public inputs are missing: {SHARED}")
        pytest.skip("the public inputs are not beside this checkout")
    return SHARED


@pytest.fixture(autouse=True)
def no_stray_threads() -> Iterator[None]:
    """Every test leaves no thread of ours behind."""
    yield
    stray = [t.name for t in threading.enumerate() if t.name.startswith("chopperd-")]
    assert not stray, f"threads left behind: {stray}"
