"""Evolves a node's GPUs from step to step: clock, power, heat, limits, as step functions."""

from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np

from chopperd.model.arrays import Bools, Float64s, Int64s
from chopperd.model.kinds import Cause
from chopperd.simulation.physics import Silicon
from chopperd.simulation.presets import Brake, generator
from chopperd.simulation.program import Program
from chopperd.simulation.step import (
    ClockTargets,
    StepPlay,
    StepTiming,
    at_top,
    clock_targets,
    draw_step,
)
from chopperd.units import NS_PER_MS, NS_PER_S

#: Limits whose time the driver counts, in the order of `NodeState.limited_ns`.
COUNTED: Final = (Cause.POWER_CAP, Cause.THERMAL)

_TYPICAL_ACTIVITY: Final = 0.83
_COMM_ACTIVITY: Final = 0.2
_COMM_BESIDE_ACTIVITY: Final = 0.05
_RESTING_ACTIVITY: Final = 0.03
_GAP_CELLS: Final = 4
_IDLE_STEP_NS: Final = 2 * NS_PER_S
_IDLE_CELL_NS: Final = 100 * NS_PER_MS
_INITIAL_KEY: Final = 13


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """State of a node at the start of a step, which determines its future; (gpus,) each."""

    step: int  # number of the step that comes next
    free_ns: Int64s  # when each GPU ended the step before, Unix ns
    clock_mhz: Float64s  # clock and temperature at that time
    temperature_c: Float64s
    cause_bits: Int64s  # the limit last in force, or 0
    energy_j: Float64s  # counters
    limited_ns: Int64s  # (counted limits, gpus) counters
    busy_ns: Int64s


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """What the GPUs did in one step, (cells, gpus) each; a cell may have no length."""

    edges_ns: Int64s  # (cells+1, gpus), never falling
    clock_mhz: Float64s
    power_w: Float64s
    cause_bits: Int64s  # bit set of `Cause`
    busy: Bools  # whether anything ran

    @property
    def length_ns(self) -> Int64s:
        """Length of each cell in ns, (cells, gpus)."""
        return np.diff(self.edges_ns, axis=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRun:
    """A simulated step: the state before it, its timing (None on an idle node), and its cells."""

    before: NodeState
    timing: StepTiming | None
    cells: Cells


def initial_state(
    silicon: Silicon, program: Program | None, seed: int, start_unix_ns: int
) -> NodeState:
    """Return the node's state at the start: at the temperature of its job, or of idling."""
    count = len(silicon.static_w)
    activity = _RESTING_ACTIVITY if program is None else _TYPICAL_ACTIVITY
    clock_mhz = silicon.model.idle_mhz if program is None else silicon.model.sm_clock_max_mhz
    rng = generator(_INITIAL_KEY, seed)
    return NodeState(
        step=0,
        free_ns=np.full(count, start_unix_ns, np.int64),
        clock_mhz=np.full(count, clock_mhz),
        temperature_c=silicon.settled_temperature_c(activity),
        cause_bits=np.zeros(count, np.int64),
        energy_j=np.floor(rng.uniform(1e6, 5e6, count)),
        limited_ns=rng.integers(0, 10**13, (len(COUNTED), count)),
        busy_ns=np.zeros(count, np.int64),
    )


def run_step(
    silicon: Silicon,
    program: Program | None,
    seed: int,
    state: NodeState,
    brake: Brake | None = None,
) -> tuple[StepRun, NodeState]:
    """Simulate the next step; return what happened and the state after it.

    An idle node knows no brake.
    """
    if program is None:
        cells = _idle_cells(silicon, state)
        return StepRun(before=state, timing=None, cells=cells), _after(silicon, state, cells)
    draws = draw_step(program, len(state.free_ns), seed, state.step)
    nominal = np.array([block.activity for block in program.blocks])
    activity = nominal[:, None] * draws.activity + _COMM_BESIDE_ACTIVITY
    braked_mhz = _braked_mhz(silicon, state, brake)
    targets = clock_targets(silicon, activity, state.temperature_c, braked_mhz)
    play = StepPlay(
        program, silicon.model, draws, targets, free_ns=state.free_ns, clock_mhz=state.clock_mhz
    )
    timing = play.play()
    cells = _job_cells(silicon, program, state, _Played(activity, targets, timing))
    after = replace(_after(silicon, state, cells), clock_mhz=timing.after_mhz)
    return StepRun(before=state, timing=timing, cells=cells), after


def _braked_mhz(silicon: Silicon, state: NodeState, brake: Brake | None) -> Float64s:
    """Return the clock that a brake allows each GPU in the next step, infinite without one."""
    braked_mhz = np.full(len(state.free_ns), np.inf)
    if brake and brake.start_unix_ns <= state.free_ns[brake.gpu] < brake.end_unix_ns:
        step_mhz, highest_mhz = silicon.model.clock_step_mhz, silicon.model.sm_clock_max_mhz
        braked_mhz[brake.gpu] = step_mhz * round(brake.clock_ratio * highest_mhz / step_mhz)
    return braked_mhz


class _Played(NamedTuple):
    """A step's activity and clock targets (input), and its timing (output)."""

    activity: Float64s
    targets: ClockTargets
    timing: StepTiming


def _job_cells(silicon: Silicon, program: Program, state: NodeState, played: _Played) -> Cells:
    """Build a step's cells: one for each compute block, and a few for each rest before one."""
    rows = np.array([i for i, block in enumerate(program.blocks) if not block.collective])
    start, end = played.timing.start_ns[rows], played.timing.end_ns[rows]
    gap = start - np.concatenate((state.free_ns[None], end[:-1]))
    rested = np.flatnonzero(gap.any(axis=1))
    rests = _rests(silicon, played, rows[rested], gap[rested])
    order = np.argsort(
        np.concatenate((np.repeat(rested, _GAP_CELLS), np.arange(len(rows)))), kind="stable"
    )
    blocks = _Part(
        start_ns=start,
        clock_mhz=played.timing.clock_mhz[rows],
        activity=played.activity[rows] - _COMM_BESIDE_ACTIVITY * (played.timing.stretch[rows] == 1),
        limit_bits=_limit_bits(silicon, played, rows),
        busy=np.ones_like(start, bool),
    )
    starts, clock, activity, limit_bits, busy = (
        np.concatenate(pair)[order] for pair in zip(rests, blocks, strict=True)
    )
    return Cells(
        edges_ns=np.concatenate((starts, end[-1:])),
        clock_mhz=clock,
        power_w=silicon.power_w(clock, activity, silicon.resting_w(state.temperature_c)),
        cause_bits=_cause_bits(clock >= silicon.model.sm_clock_max_mhz, limit_bits, state),
        busy=busy,
    )


class _Part(NamedTuple):
    """Columns of some cells, (cells, gpus) each."""

    start_ns: Int64s
    clock_mhz: Float64s
    activity: Float64s
    limit_bits: Int64s
    busy: Bools


def _rests(silicon: Silicon, played: _Played, rows: Int64s, gap_ns: Int64s) -> _Part:
    """Build the cells before blocks that the compute stream had to wait for."""
    flat, gpus = (-1, gap_ns.shape[1]), gap_ns.shape[1]
    share = np.arange(_GAP_CELLS)[:, None] / _GAP_CELLS
    since = played.timing.start_ns[rows] - gap_ns
    starts = since[:, None] + (gap_ns[:, None] * share).astype(np.int64)
    comm = starts < played.timing.comm_until_ns[rows][:, None, None]
    ceiling = played.targets.ceiling_mhz
    held = ceiling < silicon.model.sm_clock_max_mhz
    held_bits = np.where(held, played.targets.ceiling_bits, 0)
    return _Part(
        start_ns=starts.reshape(flat),
        clock_mhz=_resting_clock_mhz(silicon, played, rows, gap_ns).reshape(flat),
        activity=np.where(comm, _COMM_ACTIVITY, _RESTING_ACTIVITY).reshape(flat),
        limit_bits=np.broadcast_to(held_bits, (len(rows) * _GAP_CELLS, gpus)),
        busy=comm.reshape(flat),
    )


def _resting_clock_mhz(silicon: Silicon, played: _Played, rows: Int64s, gap_ns: Int64s) -> Float64s:
    """Return the mean clock of each part of the rest before a block, (blocks, parts, gpus)."""
    ceiling = played.targets.ceiling_mhz
    part = gap_ns[:, None] / _GAP_CELLS / silicon.model.governor_constant_ns
    order = np.arange(_GAP_CELLS)[:, None]
    whole = np.where(part > 0, part, 1.0)
    left = np.exp(-part * order) * np.where(part > 0, -np.expm1(-part) / whole, 1.0)
    clock = ceiling + (played.timing.before_mhz[rows][:, None] - ceiling) * left
    step_mhz = silicon.model.clock_step_mhz
    stepped = step_mhz * np.round(clock / step_mhz)
    return at_top(stepped, silicon.model.sm_clock_max_mhz)


def _limit_bits(silicon: Silicon, played: _Played, rows: Int64s) -> Int64s:
    """Return the limit that lowers the clock target of each block, (blocks, gpus); 0 for none."""
    held = played.targets.block_mhz[rows] < silicon.model.sm_clock_max_mhz
    by_power = played.targets.power_bound[rows]
    return np.where(held, np.where(by_power, Cause.POWER_CAP.bit, played.targets.ceiling_bits), 0)


def _cause_bits(at_top: Bools, limit_bits: Int64s, state: NodeState) -> Int64s:
    """Return the limit in force in each cell, (cells, gpus).

    At the highest clock there is none; below it the limit that lowers the governor's target; while
    the clock still rises to an unlimited target, the limit that had lowered it.
    """
    bits = np.concatenate((state.cause_bits[None], np.where(at_top, 0, limit_bits)))
    known = np.concatenate((np.ones_like(at_top[:1]), at_top | (limit_bits > 0)))
    last_known = np.where(known, np.arange(len(known))[:, None], 0)
    np.maximum.accumulate(last_known, axis=0, out=last_known)
    filled: Int64s = np.take_along_axis(bits, last_known, axis=0)[1:]
    return filled


def _idle_cells(silicon: Silicon, state: NodeState) -> Cells:
    count = _IDLE_STEP_NS // _IDLE_CELL_NS
    shape = count, len(state.free_ns)
    clock = np.full(shape, silicon.model.idle_mhz)
    activity = np.full(shape, _RESTING_ACTIVITY)
    return Cells(
        edges_ns=state.free_ns + np.arange(count + 1)[:, None] * _IDLE_CELL_NS,
        clock_mhz=clock,
        power_w=silicon.power_w(clock, activity, silicon.resting_w(state.temperature_c)),
        cause_bits=np.full(shape, Cause.LOW_UTILIZATION.bit),
        busy=np.zeros(shape, bool),
    )


def _after(silicon: Silicon, state: NodeState, cells: Cells) -> NodeState:
    length = cells.length_ns
    elapsed_ns = (cells.edges_ns[-1] - cells.edges_ns[0]).astype(np.float64)
    energy_j = (cells.power_w * length).sum(axis=0) / NS_PER_S
    limited = [(length * ((cells.cause_bits & c.bit) != 0)).sum(axis=0) for c in COUNTED]
    power_w = energy_j * NS_PER_S / elapsed_ns
    return NodeState(
        step=state.step + 1,
        free_ns=cells.edges_ns[-1],
        clock_mhz=cells.clock_mhz[-1],
        temperature_c=silicon.temperature_c(state.temperature_c, power_w, elapsed_ns),
        cause_bits=cells.cause_bits[-1],
        energy_j=state.energy_j + energy_j,
        limited_ns=state.limited_ns + np.stack(limited),
        busy_ns=state.busy_ns + (length * cells.busy).sum(axis=0),
    )
