"""Fixtures of the tests with sampler processes."""

import gc
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from chopperd.sampling.native.library import NativeLibrary, native_library
from chopperd.sampling.settings import RestartPolicy, SamplerSettings
from chopperd.sampling.supervisor import SamplerSupervisor
from tests.integration.sampling.supervised import CLOCK, QUICK, SCRIPT, wait_until_gone
from tests.waiting import settled, wait_for


def open_files() -> dict[str, str]:
    names = {}
    for entry in Path("/proc/self/fd").iterdir():
        try:
            names[entry.name] = str(entry.readlink())
        except FileNotFoundError:  # the listing's own descriptor
            continue
    return {number: name for number, name in names.items() if not name.startswith("/proc/")}


def children() -> set[str]:
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


@pytest.fixture
def nothing_left_behind() -> Iterator[None]:
    """Every sampler, descriptor and thread of a test is gone after it."""
    gc.collect()  # maps of fakes that tests before have left in cycles would go meanwhile
    before = settled(held, quiet_s=0.05)
    yield
    wait_for(lambda: held() == before, f"all to be given back of {before}")


def held() -> tuple[dict[str, str], set[str], int]:
    """Open files, children and threads of this process, but for what earlier tests have dropped."""
    gc.collect()
    return open_files(), children(), threading.active_count()


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., SamplerSupervisor]]:
    made: list[SamplerSupervisor] = []

    def supervisor(
        gpu_count: int = 2, hz: float = 100.0, policy: RestartPolicy = QUICK
    ) -> SamplerSupervisor:
        command = [sys.executable, str(SCRIPT), "--gpus", str(gpu_count), "--folder", str(tmp_path)]
        settings = SamplerSettings(hz=hz, probe_every_s=0.2, budget_ratio=1.0)
        made.append(SamplerSupervisor(command, settings, CLOCK, policy))
        return made[-1]

    yield supervisor
    for path in tmp_path.iterdir():
        path.unlink()
    for sampler in made:
        sampler.stop(10.0)
        wait_until_gone(sampler)
        sampler.close()


@pytest.fixture(scope="session")
def native() -> NativeLibrary:
    """The library that was built with the package; where it is missing, skips (fails in CI)."""
    library = native_library()
    if library is None:
        reason = "chopperd was installed without its native part (no C compiler?)"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return library


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[..., SamplerSupervisor]]:
    """Starts samplers: over scripted GPUs, or as the command line does over a back end."""
    made: list[SamplerSupervisor] = []

    def start(*command: str, wait: bool = True, **options: float) -> SamplerSupervisor:
        scripted = [str(SCRIPT), "--gpus", "2", "--folder", str(tmp_path)]
        settings = SamplerSettings(**{"hz": 10.0, "budget_ratio": 1.0, **options})  # type: ignore[arg-type]
        made.append(
            SamplerSupervisor([sys.executable, *(command or scripted)], settings, CLOCK, QUICK)
        )
        if wait:
            made[-1].start()
        else:
            made[-1].launch()
        return made[-1]

    yield start
    for path in tmp_path.glob("*-*"):
        path.unlink()
    for sampler in made:
        sampler.stop(10.0)
        wait_until_gone(sampler)
        sampler.close()
