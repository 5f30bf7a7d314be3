"""Ticks by the C library over the kernel's files, the text of the memory in use among them."""

from collections.abc import Iterator
from contextlib import ExitStack, closing

import numpy as np
import pytest

from chopperd.devices.amd.kernel.backend import AmdgpuBackend
from chopperd.model.devices import DeviceReading, GpuInfo, ReadScope
from chopperd.sampling.native.library import NativeLibrary
from tests.fakes.amd.cards import mi300x
from tests.fakes.amd.motion import Segment
from tests.fakes.amd.sysfs.fixtures import MakeSysfs
from tests.fakes.amd.sysfs.tree import SysfsTree
from tests.integration.sampling.one_gpu import CLOCK, OneGpu, assert_governed, goes_by_plan, one_gpu
from tests.waiting import wait_for

DIES = (2100, 2098, 2060, 2100, 2099, 0, 2100, 2097)


class CountedAmdgpu(AmdgpuBackend):
    """The real back end; counts the looks that it makes itself."""

    read_count = 0

    def read(self, device: GpuInfo, scope: ReadScope) -> DeviceReading:
        self.read_count += 1
        return super().read(device, scope)


@pytest.fixture
def tree(make_sysfs: MakeSysfs) -> SysfsTree:
    tree = make_sysfs([mi300x()])
    tree.plays(Segment(die_clocks_mhz=DIES, power_w=600, limits=frozenset({"ppt"})))
    return tree


@pytest.fixture
def backend(tree: SysfsTree) -> Iterator[CountedAmdgpu]:
    with ExitStack() as held:
        held.enter_context(tree.advancing())
        yield held.enter_context(closing(CountedAmdgpu(tree.root, CLOCK)))


def used_bytes(sampled: OneGpu) -> float:
    """The memory in use by the newest full look."""
    return float(sampled.full_records["memory_used_bytes"][-1])


def test_text_and_block_are_read_without_the_back_end(
    backend: CountedAmdgpu, tree: SysfsTree, native: NativeLibrary
) -> None:
    with one_gpu(backend, native) as sampled:
        wait_for(lambda: goes_by_plan(sampled, lambda: backend.read_count), "a plan", 60)
        counted = backend.read_count
        tree.gpus[0].uses(7 << 30)
        wait_for(lambda: used_bytes(sampled) == 7 << 30, "the memory in use", 60)
        assert backend.read_count - counted <= 1  # the one that the back end makes each minute
        records = sampled.records
    assert_governed(records)
    assert (records["sm_clock_mhz"][-50:] == 2060).all()
    assert (records["power_w"][-50:] == 600).all()


def test_text_that_is_no_number_is_left_to_the_back_end(
    backend: CountedAmdgpu, tree: SysfsTree, native: NativeLibrary
) -> None:
    with one_gpu(backend, native) as sampled:
        wait_for(lambda: goes_by_plan(sampled, lambda: backend.read_count), "a plan", 60)
        path = tree.gpus[0].folder / "mem_info_vram_used"
        path.write_text("12x\n")
        wait_for(lambda: np.isnan(used_bytes(sampled)), "no memory", 60)
        assert sampled.records["power_w"][-1] == 600
