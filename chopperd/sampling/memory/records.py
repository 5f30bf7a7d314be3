"""Copies complete records from a ring, with the clock of the governing die."""

from bisect import bisect_right
from typing import Final

import numpy as np

from chopperd.correlate.clock.governing import governing_mhz
from chopperd.model.arrays import Float64s
from chopperd.sampling.memory.layout import NO_DIE, Records
from chopperd.units import NS_PER_S

#: A die's mean covers the 2 s that end at the record: what comes after is not known yet. Reports,
#: which have both sides, use 1 s on each.
DIE_WINDOW_NS: Final = 2 * NS_PER_S


def whole_records(ring: Records, position: int, written: int) -> Records:
    """Copy the records `[position, written)` that the ring still holds, oldest first.

    A record that was overwritten while it was copied is left out. In those with clocks of dies,
    `sm_clock_mhz` is that of the governing die.

    Args:
        ring: (capacity,) the ring of one GPU.
        position: Number of the first record.
        written: How many records were written since the ring was made.

    Source: DESIGN.md section 2, "Several dies".
    """
    oldest = max(0, written - len(ring))
    first = max(position, oldest)
    records = _copied(ring, first, written)
    if not len(records) or not (records["die_clocks_mhz"] != NO_DIE).any():
        return records
    begin_ns = records["t_mono_ns"][0] - DIE_WINDOW_NS
    times_ns = ring["t_mono_ns"]
    numbers = range(oldest, first)
    skipped_count = bisect_right(numbers, begin_ns, key=lambda n: times_ns[n % len(ring)])
    earlier = _copied(ring, oldest + skipped_count, first)
    both = np.concatenate([earlier, records])
    records["sm_clock_mhz"] = governing_mhz(
        both["t_mono_ns"],
        die_clocks_mhz(both),
        both["sm_clock_mhz"],
        before_ns=DIE_WINDOW_NS - 1,
        after_ns=0,
    )[len(earlier) :]
    return records


def die_clocks_mhz(records: Records) -> Float64s:
    """Return dies' clocks, (n, `MOST_DIES`), NaN where there is none, of (n,) of `RECORD`."""
    whole = records["die_clocks_mhz"]
    return np.where(whole == NO_DIE, np.nan, whole.astype(np.float64))


def _copied(ring: Records, first: int, end: int) -> Records:
    """Copy the records `[first, end)`, without those overwritten meanwhile."""
    numbers = np.arange(first, end)
    slots = numbers % len(ring)
    records = ring[slots]
    # A slot that the writer has begun to fill again shows another sequence now.
    now = ring["sequence"][slots]
    whole: Records = records[(records["sequence"] == numbers + 1) & (now == numbers + 1)]
    return whole
