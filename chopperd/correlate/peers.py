"""Excess loss: how far one GPU's mean compute clock lies below its peers' in the same step."""

from typing import Final

import numpy as np

from chopperd.model.arrays import Float64s, Int64s

MIN_PEERS: Final = 4


def peers_median_mhz(mean_mhz: Float64s) -> float | None:
    """The median mean clock of a peer group, NaNs (no clock) left out; None below four GPUs."""
    known = mean_mhz[np.isfinite(mean_mhz)]
    return float(np.median(known)) if len(known) >= MIN_PEERS else None


def excess_ns(mean_mhz: Float64s, peers_mhz: float, covered_ns: Int64s) -> Int64s:
    """max(0, 1 - f / f_peers) x covered compute, ns: (n,) int64; 0 where the clock is unknown.

    Means come before the max: momentary clocks would give equal GPUs 1-2 % of excess.

    Source: DESIGN.md section 2, "Three losses".
    """
    below = np.nan_to_num(np.maximum(0.0, 1.0 - mean_mhz / peers_mhz))
    return np.rint(below * covered_ns).astype(np.int64)
