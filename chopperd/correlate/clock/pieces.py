"""A clock's pieces, cut so that losses against a level stay linear, and the primitives of both."""

from dataclasses import dataclass

import numpy as np

from chopperd.correlate.clock.signal import (
    ClassClock,
    MaskPositions,
    Positions,
    Primitive,
    Spans,
    locate_spans,
    primitive,
)
from chopperd.model.arrays import Float64s, Int64s
from chopperd.model.timeline import Intervals


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockPieces:
    """A clock's pieces, cut where its line crosses a level, so that clipping keeps them linear.

    Attributes:
        base_ns: Origin of `edges`.
        edges: (p + 1,) float64, ns since `base_ns`.
        left_mhz, right_mhz: (p,) float64; NaN where not covered.
        parent: (p,) int64, the clock's piece that each was cut from.
    """

    base_ns: int
    edges: Float64s
    left_mhz: Float64s
    right_mhz: Float64s
    parent: Int64s

    @classmethod
    def of(cls, clock: ClassClock, levels_mhz: tuple[float, ...]) -> "ClockPieces":
        """The clock's pieces, cut at the levels.

        Args:
            clock: A clock of at least one piece.
            levels_mhz: Where to cut.
        """
        base_ns = int(clock.edges_ns[0])
        edges = (clock.edges_ns - base_ns).astype(np.float64)
        parent = np.arange(len(edges) - 1)
        pieces = cls(
            base_ns=base_ns,
            edges=edges,
            left_mhz=clock.left_mhz,
            right_mhz=clock.right_mhz,
            parent=parent,
        )
        for level_mhz in dict.fromkeys(levels_mhz):
            pieces = pieces._cut_at(level_mhz)
        return pieces

    def _cut_at(self, level_mhz: float) -> "ClockPieces":
        rise = self.right_mhz - self.left_mhz
        crosses = (self.left_mhz - level_mhz) * (self.right_mhz - level_mhz) < 0
        if not crosses.any():
            return self
        at = np.flatnonzero(crosses)
        share = (level_mhz - self.left_mhz[at]) / rise[at]
        times = self.edges[at] + share * (self.edges[at + 1] - self.edges[at])
        right_mhz = self.right_mhz.copy()
        right_mhz[at] = level_mhz
        return ClockPieces(
            base_ns=self.base_ns,
            edges=np.insert(self.edges, at + 1, times),
            left_mhz=np.insert(self.left_mhz, at + 1, level_mhz),
            right_mhz=np.insert(right_mhz, at + 1, self.right_mhz[at]),
            parent=np.insert(self.parent, at + 1, self.parent[at]),
        )

    def locate_spans(self, start_ns: Int64s, end_ns: Int64s) -> Spans:
        """Where spans lie among the pieces: good for all of their primitives."""
        return locate_spans(self.edges, start_ns, end_ns, self.base_ns)

    def locate_mask(self, mask: Intervals) -> MaskPositions:
        """Where the intervals lie among the pieces."""
        return MaskPositions(mask=mask, spans=self.locate_spans(mask.start_ns, mask.end_ns))

    def clock(self) -> Primitive:
        """∫ f dt in MHz ns."""
        left, right = np.nan_to_num(self.left_mhz), np.nan_to_num(self.right_mhz)
        return primitive(self.edges, left, right, self.base_ns)

    def coverage(self) -> Primitive:
        """∫ 1 dt over covered time, in ns."""
        covered = np.isfinite(self.left_mhz).astype(np.float64)
        return primitive(self.edges, covered, covered, self.base_ns)

    def deficit(
        self, level_mhz: float, weights: tuple[Float64s, Float64s] | None = None
    ) -> Primitive:
        """∫ max(0, level - f) dt in MHz ns.

        Args:
            level_mhz: One of the levels that the pieces were cut at: in the middle of one of the
                clock's own pieces they begin or end without a deficit.
            weights: Of each of the clock's pieces at its start and at its end, (m,) float64; in
                between the weighted deficit is linear.
        """
        left = np.nan_to_num(np.maximum(level_mhz - self.left_mhz, 0.0))
        right = np.nan_to_num(np.maximum(level_mhz - self.right_mhz, 0.0))
        if weights is not None:
            left *= weights[0].take(self.parent)
            right *= weights[1].take(self.parent)
        return primitive(self.edges, left, right, self.base_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class AtOnce:
    """Those of some kernels that run beside another, by the order of their starts and ends.

    Attributes:
        which: (n,) int64, their indices.
        order: (2 n,) int64, which start, or n + which end, each event is.
        positions: Where the events lie among pieces.
        running: (2 n - 1,) float64, how many of the kernels run from each event to the next.
    """

    which: Int64s
    order: Int64s
    positions: Positions
    running: Float64s

    @classmethod
    def of(cls, start_ns: Int64s, end_ns: Int64s, spans: Spans) -> "AtOnce":
        """Those among kernels, (m,) int64 rising starts and ends, and where these lie."""
        which = _crowded(start_ns, end_ns)
        ends_ns = np.concatenate((start_ns.take(which), end_ns.take(which)))
        order = np.argsort(ends_ns, kind="stable")
        begins = np.where(order < len(which), np.int8(1), np.int8(-1))
        running = np.cumsum(begins[:-1], dtype=np.float64)
        start, end = spans.start.of(which), spans.end.of(which)
        return cls(
            which=which,
            order=order,
            positions=Positions(
                piece=np.concatenate((start.piece, end.piece)).take(order),
                into_ns=np.concatenate((start.into_ns, end.into_ns)).take(order),
            ),
            running=np.maximum(running, 1.0, out=running),
        )

    def shares(self, g: Primitive) -> Float64s:
        """∫ g / k over each kernel, k being how many of the kernels run at that instant: (n,)."""
        share = np.diff(g.at(self.positions))
        share /= self.running
        count = len(self.order) // 2
        total = np.zeros(2 * count)
        total[self.order[1:]] = np.cumsum(share, out=share)
        shared: Float64s = total[count:] - total[:count]
        return shared


def _crowded(start_ns: Int64s, end_ns: Int64s) -> Int64s:
    """Indices of the kernels that run beside another, of kernels in order of their starts."""
    reach_ns = np.maximum.accumulate(end_ns)
    apart = np.ones(len(start_ns) + 1, bool)
    np.greater_equal(start_ns[1:], reach_ns[:-1], out=apart[1:-1])
    return np.flatnonzero(~(apart[:-1] & apart[1:]))
