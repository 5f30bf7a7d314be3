"""Excess loss: how far one GPU's mean compute clock lies below its peers' in the same time."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from chopperd.model.arrays import Bools, Float64s

MIN_PEERS: Final = 4
#: A GPU is named from so far below its peers on, with the low end of its interval.
NAMED_RATIO: Final = 0.015
#: And from so many median absolute deviations of its peers on.
_NAMED_DEVIATIONS: Final = 3.0
#: Peers that are further apart than this are two groups.
_GROUPS_APART_RATIO: Final = 0.05
#: A group is at least so many: a single GPU is an outlier.
_LEAST_GROUP: Final = 2
#: Standard error of a median over that of a mean.
_MEDIAN_ERROR: Final = float(np.sqrt(np.pi / 2))


@dataclass(frozen=True, slots=True, kw_only=True)
class Peers:
    """GPUs of one model with which each of them is compared over one window.

    Attributes:
        count: GPUs with a known clock.
        reference_mhz: Their median, or that of the upper of two groups.
        error_mhz: Half width of its 95 % interval; NaN unknown.
        disagree: Whether they fall into two groups.
        margin_ratio: From so far below the reference on a GPU is named.
    """

    count: int
    reference_mhz: float
    error_mhz: float
    disagree: bool
    margin_ratio: float

    def excess(
        self, mean_mhz: Float64s, half_mhz: Float64s, scatter: float | Float64s = 0.0
    ) -> "Excess":
        """How far mean clocks over the same window lie below the reference.

        Args:
            mean_mhz: (n,) float64.
            half_mhz: (n,) float64, half widths of their 95 % intervals.
            scatter: (n,) float64, standard error of the share below the peers that is not the
                sampling's: a clock that wanders is below them in one window and not in the next.
                Nobody is named for that.
        """
        below = 1.0 - mean_mhz / self.reference_mhz
        half = np.hypot(half_mhz, mean_mhz / self.reference_mhz * self.error_mhz)
        half /= self.reference_mhz
        return Excess(
            ratio=np.maximum(below, 0.0),
            low=np.maximum(below - half, 0.0),
            high=np.maximum(below + half, 0.0),
            is_named=below - np.hypot(half, scatter) > self.margin_ratio,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Excess:
    """Shares of covered compute lost against peers, (n,) each.

    Means come before the max: momentary clocks would give equal GPUs 1-2 % of excess.

    Attributes:
        ratio: max(0, 1 - f / reference); NaN where the clock is not known.
        low, high: Its 95 % interval; NaN unknown.
        is_named: Whether the GPU stands out: the low end passes the margin.

    Source: DESIGN.md section 2, "Three losses".
    """

    ratio: Float64s
    low: Float64s
    high: Float64s
    is_named: Bools


def peers_of(mean_mhz: Float64s, half_mhz: Float64s) -> Peers | None:
    """What GPUs of one model are compared with, each with all of them; None below four.

    Args:
        mean_mhz: (n,) float64, mean compute clocks over one window; NaN unknown.
        half_mhz: (n,) float64, half widths of their 95 % intervals; NaN unknown.
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
        margin_ratio=max(NAMED_RATIO, _NAMED_DEVIATIONS * float(deviation)),
    )


def _upper_group(mean_mhz: Float64s, half_mhz: Float64s) -> Bools:
    """Which GPUs are in the upper of two groups; all where there is one group.

    Groups are of two GPUs at least, with a gap of more than 5 % between them that is no matter of
    the intervals of the two GPUs beside it.
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
