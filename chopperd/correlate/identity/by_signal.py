"""Find which GPU each of a node's traces ran on by the agreement of trace and samples alone.

Ranks of a job meet in collectives, so that all are busy at nearly the same times: what all share,
what a rank does in every step, and slow drifts are removed on both sides. What is left are the
pauses of one rank (it waits for data, others for it), which only its own GPU shows.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from chopperd.correlate.intervals import length_before_ns
from chopperd.model.arrays import Bools, Float64s, Int64s
from chopperd.model.samples import GpuSamples
from chopperd.model.timeline import Intervals
from chopperd.units import NS_PER_MS, NS_PER_S

#: A rank's GPU is accepted if the next best assignment is less likely by e to this power,
MIN_MARGIN: Final = 16.0
#: and if the GPU's own samples support it by so much, in several stretches of time.
MIN_OWN: Final = 6.0

#: Grid on which what ran is sampled, and the most cells of it, for a long trace.
_GRID_NS: Final = 5 * NS_PER_MS
_MOST_CELLS: Final = 1 << 17
#: Neighbouring samples are averaged down to this distance, and to this number.
_SPACING_NS: Final = 50 * NS_PER_MS
_MOST_SAMPLES: Final = 2_048
_FEWEST_SAMPLES: Final = 24
_SAMPLES_FOR_KERNEL: Final = 200
#: Slower changes are drifts.
_TREND_NS: Final = 4 * NS_PER_S
_SAMPLES_PER_WAVE: Final = 6
_PHASES: Final = 12
_SAMPLES_PER_PHASE: Final = 8
_BLOCKS: Final = 24
_LONE_BLOCKS: Final = 2
_LAGS_NS: Final = np.arange(-250, 251, 25) * NS_PER_MS
_WINDOWS_NS: Final = np.array([10, 50, 100, 165, 330, 500, 1000]) * NS_PER_MS
#: Degrees of freedom of the residuals' Student distribution: no one sample may decide.
_STUDENT: Final = 4.0
#: By how many deviations of the fits of wrong GPUs the margin is wider.
_SPREADS: Final = 5.0
_FEWEST_FREE: Final = 20
_NEVER: Final = -1e9
#: Less variance than this of what ran, a sample, is rounding.
_NO_POWER: Final = 1e-9
#: Less of the variance of a GPU's samples than this explained is nothing.
_LEAST_EXPLAINED: Final = 0.01
#: Residuals less correlated than this are independent.
_ALIKE: Final = 0.05


class TracedDevice(Struct, frozen=True, kw_only=True):
    """When one device of a trace was busy and computed, and where its steps begin."""

    busy: Intervals  # when anything ran
    compute: Intervals  # when compute ran
    step_start_ns: Int64s  # (k,) where its steps begin; empty where it has none


class Agreement(Struct, frozen=True, kw_only=True):
    """How well one traced device fits each sampled GPU."""

    gpus: tuple[str, ...]  # labels of the GPUs
    #: For each GPU the logarithm of how much likelier its samples are with this trace than
    #: without, in each of some stretches of time.
    gain: tuple[tuple[float, ...], ...]
    kinds: int = 0  # how many kinds of samples were long enough to compare

    @property
    def best(self) -> str | None:
        """The GPU that fits best; None if none fits well enough."""
        totals = [sum(each) for each in self.gain]
        best = max(range(len(totals)), key=totals.__getitem__, default=None)
        return None if best is None or totals[best] < MIN_OWN else self.gpus[best]

    @property
    def why_not(self) -> str:
        """Explain in words why no GPU is accepted."""
        if self.kinds:
            return "no GPU's samples follow it clearly better than those of other GPUs"
        return "too few samples of power, activity or clock to find its GPU by them"


class _Signal(Struct, frozen=True, kw_only=True):
    """One kind of samples of all GPUs."""

    floor: float  # smaller differences are noise
    sign: int  # 1 where it can only rise with what runs, 0 where it may also fall
    shares: tuple[float, ...]  # weights that all that runs may have, the rest being that of compute
    #: Of each GPU the times from the trace's begin, in ns, and values.
    series: tuple[tuple[Float64s, Float64s], ...]


class _Kernel(Struct, frozen=True, kw_only=True):
    """How a kind of samples follows what ran: delay, average, weight of all work, direction."""

    lag_ns: int
    window_ns: int
    share: float
    slope: int


class _Ran:
    """Time that anything, and that compute, has run by each point of a grid of times.

    `usual` is the same if each step had gone as the mean of all steps at that time since its begin.
    """

    def __init__(self, traced: TracedDevice) -> None:
        self.begin_ns, self.end_ns = int(traced.busy.start_ns[0]), int(traced.busy.end_ns[-1])
        self.span_ns = self.end_ns - self.begin_ns
        self._cell_ns = max(_GRID_NS, -(-self.span_ns // _MOST_CELLS))
        points_ns = self.begin_ns + self._cell_ns * np.arange(self.span_ns // self._cell_ns + 2)
        starts_ns = traced.step_start_ns
        self._step_ns = float(np.median(np.diff(starts_ns))) if len(starts_ns) > 1 else None
        self._starts = (starts_ns - self.begin_ns) // self._cell_ns
        self._before, self._usual = [], []
        since = self._since(np.arange(len(points_ns) - 1))
        count = np.maximum(np.bincount(since), 1)
        for each in (traced.busy, traced.compute):
            before = length_before_ns(each, points_ns) / self._cell_ns
            self._before.append(before)
            course = np.bincount(since, np.diff(before)) / count
            self._usual.append(np.concatenate(([0.0], np.cumsum(course[since]))))

    def _since(self, cell: Int64s) -> Int64s:
        """Return the number of cells since the begin of each cell's step: (n,)."""
        if self._step_ns is None:
            return np.zeros(len(cell), np.int64)
        at = np.searchsorted(self._starts, cell, "right") - 1
        return np.where(at < 0, 0, cell - self._starts[np.maximum(at, 0)])

    def over(
        self,
        t_ns: Float64s,
        lag_ns: Int64s,
        window_ns: Int64s,
        share: float,
        *,
        usual: bool = False,
    ) -> Float64s:
        """Return the share of k windows, ending k lags before n times, in which work ran: (k, n).

        `share` is the weight of all that runs, the rest that of compute.
        """
        end = np.rint(t_ns / self._cell_ns)[None, :] - np.rint(lag_ns / self._cell_ns)[:, None]
        width = np.maximum(1, np.rint(window_ns / self._cell_ns))[:, None]
        last = len(self._before[0]) - 1
        stop = np.clip(end, 0, last).astype(np.int64)
        start = np.clip(end - width, 0, last).astype(np.int64)
        total = np.zeros(stop.shape)
        sums = self._usual if usual else self._before
        for before, weight in zip(sums, (share, 1 - share), strict=True):
            if weight:
                total += weight * (before[stop] - before[start])
        return total / width

    def phases(self, t_ns: Float64s) -> Float64s:
        """Mark with 1 the part of its step in which each time lies: (n, p), without the first."""
        parts = min(_PHASES, len(t_ns) // _SAMPLES_PER_PHASE)
        if self._step_ns is None or parts < 2:
            return np.empty((len(t_ns), 0))
        since = self._since((t_ns // self._cell_ns).astype(np.int64))
        part = np.clip(since * self._cell_ns * parts / self._step_ns, 0, parts).astype(np.int64)
        marks: Float64s = (part[:, None] == np.unique(part)[1:]).astype(np.float64)
        return marks


def agreement(traced: TracedDevice, gpus: Sequence[GpuSamples]) -> Agreement:
    """Compute how well a traced device fits each GPU, by power, activity and clock.

    Each kind of samples is modelled as linear in what ran, averaged and delayed as fits best over
    all GPUs, in the other GPUs' mean, in the usual course of a step and in slow drifts. The gain is
    a Student log-likelihood ratio, divided by the number of residuals that are correlated in time.
    """
    gain, kinds = np.zeros((len(gpus), _BLOCKS)), 0
    if len(traced.busy) and len(gpus) > 1:
        ran = _Ran(traced)
        for signal in _signals(gpus, ran):
            gain += _gain(signal, ran)
            kinds += 1
    return Agreement(
        gpus=tuple(each.gpu.gpu for each in gpus),
        gain=tuple(tuple(row) for row in gain.round(3).tolist()),
        kinds=kinds,
    )


def _signals(gpus: Sequence[GpuSamples], ran: _Ran) -> Iterator[_Signal]:
    kinds = (
        ([each.power_w for each in gpus], 1.0, 1, (1.0, 0.5, 0.0)),
        ([each.activity_ratio for each in gpus], 0.01, 1, (1.0,)),
        ([each.sm_clock_mhz for each in gpus], 7.5, 0, (1.0, 0.5, 0.0)),
    )
    for values, floor, sign, shares in kinds:
        series = tuple(
            _thinned(each.t_unix_ns, value, ran) for each, value in zip(gpus, values, strict=True)
        )
        if min(len(t_ns) for t_ns, _ in series) >= _FEWEST_SAMPLES:
            yield _Signal(floor=floor, sign=sign, shares=shares, series=series)


def _thinned(t_unix_ns: Int64s, value: Float64s, ran: _Ran) -> tuple[Float64s, Float64s]:
    """Return times since the trace's begin, ns, and values in it, averaged over neighbours."""
    known = np.isfinite(value) & (t_unix_ns >= ran.begin_ns) & (t_unix_ns < ran.end_ns)
    t_ns, value = (t_unix_ns[known] - ran.begin_ns).astype(np.float64), value[known]
    most = min(_MOST_SAMPLES, ran.span_ns // _SPACING_NS + 1)
    each = -(-len(t_ns) // most)
    if each < 2:
        return t_ns, value
    whole = len(t_ns) // each * each
    return t_ns[:whole].reshape(-1, each).mean(axis=1), value[:whole].reshape(-1, each).mean(axis=1)


def _gain(signal: _Signal, ran: _Ran) -> Float64s:
    """Compute the log-likelihood that the trace adds for each GPU's samples: (g, blocks)."""
    gains = np.zeros((len(signal.series), _BLOCKS))
    kernel = _kernel(signal, ran)
    if kernel is None:
        return gains
    how = (np.array([kernel.lag_ns]), np.array([kernel.window_ns]), kernel.share)
    for index, (t_ns, value) in enumerate(signal.series):
        others = [np.interp(t_ns, *each) for nth, each in enumerate(signal.series) if nth != index]
        phase = ran.phases(t_ns - kernel.lag_ns - kernel.window_ns / 2)
        here, usual = ran.over(t_ns, *how)[0], ran.over(t_ns, *how, usual=True)[0]
        trend = _trend(t_ns, ran.span_ns)
        basis, _ = np.linalg.qr(np.column_stack((trend, phase, np.mean(others, axis=0), usual)))
        gain = _likelier(_without(basis, value), _without(basis, here), kernel.slope, signal.floor)
        block = (t_ns * _BLOCKS / ran.span_ns).astype(np.int64)
        gains[index] = np.bincount(block, gain, minlength=_BLOCKS)
    return gains


def _kernel(signal: _Signal, ran: _Ran) -> _Kernel | None:
    """Find the kernel by which what ran explains most of all GPUs' samples; None if too little."""
    lags_ns = np.repeat(_LAGS_NS, len(_WINDOWS_NS))
    windows_ns = np.tile(_WINDOWS_NS, len(_LAGS_NS))
    explained = np.zeros((len(signal.shares), len(lags_ns)))
    along = np.zeros_like(explained)
    for all_ns, all_values in signal.series:
        every = -(-len(all_ns) // _SAMPLES_FOR_KERNEL)
        t_ns, value = all_ns[::every], all_values[::every]
        basis, _ = np.linalg.qr(_trend(t_ns, ran.span_ns))
        left = _without(basis, value)
        total = max(float(left @ left), len(left) * signal.floor**2)
        for row, share in enumerate(signal.shares):
            here = ran.over(t_ns, lags_ns, windows_ns, share)
            here -= here @ basis @ basis.T
            power = np.maximum((here**2).sum(axis=1), _NO_POWER * len(left))
            slope = here @ left
            explained[row] += slope**2 / power / total
            along[row] += slope / np.sqrt(power * total)
    explained[along * signal.sign < 0] = 0.0
    nth, combination = divmod(int(np.argmax(explained)), explained.shape[1])
    if explained[nth, combination] < _LEAST_EXPLAINED:
        return None
    return _Kernel(
        lag_ns=int(lags_ns[combination]),
        window_ns=int(windows_ns[combination]),
        share=signal.shares[nth],
        slope=1 if along[nth, combination] > 0 else -1,
    )


def _trend(t_ns: Float64s, span_ns: int) -> Float64s:
    """Return a constant and cosines slower than what pauses and steps make: (n, k)."""
    waves = np.arange(int(2 * span_ns / _TREND_NS) + 1)[: max(1, len(t_ns) // _SAMPLES_PER_WAVE)]
    return np.cos(np.pi * t_ns[:, None] / span_ns * waves)


def _without(basis: Float64s, value: Float64s) -> Float64s:
    """Return the part of a value, or of columns, that an orthonormal basis does not explain."""
    return value - basis @ (basis.T @ value)


def _likelier(value: Float64s, ran: Float64s, slope: int, floor: float) -> Float64s:
    """Compute the log-likelihood ratios of residuals with and without what ran: (n,)."""
    power, along = float(ran @ ran), float(ran @ value)
    if power < _NO_POWER * len(ran) or along * slope <= 0:
        return np.zeros(len(value))
    left = value - ran * (along / power)
    scale = max(1.4826 * float(np.median(np.abs(left))), floor)
    both = [np.log1p(each**2 / (_STUDENT * scale**2)) for each in (value, left)]
    return (_STUDENT + 1) / 2 * (both[0] - both[1]) / _correlated_count(left)


def _correlated_count(residual: Float64s) -> float:
    """Return how many neighbouring residuals count as one independent one, at least 1."""
    lags = range(1, max(2, len(residual) // 8))
    power = max(float(residual @ residual), _NO_POWER)
    alike = np.array([float(residual[:-lag] @ residual[lag:]) / power for lag in lags])
    first = int(np.argmin(np.append(alike >= _ALIKE, False)))
    return 1.0 + 2.0 * float(alike[:first].sum())


def assigned(agreements: Sequence[Agreement], taken: Collection[str] = ()) -> list[str | None]:
    """Assign to each traced device the GPU that fits clearly better than any other; None without.

    Assignments of all devices are compared, with and without the GPU for the device.

    `agreements`: of devices that ran at one time, so that no two are one GPU. `taken`: GPUs that
    other devices had at that time.
    """
    found: list[str | None] = [None] * len(agreements)
    gpus = [each for each in (agreements[0].gpus if agreements else ()) if each not in taken]
    differ = any(set(gpus) - set(each.gpus) for each in agreements)
    if differ or not agreements or len(agreements) > len(gpus):
        return found
    gain = np.array([[each.gain[each.gpus.index(gpu)] for gpu in gpus] for each in agreements])
    score = gain.sum(axis=2)
    chosen = best_assignment(score)
    rows = np.arange(len(score))
    total = score[rows, chosen].sum()
    margin = MIN_MARGIN + _SPREADS * _spread(score, chosen)
    for row, column in enumerate(chosen.tolist()):
        blocks = np.sort(gain[row, column])
        if blocks.sum() < MIN_OWN or blocks[:-_LONE_BLOCKS].sum() < MIN_OWN / 3:
            continue
        other = score.copy()
        other[row, column] = _NEVER
        if total - other[rows, best_assignment(other)].sum() >= margin:
            found[row] = gpus[column]
    return found


def _spread(score: Float64s, chosen: Int64s) -> float:
    """Compute the deviation of the fits not chosen, less what a row or column has in common.

    Where they are few it is their root mean square, as what they have in common is not known.
    """
    others = score.copy()
    others[np.arange(len(score)), chosen] = np.nan
    count = int(np.isfinite(others).sum())
    free = count - sum(score.shape) + 1
    if free < _FEWEST_FREE:
        return float(np.sqrt(np.nanmean(others**2))) if count else 0.0
    for axis in (1, 0, 1, 0):
        others -= np.nanmean(others, axis=axis, keepdims=True)
    return float(np.sqrt(np.nansum(others**2) / free))


def best_assignment(score: Float64s) -> Int64s:
    """Choose a column for each row, none twice, with the largest sum: (r,) of (r, c >= r).

    Source: the Hungarian method with potentials (Kuhn 1955; Jonker and Volgenant 1987).
    """
    rows, columns = score.shape
    cost = np.zeros((rows + 1, columns + 1))
    cost[1:, 1:] = -score
    row_level, column_level = np.zeros(rows + 1), np.zeros(columns + 1)
    row_of, way = np.zeros(columns + 1, np.int64), np.zeros(columns + 1, np.int64)
    for row in range(1, rows + 1):
        row_of[0], column = row, 0
        least = np.full(columns + 1, np.inf)
        used: Bools = np.zeros(columns + 1, np.bool_)
        while True:
            used[column] = True
            at = row_of[column]
            reduced = cost[at] - row_level[at] - column_level
            better = ~used & (reduced < least)
            least[better], way[better] = reduced[better], column
            column = int(np.argmin(np.where(used, np.inf, least)))
            delta = least[column]
            row_level[row_of[used]] += delta
            column_level[used] -= delta
            least[~used] -= delta
            if row_of[column] == 0:
                break
        while column:
            row_of[column] = row_of[way[column]]
            column = int(way[column])
    result = np.zeros(rows, np.int64)
    taken = np.flatnonzero(row_of[1:])
    result[row_of[1:][taken] - 1] = taken
    return result
