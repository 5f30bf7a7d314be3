"""Known-truth scenarios for accuracy: one GPU, its records, its clock, and what a sampler sees.

A scenario is a pure function of its arguments. The presets are the clock processes of the accuracy
budgets: *steady*, *phase-locked*, *hopping*; the true clock is a step function, so every truth here
is exact.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import numpy as np
from msgspec import Struct

from bench import truth
from bench.scenario_draws import (
    Chunks,
    Records,
    draw_chunks,
    draw_records,
    dwell_edges,
    relaxation,
    stratified_ticks,
    wander,
)
from chopperd.model.arrays import Float64s, Int64s
from chopperd.model.devices import GpuInfo, Vendor
from chopperd.model.kinds import COMPUTE_CLASSES, Cause
from chopperd.model.samples import GpuSamples
from chopperd.model.timeline import Intervals
from chopperd.simulation.presets import generator
from chopperd.simulation.track import ClockTruth, StepFunction
from chopperd.units import NS_PER_MS, NS_PER_S

REFERENCE_MHZ: Final = 1980.0
#: NVIDIA's clock generators move in steps, so a reading in whole steps is exact.
CLOCK_STEP_MHZ: Final = 15.0
LOWEST_MHZ: Final = 345.0

#: How far the truth reaches beyond the first and last step, and how far sampling does.
MARGIN_NS: Final = 3 * NS_PER_S
SAMPLING_MARGIN_NS: Final = 1 * NS_PER_S

_CELL_NS: Final = NS_PER_MS // 2
_CAUSES: Final = (Cause.POWER_CAP, Cause.THERMAL, None)
_CAUSE_WEIGHTS: Final = (0.6, 0.3, 0.1)
_DRAW_KEY: Final = 1
_OBSERVE_KEY: Final = 2
_SENSOR_KEY: Final = 3


class Scenario(Struct, frozen=True, kw_only=True):
    """One simulated GPU over some steps, with the truth about its clock.

    Attributes:
        preset: Name of the clock process.
        gpu: The GPU's identity.
        windows: One a step, abutting: from its first compute kernel to the next step's; the last
            ends with its last record.
        records: What ran.
        truth: The true clock; it reaches `MARGIN_NS` beyond the windows on both sides.
        reference_mhz: The clock that losses are counted against.
    """

    preset: str
    gpu: GpuInfo
    windows: Intervals
    records: Records
    truth: ClockTruth
    reference_mhz: float

    @property
    def compute(self) -> Intervals:
        """When compute kernels ran: disjoint, as they share one stream."""
        rows = np.isin(self.records.kernel_class, list(COMPUTE_CLASSES))
        return Intervals(start_ns=self.records.start_ns[rows], end_ns=self.records.end_ns[rows])


class StepTruth(Struct, frozen=True, kw_only=True):
    """The exact figures of each step's compute time, (steps,) each.

    Attributes:
        compute_ns: Time in compute kernels.
        mean_mhz: Mean clock over it.
        lost_ns: Ceiling loss; `gap_ratio`: the same over `compute_ns`.
        by_cause_ns: The loss by cause; causes without loss left out.
    """

    compute_ns: Int64s
    mean_mhz: Float64s
    lost_ns: Float64s
    gap_ratio: Float64s
    by_cause_ns: Mapping[Cause, Float64s]


def scenario(
    preset: str,
    *,
    seed: int,
    step_s: float,
    steps: int,
    start_unix_ns: int = 0,
    correlation_s: float = 0.3,
) -> Scenario:
    """The scenario that these arguments name; its first step starts within a step of the start.

    `correlation_s` is the correlation time of the *steady* clock; the others do without.

    Raises:
        KeyError: The preset is not one of `SCENARIO_PRESETS`.
    """
    clock = _CLOCKS[preset]
    if preset == "steady":
        clock = partial(_steady, correlation_ns=correlation_s * NS_PER_S)
    rng = generator(_DRAW_KEY, seed, SCENARIO_PRESETS.index(preset))
    first_ns = start_unix_ns + int(rng.uniform(0, step_s) * NS_PER_S)
    chunks = draw_chunks(rng, start_ns=first_ns, step_s=step_s, steps=steps)
    records = draw_records(rng, chunks)
    return Scenario(
        preset=preset,
        gpu=_gpu(),
        windows=_windows(chunks, records),
        records=records,
        truth=_with_causes(rng, clock(rng, chunks)),
        reference_mhz=REFERENCE_MHZ,
    )


def step_truth(known: Scenario) -> StepTruth:
    """The exact figures of each step."""
    compute, steps = known.compute, len(known.windows)
    step = np.searchsorted(known.windows.start_ns, compute.start_ns, side="right") - 1

    def per_step(each: Float64s) -> Float64s:
        return np.bincount(step, weights=each, minlength=steps).astype(np.float64)

    compute_ns = per_step((compute.end_ns - compute.start_ns).astype(np.float64))
    lost_ns = per_step(truth.lost_ns(known.truth, compute, known.reference_mhz))
    by_cause = truth.lost_by_cause_ns(known.truth, compute, known.reference_mhz)
    return StepTruth(
        compute_ns=compute_ns.astype(np.int64),
        mean_mhz=per_step(known.truth.clock.over(compute)) / compute_ns,
        lost_ns=lost_ns,
        gap_ratio=lost_ns / compute_ns,
        by_cause_ns={cause: per_step(each) for cause, each in by_cause.items()},
    )


def observe(
    known: Scenario,
    *,
    hz: float,
    lag_ns: int = 0,
    seed: int,
    read_span_ns: int = 0,
    quantum_mhz: float = CLOCK_STEP_MHZ,
    sensor_period_ns: int = 0,
) -> GpuSamples:
    """What a sampler records of a scenario, from `SAMPLING_MARGIN_NS` before to as long after.

    Each period's call falls at a random point of the period; it takes `read_span_ns`, and the
    device answers at a random instant of the call with what was true `lag_ns` before. The clock,
    which moves in steps of `CLOCK_STEP_MHZ`, is rounded to `quantum_mhz` (0: not rounded). A sensor
    with a period looks that often, at a phase of its own, and holds what it saw.
    """
    rng = generator(_OBSERVE_KEY, seed, int(hz * 1_000), lag_ns)
    begin_ns = int(known.windows.start_ns[0]) - SAMPLING_MARGIN_NS
    span_ns = int(known.windows.end_ns[-1]) + SAMPLING_MARGIN_NS - begin_ns
    t_ns = begin_ns + stratified_ticks(rng, span_ns, hz)
    within = rng.uniform(-0.5, 0.5, len(t_ns)) * read_span_ns
    seen_ns = t_ns + within.astype(np.int64) - lag_ns
    if sensor_period_ns:
        phase_ns = int(generator(_SENSOR_KEY, seed).integers(sensor_period_ns))
        seen_ns = (seen_ns - phase_ns) // sensor_period_ns * sensor_period_ns + phase_ns
    clock_mhz = known.truth.clock.at(seen_ns)
    if quantum_mhz:
        clock_mhz = np.round(clock_mhz / quantum_mhz) * quantum_mhz
    absent = np.full(len(t_ns), np.nan)
    return GpuSamples(
        gpu=known.gpu,
        t_unix_ns=t_ns,
        sm_clock_mhz=clock_mhz,
        read_span_ns=np.full(len(t_ns), read_span_ns, np.int64),
        causes=known.truth.causes_at(seen_ns),
        mem_clock_mhz=absent,
        power_w=absent,
        energy_j=absent,
        temperature_c=absent,
        memory_used_bytes=absent,
        activity_ratio=absent,
        limited_ns={c: truth.limited_ns(known.truth, c, seen_ns) for c in _CAUSES if c is not None},
    )


def _gpu() -> GpuInfo:
    return GpuInfo(
        gpu="0",
        index=0,
        uuid="GPU-00000000-0000-0000-0000-000000000000",
        name="Simulated GPU",
        vendor=Vendor.NVIDIA,
        sm_clock_max_mhz=REFERENCE_MHZ,
        sm_clock_average_ns=0,
    )


def _windows(chunks: Chunks, records: Records) -> Intervals:
    starts = chunks.start_ns[np.flatnonzero(np.diff(chunks.step, prepend=np.int32(-1)))]
    end_ns = records.end_ns.max(keepdims=True)
    return Intervals(start_ns=starts, end_ns=np.concatenate((starts[1:], end_ns)))


def _grid(chunks: Chunks) -> Int64s:
    """Edges of equal cells over the whole truth."""
    span_ns = int(chunks.end_ns[-1] - chunks.start_ns[0]) + 2 * MARGIN_NS
    cells = -(-span_ns // _CELL_NS)
    return int(chunks.start_ns[0]) - MARGIN_NS + np.arange(cells + 1, dtype=np.int64) * _CELL_NS


def _steady(
    rng: np.random.Generator, chunks: Chunks, correlation_ns: float = 0.3 * NS_PER_S
) -> StepFunction:
    """Mean 1600 MHz, deviation 60 MHz; blind to what runs."""
    edges = _grid(chunks)
    drift = wander(
        rng, count=len(edges) - 1, cell_ns=_CELL_NS, deviation=60.0, correlation_ns=correlation_ns
    )
    return _limited(edges, 1600.0 + drift)


def _phase_locked(rng: np.random.Generator, chunks: Chunks) -> StepFunction:
    """1400 MHz in computation, 1950 MHz else, within 5 ms, and a slow wander of 15 MHz."""
    edges = _grid(chunks)
    middle = edges[:-1] + _CELL_NS // 2
    chunk = np.clip(np.searchsorted(chunks.start_ns, middle, side="right") - 1, 0, None)
    computing = (middle >= chunks.start_ns[chunk]) & (middle < chunks.compute_end_ns[chunk])
    target = np.where(computing, 1400.0, 1950.0)
    followed = relaxation(target, cell_ns=_CELL_NS, constant_ns=5 * NS_PER_MS)
    drift = wander(
        rng, count=len(target), cell_ns=_CELL_NS, deviation=15.0, correlation_ns=2 * NS_PER_S
    )
    return _limited(edges, followed + drift)


def _hopping(rng: np.random.Generator, chunks: Chunks) -> StepFunction:
    """Levels of 1200..1980 MHz in 15 MHz steps, each held 20-200 ms."""
    grid = _grid(chunks)
    span_ns = int(grid[-1] - grid[0])
    edges = grid[0] + dwell_edges(rng, span_ns, 20 * NS_PER_MS, 200 * NS_PER_MS)
    level = rng.integers(0, 53, len(edges) - 1).astype(np.float64)
    return _limited(edges, 1200.0 + CLOCK_STEP_MHZ * level)


def _limited(edges: Int64s, clock_mhz: Float64s) -> StepFunction:
    """The clock on the generator's steps, from the lowest to the highest."""
    stepped = CLOCK_STEP_MHZ * np.round(clock_mhz / CLOCK_STEP_MHZ)
    return StepFunction(edges_ns=edges, value=np.clip(stepped, LOWEST_MHZ, REFERENCE_MHZ))


def _with_causes(rng: np.random.Generator, clock: StepFunction) -> ClockTruth:
    """Gives each stretch of 1-4 s one limit (or none that is reported) while below the top."""
    origin_ns = clock.edges_ns[0]
    span_ns = int(clock.edges_ns[-1] - origin_ns)
    edges = origin_ns + dwell_edges(rng, span_ns, NS_PER_S, 4 * NS_PER_S)
    drawn = rng.choice(len(_CAUSES), size=len(edges) - 1, p=_CAUSE_WEIGHTS)
    bits = np.array([0 if cause is None else cause.bit for cause in _CAUSES])[drawn]
    stretch = np.searchsorted(edges, clock.edges_ns[:-1], side="right") - 1
    causes = np.where(clock.value < REFERENCE_MHZ, bits[stretch], 0).astype(np.int64)
    return ClockTruth(clock=clock, causes=causes)


_CLOCKS: Final[Mapping[str, Callable[[np.random.Generator, Chunks], StepFunction]]] = {
    "steady": _steady,
    "phase-locked": _phase_locked,
    "hopping": _hopping,
}
SCENARIO_PRESETS: Final = tuple(_CLOCKS)
