"""Past samples of one GPU as a bounded number of points; long ranges are read in slices."""

from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from chopperd.api.models import Band, GpuHistory
from chopperd.correlate.clock.integrals import Primitive, primitive
from chopperd.correlate.clock.signal import MAX_GAP_PERIODS, achieved_period_ns
from chopperd.model.arrays import Bools, Float64s, Int64s
from chopperd.model.kinds import Cause
from chopperd.model.samples import VALUE_COLUMNS, GpuSamples
from chopperd.model.services import SampleSource
from chopperd.units import NS_PER_S

#: Three periods of the slowest sampling: the period of few samples is not known well.
LONGEST_GAP_NS: Final = 30 * NS_PER_S
#: Spacings on either side that give the period where it is longer than that of most samples.
_NEIGHBOURS: Final = 5
MOST_POINTS: Final = 10_000
LONGEST_NS: Final = 7 * 86_400 * NS_PER_S
#: Read into memory at a time: 18,000 samples at 10 Hz.
_SLICE_NS: Final = 1_800 * NS_PER_S
#: Samples around a slice are needed for the line at its ends.
_MARGIN_NS: Final = LONGEST_GAP_NS
_BAND_COLUMNS: Final = tuple(name for name in VALUE_COLUMNS if name != "energy_j")


@dataclass(frozen=True, slots=True, kw_only=True)
class BinSums:
    """Sums of a column over each bin; those of parts of a bin add up to those of the bin."""

    integral: Float64s  # (m,) float64, ∫ value dt over the time that the line covers, times ns
    covered_ns: Float64s  # (m,) float64, how long that is
    #: low, high: (m,) float64, extremes of line and samples; NaN where there is neither
    low: Float64s
    high: Float64s
    total: Float64s  # (m,) float64, sum of the samples. count: (m,) int64, how many there are.
    count: Int64s

    @property
    def mean(self) -> Float64s:
        """(m,) float64: mean weighted by time; of the samples if no time is covered; else NaN."""
        mean = np.full(len(self.low), np.nan)
        np.divide(self.total, self.count, out=mean, where=self.count > 0)
        np.divide(self.integral, self.covered_ns, out=mean, where=self.covered_ns > 0)
        mean.clip(self.low, self.high, out=mean)
        return mean


def empty_sums(bins: int) -> BinSums:
    """Return the sums of `bins` bins without samples: zeros, and NaN as extremes."""
    return BinSums(
        integral=np.zeros(bins),
        covered_ns=np.zeros(bins),
        low=np.full(bins, np.nan),
        high=np.full(bins, np.nan),
        total=np.zeros(bins),
        count=np.zeros(bins, np.int64),
    )


def add_sums(to: BinSums, part: BinSums, places: Int64s) -> None:
    """Add the sums of parts of bins to `to`, in place; part j belongs to bin `places[j]`."""
    np.add.at(to.integral, places, part.integral)
    np.add.at(to.covered_ns, places, part.covered_ns)
    np.add.at(to.total, places, part.total)
    np.add.at(to.count, places, part.count)
    np.fmin.at(to.low, places, part.low)
    np.fmax.at(to.high, places, part.high)


def bin_sums(t_ns: Int64s, values: Float64s, edges_ns: Int64s) -> BinSums:
    """Compute the sums of a column over bins.

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
        _add_line(sums, _Line(t_ns, values), edges_ns)
    return sums


def _add_samples(sums: BinSums, values: Float64s, first: Int64s) -> None:
    """Add count, total and extremes of the samples; bin j has those in [first[j], first[j + 1])."""
    sums.count[:] = np.diff(first)
    held = np.flatnonzero(sums.count)
    if not len(held):
        return
    # Empty bins hold no samples, so the starts of the others split exactly their samples.
    values, starts = values[: first[-1]], first[held]
    sums.total[held] = np.add.reduceat(values, starts)
    sums.low[held] = np.minimum.reduceat(values, starts)
    sums.high[held] = np.maximum.reduceat(values, starts)


class _Line:
    """Piecewise linear curve through at least two samples, with gaps."""

    def __init__(self, t_ns: Int64s, values: Float64s) -> None:
        self.t_ns, self.values, self.covered = t_ns, values, _are_covered(t_ns)

    def integrals(self) -> tuple[Primitive, Primitive]:
        """Return the integrals of the value and of the covered time."""
        base_ns = int(self.t_ns[0])
        edges = (self.t_ns - base_ns).astype(np.float64)
        left = np.where(self.covered, self.values[:-1], 0.0)
        right = np.where(self.covered, self.values[1:], 0.0)
        ones = self.covered.astype(np.float64)
        return primitive(edges, left, right, base_ns), primitive(edges, ones, ones, base_ns)

    def values_at(self, at_ns: Int64s, piece: Int64s) -> Float64s:
        """Interpolate the line at times on given pieces; NaN in a gap or outside the line."""
        is_piece = (piece >= 0) & (piece < len(self.covered))
        piece = np.clip(piece, 0, len(self.covered) - 1)
        start_ns, end_ns = self.t_ns[piece], self.t_ns[piece + 1]
        share = (at_ns - start_ns) / (end_ns - start_ns)
        value = self.values[piece] + share * (self.values[piece + 1] - self.values[piece])
        return np.where(is_piece & self.covered[piece], value, np.nan)


def _are_covered(t_ns: Int64s) -> Bools:
    """Whether the line covers the time between each two neighbours of (n,) samples, (n - 1,)."""
    spacing_ns = np.diff(t_ns)
    max_gap_ns = min(MAX_GAP_PERIODS * achieved_period_ns(t_ns), LONGEST_GAP_NS)
    covered: Bools = spacing_ns <= max_gap_ns
    wide = np.flatnonzero(~covered & (spacing_ns <= LONGEST_GAP_NS))
    if len(wide):
        covered[wide] = spacing_ns[wide] <= MAX_GAP_PERIODS * _period_around_ns(spacing_ns, wide)
    return covered


def _period_around_ns(spacing_ns: Int64s, places: Int64s) -> Float64s:
    """Return the longer of the median spacings just before and just after each place, in ns."""
    padded_ns = np.pad(spacing_ns, _NEIGHBOURS)
    steps = np.arange(_NEIGHBOURS)
    before = padded_ns[places[:, np.newaxis] + steps]
    after = padded_ns[places[:, np.newaxis] + _NEIGHBOURS + 1 + steps]
    longer: Float64s = np.maximum(np.median(before, axis=1), np.median(after, axis=1))
    return longer


def _add_line(sums: BinSums, line: _Line, edges_ns: Int64s) -> None:
    """Add the line's integrals over each bin, and its values at the bin's ends to the extremes."""
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


def history(
    source: SampleSource, gpu: str, from_unix_ns: int, to_unix_ns: int, points: int
) -> GpuHistory:
    """Return the samples of a GPU in [from, to) as at most `points` points, at least one.

    Each point is a sample if there are few of them, else a bin of equal length.
    """
    if to_unix_ns - from_unix_ns <= _SLICE_NS:
        found = _slice(source, gpu, from_unix_ns, to_unix_ns)
        if found is None:
            return GpuHistory(
                gpu=gpu,
                simulated=False,
                from_unix_ns=from_unix_ns,
                to_unix_ns=to_unix_ns,
                bin_ns=None,
                samples=0,
                t_unix_ns=[],
                values={},
                energy_j=[],
                causes={},
            )
        if _inside(found[0], from_unix_ns, to_unix_ns).sum() <= points:
            return _each_sample(found, gpu, from_unix_ns, to_unix_ns)
    length_ns = to_unix_ns - from_unix_ns
    points = min(points, length_ns)
    sums = _HistorySums(from_unix_ns + np.arange(points + 1) * length_ns // points)
    for start_ns in range(from_unix_ns, to_unix_ns, _SLICE_NS):
        end_ns = min(start_ns + _SLICE_NS, to_unix_ns)
        if (found := _slice(source, gpu, start_ns, end_ns)) is not None:
            sums.add(found, start_ns, end_ns)
    return sums.result(gpu)


#: Samples of one GPU, and whether they are simulated.
_Slice: TypeAlias = tuple[GpuSamples, bool]


def _slice(source: SampleSource, gpu: str, start_ns: int, end_ns: int) -> _Slice | None:
    found = source.between(start_ns - _MARGIN_NS, end_ns + _MARGIN_NS, [gpu])
    if found is None:
        return None
    own = [each for each in found.gpus if each.gpu.gpu == gpu and len(each)]
    return (own[0], found.simulated) if own else None


def _inside(samples: GpuSamples, from_ns: int, to_ns: int) -> Bools:
    return (samples.t_unix_ns >= from_ns) & (samples.t_unix_ns < to_ns)


def _each_sample(found: _Slice, gpu: str, from_ns: int, to_ns: int) -> GpuHistory:
    """Return a history with every sample as a point of its own."""
    samples, simulated = found
    inside = _inside(samples, from_ns, to_ns)
    each_one = np.arange(int(inside.sum()) + 1)
    columns = {name: getattr(samples, name)[inside] for name in _BAND_COLUMNS}
    counts = _cause_counts(samples.causes[inside], each_one)
    return GpuHistory(
        gpu=gpu,
        simulated=simulated,
        from_unix_ns=from_ns,
        to_unix_ns=to_ns,
        bin_ns=None,
        samples=len(each_one) - 1,
        t_unix_ns=samples.t_unix_ns[inside].tolist(),
        values={
            name: Band(mean=numbers, min=numbers, max=numbers)
            for name, column in columns.items()
            if not np.isnan(column).all() and (numbers := _numbers(column))
        },
        energy_j=_numbers(samples.energy_j[inside]),
        causes=_cause_shares(counts, np.diff(each_one)),
    )


class _HistorySums:
    """Sums over all bins of a history, by their edges, filled slice by slice."""

    def __init__(self, edges_ns: Int64s) -> None:
        self.edges_ns = edges_ns
        self.columns: dict[str, BinSums] = {}
        self.cause_counts: dict[str, Int64s] = {}
        self.energy_j = np.full(len(edges_ns) - 1, np.nan)
        self.samples = np.zeros(len(edges_ns) - 1, np.int64)
        self.simulated = False

    def add(self, found: _Slice, start_ns: int, end_ns: int) -> None:
        """Add the samples, line and causes in [start, end) of a slice."""
        samples, simulated = found
        self.simulated |= simulated
        inner = self.edges_ns[(self.edges_ns > start_ns) & (self.edges_ns < end_ns)]
        edges_ns = np.concatenate(([start_ns], inner, [end_ns]))
        places = np.searchsorted(self.edges_ns, edges_ns[:-1], "right") - 1
        for name in _BAND_COLUMNS:
            column = getattr(samples, name)
            if not np.isnan(column).all():
                sums = self.columns.setdefault(name, empty_sums(len(self.samples)))
                add_sums(sums, bin_sums(samples.t_unix_ns, column, edges_ns), places)
        first = np.searchsorted(samples.t_unix_ns, edges_ns)
        np.add.at(self.samples, places, np.diff(first))
        for cause, count in _cause_counts(samples.causes, first).items():
            total = self.cause_counts.setdefault(cause, np.zeros_like(self.samples))
            np.add.at(total, places, count)
        self._store_energy(samples.energy_j, first, places)

    def _store_energy(self, energy_j: Float64s, first: Int64s, places: Int64s) -> None:
        """Store the last known energy counter value of each bin."""
        known = np.where(np.isnan(energy_j), -1, np.arange(len(energy_j)))
        newest = np.concatenate(([-1], np.maximum.accumulate(known)))[first[1:]]
        held = newest >= first[:-1]
        self.energy_j[places[held]] = energy_j[newest[held]]

    def result(self, gpu: str) -> GpuHistory:
        """Return the sums as a history with one point for each bin."""
        from_ns, to_ns = int(self.edges_ns[0]), int(self.edges_ns[-1])
        return GpuHistory(
            gpu=gpu,
            simulated=self.simulated,
            from_unix_ns=from_ns,
            to_unix_ns=to_ns,
            bin_ns=(to_ns - from_ns) / len(self.samples),
            samples=int(self.samples.sum()),
            t_unix_ns=self.edges_ns[:-1].tolist(),
            values={
                name: Band(
                    mean=_numbers(sums.mean), min=_numbers(sums.low), max=_numbers(sums.high)
                )
                for name, sums in self.columns.items()
                if sums.count.any() or sums.covered_ns.any()
            },
            energy_j=_numbers(self.energy_j),
            causes=_cause_shares(self.cause_counts, self.samples),
        )


def _cause_counts(causes: Int64s, first: Int64s) -> dict[str, Int64s]:
    """Count samples with each cause set in each bin; those of bin j begin at first[j]."""
    counts = {}
    for cause in Cause:
        has = causes & cause.bit != 0
        if has[first[0] : first[-1]].any():
            counts[cause.label] = np.diff(np.concatenate(([0], np.cumsum(has)))[first])
    return counts


def _cause_shares(counts: dict[str, Int64s], every: Int64s) -> dict[str, list[float | None]]:
    """Return each cause's share of the samples with known causes; that of unknown is of all."""
    readable = every - counts.get(Cause.UNKNOWN.label, 0)
    shares = {}
    for label, count in sorted(counts.items()):
        of = every if label == Cause.UNKNOWN.label else readable
        share = np.full(len(of), np.nan)
        np.divide(count, of, out=share, where=of > 0)
        shares[label] = _numbers(share)
    return shares


def _numbers(values: Float64s) -> list[float | None]:
    """Convert values for JSON: NaN becomes None."""
    return [None if np.isnan(value) else value for value in values.tolist()]
