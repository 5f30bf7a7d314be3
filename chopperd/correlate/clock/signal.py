"""The clock as a function of time: in-class lines between samples, and their exact integrals.

Clocks follow what runs, so a line drawn across a compute/communication border would mix two
levels (2.5-3.8 points of bias at 10 Hz). Each sample is therefore labelled with what ran at its
instant, and inside a class the clock is linear between the nearest samples of that class.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np

from chopperd.correlate.intervals import places, places_of_spans
from chopperd.model.arrays import Bools, Float64s, Int8s, Int64s
from chopperd.model.timeline import Intervals
from chopperd.units import NS_PER_S

MAX_GAP_PERIODS: Final = 3
MAX_IN_CLASS_GAP_NS: Final = NS_PER_S


class RunningClass(IntEnum):
    """What a device did at an instant, by the waterfall's precedence."""

    COMPUTE = 0
    COMM = 1
    COPY = 2
    IDLE = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledSamples:
    """Clock samples of one GPU, on the trace's time axis, with what ran at each.

    Attributes:
        t_ns: (n,) int64, strictly rising, sensor lag already subtracted.
        clock_mhz: (n,) float64, no NaN.
        label: (n,) int8, `RunningClass`.
        period_ns: Period as achieved: median spacing; 0 with fewer than two samples.
    """

    t_ns: Int64s
    clock_mhz: Float64s
    label: Int8s
    period_ns: int

    def __len__(self) -> int:
        """The number of samples."""
        return len(self.t_ns)

    @property
    def max_gap_ns(self) -> int:
        """Samples further apart cover nothing between them."""
        return MAX_GAP_PERIODS * self.period_ns

    @property
    def max_in_class_gap_ns(self) -> int:
        """Samples of a class further apart hang no line between them."""
        return max(self.max_gap_ns, MAX_IN_CLASS_GAP_NS)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassClock:
    """The clock while one class runs: linear on each piece between neighbouring samples.

    Attributes:
        edges_ns: (m + 1,) int64; piece j is [edges[j], edges[j + 1]).
        left_mhz, right_mhz: (m,) float64, the line's ends; NaN where nothing is covered.
        left_sample, right_sample: (m,) int64, the samples whose limits explain the clock: those
            that the line hangs on.
        covered: (m,) bool. in_class: (m,) bool, whether the line hangs on samples of the class
            and of no other.
    """

    edges_ns: Int64s
    left_mhz: Float64s
    right_mhz: Float64s
    left_sample: Int64s
    right_sample: Int64s
    covered: Bools
    in_class: Bools

    def covered_intervals(self) -> Intervals:
        """The covered time, abutting pieces merged."""
        return _runs(self.edges_ns, self.covered)

    def in_class_intervals(self) -> Intervals:
        """The covered time in which the line hangs on samples of the class."""
        return _runs(self.edges_ns, self.covered & self.in_class)


def achieved_period_ns(t_ns: Int64s) -> int:
    """The median spacing of samples in ns; 0 with fewer than two."""
    return int(np.median(np.diff(t_ns))) if len(t_ns) > 1 else 0


def class_clock(samples: LabelledSamples, running: RunningClass | None) -> ClassClock:
    """The clock while `running` runs; with None, the line through all of at least two samples.

    Nothing is covered before the first and after the last sample, nor between samples further
    apart than three periods. Inside, the line hangs on the nearest samples of the class where
    these are no further apart than max(3 periods, 1 s), else on the nearest samples of any.

    Source: DESIGN.md section 2, "Clock signal".
    """
    t_ns, count = samples.t_ns, len(samples)
    pieces = np.arange(count - 1)
    spacing_ns = np.diff(t_ns)
    covered = spacing_ns <= samples.max_gap_ns
    member = np.ones(count, bool) if running is None else samples.label == running
    before, after = _bracket(member, pieces)
    bracketed = (before >= 0) & (after < count)
    before, after = np.where(bracketed, before, pieces), np.where(bracketed, after, pieces + 1)
    in_class = bracketed & (t_ns[after] - t_ns[before] <= samples.max_in_class_gap_ns)
    before, after = np.where(in_class, before, pieces), np.where(in_class, after, pieces + 1)
    left, right = _on_lines(samples, before, after)
    return ClassClock(
        edges_ns=t_ns,
        left_mhz=np.where(covered, left, np.nan),
        right_mhz=np.where(covered, right, np.nan),
        left_sample=before,
        right_sample=after,
        covered=covered,
        in_class=in_class & (running is not None),
    )


def _bracket(member: Bools, pieces: Int64s) -> tuple[Int64s, Int64s]:
    """For each piece the last member at or before it (-1: none), the first after (n: none)."""
    count = len(member)
    index = np.arange(count)
    last = np.maximum.accumulate(np.where(member, index, -1))
    following = np.minimum.accumulate(np.where(member, index, count)[::-1])[::-1]
    return last[pieces], following[pieces + 1]


def _on_lines(samples: LabelledSamples, before: Int64s, after: Int64s) -> tuple[Float64s, Float64s]:
    """The clock at both ends of each piece on the line through samples `before` and `after`."""
    start_ns, start_mhz = samples.t_ns[before], samples.clock_mhz[before]
    length_ns = np.maximum(samples.t_ns[after] - start_ns, 1)
    rise_mhz = samples.clock_mhz[after] - start_mhz
    left, right = (
        start_mhz + (t_ns - start_ns) / length_ns * rise_mhz
        for t_ns in (samples.t_ns[:-1], samples.t_ns[1:])
    )
    return left, right


def _runs(edges_ns: Int64s, wanted: Bools) -> Intervals:
    """The stretches of neighbouring wanted pieces."""
    padded = np.concatenate(([False], wanted, [False]))
    change = np.flatnonzero(padded[1:] != padded[:-1])
    return Intervals(start_ns=edges_ns[change[::2]], end_ns=edges_ns[change[1::2]])


@dataclass(frozen=True, slots=True, kw_only=True)
class Positions:
    """Where times lie among pieces.

    Attributes:
        piece: (n,) int64, index of the piece; times outside all pieces are clamped to their ends.
        into_ns: (n,) float64, the way into it.
    """

    piece: Int64s
    into_ns: Float64s

    def of(self, some: Int64s) -> "Positions":
        """Those of some of the times, by index."""
        return Positions(piece=self.piece.take(some), into_ns=self.into_ns.take(some))


def locate(edges: Float64s, t_ns: Int64s, base_ns: int) -> Positions:
    """Where each time lies among the pieces between edges given in ns since `base_ns`."""
    t = _since(edges, t_ns, base_ns)
    piece = places(edges[1:-1], t, "right")
    return Positions(piece=piece, into_ns=t - edges.take(piece))


@dataclass(frozen=True, slots=True, kw_only=True)
class Spans:
    """Where spans of time lie among pieces, those outside all pieces clamped to their ends.

    Attributes:
        start, end: Their ends' positions.
        length: (n,) float64, ns.
        moment: (n,) float64, ∫ (t - start of the piece) dt in ns^2, for spans within one piece.
        crossing: (k,) int64, the spans that reach beyond the piece they start in.
    """

    start: Positions
    end: Positions
    length: Float64s
    moment: Float64s
    crossing: Int64s


def locate_spans(edges: Float64s, start_ns: Int64s, end_ns: Int64s, base_ns: int) -> Spans:
    """Where spans lie among the pieces between edges given in ns since `base_ns`."""
    start, end = _since(edges, start_ns, base_ns), _since(edges, end_ns, base_ns)
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


def _since(edges: Float64s, t_ns: Int64s, base_ns: int) -> Float64s:
    """The times in ns since `base_ns`, those outside all pieces clamped to their ends."""
    t = (t_ns - base_ns).astype(np.float64)
    return np.clip(t, edges[0], edges[-1], out=t)


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskPositions:
    """A set of intervals and where they lie among pieces."""

    mask: Intervals
    spans: Spans


@dataclass(frozen=True, slots=True, kw_only=True)
class Primitive:
    """∫ g dt for a g that is linear on each piece and 0 outside all of them.

    Times are float64 ns since `base_ns`: exact to 1 us over a century, to 1 ns over 104 days.

    Attributes:
        base_ns: Origin.
        edges: (m + 1,) float64, ns since `base_ns`.
        left, slope: (m,) float64, g at each piece's start and its rise per ns.
        cumulative: (m + 1,) float64, the integral up to each edge.
    """

    base_ns: int
    edges: Float64s
    left: Float64s
    slope: Float64s
    cumulative: Float64s

    def locate(self, t_ns: Int64s) -> Positions:
        """Where each time lies among the pieces."""
        return locate(self.edges, t_ns, self.base_ns)

    def at(self, positions: Positions) -> Float64s:
        """The integral up to each position."""
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
        """The integral over each span: (n,)."""
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
    """The primitive of the piecewise linear function through (left, right) on each piece.

    Args:
        edges: (m + 1,) float64, rising, ns since `base_ns`; m >= 1.
        left: (m,) float64, value at each piece's start.
        right: (m,) float64, value at each piece's end.
        base_ns: Origin of `edges`.
    """
    length = np.diff(edges)
    slope = np.divide(right - left, length, out=np.zeros_like(length), where=length > 0)
    cumulative = np.concatenate(([0.0], np.cumsum(0.5 * (left + right) * length)))
    return Primitive(base_ns=base_ns, edges=edges, left=left, slope=slope, cumulative=cumulative)


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedIntegral:
    """∫ g dt over a set of intervals, up to any time: what windows are cut out of.

    Attributes:
        mask: The intervals.
        before: (n + 1,) float64, integral over the intervals before each.
        g: The integrand's primitive.
    """

    mask: Intervals
    before: Float64s
    g: Primitive

    def between(self, start_ns: Int64s, end_ns: Int64s) -> Float64s:
        """(w,) float64: the integral over each window [start, end) within the mask."""
        return self._up_to(end_ns) - self._up_to(start_ns)

    def _up_to(self, t_ns: Int64s) -> Float64s:
        done = np.searchsorted(self.mask.end_ns, t_ns, "right")
        total = self.before[done]
        if not len(self.mask):
            return total
        current = np.minimum(done, len(self.mask) - 1)
        inside = (done < len(self.mask)) & (self.mask.start_ns[current] < t_ns)
        begun_ns = self.mask.start_ns[current]
        partial = self.g.at(self.g.locate(t_ns)) - self.g.at(self.g.locate(begun_ns))
        return total + np.where(inside, partial, 0.0)


def masked_integral(positions: MaskPositions, g: Primitive) -> MaskedIntegral:
    """The integral of g over a mask, given where the mask lies among g's pieces."""
    before = np.concatenate(([0.0], np.cumsum(g.over(positions.spans))))
    return MaskedIntegral(mask=positions.mask, before=before, g=g)
