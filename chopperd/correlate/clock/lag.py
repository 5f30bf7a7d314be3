"""Measure the lag of the clock sensor from trace and samples alone.

A clock that follows what runs shows the sensor's lag: the samples agree best with the trace when
moved back by it. The clock's own settling (it relaxes towards its level, it does not jump) would
be taken for lag, so both are fitted together, and so is an average that the sensor may take.
"""

from collections.abc import Iterator
from itertools import chain
from typing import Final

import numpy as np
from msgspec import Struct

from chopperd.correlate import intervals
from chopperd.model.arrays import Bools, Float64s, Int64s
from chopperd.model.timeline import Intervals
from chopperd.units import NS_PER_MS

#: What a clock sensor may lag by where it can't be measured: 50 ms, as update periods of tens of ms
#: are usual and an average over 100 ms is as late as half of that; and a little, as the samples
#: show what a lag does to a window.
UNMEASURED_LAG_NS: Final = 55 * NS_PER_MS
#: What is subtracted where enough samples show no lag: it is positive. Steps then err within the
#: budgets at 0 and at 20 ms, and no lag is further off than 42 ms.
ASSUMED_LAG_NS: Final = 13 * NS_PER_MS
#: Settling time assumed for a sensor of which nothing is known: as late as an average so long.
UNMEASURED_SETTLING_NS: Final = 60 * NS_PER_MS
MIN_PAIRS: Final = 30
#: Of fewer changes, of any reason, some lag lays most on borders of compute by chance.
MIN_CHANGES: Final = 10
MIN_EXPLAINED: Final = 0.05
MIN_EXPLAINED_PAIRS: Final = 20
_MAX_PAIRS: Final = 8_192
_MAX_CELLS: Final = 1 << 19
_CELL_NS: Final = NS_PER_MS // 2
_BLOCKS: Final = 20
_FFT_MULTIPLE: Final = 4_096
_RESAMPLES: Final = 200
_COARSE_LAGS_NS: Final = np.arange(-20, 252, 4) * NS_PER_MS
_COARSE_SETTLING_NS: Final = np.array([1, 5, 20, 60, 200]) * NS_PER_MS
_FINE_LAGS_NS: Final = np.arange(-16, 17) * _CELL_NS
_FINE_SETTLING_NS: Final = (
    np.array([0.1, 0.5, 1, 2, 3, 4, 5, 6, 8, 10, 14, 20, 30, 45, 60, 90, 140, 200, 300]) * NS_PER_MS
)
#: Times over which a sensor may average, which delays what it shows by half of that.
_COARSE_AVERAGES_NS: Final = np.array([50, 100]) * NS_PER_MS
_FINE_AVERAGES_NS: Final = np.array([25, 35, 50, 70, 100, 140, 200]) * NS_PER_MS


class _Blurs(Struct, frozen=True, kw_only=True):
    """Ways in which samples may follow what runs: settling times and windows of averages, ns."""

    settling_ns: Float64s
    average_ns: Float64s

    def __len__(self) -> int:
        return len(self.settling_ns) + len(self.average_ns)

    def shown_late_ns(self, index: int) -> int:
        """Return for how many ns of each entry into a class samples are wrong if the sensor blurs.

        All of a settling time; of an average an eighth on each side of the border, as what is
        taken for its lag is its middle.
        """
        return int(np.concatenate((self.settling_ns, self.average_ns / 4))[index])

    @property
    def longest_ns(self) -> int:
        """Time in ns after which nothing is left of the state before a change."""
        return int(max(8 * self.settling_ns.max(), self.average_ns.max(initial=0)))


class LagEstimate(Struct, frozen=True, kw_only=True):
    """The sensor's lag with its 95 % interval, ns; all None when it can't be measured."""

    lag_ns: int | None = None
    low_ns: int | None = None
    high_ns: int | None = None
    reason: str | None = None  # why it is not measurable; None when it is
    #: Time constant with which the samples follow what runs, whether the clock settles so or the
    #: sensor averages, and how far apart the clock then is in compute and outside.
    settling_ns: int = 0
    swing_mhz: float = 0.0
    assumed_ns: int = 0  # what to subtract though it can't be measured

    @property
    def to_subtract_ns(self) -> int:
        """Lag in ns to move samples back by: the estimate if its interval excludes 0, else 0.

        `assumed_ns` where the lag can't be measured.
        """
        if self.lag_ns is None or self.low_ns is None or self.high_ns is None:
            return self.assumed_ns
        return self.lag_ns if self.low_ns > 0 or self.high_ns < 0 else 0

    @property
    def uncertainty_ns(self) -> int:
        """How far in ns the lag may be from `to_subtract_ns`."""
        subtracted = self.to_subtract_ns
        if self.low_ns is None or self.high_ns is None:
            return UNMEASURED_LAG_NS - subtracted
        return max(abs(self.low_ns - subtracted), abs(self.high_ns - subtracted))


class _Pairs(Struct, frozen=True, kw_only=True):
    """Neighbouring samples that are pairs, n of them."""

    t_ns: Int64s  # (k,) the samples
    is_pair: Bools  # (k - 1,) which neighbours are pairs
    change_mhz: Float64s  # (n,) of the clock between them

    def __len__(self) -> int:
        return len(self.change_mhz)


def measure_lag(
    t_ns: Int64s, clock_mhz: Float64s, compute: Intervals, max_gap_ns: int, *, instant: bool = False
) -> LagEstimate:
    """Find the lag at which changes of the clock agree best with changes of what ran by the trace.

    Changes between neighbouring samples are compared, as slow drifts cancel in them. The interval
    is a bootstrap over 20 blocks of time.

    `t_ns`: (n,), sample times as taken, rising. `clock_mhz`: (n,), no NaN. `max_gap_ns`: neighbours
    further apart are no pair. `instant`: the sensor is known to average over no time.

    Source: DESIGN.md section 2, "Samples": a check that states the lag or says "not measurable".
    """
    pairs = _pairs(t_ns, clock_mhz, compute, max_gap_ns)
    if len(pairs) < MIN_PAIRS:
        return LagEstimate(reason="too few samples in the trace")
    if not np.any(pairs.change_mhz):
        return LagEstimate(reason="the clock never changes")
    square = pairs.change_mhz**2
    # The count of equal changes that would weigh as these do: a few large jumps count as few.
    if square.sum() ** 2 / np.sum(square**2) < MIN_CHANGES:
        return LagEstimate(reason="the clock changes too seldom")
    no_average = np.empty(0)
    blurs = _Blurs(
        settling_ns=_COARSE_SETTLING_NS, average_ns=no_average if instant else _COARSE_AVERAGES_NS
    )
    coarse = _agreement(pairs, compute, _COARSE_LAGS_NS, blurs)
    best = np.unravel_index(np.argmax(_explained(coarse.sum(axis=0))), coarse.shape[1:3])
    lags_ns = _COARSE_LAGS_NS[best[0]] + _FINE_LAGS_NS
    blurs = _Blurs(
        settling_ns=_FINE_SETTLING_NS, average_ns=no_average if instant else _FINE_AVERAGES_NS
    )
    blocks = _agreement(pairs, compute, lags_ns, blurs)
    explained = _explained(blocks.sum(axis=0))
    share = float(explained.max() / square.sum())
    if share < max(MIN_EXPLAINED, MIN_EXPLAINED_PAIRS / len(pairs)):
        return _hidden(coarse)
    lag, blur = np.unravel_index(np.argmax(explained), explained.shape)
    settling_ns, swing_mhz = blurs.shown_late_ns(int(blur)), _swing_mhz(blocks[:, lag, blur])
    at_least_ns, at_most_ns = _bootstrap_ns(coarse, _COARSE_LAGS_NS)
    if at_least_ns < lags_ns[0] or at_most_ns > lags_ns[-1]:
        return LagEstimate(
            reason="several lags fit alike", settling_ns=settling_ns, swing_mhz=swing_mhz
        )
    lag_ns = _peak_ns(explained, lags_ns)
    low_ns, high_ns = _bootstrap_ns(blocks, lags_ns)
    return LagEstimate(
        lag_ns=lag_ns,
        low_ns=min(low_ns, lag_ns),
        high_ns=max(high_ns, lag_ns),
        settling_ns=settling_ns,
        swing_mhz=swing_mhz,
    )


def _hidden(coarse: Float64s) -> LagEstimate:
    """Return no lag, but the swing that a sensor of `UNMEASURED_SETTLING_NS` may hide."""
    possible = (_COARSE_LAGS_NS >= 0) & (_COARSE_LAGS_NS <= 2 * UNMEASURED_LAG_NS)
    slow = int(np.flatnonzero(_COARSE_SETTLING_NS == UNMEASURED_SETTLING_NS)[0])
    some = coarse[:, possible, slow]
    return LagEstimate(
        reason="the clock does not follow what runs",
        assumed_ns=ASSUMED_LAG_NS,
        settling_ns=UNMEASURED_SETTLING_NS,
        swing_mhz=_swing_mhz(some[:, np.argmax(_explained(some.sum(axis=0)))]),
    )


def _swing_mhz(blocks: Float64s) -> float:
    """Return the RMS over bootstrap resamples of the multiple of the model that fits, MHz."""
    sums = _resampled(blocks)
    swing = np.divide(sums[:, 0], sums[:, 1], out=np.zeros(len(sums)), where=sums[:, 1] > 0)
    return float(np.sqrt(np.mean(swing**2)))


def _pairs(t_ns: Int64s, clock_mhz: Float64s, compute: Intervals, max_gap_ns: int) -> _Pairs:
    """Find the pairs of neighbouring samples in the traced time, at most `_MAX_PAIRS`."""
    near = np.diff(t_ns) <= max_gap_ns
    if len(compute):
        near &= (t_ns[:-1] >= compute.start_ns[0]) & (t_ns[1:] <= compute.end_ns[-1])
    first = np.flatnonzero(near & bool(len(compute)))[:_MAX_PAIRS]
    if len(first):
        limit_ns = t_ns[first[0]] + _MAX_CELLS * _CELL_NS
        first = first[t_ns[first + 1] < limit_ns]
    rows = np.union1d(first, first + 1)
    change_mhz = clock_mhz[first + 1] - clock_mhz[first]
    return _Pairs(t_ns=t_ns[rows], is_pair=np.isin(rows[:-1], first), change_mhz=change_mhz)


def _agreement(pairs: _Pairs, compute: Intervals, lags_ns: Int64s, blurs: _Blurs) -> Float64s:
    """Sum (change x model, model^2) per block, lag and blur: (b, l, s, 2).

    `pairs`: at least one a block. `lags_ns`: (l,), whole cells.
    """
    base_ns = int(pairs.t_ns[0] - lags_ns.max()) - blurs.longest_ns
    end_ns = int(pairs.t_ns[-1] - lags_ns.min()) + blurs.longest_ns // 2
    edges_ns = np.arange(base_ns, end_ns + _CELL_NS, _CELL_NS)
    duty = np.diff(intervals.length_before_ns(compute, edges_ns)) / _CELL_NS
    since_ns = pairs.t_ns - base_ns
    cell = since_ns // _CELL_NS
    into = (since_ns - cell * _CELL_NS) / _CELL_NS
    at = np.clip(cell - lags_ns[:, None] // _CELL_NS, 0, len(duty) - 1)
    which = slice(None) if pairs.is_pair.all() else pairs.is_pair  # a slice copies nothing
    block_start = -(-np.arange(_BLOCKS) * len(pairs) // _BLOCKS)
    sums = np.empty((_BLOCKS, len(lags_ns), len(blurs), 2))
    levels = chain(_settled(duty, blurs.settling_ns), _averaged(duty, blurs.average_ns))
    for s, level in enumerate(levels):
        shown = np.diff(level).take(at)  # (l, k), linear between the cells' edges
        shown *= into
        shown += level.take(at)
        change = np.diff(shown, axis=1)[:, which]
        for j, product in enumerate((pairs.change_mhz * change, change * change)):
            sums[:, :, s, j] = np.add.reduceat(product, block_start, axis=1).T
    return sums


def _averaged(duty: Float64s, average_ns: Float64s) -> Iterator[Float64s]:
    """Yield the duty averaged over each of `average_ns` around the cells' edges: (n + 1,) each."""
    total = np.concatenate(([0.0], np.cumsum(duty)))
    edge = np.arange(len(total))
    for half in (average_ns / 2 / _CELL_NS).astype(np.int64).tolist():
        within = np.minimum(edge + half, len(duty)), np.maximum(edge - half, 0)
        yield (total[within[0]] - total[within[1]]) / (2 * half)


def _settled(duty: Float64s, settling_ns: Float64s) -> Iterator[Float64s]:
    """Yield the duty after a first-order lag of each settling time, at cells' edges: (n + 1,) each.

    By Fourier transform: that of the geometric kernel is known in closed form, and its tail decays
    within the padding.
    """
    size = len(duty) + int(12 * settling_ns.max() / _CELL_NS)
    size = -(-size // _FFT_MULTIPLE) * _FFT_MULTIPLE
    spectrum = np.fft.rfft(duty, size)
    turn = np.exp(-2j * np.pi * np.arange(len(spectrum)) / size)
    for keep in np.exp(-_CELL_NS / settling_ns):
        settled = np.fft.irfft(spectrum * ((1 - keep) / (1 - keep * turn)), size)
        yield np.concatenate(([0.0], settled[: len(duty)]))


def _explained(sums: Float64s) -> Float64s:
    """Compute how much of the squared changes a model's best multiple explains: (..., l, s)."""
    square = sums[..., 1]
    return np.divide(sums[..., 0] ** 2, square, out=np.zeros(square.shape), where=square > 0)


def _peak_ns(explained: Float64s, lags_ns: Int64s) -> int:
    """Return the lag of the best fit in ns, refined by a parabola through its neighbours."""
    place, settling = np.unravel_index(np.argmax(explained), explained.shape)
    best = min(max(int(place), 1), len(lags_ns) - 2)
    before, at, after = explained[best - 1 : best + 2, settling]
    bend = before - 2 * at + after
    shift = 0.5 * (before - after) / bend if bend < 0 else 0.0
    return int(lags_ns[best] + round(min(max(shift, -1.0), 1.0) * _CELL_NS))


def _bootstrap_ns(blocks: Float64s, lags_ns: Int64s) -> tuple[int, int]:
    """Compute the 95 % interval of the lag in ns over resampled blocks, widened by a cell.

    Half a cell is the error of the grid, half that of the model, in which a jump takes a cell.
    """
    sums = _resampled(blocks)
    peaks = _explained(sums).reshape(_RESAMPLES, -1).argmax(axis=1)
    found_ns = lags_ns[peaks // blocks.shape[2]]
    low_ns, high_ns = np.quantile(found_ns, [0.025, 0.975])
    return int(low_ns) - _CELL_NS, int(high_ns) + _CELL_NS


def _resampled(blocks: Float64s) -> Float64s:
    count = len(blocks)
    draws = np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), _RESAMPLES)
    return np.tensordot(draws.astype(np.float64), blocks, axes=1)
