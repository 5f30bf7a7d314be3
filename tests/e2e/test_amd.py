"""AMD GPUs by the whole program: through AMD SMI's real binding, and from the kernel's files."""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from chopperd.api.models import Gpus
from chopperd.store.samples.files import read_samples
from tests.e2e.agents import RunningAgent, agent_under
from tests.e2e.running import Chopperd
from tests.e2e.test_agent_nvml_faults import of
from tests.fakes.amd.cards import mi210, mi250x_pair, mi300x, radeon_w7900
from tests.fakes.amd.motion import Segment
from tests.fakes.amd.smi.calls import HANGS
from tests.fakes.amd.smi.fixtures import (
    FakeAmdSmi,
    MakeFakeAmdSmi,
    amdsmi_library,
    make_fake_amdsmi,
)
from tests.fakes.amd.sysfs.tree import SysfsTree
from tests.waiting import wait_for

__all__ = ["amdsmi_library", "make_fake_amdsmi"]

DIES = (2100, 2098, 2060, 2100, 2099, 0, 2100, 2097)
BUSY = Segment(die_clocks_mhz=DIES, power_w=702, limits=frozenset({"ppt"}))


@contextmanager
def agent_over(fake: FakeAmdSmi, folder: Path) -> Iterator[RunningAgent]:
    settings = {"SAMPLING__BACKEND": "amdsmi", "METRICS__PROFILE": "full"}
    with agent_under(folder, None, settings, fake.environment()) as agent:
        yield agent


@pytest.fixture
def tree(tmp_path: Path) -> SysfsTree:
    return SysfsTree(tmp_path / "sys", [mi300x(), mi300x()])


def over_files(tree: SysfsTree) -> tuple[str, ...]:
    """Starts a program that finds the tree in place of /sys, which it alone does."""
    script = 'mount --rbind "$0" /sys && exec "$@"'
    wrapper = ("unshare", "--mount", "sh", "-c", script, str(tree.root))
    if subprocess.run([*wrapper, "true"], capture_output=True, check=False).returncode:
        if os.environ.get("CI"):
            pytest.fail("a mount namespace can't be made")
        pytest.skip("a mount namespace can't be made")
    return wrapper


def test_case_28_the_power_of_a_node_is_the_sum_of_what_is_known(
    make_fake_amdsmi: MakeFakeAmdSmi, tmp_path: Path
) -> None:
    """By the case, "current if known, else average": 91 + 702 + 430 + 60 = 1283 W."""
    fake = make_fake_amdsmi([mi210(), mi300x(), *mi250x_pair(), radeon_w7900()])
    for gpu, watts in zip(fake.node.gpus, (91, 702, 430, 430, 60), strict=True):
        gpu.plays(Segment(power_w=watts))
    with agent_over(fake, tmp_path) as agent:
        wait_for(lambda: len(of(agent.scrape(), "chopperd_gpu_power_watts")) == 4, "four powers")
        watts_by_gpu = of(agent.scrape(), "chopperd_gpu_power_watts")
        assert set(of(agent.scrape(), "chopperd_gpu_up").values()) == {1.0}
    assert sum(watts_by_gpu.values()) == 1283
    assert watts_by_gpu == {"0": 91, "1": 702, "2": 430, "4": 60}


def test_the_clock_of_a_gpu_is_that_of_its_governing_die_in_metrics_and_api(
    make_fake_amdsmi: MakeFakeAmdSmi, tmp_path: Path
) -> None:
    """Seven dies run, the third is the slowest; one is switched off: 40 MHz apart."""
    fake = make_fake_amdsmi([mi300x()])
    fake.node.plays(BUSY)
    with agent_over(fake, tmp_path) as agent:

        def energy() -> float | None:
            return of(agent.scrape(), "chopperd_gpu_energy_joules_total").get("0")

        wait_for(lambda: energy() is not None, "energy, once it is checked")
        wait_for(
            lambda: of(agent.scrape(), "chopperd_gpu_xcd_clock_spread_hertz") == {"0": 40e6},
            "the spread of the dies",
        )
        scrape = agent.scrape()
        (gpu,) = agent.get("/api/v1/gpus", Gpus).gpus
    assert of(scrape, "chopperd_gpu_sm_clock_hertz") == {"0": 2060e6}
    assert gpu.reading is not None
    assert gpu.reading.sm_clock_mhz == 2060
    assert of(scrape, "chopperd_gpu_power_watts") == {"0": 702.0}


def test_a_call_that_hangs_leaves_the_agent_answering(
    make_fake_amdsmi: MakeFakeAmdSmi, tmp_path: Path
) -> None:
    """One call is made at a time: all GPUs wait, none of their values stays, and all return."""
    fake = make_fake_amdsmi([mi300x(), mi300x()])
    fake.node.plays(BUSY)
    with agent_over(fake, tmp_path) as agent:
        wait_for(lambda: of(agent.scrape(), "chopperd_gpu_up") == {"0": 1.0, "1": 1.0}, "both")
        fake.node.gpus[1].fails(HANGS, "amdsmi_get_gpu_metrics_info")
        wait_for(lambda: of(agent.scrape(), "chopperd_gpu_up").get("1") == 0.0, "the loss", 60)
        assert "1" not in of(agent.scrape(), "chopperd_gpu_sm_clock_hertz")
        assert agent.health() == 200
        fake.node.gpus[1].heals()
        wait_for(lambda: of(agent.scrape(), "chopperd_gpu_up") == {"0": 1.0, "1": 1.0}, "both", 90)


def test_no_metric_is_left_out_over_the_kernel_s_files(tree: SysfsTree, tmp_path: Path) -> None:
    """What the GPU is, where its memory is read, and all that its firmware counts time under."""
    tree.plays(BUSY)
    settings = {"SAMPLING__BACKEND": "auto", "METRICS__PROFILE": "full"}
    limited = "chopperd_gpu_clock_limited_seconds_total"
    with tree.advancing(), agent_under(tmp_path, None, settings, wrapper=over_files(tree)) as agent:
        wait_for(
            lambda: any(name.startswith(limited) for name in agent.scrape()), "counters of limits"
        )
        scrape = agent.scrape()
        assert "is left out" not in agent.log()
    described = [name for name in scrape if name.startswith("chopperd_gpu_info")]
    assert len(described) == 2
    assert all("('memory_source', 'kernel')" in name for name in described)
    causes = {name for name in scrape if name.startswith(limited)}
    assert f"{limited}[('cause', 'low_utilization'), ('gpu', '0')]" in causes
    assert f"{limited}[('cause', 'unexplained'), ('gpu', '0')]" in causes


def test_devices_takes_the_kernel_s_files_and_says_why(tree: SysfsTree, tmp_path: Path) -> None:
    tree.plays(BUSY)
    program = replace(Chopperd.under(tmp_path), wrapper=over_files(tree))
    with tree.advancing():
        done = program.run("devices", "--format", "json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["backend"] == "amdgpu"
    assert found["chosen"].startswith("amdgpu reads the GPUs (nvml: ")
    first = found["gpus"][0]
    assert first["reading"]["die_clocks_mhz"] == list(DIES)
    assert first["info"]["kfd_node"] == 2
    assert first["reading"]["power_w"] == 702


def test_a_recording_from_the_kernel_s_files_has_all_dies(tree: SysfsTree, tmp_path: Path) -> None:
    tree.plays(BUSY)
    program = replace(Chopperd.under(tmp_path), wrapper=over_files(tree))
    with tree.advancing():
        done = program.run("record", "-o", "samples.csv", "--hz", "50", "--", "sleep", "6")
    assert done.returncode == 0, done.stderr
    samples = read_samples(program.folder / "samples.csv")
    assert samples.backend == "amdgpu"
    first = samples.gpus[0]
    assert first.gpu.kfd_node == 2
    assert len(first) > 150
    assert first.die_clocks_mhz is not None
    assert np.all(first.die_clocks_mhz[:, :8] == DIES)
    assert np.all(first.sm_clock_mhz == 2060)
    known = ~np.isnan(first.energy_j)
    passed_s = (first.t_unix_ns[known][-1] - first.t_unix_ns[known][0]) / 1e9
    assert np.ptp(first.energy_j[known]) == pytest.approx(702 * passed_s, rel=0.02)
