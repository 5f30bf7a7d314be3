"""Ticks by the C library over the fake libamd_smi.so, under its one lock."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from chopperd.devices.amd.smi.backend import AmdSmiBackend, Paths
from chopperd.devices.amd.smi.library import open_library
from chopperd.model.devices import DeviceReading, GpuInfo, ReadScope
from chopperd.model.kinds import Cause
from chopperd.sampling.memory.layout import NO_DIE
from chopperd.sampling.native.library import NativeLibrary
from chopperd.units import NS_PER_MS, NS_PER_S
from tests.fakes.amd.cards import mi300x
from tests.fakes.amd.motion import Segment
from tests.fakes.amd.smi.fixtures import MakeFakeAmdSmi
from tests.integration.sampling.one_gpu import CLOCK, assert_governed, goes_by_plan, one_gpu
from tests.waiting import wait_for


class CountedAmdSmi(AmdSmiBackend):
    """The real back end; counts the looks that it makes itself."""

    read_count = 0

    def read(self, device: GpuInfo, scope: ReadScope) -> DeviceReading:
        self.read_count += 1
        return super().read(device, scope)


@pytest.fixture
def backend(make_fake_amdsmi: MakeFakeAmdSmi, tmp_path: Path) -> Iterator[CountedAmdSmi]:
    """A MI300X: turns in which another die is the slowest, one of them with two dies asleep."""
    fake = make_fake_amdsmi([mi300x()])
    fake.node.gpus[0].plays(
        Segment(
            length_ns=70 * NS_PER_MS,
            die_clocks_mhz=(2100, 2000, 1900, 2050, 2060, 2070, 2080, 2090),
            limits=frozenset({"ppt"}),
        ),
        Segment(
            length_ns=90 * NS_PER_MS, die_clocks_mhz=(1800, 2000, 132, 2050, 2060, 95, 2080, 2090)
        ),
        repeats=True,
    )
    paths = Paths(sysfs=tmp_path / "sys", kfd=tmp_path / "kfd")
    with closing(CountedAmdSmi(open_library(), CLOCK, paths)) as opened:
        yield opened


def test_a_gpu_with_eight_dies_is_read_by_plan_once_its_counters_are_believed(
    backend: CountedAmdSmi, native: NativeLibrary
) -> None:
    with one_gpu(backend, native) as sampled:
        wait_for(lambda: goes_by_plan(sampled, lambda: backend.read_count), "a plan", 60)
        began_ns = CLOCK.mono_ns()
        wait_for(lambda: CLOCK.mono_ns() - began_ns > 2.5 * NS_PER_S)
        records = sampled.records
    assert_governed(records)
    newest = records[-200:]
    assert (newest["die_clocks_mhz"] != NO_DIE).all()
    for name in ("sm_clock_mhz", "power_w", "energy_j", "temperature_c", "activity_ratio"):
        assert not np.isnan(newest[name]).any(), name
    assert (np.diff(newest["energy_j"]) >= 0).all()
    limited_ns = newest["limited_ns"][:, Cause.POWER_CAP]
    assert (np.diff(limited_ns) >= 0).all()
    assert limited_ns[-1] > limited_ns[0]
