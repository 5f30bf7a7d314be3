"""Compute excess loss: how far one GPU's mean compute clock is below its peers' at the time."""

from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from chopperd.model.arrays import Bools, Float64s

MIN_PEERS: Final = 4
#: A GPU is named from so far below its peers on, with the low end of its interval; what clocks
#: wander adds as squares.
NAMED_RATIO: Final = 0.015
#: And from so many median absolute deviations of its peers on.
NAMED_DEVIATIONS: Final = 3.0
#: Peers that are further apart than this are two groups.
_GROUPS_APART_RATIO: Final = 0.05
#: A group is at least so many: a single GPU is an outlier.
_LEAST_GROUP: Final = 2
#: Standard error of a median over that of a mean.
_MEDIAN_ERROR: Final = float(np.sqrt(np.pi / 2))
#: Student's t, 97.5 %, by degrees of freedom from one on.
_T_975: Final = (12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
_MOST_PARTS: Final = len(_T_975) + 1
#: How much neighbouring parts of a run may resemble each other; few parts do not show more.
_CORRELATIONS: Final = np.linspace(0.0, 0.8, 17)
#: Squares of a GPU that scatters more than so many times the median do not count: it is the one to
#: be found, as one that is slow in some steps only.
_MOST_OF_MEDIAN: Final = 6.0


class Peers(Struct, frozen=True, kw_only=True):
    """GPUs of one model with which each of them is compared over one window."""

    count: int  # GPUs with a known clock
    reference_mhz: float  # their median, or that of the upper of two groups
    error_mhz: float  # half width of its 95 % interval; NaN unknown
    disagree: bool  # whether they fall into two groups
    margin_ratio: float  # from so far below the reference on a GPU is named

    def excess(self, mean_mhz: Float64s, half_mhz: Float64s) -> "Excess":
        """Compute how far mean clocks over the same window lie below the reference."""
        below = 1.0 - mean_mhz / self.reference_mhz
        half = np.hypot(half_mhz, mean_mhz / self.reference_mhz * self.error_mhz)
        half /= self.reference_mhz
        return Excess(
            ratio=np.maximum(below, 0.0),
            low=np.maximum(below - half, 0.0),
            high=np.maximum(below + half, 0.0),
            is_named=below - half > self.margin_ratio,
        )


class Excess(Struct, frozen=True, kw_only=True):
    """Shares of covered compute lost against peers, (n,) each.

    Means come before the max: momentary clocks would give equal GPUs 1-2 % of excess.

    Source: DESIGN.md section 2, "Three losses".
    """

    ratio: Float64s  # max(0, 1 - f / reference); NaN where the clock is not known
    #: Its 95 % interval; NaN unknown.
    low: Float64s
    high: Float64s
    is_named: Bools  # whether the GPU is an outlier: the low end passes the margin


def peers_of(mean_mhz: Float64s, half_mhz: Float64s, wander: float = 0.0) -> Peers | None:
    """Compute the reference that GPUs of one model are compared with; None for fewer than four.

    It is of all of them, the compared GPU included. `mean_mhz`, `half_mhz`: (n,), mean compute
    clocks over one window and half widths of their 95 % intervals; NaN unknown. `wander`: see
    `wander_ratio`.
    """
    known = np.flatnonzero(np.isfinite(mean_mhz))
    if len(known) < MIN_PEERS:
        return None
    upper = known[_upper_group(mean_mhz[known], half_mhz[known])]
    reference_mhz = float(np.median(mean_mhz[upper]))
    widths_mhz = half_mhz[upper][np.isfinite(half_mhz[upper])]
    error_mhz = _MEDIAN_ERROR * np.median(widths_mhz) if len(widths_mhz) else np.nan
    deviation = np.median(np.abs(mean_mhz[upper] / reference_mhz - 1.0))
    return Peers(
        count=len(known),
        reference_mhz=reference_mhz,
        error_mhz=float(error_mhz / np.sqrt(len(upper))),
        disagree=len(upper) < len(known),
        margin_ratio=max(float(np.hypot(NAMED_RATIO, wander)), NAMED_DEVIATIONS * float(deviation)),
    )


def wander_ratio(shares: Sequence[Float64s]) -> float:
    """Estimate how far equal GPUs' mean clocks over a run may differ as clocks wander.

    Half of the 95 % interval as a share of the clock; 0 for fewer than two steps. Each GPU's run is
    cut into up to ten parts. How their means scatter about that GPU's own, and how much neighbours
    resemble each other (a first-order autoregression), gives the standard error of the run's mean.
    All GPUs are used together but for one that scatters far more than the others: what it does in
    some steps only must not hide it. `shares`: for each GPU (steps,), its clock over the peers'.

    Source: known-truth simulation of nodes of 8 equal GPUs (spread of 1 % either way). Clocks that
    wander by 4 % over 0.3 to 1 s made 1.5 % and 3 MAD alone accuse somebody in 9-28 % of runs of 1
    to 20 s, as a MAD of eight is rough; with this in 0-6 %. Of stragglers of 6 % over 10 steps of 1
    s it hides less than one in 100.
    """
    parts = min(max(map(len, shares), default=0), _MOST_PARTS)
    if parts < 2:
        return 0.0
    means = np.array(
        [
            [float(part.mean()) for part in np.array_split(each, parts)]
            for each in shares
            if len(each) >= parts
        ]
    )
    off = means - means.mean(axis=1, keepdims=True)
    squares = (off**2).sum(axis=1)
    off = off[squares <= _MOST_OF_MEDIAN * np.median(squares)]
    square = float((off**2).sum())
    together = float((off[:, 1:] * off[:, :-1]).sum()) / max(square, np.finfo(float).tiny)
    resembling = _CORRELATIONS if parts > 2 else _CORRELATIONS[:1]
    expected, variance = np.array([_of_correlation(each, parts) for each in resembling]).T
    variance_ratio = float(np.interp(together, expected, variance))
    return _T_975[parts - 2] * float(np.sqrt(square / len(off) * variance_ratio))


def _of_correlation(correlation: float, parts: int) -> tuple[float, float]:
    """Compute what a first-order autoregression predicts for parts less their own mean.

    Expected products of neighbours over squares; variance of the mean over the squares.
    """
    apart = np.abs(np.subtract.outer(np.arange(parts), np.arange(parts)))
    covariance = correlation**apart
    centred = np.eye(parts) - 1 / parts
    left = centred @ covariance @ centred
    squares = float(np.trace(left))
    return float(np.trace(left, offset=1)) / squares, float(covariance.mean()) / squares


def _upper_group(mean_mhz: Float64s, half_mhz: Float64s) -> Bools:
    """Whether each GPU is in the upper of two groups, (n,) bool; all are where there is one group.

    Groups have at least two GPUs, and a gap of more than 5 % between them after the intervals of
    the two GPUs next to it are taken off.
    """
    order = np.argsort(mean_mhz)
    ordered_mhz, widths_mhz = mean_mhz[order], np.nan_to_num(half_mhz[order])
    gaps_mhz = np.diff(ordered_mhz) - np.hypot(widths_mhz[1:], widths_mhz[:-1])
    inner = gaps_mhz[_LEAST_GROUP - 1 : 1 - _LEAST_GROUP]
    at = int(np.argmax(inner)) + _LEAST_GROUP - 1
    upper: Bools = np.ones(len(mean_mhz), bool)
    if gaps_mhz[at] > _GROUPS_APART_RATIO * ordered_mhz[at + 1 :].min():
        upper[order[: at + 1]] = False
    return upper
