"""Causes of a loss against a brute force of their definition, over random samples.

The brute force walks from sample to sample with fractions and knows nothing of the product's
arrays: it is DESIGN.md section 2, "Cause", written down again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import TypeVar

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from chopperd.correlate.join import RowClocks, join_device
from chopperd.model.causes import CAUSES, Cause
from tests.unit.correlate.builders import Rec, device, gpu_samples

Value = TypeVar("Value")

REFERENCE_MHZ = 1980
COUNTED = (
    Cause.POWER_CAP,
    Cause.SYNC_BOOST,
    Cause.THERMAL,
    Cause.HW_THERMAL,
    Cause.POWER_BRAKE,
)
REPORTED = [cause for cause in CAUSES if cause is not Cause.UNEXPLAINED]
SPACING_NS = 1000


@dataclass(frozen=True, kw_only=True)
class Sampled:
    """Samples each 1000 ns from -1000 ns on; compute from 0 to the sample before the last."""

    clock_mhz: list[int]
    causes: list[frozenset[Cause]]
    limited_ns: dict[Cause, list[int | None]]
    limit_mhz: int | None

    @property
    def times_ns(self) -> list[int]:
        return [SPACING_NS * n for n in range(-1, len(self.clock_mhz) - 1)]


@st.composite
def sampled(draw: st.DrawFn) -> Sampled:
    """Any clocks, limits and counters; these rise, stand, restart, or are not read everywhere."""
    count = draw(st.integers(4, 12))

    def each(values: st.SearchStrategy[Value]) -> list[Value]:
        return draw(st.lists(values, min_size=count, max_size=count))

    limited: dict[Cause, list[int | None]] = {}
    for cause in draw(st.sets(st.sampled_from(COUNTED))):
        rises = each(st.sampled_from([0, 0, 20, 49, 50, 51, 400, 1000]))
        total = np.cumsum(rises)
        if draw(st.booleans()):
            restart = draw(st.integers(1, count - 1))
            total[restart:] -= total[restart - 1]
        unread = each(st.sampled_from([False, False, False, True]))
        limited[cause] = [None if out else int(ns) for ns, out in zip(total, unread, strict=True)]
    return Sampled(
        clock_mhz=each(st.sampled_from([1200, 1400, 1490, 1500, 1510, 1700, 1980, 2000])),
        causes=each(st.frozensets(st.sampled_from(REPORTED), max_size=4)),
        limited_ns=limited,
        limit_mhz=draw(st.none() | st.sampled_from([1500, 1980, 2100])),
    )


def deficit(left: int, right: int, level: int) -> Fraction:
    """The integral of max(0, level - f) over a piece on which f is linear, MHz ns."""
    below = [Fraction(level - f) for f in (left, right)]
    if max(below) <= 0:
        return Fraction(0)
    if min(below) >= 0:
        return (below[0] + below[1]) * SPACING_NS / 2
    share = max(below) / (max(below) - min(below))
    return max(below) * share * SPACING_NS / 2


def by_bits(causes: frozenset[Cause]) -> dict[Cause, Fraction]:
    """Bits split evenly; the generic one counts for nothing beside a specific one."""
    if causes & {Cause.HW_THERMAL, Cause.POWER_BRAKE}:
        causes = causes - {Cause.HW_SLOWDOWN}
    named = causes or {Cause.UNEXPLAINED}
    return {cause: Fraction(1, len(named)) for cause in named}


def interpolated(counter: Sequence[int | None]) -> list[Fraction | None]:
    """A counter at every sample: linear between its reads; None outside the first and last."""
    reads = [n for n, value in enumerate(counter) if value is not None]
    found: list[Fraction | None] = [None] * len(counter)
    for n in range(len(counter)):
        before = max((read for read in reads if read <= n), default=None)
        after = min((read for read in reads if read >= n), default=None)
        if before is None or after is None:
            continue
        low, high = counter[before] or 0, counter[after] or 0
        share = Fraction(n - before, after - before) if after > before else Fraction(0)
        found[n] = low + share * (high - low)
    return found


def shares_between(given: Sampled, n: int) -> dict[Cause, Fraction]:
    """How a loss between sample n and the next splits, below the standing limit."""
    rises: dict[Cause, Fraction] = {}
    for cause, counter in given.limited_ns.items():
        at = interpolated(counter)
        low, high = at[n], at[n + 1]
        if low is not None and high is not None and high > low:
            rises[cause] = high - low
    counted = sum(rises.values(), Fraction(0))
    if counted >= Fraction(5, 100) * SPACING_NS:
        return {cause: rise / counted for cause, rise in rises.items()}
    shares: dict[Cause, Fraction] = {}
    for end in (n, n + 1):
        for cause, share in by_bits(given.causes[end]).items():
            shares[cause] = shares.get(cause, Fraction(0)) + share / 2
    return shares


def lost_by_cause(given: Sampled) -> Mapping[Cause, Fraction]:
    """The loss of compute by cause, ns."""
    limit = min(given.limit_mhz or REFERENCE_MHZ, REFERENCE_MHZ)
    lost = dict.fromkeys(CAUSES, Fraction(0))
    for n in range(1, len(given.clock_mhz) - 2):
        left, right = given.clock_mhz[n], given.clock_mhz[n + 1]
        below = deficit(left, right, limit)
        lost[Cause.USER_LIMIT] += (deficit(left, right, REFERENCE_MHZ) - below) / REFERENCE_MHZ
        for cause, share in shares_between(given, n).items():
            lost[cause] += below * share / REFERENCE_MHZ
    return lost


def updates_inside(given: Sampled) -> int | None:
    """The most updates that one counter shows at reads inside compute; None without counters."""
    inside = range(1, len(given.clock_mhz) - 2)
    most: int | None = None
    for counter in given.limited_ns.values():
        reads = [n for n, value in enumerate(counter) if value is not None]
        if not reads:
            continue
        seen = sum(counter[a] != counter[b] for a, b in pairwise(reads) if b in inside)
        most = seen if most is None else max(most, seen)
    return most


def joined(given: Sampled) -> RowClocks:
    samples = gpu_samples(
        given.times_ns,
        [float(f) for f in given.clock_mhz],
        causes=[sum(cause.bit for cause in each) for each in given.causes],
        limited_ns={
            cause: [np.nan if value is None else float(value) for value in counter]
            for cause, counter in given.limited_ns.items()
        },
        limit_mhz=None if given.limit_mhz is None else float(given.limit_mhz),
    )
    timeline = device([Rec(0, given.times_ns[-2])])
    clocks = join_device(timeline, (), samples, float(REFERENCE_MHZ)).clocks
    assert clocks is not None
    return clocks


#: The loss is rounded up, and so is the share of one cause: 1.02 ns over the cause's exact part.
ROUNDED_TWICE = Sampled(
    clock_mhz=[1200, 1500, 1700, 1500, 1490, 1400, 1980, 1400, 2000, 1200],
    causes=[
        frozenset(),
        frozenset(),
        frozenset({Cause.USER_LIMIT, Cause.POWER_CAP}),
        frozenset(),
        frozenset(),
        frozenset({Cause.USER_LIMIT, Cause.POWER_CAP, Cause.HW_THERMAL, Cause.POWER_BRAKE}),
        frozenset({Cause.THERMAL}),
        frozenset(),
        frozenset(),
        frozenset(),
    ],
    limited_ns={Cause.POWER_CAP: [0, 0, 0, 50, 100, 100, 100, None, 500, 500]},
    limit_mhz=None,
)


@settings(max_examples=60, deadline=None)
@given(given=sampled())
@example(given=ROUNDED_TWICE)
def test_causes_are_those_of_the_definition(given: Sampled) -> None:
    """Each within a ns of its exact share of the loss in whole ns; coarse under 5 updates."""
    loss = joined(given).loss
    assert loss is not None
    found, expected = loss.by_cause_ns[-1], lost_by_cause(given)
    total = sum(expected.values())
    assert loss.lost_ns[-1] in {int(total), int(total) + 1}
    assert found.sum() == loss.lost_ns[-1]
    for cause in CAUSES:
        share_ns = float(expected[cause]) * int(loss.lost_ns[-1]) / float(total or 1)
        assert abs(found[cause] - share_ns) < 1.001, cause
    updates = updates_inside(given)
    assert loss.coarse[-1] == (updates is not None and updates < 5)
