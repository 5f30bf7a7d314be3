"""What is exactly true of a simulated clock: means, losses and time under limits.

For benchmarks and tests, which compare reports with it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from chopperd.model.arrays import Float64s, Int64s
from chopperd.model.kinds import CAUSES, Cause
from chopperd.model.timeline import Intervals
from chopperd.simulation.job import kernel_columns, rank_step
from chopperd.simulation.node import SimulatedNode
from chopperd.simulation.track import ClockTruth, StepFunction


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
    by_cause = lost_by_cause_ns(truth, compute, max_mhz)
    return RankTruth(
        steps=np.arange(first_step, last_step + 1),
        windows=Intervals(start_ns=begins, end_ns=np.append(begins[1:], finish)),
        compute_ns=compute_ns.astype(np.int64),
        mean_mhz=per_step(truth.clock.over(compute)) / compute_ns,
        lost_ns=per_step(lost_ns(truth, compute, max_mhz)),
        by_cause_ns={cause: per_step(each) for cause, each in by_cause.items()},
    )


def mean_mhz(truth: ClockTruth, intervals: Intervals) -> float:
    """The time-weighted mean clock over all intervals together, MHz."""
    duration_ns = int((intervals.end_ns - intervals.start_ns).sum())
    return float(truth.clock.over(intervals).sum() / duration_ns)


def lost_ns(truth: ClockTruth, intervals: Intervals, reference_mhz: float) -> Float64s:
    """The ceiling loss in each interval, (n,) ns: the integral of max(0, 1 - f/reference)."""
    return _with(truth, np.maximum(0.0, 1 - truth.clock.value / reference_mhz)).over(intervals)


def lost_by_cause_ns(
    truth: ClockTruth, intervals: Intervals, reference_mhz: float, limit_mhz: float | None = None
) -> Mapping[Cause, Float64s]:
    """The ceiling loss of each interval by cause, (n,) ns each; causes without loss left out.

    From the reference down to a standing limit it is `USER_LIMIT`; below that the limits in
    force share a moment's loss evenly, and with none in force it is `UNEXPLAINED`.
    """
    shares = _cause_shares(truth, reference_mhz, limit_mhz)
    lost = {cause: _with(truth, share).over(intervals) for cause, share in shares.items()}
    return {cause: each for cause, each in lost.items() if each.any()}


def limited_ns(truth: ClockTruth, cause: Cause, t_ns: Int64s) -> Float64s:
    """The time since the first edge that a limit was in force, at each time, (n,) ns."""
    return _with(truth, ((truth.causes & cause.bit) != 0).astype(np.float64)).until(t_ns)


def _with(truth: ClockTruth, value: Float64s) -> StepFunction:
    return StepFunction(edges_ns=truth.clock.edges_ns, value=value)


def _cause_shares(
    truth: ClockTruth, reference_mhz: float, limit_mhz: float | None
) -> Mapping[Cause, Float64s]:
    loss = np.maximum(0.0, 1 - truth.clock.value / reference_mhz)
    top_mhz = np.maximum(truth.clock.value, reference_mhz if limit_mhz is None else limit_mhz)
    standing = np.maximum(0.0, 1 - top_mhz / reference_mhz)
    causes = np.where(truth.causes == 0, Cause.UNEXPLAINED.bit, truth.causes)
    present = int(np.bitwise_or.reduce(causes, initial=0))
    is_set = {cause: (causes & cause.bit) != 0 for cause in CAUSES if present & cause.bit}
    each = (loss - standing) / np.sum(list(is_set.values()), axis=0)
    shares = {cause: each * bits for cause, bits in is_set.items()}
    if standing.any():
        shares[Cause.USER_LIMIT] = shares.get(Cause.USER_LIMIT, 0.0) + standing
    return shares
