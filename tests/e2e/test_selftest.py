"""`selftest` over the fake driver: with a scripted load of known truth, and with torch's own."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import pytest

from chopperd.selftest.findings import Findings, Outcome
from chopperd.store.samples.files import read_samples
from chopperd.units import NS_PER_MS
from tests.e2e.running import SLACK, Chopperd
from tests.fakes.nvml.fixtures import SCENARIO_VARIABLE
from tests.fakes.nvml.scenario import Scenario, Segment

SCRIPTED: Final = Path(__file__).parent / "jobs" / "scripted_load.py"


@dataclass(frozen=True, slots=True)
class OneGpu:
    """chopperd on a machine with one idle fake GPU."""

    chopperd: Chopperd
    scenario: Scenario

    def findings(self, status: int, *options: str | Path) -> Findings:
        """Run it; it must end with this status and print findings."""
        how = ("--backend", "nvml", "--format", "json")
        done = self.chopperd.run("selftest", *how, *options)
        assert done.returncode == status, done.stderr
        return msgspec.json.decode(done.stdout, type=Findings)


@pytest.fixture
def one_gpu(nvml_library: Callable[[], Path], tmp_path: Path) -> Iterator[OneGpu]:
    scenario = Scenario(tmp_path / "scenario.bin")
    scenario.gpus[0].plays(Segment(activity_percent=0))
    environment = {
        "LD_LIBRARY_PATH": str(nvml_library().parent),
        SCENARIO_VARIABLE: str(scenario.path),
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2])]),
    }
    yield (made := OneGpu(Chopperd.under(tmp_path, environment), scenario))
    made.chopperd.nothing_left(within_s=2 * SLACK)


def test_products_that_follow_the_clock_pass(one_gpu: OneGpu) -> None:
    found = one_gpu.findings(0, "--load", SCRIPTED, "--seconds", "2", "-o", "kept.csv")
    assert found.verdict.outcome is Outcome.AGREES
    assert found.verdict.time is not None
    assert found.verdict.time.value_ratio == pytest.approx(1980 / 1500, rel=1e-6)
    assert found.verdict.clock is not None
    assert found.verdict.clock.value_ratio == pytest.approx(1980 / 1500, rel=1e-6)
    zeros, random = found.operands["zeros"], found.operands["random"]
    assert (zeros.clock_mhz, random.clock_mhz) == (1980, 1500)
    assert (zeros.power_w, random.power_w) == (500, 700)
    assert (zeros.cause_ratio, random.cause_ratio) == ({}, {"power_cap": 1.0})
    lag = found.clock_lag
    assert lag.lag_ns is not None, lag.reason
    # The scripted clock follows 40 ms late; the sampling period is 10 ms.
    assert lag.lag_ns == pytest.approx(40 * NS_PER_MS, abs=10 * NS_PER_MS)
    assert len(read_samples(one_gpu.chopperd.folder / "kept.csv").gpus[0]) > 100


def test_products_that_are_slower_than_the_clock_explains_do_not(one_gpu: OneGpu) -> None:
    one_gpu.chopperd.environment["SCRIPTED_LOAD"] = "1.05"
    found = one_gpu.findings(1, "--load", SCRIPTED, "--seconds", "1")
    assert found.verdict.outcome is Outcome.DISAGREES
    assert found.verdict.cycles is not None
    assert found.verdict.cycles.value_ratio == pytest.approx(1.05, rel=0.002)


@pytest.mark.torch
@pytest.mark.usefixtures("real_torch")
def test_torch_s_products_are_timed_while_the_gpu_is_sampled(one_gpu: OneGpu) -> None:
    options = ("--device", "cpu", "--seconds", "1", "--warm-up", "0.1")
    done = one_gpu.chopperd.run("selftest", "--backend", "nvml", *options)
    # Zeros and random data take alike on a CPU; on a busy one they may not.
    assert done.returncode in {0, 1}, done.stderr
    assert done.stdout.startswith("SELF-TEST  ")
    assert "zeros, round 2" in done.stderr
    assert "float32 on" in done.stdout


def test_a_gpu_that_is_in_use_is_left_alone(one_gpu: OneGpu) -> None:
    one_gpu.scenario.gpus[0].plays(Segment(activity_percent=80))
    done = one_gpu.chopperd.run("selftest", "--backend", "nvml", "--load", SCRIPTED)
    assert (done.returncode, done.stdout) == (3, "")
    assert "GPU 0 is in use: 80 % busy" in done.stderr
    one_gpu.findings(0, "--load", SCRIPTED, "--seconds", "1", "--anyway")


def test_a_load_that_can_t_run_is_no_usable_device(one_gpu: OneGpu) -> None:
    done = one_gpu.chopperd.run("selftest", "--backend", "nvml", "--python", "/nowhere/python")
    assert (done.returncode, done.stdout) == (3, "")
    assert "no load: can't run /nowhere/python" in done.stderr


@pytest.mark.torch
@pytest.mark.usefixtures("real_torch")
def test_a_torch_without_the_gpu_is_no_usable_device(one_gpu: OneGpu) -> None:
    one_gpu.chopperd.environment["CUDA_VISIBLE_DEVICES"] = ""
    done = one_gpu.chopperd.run("selftest", "--backend", "nvml")
    assert (done.returncode, done.stdout) == (3, "")
    assert "no load: LookupError: torch sees no CUDA device" in done.stderr
