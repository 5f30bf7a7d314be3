"""The simulated job as its ranks' profilers would see it: records, windows, and the truth."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from chopperd.model.arrays import Bools, Float64s, Int64s
from chopperd.model.kinds import COMPUTE_CLASSES, Cause
from chopperd.model.timeline import Intervals
from chopperd.simulation.evolution import StepRun
from chopperd.simulation.node import SimulatedNode
from chopperd.simulation.program import KERNEL_GAP_NS, LAUNCH_NS, Program
from chopperd.simulation.step import StepTiming


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelColumns:
    """A program's kernels as columns, (kernels,) each.

    Attributes:
        block: Index of each kernel's block. place: Its place in the block, from 0.
        remaining: Launches of the same block that come after its own.
        clocked_ns, fixed_ns: As in `Kernel`.
        collective, compute: Whether it is a collective; whether its class is one of compute.
    """

    block: Int64s
    place: Int64s
    remaining: Int64s
    clocked_ns: Float64s
    fixed_ns: Float64s
    collective: Bools
    compute: Bools


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStep:
    """One step of one rank.

    Attributes:
        step: Its number.
        launch_ns: (kernels,) start of each kernel's launch call, Unix ns.
        start_ns, end_ns: (kernels,) on the device.
        timing: Everything about all ranks' blocks.
    """

    step: int
    launch_ns: Int64s
    start_ns: Int64s
    end_ns: Int64s
    timing: StepTiming


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTruth:
    """The exact figures of one rank's steps, (steps,) each.

    Attributes:
        steps: Their numbers.
        windows: From a step's first compute kernel to the next one's; the last ends with its
            last record.
        compute_ns: Time in compute kernels, copies into and out of FSDP's buffers included.
        mean_mhz: Mean clock over it. lost_ns: Ceiling loss against the highest clock.
        by_cause_ns: The loss by cause.
    """

    steps: Int64s
    windows: Intervals
    compute_ns: Int64s
    mean_mhz: Float64s
    lost_ns: Float64s
    by_cause_ns: Mapping[Cause, Float64s]


def kernel_columns(program: Program) -> KernelColumns:
    """The program's kernels as columns."""
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
    """One rank's kernels of one step.

    Raises:
        ValueError: The node runs no job.
    """
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
    """T_c·f_max/f + T_m·stretch of each kernel of computation."""
    ratio = max_mhz / np.nan_to_num(timing.clock_mhz[columns.block, rank], nan=max_mhz)
    stretch = timing.stretch[columns.block, rank]
    lengths: Float64s = columns.clocked_ns * ratio + columns.fixed_ns * stretch
    return lengths


def rank_truth(node: SimulatedNode, rank: int, first_step: int, last_step: int) -> RankTruth:
    """The exact figures of a rank's steps `first_step` to `last_step`, both included.

    Raises:
        ValueError: The node runs no job.
    """
    if node.program is None:
        raise ValueError("an idle node has no ranks")
    columns, max_mhz = kernel_columns(node.program), node.preset.gpu.sm_clock_max_mhz
    steps = [rank_step(columns, run, rank, max_mhz) for run in node.steps(first_step, last_step)]
    compute = Intervals(
        start_ns=np.concatenate([step.start_ns[columns.compute] for step in steps]),
        end_ns=np.concatenate([step.end_ns[columns.compute] for step in steps]),
    )
    begins = np.array([step.start_ns[columns.compute].min() for step in steps])
    finish = max(int(step.end_ns.max()) for step in steps)
    truth = node.truth(rank, int(begins[0]), finish)
    of_step = np.repeat(np.arange(len(steps)), int(columns.compute.sum()))

    def per_step(each: Float64s) -> Float64s:
        return np.bincount(of_step, weights=each).astype(np.float64)

    compute_ns = per_step((compute.end_ns - compute.start_ns).astype(np.float64))
    by_cause = truth.lost_by_cause_ns(compute, max_mhz)
    return RankTruth(
        steps=np.arange(first_step, last_step + 1),
        windows=Intervals(start_ns=begins, end_ns=np.append(begins[1:], finish)),
        compute_ns=compute_ns.astype(np.int64),
        mean_mhz=per_step(truth.clock.over(compute)) / compute_ns,
        lost_ns=per_step(truth.lost_ns(compute, max_mhz)),
        by_cause_ns={cause: per_step(each) for cause, each in by_cause.items()},
    )
