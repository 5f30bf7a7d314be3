"""The state of one simulated GPU over a few steps, as functions of time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from chopperd.model.arrays import Float64s, Int64s
from chopperd.model.kinds import Cause
from chopperd.model.timeline import Intervals
from chopperd.simulation.evolution import COUNTED, NodeState, StepRun
from chopperd.units import NS_PER_S


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
        """Return the index of the cell that holds each time.

        Raises:
            ValueError: A time lies outside `[edges_ns[0], edges_ns[-1]]`.
        """
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
    """The true clock of one GPU and the limits in force.

    Attributes:
        clock: SM clock, MHz.
        causes: (n,) int64 bit set of `Cause`, one a cell of `clock`; 0: no limit in force.
    """

    clock: StepFunction
    causes: Int64s

    def causes_at(self, t_ns: Int64s) -> Int64s:
        """Return the limits in force at each time, (n,) int64 bit set of `Cause`."""
        return self.causes[self.clock.cell(t_ns)]


_Scalar = TypeVar("_Scalar", bound=np.generic)


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """One GPU's true values over consecutive steps, as functions of time.

    Attributes:
        start_ns, end_ns: Start, and end, where the next track starts; Unix ns.
        truth: Clock and limits. power: W. busy: 1 while anything runs.
        limited: For each counted limit, 1 while in force.
        temperature_edges_ns, temperature_c: The temperature at each step's start and at the end;
            in between it is linear, which is within a few mK of the exponential.
        energy_j, limited_ns, busy_ns: Counters at the start.
    """

    start_ns: int
    end_ns: int
    truth: ClockTruth
    power: StepFunction
    busy: StepFunction
    limited: Mapping[Cause, StepFunction]
    temperature_edges_ns: Int64s
    temperature_c: Float64s
    energy_j: float
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
        since = self.temperature_edges_ns - self.start_ns
        return float(np.interp(t_ns - self.start_ns, since, self.temperature_c))

    def _cell(self, t_ns: int) -> int:
        found = int(self.truth.clock.edges_ns.searchsorted(t_ns, side="right")) - 1
        return min(found, len(self.truth.causes) - 1)

    def _until(self, function: StepFunction, t_ns: int) -> float:
        """Return `StepFunction.until` for one time, at lower cost."""
        cell = self._cell(t_ns)
        inside_ns = t_ns - int(function.edges_ns[cell])
        return float(function.cumulative[cell]) + float(function.value[cell]) * inside_ns


def build_tracks(runs: Sequence[StepRun], after: NodeState) -> tuple[Track, ...]:
    """Build each GPU's track over consecutive steps that end in state `after`."""
    columns = _Columns.of(runs, after)
    return tuple(_track(columns, runs[0].before, gpu) for gpu in range(len(after.free_ns)))


class _Columns(NamedTuple):
    """Joined columns of several steps, one row a GPU: (gpus, cells), edges (gpus, cells+1)."""

    edges_ns: Int64s
    clock_mhz: Float64s
    power_w: Float64s
    cause_bits: Int64s
    busy: Float64s
    temperature_edges_ns: Int64s
    temperature_c: Float64s

    @classmethod
    def of(cls, runs: Sequence[StepRun], after: NodeState) -> "_Columns":
        cells, states = [run.cells for run in runs], [*(run.before for run in runs), after]
        edges = [*(each.edges_ns[:-1] for each in cells), cells[-1].edges_ns[-1:]]
        return cls(
            edges_ns=_by_gpu(edges),
            clock_mhz=_by_gpu([each.clock_mhz for each in cells]),
            power_w=_by_gpu([each.power_w for each in cells]),
            cause_bits=_by_gpu([each.cause_bits for each in cells]),
            busy=_by_gpu([each.busy for each in cells]).astype(np.float64),
            temperature_edges_ns=_by_gpu([state.free_ns[None] for state in states]),
            temperature_c=_by_gpu([state.temperature_c[None] for state in states]),
        )


def _by_gpu(parts: Sequence[npt.NDArray[_Scalar]]) -> npt.NDArray[_Scalar]:
    return np.ascontiguousarray(np.concatenate(parts).T)


def _track(columns: _Columns, first: NodeState, gpu: int) -> Track:
    edges, bits = columns.edges_ns[gpu], columns.cause_bits[gpu]

    def function(value: Float64s) -> StepFunction:
        return StepFunction(edges_ns=edges, value=value)

    return Track(
        start_ns=int(edges[0]),
        end_ns=int(edges[-1]),
        truth=ClockTruth(clock=function(columns.clock_mhz[gpu]), causes=bits),
        power=function(columns.power_w[gpu]),
        busy=function(columns.busy[gpu]),
        limited={c: function(((bits & c.bit) != 0).astype(np.float64)) for c in COUNTED},
        temperature_edges_ns=columns.temperature_edges_ns[gpu],
        temperature_c=columns.temperature_c[gpu],
        energy_j=float(first.energy_j[gpu]),
        limited_ns={c: int(first.limited_ns[row, gpu]) for row, c in enumerate(COUNTED)},
        busy_ns=int(first.busy_ns[gpu]),
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
