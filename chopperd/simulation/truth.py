"""The true clock of a simulated GPU as a step function of time, with exact integrals."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from chopperd.model.arrays import Float64s, Int64s
from chopperd.model.causes import CAUSES, Cause
from chopperd.model.timeline import Intervals


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFunction:
    """A function that is constant between edges: `value[i]` on `[edges_ns[i], edges_ns[i+1])`.

    Attributes:
        edges_ns: (n+1,) int64, never falling; cells of no length are passed over.
        value: (n,) float64.
        cumulative: (n+1,) float64, the integral from the first edge to each edge, value times ns.
    """

    edges_ns: Int64s
    value: Float64s
    cumulative: Float64s = field(init=False)

    def __post_init__(self) -> None:
        total = np.cumsum(self.value * np.diff(self.edges_ns))
        object.__setattr__(self, "cumulative", np.concatenate(([0.0], total)))

    def cell(self, t_ns: Int64s) -> Int64s:
        """The index of the cell that holds each time.

        Raises:
            ValueError: A time lies outside `[edges_ns[0], edges_ns[-1]]`.
        """
        if t_ns.size and not self.edges_ns[0] <= t_ns.min() <= t_ns.max() <= self.edges_ns[-1]:
            raise ValueError("a time lies outside the simulated span")
        at = np.searchsorted(self.edges_ns, t_ns, side="right") - 1
        return np.minimum(at, len(self.value) - 1).astype(np.int64)

    def at(self, t_ns: Int64s) -> Float64s:
        """The value at each time."""
        return self.value[self.cell(t_ns)]

    def until(self, t_ns: Int64s) -> Float64s:
        """The integral from the first edge to each time, value times ns."""
        cell = self.cell(t_ns)
        return self.cumulative[cell] + self.value[cell] * (t_ns - self.edges_ns[cell])

    def over(self, intervals: Intervals) -> Float64s:
        """The integral over each interval, (n,) value times ns."""
        return self.until(intervals.end_ns) - self.until(intervals.start_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockTruth:
    """The true clock of one GPU and the limits in force.

    Attributes:
        clock: SM clock, MHz.
        causes: (n,) int64 bit set of `Cause`, one a cell of `clock`; 0: no limit in force.
    """

    clock: StepFunction
    causes: Int64s

    def mean_mhz(self, intervals: Intervals) -> float:
        """The time-weighted mean clock over all intervals together, MHz."""
        duration_ns = int((intervals.end_ns - intervals.start_ns).sum())
        return float(self.clock.over(intervals).sum() / duration_ns)

    def cycles(self, intervals: Intervals) -> Float64s:
        """The SM cycles in each interval, (n,)."""
        return self.clock.over(intervals) / 1_000

    def lost_ns(self, intervals: Intervals, reference_mhz: float) -> Float64s:
        """The ceiling loss in each interval, (n,) ns: the integral of max(0, 1 - f/reference)."""
        return self._with(np.maximum(0.0, 1 - self.clock.value / reference_mhz)).over(intervals)

    def lost_by_cause_ns(
        self, intervals: Intervals, reference_mhz: float, limit_mhz: float | None = None
    ) -> Mapping[Cause, Float64s]:
        """The ceiling loss of each interval by cause, (n,) ns each; causes without loss left out.

        From the reference down to a standing limit it is `USER_LIMIT`; below that the limits in
        force share a moment's loss evenly, and with none in force it is `UNEXPLAINED`.
        """
        shares = self._cause_shares(reference_mhz, limit_mhz)
        lost = {cause: self._with(share).over(intervals) for cause, share in shares.items()}
        return {cause: each for cause, each in lost.items() if each.any()}

    def limited_ns(self, cause: Cause, t_ns: Int64s) -> Float64s:
        """The time since the first edge that a limit was in force, at each time, (n,) ns."""
        return self._with(((self.causes & cause.bit) != 0).astype(np.float64)).until(t_ns)

    def causes_at(self, t_ns: Int64s) -> Int64s:
        """The limits in force at each time, (n,) int64 bit set of `Cause`."""
        return self.causes[self.clock.cell(t_ns)]

    def _with(self, value: Float64s) -> StepFunction:
        return StepFunction(edges_ns=self.clock.edges_ns, value=value)

    def _cause_shares(
        self, reference_mhz: float, limit_mhz: float | None
    ) -> Mapping[Cause, Float64s]:
        loss = np.maximum(0.0, 1 - self.clock.value / reference_mhz)
        top_mhz = np.maximum(self.clock.value, reference_mhz if limit_mhz is None else limit_mhz)
        standing = np.maximum(0.0, 1 - top_mhz / reference_mhz)
        causes = np.where(self.causes == 0, Cause.UNEXPLAINED.bit, self.causes)
        present = int(np.bitwise_or.reduce(causes, initial=0))
        is_set = {cause: (causes & cause.bit) != 0 for cause in CAUSES if present & cause.bit}
        each = (loss - standing) / np.sum(list(is_set.values()), axis=0)
        shares = {cause: each * bits for cause, bits in is_set.items()}
        if standing.any():
            shares[Cause.USER_LIMIT] = shares.get(Cause.USER_LIMIT, 0.0) + standing
        return shares
