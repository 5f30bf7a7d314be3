"""Fill a row's holders: who held the device idle, the largest of them.

Times of a row of the waterfall always sum to it: what has no room is one entry, `OTHER_PARTS`.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Final

import numpy as np
from msgspec.structs import replace

from chopperd.correlate.holding import HELD_ROWS, HeldTotals
from chopperd.model.answers import Held
from chopperd.model.report_rows import OTHER_PARTS, Row

#: Entries of a waterfall row, of a whole file and of one of its steps; where these are very many,
#: each has fewer.
MOST_OF_FILE: Final = 100
_MOST_OF_STEP: Final = 40
_LEAST_OF_STEP: Final = 12
_MOST_OF_STEPS: Final = 8000
_COUNTED: Final = ("count", "time_ns", "in_call_ns", "late_host_ns", "host_waits_ns")


def held_of(totals: HeldTotals | None, index: int, most: int) -> tuple[Held, ...]:
    """Return the holders of a window in the waterfall's order, the largest of each row first.

    A row has `most` entries, and one for all others. Entries that differ only in their innermost
    thing are put together first where there are more.
    """
    if totals is None:
        return ()
    first, last = np.searchsorted(totals.window, (index, index + 1)).tolist()
    return _in_order([_entry(totals, at) for at in range(first, last)], most)


def most_of_step(steps: int) -> int:
    """Return how many entries a waterfall row of one of so many steps has room for."""
    return max(_LEAST_OF_STEP, min(_MOST_OF_STEP, _MOST_OF_STEPS // max(steps, 1)))


def held_over(rows: Sequence[Row]) -> tuple[Held, ...]:
    """Return the holders of several rows in sum, as `held_of` does for a whole file."""
    found = merged((each for row in rows for each in row.held), lambda each: each)
    return _in_order(sorted(found, key=lambda each: HELD_ROWS.index(each.row)), MOST_OF_FILE)


def _in_order(entries: Sequence[Held], most: int) -> tuple[Held, ...]:
    rows = (list(some) for _, some in groupby(entries, key=lambda each: each.row))
    return tuple(each for some in rows for each in _largest(some, most))


def _entry(totals: HeldTotals, at: int) -> Held:
    holder = totals.holders[totals.holder[at]]
    return Held(
        row=HELD_ROWS[totals.row[at]],
        name=holder.name,
        kind=holder.kind,
        inner=holder.inner,
        whole=holder.whole,
        region=holder.region,
        count=int(totals.count[at]),
        time_ns=int(totals.time_ns[at]),
        in_call_ns=int(totals.in_call_ns[at]),
        late_host_ns=int(totals.late_host_ns[at]),
        host_waits_ns=int(totals.host_waits_ns[at]),
    )


def _largest(entries: Sequence[Held], most: int) -> list[Held]:
    """Return at most `most` entries, and what is left of the smallest in one."""
    if len(entries) > most:
        entries = merged(entries, lambda each: replace(each, inner=None))
    found = sorted(entries, key=lambda each: -each.time_ns)
    if len(found) <= most + 1:
        return found
    return [*found[:most], *merged(found[most:], _other)]


def _other(entry: Held) -> Held:
    return replace(entry, name=OTHER_PARTS, kind="none", inner=None, whole=None, region=None)


def merged(entries: Iterable[Held], alike: Callable[[Held], Held]) -> list[Held]:
    """Add up the entries that are one by `alike`, of which no number counts."""
    found: dict[tuple[str | None, ...], Held] = {}
    for entry in entries:
        one = alike(entry)
        key = one.row, one.name, one.kind, one.inner, one.whole, one.region
        known = found.get(key)
        found[key] = one if known is None else _sum(known, one)
    return list(found.values())


def _sum(one: Held, other: Held) -> Held:
    return replace(one, **{name: getattr(one, name) + getattr(other, name) for name in _COUNTED})
