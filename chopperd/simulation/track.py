"""The state of one simulated GPU over a few steps, as functions of time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from chopperd.model.arrays import Float64s, Int64s
from chopperd.model.kinds import Cause
from chopperd.model.timeline import Intervals
from chopperd.simulation.evolution import COUNTED, NodeState, StepRun
from chopperd.units import NS_PER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFunction:
    """A function that is constant between edges: `value[i]` on `[edges_ns[i], edges_ns[i+1])`."""

    edges_ns: Int64s  # (n+1,) never falling; cells of no length are passed over
    value: Float64s  # (n,)
    #: (n+1,) the integral from the first edge to each edge, value times ns.
    cumulative: Float64s = field(init=False)

    def __post_init__(self) -> None:
        total = np.cumsum(self.value * np.diff(self.edges_ns))
        object.__setattr__(self, "cumulative", np.concatenate(([0.0], total)))

    def cell(self, t_ns: Int64s) -> Int64s:
        """Return the index of the cell that holds each time; ValueError outside of the span."""
        if t_ns.size and not self.edges_ns[0] <= t_ns.min() <= t_ns.max() <= self.edges_ns[-1]:
            raise ValueError("a time lies outside the simulated span")
        at = np.searchsorted(self.edges_ns, t_ns, side="right") - 1
        return np.minimum(at, len(self.value) - 1).astype(np.int64)

    def at(self, t_ns: Int64s) -> Float64s:
        """Return the value at each time."""
        return self.value[self.cell(t_ns)]

    def until(self, t_ns: Int64s) -> Float64s:
        """Integrate from the first edge to each time, value times ns."""
        cell = self.cell(t_ns)
        return self.cumulative[cell] + self.value[cell] * (t_ns - self.edges_ns[cell])

    def over(self, intervals: Intervals) -> Float64s:
        """Integrate over each interval, (n,) value times ns."""
        return self.until(intervals.end_ns) - self.until(intervals.start_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockTruth:
    """The true clock of one GPU and the limits in force."""

    clock: StepFunction  # SM clock, MHz
    causes: Int64s  # (n,) bit set of `Cause`, one a cell of `clock`; 0: no limit in force

    def causes_at(self, t_ns: Int64s) -> Int64s:
        """Return the limits in force at each time, (n,) int64 bit set of `Cause`."""
        return self.causes[self.clock.cell(t_ns)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """One GPU's true values in a step, as functions of time."""

    start_ns: int  # Unix ns
    end_ns: int  # where the next track starts
    truth: ClockTruth  # clock and limits
    power: StepFunction  # W
    busy: StepFunction  # 1 while anything runs
    limited: Mapping[Cause, StepFunction]  # for each counted limit, 1 while in force
    #: At the start and at the end; in between it is linear, within a few mK of the exponential.
    temperature_c: Float64s
    energy_j: float  # counters at the start
    limited_ns: Mapping[Cause, int]
    busy_ns: int

    def clock_mhz_at(self, t_ns: int) -> float:
        """Return the true clock at a time on the track, MHz."""
        return float(self.truth.clock.value[self._cell(t_ns)])

    def causes_at(self, t_ns: int) -> int:
        """Return the limits in force at a time, as a bit set of `Cause`."""
        return int(self.truth.causes[self._cell(t_ns)])

    def energy_until_j(self, t_ns: int) -> float:
        """Return the energy counter at a time, unrounded, J."""
        return self.energy_j + self._until(self.power, t_ns) / NS_PER_S

    def busy_until_ns(self, t_ns: int) -> float:
        """Return the busy-time counter at a time, ns."""
        return self.busy_ns + self._until(self.busy, t_ns)

    def limited_until_ns(self, cause: Cause, t_ns: int) -> int:
        """Return the cumulative time under a counted limit at a time, ns."""
        return self.limited_ns[cause] + round(self._until(self.limited[cause], t_ns))

    def temperature_at_c(self, t_ns: int) -> float:
        """Return the temperature at a time, C."""
        span_ns = [0, self.end_ns - self.start_ns]
        return float(np.interp(t_ns - self.start_ns, span_ns, self.temperature_c))

    def _cell(self, t_ns: int) -> int:
        found = int(self.truth.clock.edges_ns.searchsorted(t_ns, side="right")) - 1
        return min(found, len(self.truth.causes) - 1)

    def _until(self, function: StepFunction, t_ns: int) -> float:
        """Return `StepFunction.until` for one time, at lower cost."""
        cell = self._cell(t_ns)
        inside_ns = t_ns - int(function.edges_ns[cell])
        return float(function.cumulative[cell]) + float(function.value[cell]) * inside_ns


def build_tracks(run: StepRun, after: NodeState) -> tuple[Track, ...]:
    """Build each GPU's track over a step that ends in state `after`."""
    return tuple(_track(run, after, gpu) for gpu in range(len(after.free_ns)))


def _track(run: StepRun, after: NodeState, gpu: int) -> Track:
    cells, before = run.cells, run.before
    edges, bits = (each[:, gpu].copy() for each in (cells.edges_ns, cells.cause_bits))

    def function(column: npt.NDArray[np.generic]) -> StepFunction:
        return StepFunction(edges_ns=edges, value=column.astype(np.float64))

    return Track(
        start_ns=int(edges[0]),
        end_ns=int(edges[-1]),
        truth=ClockTruth(clock=function(cells.clock_mhz[:, gpu]), causes=bits),
        power=function(cells.power_w[:, gpu]),
        busy=function(cells.busy[:, gpu]),
        limited={c: function((bits & c.bit) != 0) for c in COUNTED},
        temperature_c=np.array([before.temperature_c[gpu], after.temperature_c[gpu]]),
        energy_j=float(before.energy_j[gpu]),
        limited_ns={c: int(before.limited_ns[row, gpu]) for row, c in enumerate(COUNTED)},
        busy_ns=int(before.busy_ns[gpu]),
    )


def joined_truth(tracks: Sequence[Track]) -> ClockTruth:
    """Join the truth of consecutive tracks of one GPU."""
    clocks = [track.truth.clock for track in tracks]
    edges = np.concatenate([*(clock.edges_ns[:-1] for clock in clocks), clocks[-1].edges_ns[-1:]])
    value = np.concatenate([clock.value for clock in clocks])
    return ClockTruth(
        clock=StepFunction(edges_ns=edges, value=value),
        causes=np.concatenate([track.truth.causes for track in tracks]),
    )
