"""Exact integrals of a clock that is linear between samples, of its loss and of its coverage.

Times are float64 ns since an origin: exact to 1 us over a century, to 1 ns over 104 days.
"""

import numpy as np
from msgspec import Struct

from chopperd.correlate.clock.signal import ClassClock
from chopperd.correlate.intervals import places, places_of_spans
from chopperd.model.arrays import Float64s, Int64s
from chopperd.model.timeline import Intervals


class Positions(Struct, frozen=True, kw_only=True):
    """Positions of times among pieces; times outside all pieces are clamped to their ends."""

    piece: Int64s  # (n,) index of the piece
    into_ns: Float64s  # (n,) time since its start

    def of(self, some: Int64s) -> "Positions":
        """Select the positions of some of the times, by index."""
        return Positions(piece=self.piece.take(some), into_ns=self.into_ns.take(some))


class Spans(Struct, frozen=True, kw_only=True):
    """Positions of spans of time among pieces, those outside all pieces clamped to their ends."""

    start: Positions
    end: Positions
    length: Float64s  # (n,) ns
    moment: Float64s  # (n,) integral of (t - start of the piece), ns^2; of spans within one piece
    crossing: Int64s  # (k,) spans that reach beyond the piece they start in


class Primitive(Struct, frozen=True, kw_only=True):
    """The integral of a function g that is linear on each of m pieces and 0 outside all of them."""

    base_ns: int  # origin of `edges`
    edges: Float64s  # (m + 1,) ns
    left: Float64s  # (m,) g at each piece's start
    slope: Float64s  # (m,) its rise per ns
    cumulative: Float64s  # (m + 1,) integral up to each edge

    def locate(self, t_ns: Int64s) -> Positions:
        """Find the positions of times among the pieces."""
        t = _since(self.edges, t_ns, self.base_ns)
        piece = places(self.edges[1:-1], t, "right")
        return Positions(piece=piece, into_ns=t - self.edges.take(piece))

    def at(self, positions: Positions) -> Float64s:
        """Compute the integral from the first edge up to each position: (n,)."""
        piece, into_ns = positions.piece, positions.into_ns
        # (slope / 2 into + left) into + cumulative, in one array: positions come by millions.
        value = self.slope.take(piece)
        value *= 0.5
        value *= into_ns
        value += self.left.take(piece)
        value *= into_ns
        value += self.cumulative.take(piece)
        return value

    def over(self, spans: Spans) -> Float64s:
        """Compute the integral over each span: (n,)."""
        piece, crossing = spans.start.piece, spans.crossing
        value = self.left.take(piece)
        value *= spans.length
        if self.slope.any():
            bend = self.slope.take(piece)
            bend *= spans.moment
            value += bend
        value[crossing] = self.at(spans.end.of(crossing)) - self.at(spans.start.of(crossing))
        return value


def primitive(edges: Float64s, left: Float64s, right: Float64s, base_ns: int) -> Primitive:
    """Integrate the function that is linear from `left` to `right` on each piece.

    `edges`: (m + 1,), rising, ns since `base_ns`; m >= 1. `left`: (m,), value at each piece's
    start. `right`: (m,), value at each piece's end. `base_ns`: origin of `edges`.
    """
    length = np.diff(edges)
    slope = np.divide(right - left, length, out=np.zeros_like(length), where=length > 0)
    cumulative = np.concatenate(([0.0], np.cumsum(0.5 * (left + right) * length)))
    return Primitive(base_ns=base_ns, edges=edges, left=left, slope=slope, cumulative=cumulative)


def _since(edges: Float64s, t_ns: Int64s, base_ns: int) -> Float64s:
    t = (t_ns - base_ns).astype(np.float64)
    return np.clip(t, edges[0], edges[-1], out=t)


class ClockPieces(Struct, frozen=True, kw_only=True):
    """A clock's pieces, cut where its line crosses a level, so that clipping keeps them linear."""

    base_ns: int  # origin of `edges`
    edges: Float64s  # (p + 1,) ns
    left_mhz: Float64s  # (p,) NaN where not covered
    right_mhz: Float64s  # (p,)
    parent: Int64s  # (p,) the clock's piece that each was cut from

    @classmethod
    def of(cls, clock: ClassClock, levels_mhz: tuple[float, ...] = ()) -> "ClockPieces":
        """Build the pieces of a clock, at least one, cut where its line crosses the levels."""
        base_ns = int(clock.edges_ns[0])
        pieces = cls(
            base_ns=base_ns,
            edges=(clock.edges_ns - base_ns).astype(np.float64),
            left_mhz=clock.left_mhz,
            right_mhz=clock.right_mhz,
            parent=np.arange(len(clock.left_mhz)),
        )
        for level_mhz in dict.fromkeys(levels_mhz):
            pieces = pieces._cut_at(level_mhz)
        return pieces

    def _cut_at(self, level_mhz: float) -> "ClockPieces":
        at = np.flatnonzero((self.left_mhz - level_mhz) * (self.right_mhz - level_mhz) < 0)
        if not len(at):
            return self
        left_mhz, right_mhz = self.left_mhz[at], self.right_mhz[at]
        share = (level_mhz - left_mhz) / (right_mhz - left_mhz)
        times = self.edges[at] + share * (self.edges[at + 1] - self.edges[at])
        before_cut_mhz = self.right_mhz.copy()
        before_cut_mhz[at] = level_mhz
        return ClockPieces(
            base_ns=self.base_ns,
            edges=np.insert(self.edges, at + 1, times),
            left_mhz=np.insert(self.left_mhz, at + 1, level_mhz),
            right_mhz=np.insert(before_cut_mhz, at + 1, right_mhz),
            parent=np.insert(self.parent, at + 1, self.parent[at]),
        )

    def locate_spans(self, start_ns: Int64s, end_ns: Int64s) -> Spans:
        """Find the positions of spans among the pieces, valid for all primitives made of these."""
        edges = self.edges
        start, end = (_since(edges, t_ns, self.base_ns) for t_ns in (start_ns, end_ns))
        first, last = places_of_spans(edges[1:-1], start, end, "right")
        length = end - start
        start -= edges.take(first)
        end -= edges.take(last)
        moment = length / 2
        moment += start
        moment *= length
        return Spans(
            start=Positions(piece=first, into_ns=start),
            end=Positions(piece=last, into_ns=end),
            length=length,
            moment=moment,
            crossing=np.flatnonzero(first != last),
        )

    def clock(self) -> Primitive:
        """Return the primitive of the clock, MHz ns; the clock is 0 where not covered."""
        left, right = np.nan_to_num(self.left_mhz), np.nan_to_num(self.right_mhz)
        return primitive(self.edges, left, right, self.base_ns)

    def coverage(self) -> Primitive:
        """Return the primitive whose integral is covered time, ns."""
        covered = np.isfinite(self.left_mhz).astype(np.float64)
        return primitive(self.edges, covered, covered, self.base_ns)

    def deficit(
        self, level_mhz: float, weights: tuple[Float64s, Float64s] | None = None
    ) -> Primitive:
        """Return the primitive of max(0, level - clock), MHz ns.

        `level_mhz`: one of the levels that the pieces were cut at: a piece that begins or ends
        inside one of the clock's own pieces has no deficit there. `weights`: factors of the deficit
        at the start and at the end of each of the clock's pieces, (m,) each; in between the
        weighted deficit is linear.
        """
        left = np.nan_to_num(np.maximum(level_mhz - self.left_mhz, 0.0))
        right = np.nan_to_num(np.maximum(level_mhz - self.right_mhz, 0.0))
        if weights is not None:
            left *= weights[0].take(self.parent)
            right *= weights[1].take(self.parent)
        return primitive(self.edges, left, right, self.base_ns)


class MaskedWindows(Struct, frozen=True, kw_only=True):
    """The parts of w windows of time that lie in a set of intervals, located among pieces."""

    spans: Spans  # of the intervals
    done: Int64s  # (2 w,) how many of them end by each window's start, then by each window's end
    cut: Positions  # (2 w,) of the windows' starts and ends
    begun: Positions  # (2 w,) of the start of the interval that each cuts; else of itself

    @classmethod
    def of(
        cls, g: Primitive, mask: Intervals, spans: Spans, start_ns: Int64s, end_ns: Int64s
    ) -> "MaskedWindows":
        """Cut a mask at windows [start, end), given its spans among the pieces of a primitive."""
        t_ns = np.concatenate((start_ns, end_ns))
        done = np.searchsorted(mask.end_ns, t_ns, "right")
        begun_ns = np.append(mask.start_ns, np.iinfo(np.int64).max).take(done)
        begun = g.locate(np.minimum(begun_ns, t_ns))
        return cls(spans=spans, done=done, cut=g.locate(t_ns), begun=begun)

    def integral(self, g: Primitive) -> Float64s:
        """Compute the integral over the part of each window in the mask: (w,)."""
        before = np.concatenate(([0.0], np.cumsum(g.over(self.spans))))
        up_to = before.take(self.done) + (g.at(self.cut) - g.at(self.begun))
        start, end = np.split(up_to, 2)
        return end - start


class AtOnce(Struct, frozen=True, kw_only=True):
    """The n kernels that overlap another one, with all their starts and ends in order of time."""

    which: Int64s  # (n,) their indices
    order: Int64s  # (2 n,) which start, or n + which end, each event is
    positions: Positions  # (2 n,) of the events among pieces
    running: Float64s  # (2 n - 1,) how many of the kernels run from each event to the next

    @classmethod
    def of(cls, start_ns: Int64s, end_ns: Int64s, spans: Spans) -> "AtOnce":
        """Find those of m kernels, given their rising starts, their ends and their spans."""
        reach_ns = np.maximum.accumulate(end_ns)
        apart = np.ones(len(start_ns) + 1, bool)
        np.greater_equal(start_ns[1:], reach_ns[:-1], out=apart[1:-1])
        which = np.flatnonzero(~(apart[:-1] & apart[1:]))
        order = np.argsort(
            np.concatenate((start_ns.take(which), end_ns.take(which))), kind="stable"
        )
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
        """Compute the integral of g / k over each kernel, k of them running at an instant: (n,)."""
        share = np.diff(g.at(self.positions))
        share /= self.running
        count = len(self.order) // 2
        total = np.zeros(2 * count)
        total[self.order[1:]] = np.cumsum(share, out=share)
        return total[count:] - total[:count]
