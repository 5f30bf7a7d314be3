"""Fixtures that put the fake driver under the real binding, in this process or another.

In this process the library is given to the binding by path. By name would not do: the loader
keeps the first `libnvidia-ml.so.1` of a process for good, and the variants share that name. A
process of its own takes `FakeNvml.environment()`, where `LD_LIBRARY_PATH` does what it does for a
real driver.
"""

import ctypes
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pynvml
import pytest

from chopperd.clock import Clock, SystemClock
from chopperd.devices.channel import EnergyCheck, Verdict
from chopperd.devices.nvml.backend import NvmlBackend
from chopperd.devices.nvml.identity import SystemMemory
from tests.fakes.nvml.build import BuildUnavailableError, build
from tests.fakes.nvml.scenario import Scenario

SCENARIO_VARIABLE = "FAKE_NVML_SCENARIO"


class BelievedEnergy(EnergyCheck):
    """A check that was passed before it began."""

    def __init__(self, label: str) -> None:
        super().__init__(label)
        self.verdict = Verdict.RIGHT


class BelievingBackend(NvmlBackend):
    """A back end that believes the counter of energy from the first."""

    energy_check = BelievedEnergy


@dataclass(slots=True)
class FakeNvml:
    """A fake driver and what it answers.

    Attributes:
        scenario: What it answers; change it at any time.
        library: The compiled library.
    """

    scenario: Scenario
    library: Path
    opened: list[NvmlBackend] = field(default_factory=list)

    def open(
        self,
        clock: Clock | None = None,
        *,
        system_memory: SystemMemory | None = None,
        checks_energy: bool = False,
    ) -> NvmlBackend:
        """The real back end over this driver; closed at the end of the test at the latest.

        Its counter of energy is believed from the first, unless `checks_energy`.
        """
        kind = NvmlBackend if checks_energy else BelievingBackend
        backend = kind(pynvml, clock or SystemClock(), system_memory)
        self.opened.append(backend)
        return backend

    def environment(self) -> dict[str, str]:
        """What another process needs to find this driver."""
        return {
            **os.environ,
            "LD_LIBRARY_PATH": str(self.library.parent),
            SCENARIO_VARIABLE: str(self.scenario.path),
        }


MakeFakeNvml = Callable[..., FakeNvml]


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Callable[[frozenset[str]], Path]:
    """Builds the driver, each variant once; where that can't be, skips (fails in CI)."""
    folder = tmp_path_factory.mktemp("fake-nvml")

    def library(without: frozenset[str] = frozenset()) -> Path:
        try:
            return build(folder, without)
        except (BuildUnavailableError, PackageNotFoundError) as error:
            if os.environ.get("CI"):
                pytest.fail(f"the fake driver can't be built: {error}")
            pytest.skip(f"the fake driver can't be built: {error}")

    return library


@pytest.fixture
def make_fake_nvml(
    nvml_library: Callable[[frozenset[str]], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[MakeFakeNvml]:
    """Installs a fake driver under the binding; one a test."""
    made: list[tuple[FakeNvml, ctypes.CDLL]] = []

    def make(gpu_count: int = 1, without: frozenset[str] = frozenset()) -> FakeNvml:
        assert not made, "one driver a process at a time"
        library = nvml_library(without)
        scenario = Scenario(tmp_path / "scenario.bin", gpu_count)
        driver = ctypes.CDLL(str(library))
        monkeypatch.setenv(SCENARIO_VARIABLE, str(scenario.path))
        monkeypatch.setattr(pynvml, "nvmlLib", driver)
        monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
        made.append((FakeNvml(scenario, library), driver))
        return made[0][0]

    yield make
    for fake, driver in made:
        for backend in fake.opened:
            backend.close()
        assert driver.fake_nvml_open_count() == 0, "NVML was not shut down"


@pytest.fixture
def fake_nvml(make_fake_nvml: MakeFakeNvml) -> FakeNvml:
    """A driver with one healthy H100."""
    return make_fake_nvml()
