import numpy as np
import pytest

from chopperd.simulation.node import SimulatedNode
from chopperd.simulation.program import Stream
from chopperd.simulation.step import StepTiming
from tests.unit.simulation.conftest import simulated


def timing_of(node: SimulatedNode, step: int) -> StepTiming:
    (run,) = node.steps(step, step)
    assert run.timing is not None
    return run.timing


def test_blocks_start_after_their_launch_and_all_that_they_wait_for(fsdp2: SimulatedNode) -> None:
    timing = timing_of(fsdp2, 1)
    assert fsdp2.program is not None
    for index, block in enumerate(fsdp2.program.blocks):
        assert (timing.start_ns[index] > timing.launch_ns[index]).all()
        for other in block.after:
            assert (timing.start_ns[index] >= timing.end_ns[other]).all()


def test_a_stream_runs_one_block_at_a_time(fsdp1: SimulatedNode) -> None:
    timing = timing_of(fsdp1, 2)
    assert fsdp1.program is not None
    for stream in Stream:
        rows = [i for i, block in enumerate(fsdp1.program.blocks) if block.stream is stream]
        assert (timing.start_ns[rows][1:] >= timing.end_ns[rows][:-1]).all()


def test_a_collective_ends_for_all_ranks_a_transfer_after_the_last_has_come(
    fsdp2: SimulatedNode,
) -> None:
    timing = timing_of(fsdp2, 1)
    assert fsdp2.program is not None
    waits = []
    for index, block in enumerate(fsdp2.program.blocks):
        if block.collective:
            (end_ns,) = set(timing.end_ns[index].tolist())
            transfer_ns = end_ns - timing.start_ns[index].max()
            assert 0.69 * block.fixed_ns < transfer_ns < 1.61 * block.fixed_ns
            waits.append(timing.start_ns[index].max() - timing.start_ns[index])
    assert np.max(waits) > 1_000_000


def test_the_clock_at_the_cap_is_lowest_on_the_hot_gpu(fsdp2: SimulatedNode) -> None:
    clock = np.nanmean(timing_of(fsdp2, 6).clock_mhz, axis=0)
    assert clock.argmin() == 5
    assert clock[5] < np.median(clock) - 40


def test_the_rate_limiter_holds_the_host_back_in_fsdp1_only(
    fsdp1: SimulatedNode, fsdp2: SimulatedNode
) -> None:
    for node, held in ((fsdp1, True), (fsdp2, False)):
        timing = timing_of(node, 3)
        assert bool((timing.released_ns > timing.waited_from_ns).any()) is held


def test_an_allocator_stall_leaves_the_device_idle(fsdp1: SimulatedNode) -> None:
    assert fsdp1.program is not None
    seen = 0
    for run in fsdp1.steps(0, 3):
        timing = run.timing
        assert timing is not None
        for rank in np.flatnonzero(timing.stall_block >= 0):
            inside = (timing.start_ns[:, rank] < timing.stall_end_ns[rank]) & (
                timing.end_ns[:, rank] > timing.stall_synced_ns[rank]
            )
            assert not inside.any()
            assert timing.stall_end_ns[rank] - timing.stall_synced_ns[rank] >= 1_900_000
            seen += 1
    assert seen > 5


@pytest.mark.parametrize("preset", ["slow-data", "slow-launch"])
def test_the_slow_host_launches_later_by_what_it_is_slow(preset: str) -> None:
    even, slow = (timing_of(simulated(name), 0) for name in ("even", preset))
    later_ns = slow.launch_ns[0] - even.launch_ns[0]
    assert later_ns[[0, 1, 2, 3, 4, 6, 7]].tolist() == [0] * 7
    assert later_ns[5] == pytest.approx(9e6, rel=0.1)
    loader_ns = slow.loader_ns - even.loader_ns
    expected_ns = later_ns[5] if preset == "slow-data" else 0
    assert loader_ns[5] == pytest.approx(expected_ns, abs=2)  # times are rounded
