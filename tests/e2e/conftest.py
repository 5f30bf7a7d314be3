"""Fixtures of the end-to-end tests."""

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.running import SLACK, Chopperd
from tests.fakes.nvml.fixtures import nvml_library

__all__ = ["nvml_library"]


@pytest.fixture
def chopperd(tmp_path: Path) -> Iterator[Chopperd]:
    """The program on a machine without GPUs; afterwards nothing of it may be left."""
    program = Chopperd.under(tmp_path)
    yield program
    program.nothing_left(within_s=2 * SLACK)


@pytest.fixture
def real_torch() -> None:
    """A torch to train with; its absence is a failure in CI."""
    if importlib.util.find_spec("torch") is None:
        if os.environ.get("CI"):
            pytest.fail("torch is not installed")
        pytest.skip("torch is not installed")
