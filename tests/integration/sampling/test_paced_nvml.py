"""Idle times of GPUs that are read through the real NVIDIA binding, on a fake driver."""

from collections.abc import Callable
from pathlib import Path

import pytest

from chopperd.sampling.memory.layout import Pace
from chopperd.sampling.supervisor import SamplerSupervisor
from tests.fakes.nvml.fixtures import SCENARIO_VARIABLE
from tests.fakes.nvml.scenario import Scenario, Segment
from tests.integration.sampling.supervised import wait_for_pace

IDLE_BIT = 0x1


@pytest.fixture
def nvml(
    nvml_library: Callable[[], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Scenario:
    """Two fake GPUs that the processes of the test find through the real binding."""
    scenario = Scenario(tmp_path / "scenario.bin", 2)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(nvml_library().parent))
    monkeypatch.setenv(SCENARIO_VARIABLE, str(scenario.path))
    return scenario


NVML_SAMPLER = ("-P", "-m", "chopperd", "_sampler", "--backend", "nvml")


def test_the_idle_bit_of_a_real_binding_slows_and_its_end_wakes(
    started: Callable[..., SamplerSupervisor], nvml: Scenario
) -> None:
    nvml.gpus[0].plays(Segment(sm_clock_mhz=345, reasons=IDLE_BIT, activity_percent=0))
    sampler = started(*NVML_SAMPLER, idle_hz=1.0, idle_after_s=0.5)
    wait_for_pace(sampler, Pace.IDLE, range(1))
    assert sampler.reader.status(1).pace is Pace.ASKED
    nvml.gpus[0].plays(Segment(sm_clock_mhz=1980, activity_percent=0))  # which lags
    wait_for_pace(sampler, Pace.ASKED, range(1))
