"""Splits lost clock by cause: standing limits first, then driver counters, then reason bits."""

from collections.abc import Mapping
from typing import Final

import numpy as np

from chopperd.correlate.signal import ClassClock
from chopperd.model.arrays import Float64s, Int64s
from chopperd.model.causes import CAUSES, REPORTED_CAUSES, Cause
from chopperd.model.counters import most_limited_ns

MIN_COUNTER_SHARE: Final = 0.05
MIN_COUNTER_UPDATES: Final = 5


def bit_shares(causes: Int64s) -> Float64s:
    """How a loss at each sample splits by the limits reported there: (n, causes), rows sum to 1.

    Specific beats generic: `hw_slowdown` counts for nothing beside `hw_thermal` or
    `power_brake`. Bits of equal rank split evenly; no bit is `unexplained`.

    Args:
        causes: (n,) int64 bit sets of `Cause`.

    Source: DESIGN.md section 2, "Cause".
    """
    specific = Cause.HW_THERMAL.bit | Cause.POWER_BRAKE.bit
    causes = np.where(causes & specific, causes & ~Cause.HW_SLOWDOWN.bit, causes)
    shares = np.zeros((len(causes), len(CAUSES)))
    for cause in REPORTED_CAUSES:
        shares[:, cause] = (causes & cause.bit) != 0
    total = shares.sum(axis=1, keepdims=True)
    shares[:, Cause.UNEXPLAINED] = total[:, 0] == 0
    even: Float64s = shares / np.maximum(total, 1.0)
    return even


def piece_shares(
    clock: ClassClock, causes: Int64s, limited_ns: Mapping[Cause, Float64s]
) -> Float64s:
    """How a loss in each piece of the clock splits by cause: (m, causes), rows sum to 1.

    Where the driver's cumulative counters moved by at least 5 % of the piece's length, in
    proportion to their increments; else by the reason bits of the samples that the piece hangs on.

    Args:
        clock: m pieces over n = m + 1 samples.
        causes: (n,) int64 bit sets at the samples.
        limited_ns: (n,) float64 cumulative counters by cause; NaN where not read.
    """
    increments = counter_increments(limited_ns, clock.edges_ns)
    moved = increments.sum(axis=1)
    counted = moved >= MIN_COUNTER_SHARE * np.diff(clock.edges_ns)
    counted &= moved > 0
    # Few bit sets occur, and most causes not at all: only columns that hold something are filled.
    sets, of_sample = np.unique(causes, return_inverse=True)
    by_bits = bit_shares(sets)
    left, right = of_sample[clock.left_sample], of_sample[clock.right_sample]
    shares = _columns(len(moved))
    for cause in range(len(CAUSES)):
        by_set, increment = by_bits[:, cause], increments[:, cause]
        if by_set.any():
            shares[:, cause] = (by_set[left] + by_set[right]) / 2
            shares[counted, cause] = 0.0
        if increment.any():
            np.divide(increment, moved, out=shares[:, cause], where=counted)
    return shares


def _columns(count: int) -> Float64s:
    """Zeros, (count, causes), each cause's column in one piece of memory."""
    return np.zeros((count, len(CAUSES)), order="F")


def counter_increments(limited_ns: Mapping[Cause, Float64s], t_ns: Int64s) -> Float64s:
    """(m, causes) float64: by how many ns each counter rose over each piece between samples.

    Counters not read at every sample are taken as linear between the reads; a counter that fell
    (driver reload), or rose by more than time passed, adds nothing there, and outside its first and
    last read nothing either.
    """
    rise = _columns(max(len(t_ns) - 1, 0))
    for cause, counter in limited_ns.items():
        read = np.isfinite(counter)
        if read.sum() < 2 or not len(rise):
            continue
        apart_ns, risen_ns = np.diff(t_ns[read]), np.diff(counter[read])
        is_measured = risen_ns <= most_limited_ns(apart_ns.astype(np.float64))
        counted_ns = np.append(
            0.0, np.cumsum(np.where(is_measured, np.maximum(risen_ns, 0.0), 0.0))
        )
        rise[:, cause] = np.diff(np.interp(t_ns, t_ns[read], counted_ns))
    return rise


def counter_updates(
    limited_ns: Mapping[Cause, Float64s], t_ns: Int64s, start_ns: Int64s, end_ns: Int64s
) -> Int64s | None:
    """The most updates that any counter showed inside each window: (w,); None without counters."""
    most: Int64s | None = None
    for counter in limited_ns.values():
        read = np.isfinite(counter)
        if not read.any():
            continue
        changed = np.diff(counter[read], prepend=counter[read][0]) != 0
        running = np.concatenate((np.zeros(1, np.int64), np.cumsum(changed)))
        at_start, at_end = (np.searchsorted(t_ns[read], edge) for edge in (start_ns, end_ns))
        updates: Int64s = running[at_end] - running[at_start]
        most = updates if most is None else np.maximum(most, updates)
    return most


def largest_remainder(parts: Float64s, totals: Int64s) -> Int64s:
    """Rows of integers in proportion to rows of parts, each within 1 of its exact share: (w, n).

    Args:
        parts: (w, n) float64, not negative; a row of zeros stays one and needs a total of 0.
        totals: (w,) int64, what the rows sum to.
    """
    whole = parts.sum(axis=1, keepdims=True)
    exact = np.divide(parts, whole, out=np.zeros_like(parts), where=whole > 0) * totals[:, None]
    floor: Int64s = np.floor(exact).astype(np.int64)
    short = np.where(whole[:, 0] > 0, totals - floor.sum(axis=1), 0)
    order = np.argsort(floor - exact, axis=1, kind="stable")
    rounded_up = np.zeros_like(floor)
    np.put_along_axis(rounded_up, order, np.arange(parts.shape[1]) < short[:, None], axis=1)
    return floor + rounded_up
