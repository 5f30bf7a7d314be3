"""Samples of a value as means and extremes over bins: pure, one column at a time.

Between samples the value is the line through them, where they are no further apart than three
periods as achieved, and than half a minute in any case; a GPU that was idle is read less often, so
the period is that of the time around. Nothing is said of longer gaps, nor of
the time before the first and after the last sample. A sample that has no neighbour that near
speaks for the bin it lies in.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from chopperd.correlate.clock.signal import (
    MAX_GAP_PERIODS,
    Primitive,
    achieved_period_ns,
    primitive,
)
from chopperd.model.arrays import Bools, Float64s, Int64s
from chopperd.units import NS_PER_S

#: Three periods of the slowest loop there is: few samples say little about their period.
LONGEST_GAP_NS: Final = 30 * NS_PER_S
#: Spacings on either side that tell the period where it is longer than that of most samples.
_NEIGHBOURS: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class BinSums:
    """What a column comes to over each bin; sums over parts of a bin add up to those over it.

    Attributes:
        integral: (m,) float64, ∫ value dt over the time that the line covers, times ns.
        covered_ns: (m,) float64, how long that is.
        low, high: (m,) float64, extremes of line and samples; NaN where there is neither.
        total: (m,) float64, sum of the samples. count: (m,) int64, how many there are.
    """

    integral: Float64s
    covered_ns: Float64s
    low: Float64s
    high: Float64s
    total: Float64s
    count: Int64s

    @property
    def mean(self) -> Float64s:
        """(m,) float64: time-weighted; that of the samples where no time is covered; else NaN."""
        mean = np.full(len(self.low), np.nan)
        np.divide(self.total, self.count, out=mean, where=self.count > 0)
        np.divide(self.integral, self.covered_ns, out=mean, where=self.covered_ns > 0)
        mean.clip(self.low, self.high, out=mean)
        return mean


def empty_sums(bins: int) -> BinSums:
    """The sums of no samples."""
    return BinSums(
        integral=np.zeros(bins),
        covered_ns=np.zeros(bins),
        low=np.full(bins, np.nan),
        high=np.full(bins, np.nan),
        total=np.zeros(bins),
        count=np.zeros(bins, np.int64),
    )


def add_sums(to: BinSums, part: BinSums, places: Int64s) -> None:
    """Add sums over parts of bins; part j is of bin `places[j]`, in place."""
    np.add.at(to.integral, places, part.integral)
    np.add.at(to.covered_ns, places, part.covered_ns)
    np.add.at(to.total, places, part.total)
    np.add.at(to.count, places, part.count)
    np.fmin.at(to.low, places, part.low)
    np.fmax.at(to.high, places, part.high)


def bin_sums(t_ns: Int64s, values: Float64s, edges_ns: Int64s) -> BinSums:
    """The sums of a column over bins.

    Args:
        t_ns: (n,) int64, strictly rising times of the samples, also those around the bins.
        values: (n,) float64; NaN: not read at that time.
        edges_ns: (m + 1,) int64, rising; bin j is [edges[j], edges[j + 1]).
    """
    known = ~np.isnan(values)
    t_ns, values = t_ns[known], values[known]
    sums = empty_sums(len(edges_ns) - 1)
    if not len(t_ns):
        return sums
    _add_samples(sums, values, np.searchsorted(t_ns, edges_ns))
    if len(t_ns) > 1:
        _add_line(sums, _Line.through(t_ns, values), edges_ns)
    return sums


def _add_samples(sums: BinSums, values: Float64s, first: Int64s) -> None:
    """Add the samples themselves; those of bin j are [first[j], first[j + 1])."""
    sums.count[:] = np.diff(first)
    held = np.flatnonzero(sums.count)
    if not len(held):
        return
    # The starts of the bins that hold samples part exactly those: empty bins hold none between.
    values, starts = values[: first[-1]], first[held]
    sums.total[held] = np.add.reduceat(values, starts)
    sums.low[held] = np.minimum.reduceat(values, starts)
    sums.high[held] = np.maximum.reduceat(values, starts)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """The line through at least two samples, with gaps."""

    t_ns: Int64s
    values: Float64s
    covered: Bools

    @staticmethod
    def through(t_ns: Int64s, values: Float64s) -> "_Line":
        return _Line(t_ns=t_ns, values=values, covered=_are_covered(t_ns))

    def integrals(self) -> tuple[Primitive, Primitive]:
        """Of the value, and of the time that is covered."""
        base_ns = int(self.t_ns[0])
        edges = (self.t_ns - base_ns).astype(np.float64)
        left = np.where(self.covered, self.values[:-1], 0.0)
        right = np.where(self.covered, self.values[1:], 0.0)
        ones = self.covered.astype(np.float64)
        return primitive(edges, left, right, base_ns), primitive(edges, ones, ones, base_ns)

    def values_at(self, at_ns: Int64s, piece: Int64s) -> Float64s:
        """The line at times on given pieces; NaN where it has a gap, or the piece is none."""
        is_piece = (piece >= 0) & (piece < len(self.covered))
        piece = np.clip(piece, 0, len(self.covered) - 1)
        start_ns, end_ns = self.t_ns[piece], self.t_ns[piece + 1]
        share = (at_ns - start_ns) / (end_ns - start_ns)
        value = self.values[piece] + share * (self.values[piece + 1] - self.values[piece])
        return np.where(is_piece & self.covered[piece], value, np.nan)


def _are_covered(t_ns: Int64s) -> Bools:
    """Whether the line holds between neighbours of (n,) samples, (n - 1,)."""
    spacing_ns = np.diff(t_ns)
    max_gap_ns = min(MAX_GAP_PERIODS * achieved_period_ns(t_ns), LONGEST_GAP_NS)
    covered: Bools = spacing_ns <= max_gap_ns
    wide = np.flatnonzero(~covered & (spacing_ns <= LONGEST_GAP_NS))
    if len(wide):
        covered[wide] = spacing_ns[wide] <= MAX_GAP_PERIODS * _period_around_ns(spacing_ns, wide)
    return covered


def _period_around_ns(spacing_ns: Int64s, places: Int64s) -> Float64s:
    """The longer of the median spacings just before and just after some of the spacings."""
    padded_ns = np.pad(spacing_ns, _NEIGHBOURS)
    steps = np.arange(_NEIGHBOURS)
    before = padded_ns[places[:, np.newaxis] + steps]
    after = padded_ns[places[:, np.newaxis] + _NEIGHBOURS + 1 + steps]
    longer: Float64s = np.maximum(np.median(before, axis=1), np.median(after, axis=1))
    return longer


def _add_line(sums: BinSums, line: _Line, edges_ns: Int64s) -> None:
    """Add the line's integral, and its values at the ends of each bin."""
    value, covered = line.integrals()
    places = value.locate(edges_ns)
    sums.integral[:] = np.diff(value.at(places))
    sums.covered_ns[:] = np.diff(covered.at(places))
    starts, ends = edges_ns[:-1], edges_ns[1:]
    at_start = line.values_at(starts, np.searchsorted(line.t_ns, starts, "right") - 1)
    at_end = line.values_at(ends, np.searchsorted(line.t_ns, ends, "left") - 1)
    for each in (at_start, at_end):
        np.fmin(sums.low, each, out=sums.low)
        np.fmax(sums.high, each, out=sums.high)
