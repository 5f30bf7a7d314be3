"""Compare runs: which figures of their steps differ, by how much, with intervals.

Steps resemble their neighbours, so errors come from means of long batches, and a difference is
declared only with 50 effective steps a side, beyond a practical margin, beyond what halves of A
differ by, and, for all figures but the step time, after correction for their number.

Source: DESIGN.md section 2, "Comparing runs".
"""

from collections.abc import Mapping, Sequence
from math import atan, comb, cos, isfinite, isnan, nan, pi, sin, sqrt
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from chopperd.model.arrays import Float64s
from chopperd.model.comparison import ROW, STEP, Difference, Verdict

#: Fewer effective steps than this on a side, and no difference is declared.
LEAST_EFFECTIVE: Final = 50
#: Differences below this are of no practical interest; of rows, which are parts of the step.
MARGIN: Final = 0.005
ROW_MARGIN: Final = 0.001
#: So many runs a side, and what is said holds for such runs, not only for these.
LEAST_RUNS: Final = 3
ALPHA: Final = 0.05
_BATCHES: Final = 10
_MADS: Final = 5 * 1.4826  # five standard deviations of a normal distribution
_WARM_RATIO: Final = 1.02
_WARM_SHARE: Final = 10
#: How much a knee lies below the line, as a share of the range of step times.
_KNEE: Final = 0.05

#: Figures of the steps of a run by name, (steps,) each, NaN where unknown.
Figures: TypeAlias = Mapping[str, Float64s]


class Estimate(NamedTuple):
    """A mean with its standard error, degrees of freedom, and effective number of steps."""

    mean: float
    error: float  # NaN with fewer than two steps
    freedom: int
    effective: float
    halves: float  # by how much the second half's mean exceeds the first's


def correlation_time(values: Float64s) -> float:
    """Return the number of neighbouring values that count as one, at least 1.

    Source: Geyer, Practical Markov chain Monte Carlo (1992), initial monotone sequence.
    """
    count, off = len(values), values - values.mean() if len(values) else values
    square = float(off @ off)
    if count < 4 or square <= 1e-24 * float(values @ values):
        return 1.0
    spectrum = np.fft.rfft(off, 2 * count)
    covariance = np.fft.irfft(np.abs(spectrum) ** 2)[: count // 2 * 2] / square
    pairs = covariance[::2] + covariance[1::2]
    positive = int(np.argmax(pairs <= 0)) if np.any(pairs <= 0) else len(pairs)
    total = float(np.minimum.accumulate(pairs[:positive]).sum())
    return max(2 * total - 1, 1.0)


def estimate(runs: Sequence[Float64s], *, by_runs: bool = False) -> Estimate:
    """Return the mean over runs, (n,) each, NaN unknown; by ten batches, or the runs' own means."""
    known = [each[np.isfinite(each)] for each in runs]
    known = [each for each in known if len(each)]
    steps = np.concatenate([np.empty(0), *known])
    count = len(steps)
    if not count:
        return Estimate(nan, nan, 0, 0.0, nan)
    batches = known if by_runs else np.array_split(steps, min(_BATCHES, count))
    means = np.array([each.mean() for each in batches])
    freedom = len(means) - 1
    error = float(means.std(ddof=1)) / sqrt(len(means)) if freedom else nan
    half = count // 2
    return Estimate(
        mean=float(means.mean() if by_runs else steps.mean()),
        error=error,
        freedom=freedom,
        effective=sum(len(each) / correlation_time(each) for each in known),
        halves=float(steps[half:].mean() - steps[:half].mean()) if half else nan,
    )


def student_p(t: float, freedom: int) -> float:
    """Return the chance of a value beyond ±t of Student's distribution, of whole freedom > 0.

    Source: Abramowitz and Stegun, 26.7.3 and 26.7.4.
    """
    angle = atan(abs(t) / sqrt(freedom))
    if freedom % 2:
        terms = (4**k / (comb(2 * k, k) * (2 * k + 1)) for k in range((freedom - 1) // 2))
        series = sum(term * cos(angle) ** (2 * k + 1) for k, term in enumerate(terms))
        inside = 2 / pi * (angle + sin(angle) * series)
    else:
        terms = (comb(2 * k, k) / 4**k for k in range(freedom // 2))
        inside = sin(angle) * sum(term * cos(angle) ** (2 * k) for k, term in enumerate(terms))
    return float(min(max(1 - inside, 0.0), 1.0))


def student_t(alpha: float, freedom: int) -> float:
    """Return the t that is passed to either side with chance `alpha`."""
    low, high = 0.0, 1e6
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if student_p(middle, freedom) > alpha else (low, middle)
    return (low + high) / 2


def holm(values: Sequence[float]) -> list[float]:
    """Return p values corrected for their number by Holm's method; NaN stays and does not count."""
    order = sorted((p, nth) for nth, p in enumerate(values) if not isnan(p))
    corrected, worst = [nan] * len(values), 0.0
    for rank, (p, nth) in enumerate(order):
        worst = max(worst, min(p * (len(order) - rank), 1.0))
        corrected[nth] = worst
    return corrected


class _Comparison(NamedTuple):
    name: str
    a: Estimate
    b: Estimate
    change: float
    half: float  # of the 95 % interval
    p: float
    floor: float
    margin: float


def _compared(name: str, a: Estimate, b: Estimate, of: float | None, alpha: float) -> _Comparison:
    """Compare two means by Welch's test; `of`: what the change is a share of, None: A's mean.

    The interval of a ratio counts the error of the denominator, too.
    """
    scale = a.mean if of is None else of
    slope = b.mean / a.mean if of is None and a.mean else 1.0
    squares = (slope * a.error) ** 2, b.error**2
    error = sqrt(sum(squares))
    off, p, half = b.mean - a.mean, nan, nan
    if error > 1e-12 * max(abs(a.mean), abs(b.mean)):
        pairs = zip(squares, (a.freedom, b.freedom), strict=True)
        freedom = max(int(sum(squares) ** 2 / sum(s**2 / df for s, df in pairs)), 1)
        p, half = student_p(off / error, freedom), student_t(alpha, freedom) * error
    elif not isnan(error):  # constant on both sides
        p, half = float(abs(off) <= 1e-12 * max(abs(a.mean), abs(b.mean))), 0.0
    share = 1 / abs(scale) if scale else nan if off else 0.0
    margin = MARGIN if of is None else ROW_MARGIN
    return _Comparison(name, a, b, off * share, half * share, p, abs(a.halves) * share, margin)


def _verdict(test: _Comparison, p: float, alpha: float) -> Verdict:
    if min(test.a.effective, test.b.effective) < LEAST_EFFECTIVE:
        return "too_few"
    least = max(test.margin, test.floor)
    if p < alpha and not abs(test.change) < least:  # a change from 0 has no size
        return "higher" if test.b.mean > test.a.mean else "lower"
    return "same" if abs(test.change) + test.half <= test.margin else "unresolved"


def _difference(test: _Comparison, corrected: float | None, alpha: float = ALPHA) -> Difference:
    return Difference(
        name=test.name,
        a=test.a.mean,
        b=test.b.mean,
        change=_known(test.change),
        low=_known(test.change - test.half),
        high=_known(test.change + test.half),
        margin=test.margin,
        floor=_known(test.floor),
        p=_known(test.p),
        p_corrected=None if corrected is None else _known(corrected),
        effective_a=test.a.effective,
        effective_b=test.b.effective,
        verdict=_verdict(test, test.p if corrected is None else corrected, alpha),
    )


def _known(value: float) -> float | None:
    return value if isfinite(value) else None


def differences(
    a: Sequence[Figures], b: Sequence[Figures], *, by_runs: bool = False, alpha: float = ALPHA
) -> tuple[Difference, tuple[Difference, ...]]:
    """Compare the steps of runs, figures by name with `STEP` among them: the step time, the others.

    `alpha` is of the step time: smaller where several sides are compared with A.
    """
    means = [estimates(side, by_runs=by_runs) for side in (a, b)]
    step = _compared(STEP, means[0][STEP], means[1][STEP], None, alpha)
    of = means[0][STEP].mean
    tests = [
        _compared(name, one, means[1][name], of if name.startswith(ROW) else None, ALPHA)
        for name, one in means[0].items()
        if name != STEP and name in means[1]
    ]
    others = zip(tests, holm([each.p for each in tests]), strict=True)
    return _difference(step, None, alpha), tuple(_difference(*each) for each in others)


def estimates(runs: Sequence[Figures], *, by_runs: bool) -> dict[str, Estimate]:
    """Return the estimate of each figure that is known in any step."""
    names = dict.fromkeys(name for run in runs for name in run)
    found = {
        name: estimate([run[name] for run in runs if name in run], by_runs=by_runs)
        for name in names
    }
    return {name: each for name, each in found.items() if not isnan(each.mean)}


def warm_up_steps(step_ns: Float64s) -> int:
    """Return how many leading steps are longer than any that belongs to the second half.

    They are at most a tenth of the steps, or two, and none of fewer than five.
    """
    rest = step_ns[len(step_ns) // 2 :]
    if len(step_ns) < 5:
        return 0
    middle = float(np.median(rest))
    limit = max(middle + _MADS * float(np.median(np.abs(rest - middle))), middle * _WARM_RATIO)
    leading = step_ns[: max(len(step_ns) // _WARM_SHARE, 2)] > limit
    return int(np.argmin(np.append(leading, False)))


def knee(limits_w: Sequence[float | None], step_ns: Sequence[float]) -> int | None:
    """Return which of the sides is at the knee; None with fewer than three limits, or without."""
    sides = enumerate(zip(limits_w, step_ns, strict=True))
    known = [(limit, ns, nth) for nth, (limit, ns) in sides if limit is not None]
    if len({limit for limit, _, _ in known}) < 3:
        return None
    (low, at_low, _), (high, at_high, _) = min(known), max(known)
    spread = max(ns for _, ns, _ in known) - min(ns for _, ns, _ in known)
    below = [
        (at_low + (at_high - at_low) * (limit - low) / (high - low) - ns, nth)
        for limit, ns, nth in known
    ]
    depth, nth = max(below)
    return nth if depth > _KNEE * spread else None
