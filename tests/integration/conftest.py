"""Fixtures of the integration tests."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from chopperd.model.trace import Trace
from chopperd.traces.read.reader import read_trace
from tests.fakes.amd.smi.fixtures import amdsmi_library, fake_amdsmi, make_fake_amdsmi
from tests.fakes.amd.sysfs.fixtures import make_sysfs, sysfs
from tests.fakes.nvml.fixtures import fake_nvml, make_fake_nvml, nvml_library
from tests.integration.reference_reader import Row, device_rows

__all__ = [
    "amdsmi_library",
    "fake_amdsmi",
    "fake_nvml",
    "make_fake_amdsmi",
    "make_fake_nvml",
    "make_sysfs",
    "nvml_library",
    "sysfs",
]


@pytest.fixture(scope="session")
def real_trace(shared: Path) -> Callable[[str], Trace]:
    """The real traces by name, each read once; nobody may change them."""
    return cache(lambda name: read_trace(shared / "traces" / f"{name}.json.gz"))


@pytest.fixture(scope="session")
def plain_rows(shared: Path) -> Callable[[str], list[Row]]:
    """Their device records by the independent reading, each read once."""
    return cache(lambda name: device_rows(shared / "traces" / f"{name}.json.gz"))
