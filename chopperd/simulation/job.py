"""Computes when the kernels of a simulated step run, as each rank's profiler records them."""

from dataclasses import dataclass

import numpy as np

from chopperd.model.arrays import Bools, Float64s, Int64s
from chopperd.model.kinds import COMPUTE_CLASSES
from chopperd.simulation.evolution import StepRun
from chopperd.simulation.program import KERNEL_GAP_NS, LAUNCH_NS, Program
from chopperd.simulation.step import StepTiming


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelColumns:
    """A program's kernels as columns, (kernels,) each."""

    block: Int64s  # index of each kernel's block
    place: Int64s  # the kernel's place in the block, from 0
    remaining: Int64s  # number of later launches in the same block
    clocked_ns: Float64s  # as in `Kernel`
    fixed_ns: Float64s
    collective: Bools
    compute: Bools  # whether the kernel's class is compute


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStep:
    """Kernel times of one step of one rank, (kernels,) in Unix ns."""

    step: int  # the step's number
    launch_ns: Int64s  # start of each kernel's launch call
    start_ns: Int64s  # start and end on the device
    end_ns: Int64s
    timing: StepTiming  # block times of all ranks


def kernel_columns(program: Program) -> KernelColumns:
    """Convert a program's kernels to columns."""
    kernels, blocks = program.kernels, program.blocks
    block = np.array([kernel.block for kernel in kernels])
    place = np.arange(len(kernels)) - np.array([blocks[b].first for b in block])
    return KernelColumns(
        block=block,
        place=place,
        remaining=np.array([blocks[b].count for b in block]) - 1 - place,
        clocked_ns=np.array([kernel.clocked_ns for kernel in kernels]),
        fixed_ns=np.array([kernel.fixed_ns for kernel in kernels]),
        collective=np.array([blocks[b].collective for b in block]),
        compute=np.array([kernel.recipe.kernel_class in COMPUTE_CLASSES for kernel in kernels]),
    )


def rank_step(columns: KernelColumns, run: StepRun, rank: int, max_mhz: float) -> RankStep:
    """Compute when each kernel of one rank's step was launched, began and ended."""
    timing = run.timing
    if timing is None:
        raise ValueError("an idle node has no ranks")
    block, start = columns.block, timing.start_ns[columns.block, rank]
    length = _lengths_ns(columns, timing, rank, max_mhz)
    until = np.cumsum(length + KERNEL_GAP_NS)
    first = np.flatnonzero(columns.place == 0)
    before = until - length - KERNEL_GAP_NS
    offset = before - before[first][block]
    begin = start + np.rint(offset).astype(np.int64)
    end = begin + np.rint(length).astype(np.int64)
    scale = timing.host_scale[rank]
    return RankStep(
        step=run.before.step,
        launch_ns=timing.launch_ns[block, rank]
        - (columns.remaining * (LAUNCH_NS * scale)).astype(np.int64),
        start_ns=begin,
        end_ns=np.where(columns.collective, timing.end_ns[block, rank], end),
        timing=timing,
    )


def _lengths_ns(columns: KernelColumns, timing: StepTiming, rank: int, max_mhz: float) -> Float64s:
    """Compute each compute kernel's length in ns: T_c·f_max/f + T_m·stretch."""
    ratio = max_mhz / np.nan_to_num(timing.clock_mhz[columns.block, rank], nan=max_mhz)
    stretch = timing.stretch[columns.block, rank]
    lengths: Float64s = columns.clocked_ns * ratio + columns.fixed_ns * stretch
    return lengths
