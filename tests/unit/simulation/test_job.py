import numpy as np
import pytest

from bench.truth import rank_truth
from chopperd.model.kinds import Cause
from chopperd.simulation.job import kernel_columns, rank_step
from chopperd.simulation.node import SimulatedNode
from tests.unit.simulation.conftest import START_NS, simulated


@pytest.mark.parametrize("name", ["fsdp1", "fsdp2", "amd"])
def test_kernels_last_as_the_clock_and_the_contention_say(
    name: str, request: pytest.FixtureRequest
) -> None:
    node: SimulatedNode = request.getfixturevalue(name)
    assert node.program is not None
    columns, top_mhz = kernel_columns(node.program), node.preset.gpu.sm_clock_max_mhz
    for run in node.steps(0, 2):
        step = rank_step(columns, run, 5, top_mhz)
        truth = node.truth(5, START_NS, int(step.end_ns.max()))
        own = ~columns.collective
        clock = truth.clock.at(step.start_ns[own])
        stretch = step.timing.stretch[columns.block[own], 5]
        # T_c f_ref / f + T_m, with T_m longer beside collectives
        expected = columns.clocked_ns[own] * top_mhz / clock + columns.fixed_ns[own] * stretch
        assert step.end_ns[own] - step.start_ns[own] == pytest.approx(expected, abs=1.5)
        assert (clock == truth.clock.at(step.end_ns[own] - 1)).all()
        assert 1 <= stretch.min() < stretch.max() <= 1.25


def test_every_kernel_starts_after_its_launch(fsdp1: SimulatedNode) -> None:
    assert fsdp1.program is not None
    columns = kernel_columns(fsdp1.program)
    for run in fsdp1.steps(0, 3):
        for rank in range(8):
            step = rank_step(columns, run, rank, 1980.0)
            assert (step.start_ns - step.launch_ns).min() >= 6_500
            assert (np.diff(step.launch_ns) > 0).all()


def test_a_ranks_truth_equals_a_sum_over_fine_slices(fsdp2: SimulatedNode) -> None:
    assert fsdp2.program is not None
    known = rank_truth(fsdp2, 5, 2, 4)
    columns = kernel_columns(fsdp2.program)
    (run,) = fsdp2.steps(3, 3)
    step = rank_step(columns, run, 5, 1980.0)
    starts, ends = step.start_ns[columns.compute], step.end_ns[columns.compute]
    middles = np.arange(starts[0], ends[-1], 4_000) + 2_000
    kernel = np.searchsorted(starts, middles, side="right") - 1
    inside = middles < ends[kernel]
    clock = fsdp2.truth(5, int(starts[0]), int(ends[-1])).clock.at(middles[inside])
    # brute force on 4 us slices
    assert known.mean_mhz[1] == pytest.approx(clock.mean(), rel=1e-3)
    lost_ns = (1 - clock / 1980).sum() * 4_000
    assert known.lost_ns[1] == pytest.approx(lost_ns, rel=1e-3)
    assert known.compute_ns[1] == (ends - starts).sum()
    assert sum(each[1] for each in known.by_cause_ns.values()) == pytest.approx(known.lost_ns[1])
    assert known.by_cause_ns[Cause.THERMAL][1] > 0.8 * known.lost_ns[1]


def test_windows_of_a_rank_abut_and_are_about_half_a_second(fsdp2: SimulatedNode) -> None:
    windows = rank_truth(fsdp2, 0, 0, 9).windows
    assert np.array_equal(windows.start_ns[1:], windows.end_ns[:-1])
    lengths = (windows.end_ns - windows.start_ns)[:-1]
    assert (lengths > 0.45e9).all()
    assert (lengths < 0.6e9).all()


def test_an_idle_node_has_no_ranks() -> None:
    with pytest.raises(ValueError, match="idle"):
        rank_truth(simulated("idle"), 0, 0, 1)
