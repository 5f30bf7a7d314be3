"""Correlations with known truth, by hand and over drawn steps; offload by hand."""

import numpy as np
import pytest
from msgspec.structs import replace

from chopperd.correlate.memory.beside import (
    StepClock,
    beside_clock,
    correlations,
    offload,
    traced_offload,
)
from chopperd.correlate.memory.verdict import device_memory
from chopperd.model.arrays import Float64s
from chopperd.model.kinds import CopyDirection, KernelClass
from chopperd.model.memory import MemoryCorrelation, StepMemory
from chopperd.model.timeline import DeviceTimeline, Intervals, Phase
from chopperd.model.trace import SpanKind
from tests.trace_building import TraceBuilder
from tests.unit.correlate.builders import Rec, device, spans
from tests.unit.correlate.memory.building import MIB, calls, rows, step_memory, steps


def with_figures(figure: Float64s, clock: Float64s) -> list[StepMemory]:
    return [
        replace(step_memory(segment_ns=int(x)), busy_mean_mhz=float(y))
        for x, y in zip(figure, clock, strict=True)
    ]


def only(found: tuple[MemoryCorrelation, ...]) -> MemoryCorrelation:
    assert [each.figure for each in found] == ["segment_ns"]
    return found[0]


def test_steps_get_the_clock_of_their_rows() -> None:
    table = rows(*((50 + 100 * n, 512, 1, 512, MIB) for n in range(2)))
    memory = device_memory(steps((0, 100), (100, 200)), calls(), table, None, device=0)
    clock = StepClock(busy_mean_mhz=1500.0, busy_std_mhz=2.0, power_w=700.0, idle_allocator_ns=5)
    found = beside_clock(memory, [None, clock])
    assert found.steps[0] == memory.steps[0]
    assert (found.steps[1].busy_mean_mhz, found.steps[1].idle_allocator_ns) == (1500.0, 5)
    assert (found.steps[1].busy_p05_mhz, found.correlations) == (None, ())


def test_ranks_of_equal_values_are_shared() -> None:
    # Half the steps have 1 segment call, and a clock that is lower: with ties, correlation is
    # -(50 ranks apart) * 0.5 / sd(1..100) = -25 / 28.866 = -0.8661.
    figure = np.repeat([0.0, 1.0], 50)
    order = np.random.default_rng(1).permutation(100)  # in no order, so that steps are independent
    clock = -np.arange(100.0)
    found = only(correlations(with_figures(figure[order], clock[order])))
    assert found.rho == pytest.approx(-0.8661, abs=1e-4)
    assert found.low is not None
    assert found.high is not None
    assert found.low < -0.866 < found.high < -0.8


def test_under_fifty_effective_steps_are_too_few() -> None:
    rng = np.random.default_rng(2)
    few = only(correlations(with_figures(100 * rng.random(40), rng.normal(size=40))))
    assert (few.rho, few.low) == (None, None)
    assert few.effective_steps == pytest.approx(40, rel=0.2)
    # Two slow walks of 200 steps weigh as a handful.
    walks = np.cumsum(rng.normal(size=(2, 200)), axis=1)
    slow = only(correlations(with_figures(1000 + 10 * walks[0], walks[1])))
    assert slow.rho is None
    assert slow.effective_steps is not None
    assert slow.effective_steps < 30


def test_figures_that_do_not_vary_correlate_with_nothing() -> None:
    found = only(correlations(with_figures(np.ones(100), np.arange(100.0))))
    assert (found.rho, found.effective_steps) == (None, None)


def test_a_figure_that_is_rarely_above_zero_has_an_interval() -> None:
    figure, clock = np.zeros(60), np.random.default_rng(4).normal(size=60)
    figure[7] = 1  # some resamples do without it
    found = only(correlations(with_figures(figure, clock)))
    assert found.rho is not None
    assert found.low is not None


def test_independent_series_are_rarely_far_from_zero() -> None:
    # Independent series with a correlation of 0.5 from step to step: 95 % intervals leave out 0 in
    # about 1 of 20 pairs; more than 3 of 10 would be by chance in 0.1 % of cases.
    outside = 0
    for seed in range(10):
        rng = np.random.default_rng(seed)
        noise = rng.normal(size=(2, 300))
        for at in range(1, 300):
            noise[:, at] += 0.5 * noise[:, at - 1]
        found = only(correlations(with_figures(1e6 + 1e5 * noise[0], noise[1])))
        assert found.low is not None
        assert found.high is not None
        outside += not found.low <= 0 <= found.high
    assert outside <= 3


def test_the_allocators_change_is_what_is_missing_from_its_ratio() -> None:
    rng = np.random.default_rng(3)
    ratio = rng.uniform(0, 1, 100)
    table = [
        replace(step_memory(), determinism_ratio=float(x), busy_mean_mhz=float(x)) for x in ratio
    ]
    (found,) = correlations(table)
    assert found.figure == "allocator_change"
    assert found.rho == pytest.approx(-1)


# Offload. One step from 0 to 1000 ns; compute until 500.

WORK, IDLE = spans((0, 500)), spans((600, 1000))


def copies(*made: tuple[CopyDirection, int, int, int, Phase], windows: int = 1) -> DeviceTimeline:
    """Copies (direction, start, end, bytes, phase) of step 0."""
    records = [
        Rec(start, end, KernelClass.MEMCPY, way, copied=size, phase=phase)
        for way, start, end, size, phase in made
    ]
    return device(records, windows=[(0, 1000)] * windows)


H2D, D2H = CopyDirection.H2D, CopyDirection.D2H


def found_offload(
    timeline: DeviceTimeline, *names: str, optimizer: Intervals | None = None
) -> object:
    found = offload(timeline, WORK, IDLE, optimizer or spans(), names)
    if found is None:
        return None
    return (
        found.stage,
        (found.hidden_h2d_bytes, found.exposed_h2d_bytes),
        (found.hidden_d2h_bytes, found.exposed_d2h_bytes),
        found.cpu_optimizer_ns,
    )


def test_gradients_that_go_and_parameters_that_come_back_are_offload() -> None:
    optimizer = spans((700, 900))
    offloaded = copies(
        (D2H, 400, 600, 200 * MIB, Phase.BACKWARD),  # half under compute
        (H2D, 900, 1000, 100 * MIB, Phase.OPTIMIZER),
    )
    assert found_offload(offloaded, optimizer=optimizer) == (
        *("optimizer", (0, 100 * MIB), (100 * MIB, 100 * MIB)),
        200,
    )
    streamed = copies(
        (H2D, 0, 100, 100 * MIB, Phase.FORWARD), (D2H, 400, 600, 200 * MIB, Phase.BACKWARD)
    )
    assert found_offload(streamed) == (
        *("parameters", (100 * MIB, 0), (100 * MIB, 100 * MIB)),
        None,
    )


def test_inputs_and_losses_are_no_offload_unless_names_say_so() -> None:
    offloaded = copies((H2D, 0, 100, 50 * MIB, Phase.FORWARD), (D2H, 900, 910, 4, Phase.OPTIMIZER))
    assert found_offload(offloaded, "aten::copy_") is None
    assert found_offload(offloaded, "DeepSpeedCPUAdam.step") is not None
    inputs = copies((H2D, 0, 100, 500 * MIB, Phase.FORWARD))
    assert found_offload(inputs, "CPUOffload") is None
    assert found_offload(copies((H2D, 0, 1, 1, Phase.FORWARD), windows=0)) is None


def test_a_trace_s_copies_and_optimizer_make_its_offload() -> None:
    """By hand, one step of 1,000 ns: compute until 500, under it half of the copy to the host.

    Idle in the step's window is 900 to 1,000, of which the optimizer has 30.
    """
    records = [
        Rec(0, 500),
        Rec(400, 600, KernelClass.MEMCPY, D2H, copied=200 * MIB, phase=Phase.BACKWARD),
        Rec(800, 900, KernelClass.MEMCPY, H2D, copied=100 * MIB, phase=Phase.OPTIMIZER),
    ]
    builder = TraceBuilder()
    builder.span("Optimizer.step#AdamW.step", 900, 30, kind=SpanKind.ANNOTATION)
    builder.span("aten::mul", 900, 90)
    found = traced_offload(device(records, windows=[(0, 1000)]), builder.build())
    assert found is not None
    assert (found.hidden_d2h_bytes, found.exposed_d2h_bytes) == (100 * MIB, 100 * MIB)
    assert (found.hidden_h2d_bytes, found.exposed_h2d_bytes) == (0, 100 * MIB)
    assert found.cpu_optimizer_ns == 30
    assert traced_offload(device(records[:2], windows=[(0, 1000)]), builder.build()) is None
