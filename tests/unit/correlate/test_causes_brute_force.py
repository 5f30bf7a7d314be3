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
from chopperd.model.kinds import CAUSES, Cause
from tests.unit.correlate.builders import Rec, device, gpu_samples

Value = TypeVar("Value")

REFERENCE_MHZ = 1980
COUNTED = (Cause.POWER_CAP, Cause.SYNC_BOOST, Cause.THERMAL, Cause.HW_THERMAL, Cause.POWER_BRAKE)
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
        causes=draw(
            st.just([frozenset[Cause]()] * count)
            | st.just(each(st.frozensets(st.sampled_from(REPORTED), max_size=4)))
        ),
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


PROTECTIONS = frozenset({Cause.HW_THERMAL, Cause.POWER_BRAKE})
OUTRANKED = frozenset({Cause.HW_SLOWDOWN, Cause.POWER_CAP, Cause.THERMAL})
Shares = dict[Cause, Fraction]


def by_bits(causes: frozenset[Cause]) -> Shares:
    """Bits split evenly; what a hardware protection outranks counts for nothing beside it."""
    if causes & PROTECTIONS:
        causes = causes - OUTRANKED
    named = causes or {Cause.UNEXPLAINED}
    return {cause: Fraction(1, len(named)) for cause in named}


def read_around(counter: Sequence[int | None], n: int) -> tuple[int, int] | None:
    """The reads of a counter before and after the piece from sample n on; None outside them."""
    reads = [i for i, value in enumerate(counter) if value is not None]
    before = max((read for read in reads if read <= n), default=None)
    after = min((read for read in reads if read > n), default=None)
    return None if before is None or after is None else (before, after)


def rise(counter: Sequence[int | None], before: int, after: int) -> Fraction:
    """By how much it rose, ns; a counter that fell has restarted and tells nothing."""
    return Fraction(max((counter[after] or 0) - (counter[before] or 0), 0))


def counts_alone(given: Sampled) -> bool:
    """Whether no sample has a reason, and a counter rises."""
    pieces = range(len(given.clock_mhz) - 1)
    return all(each <= {Cause.UNKNOWN} for each in given.causes) and any(
        even_rise(given, k, cause) for cause in given.limited_ns for k in pieces
    )


def named_at(given: Sampled, n: int, cause: Cause) -> bool:
    """By bits; where counters alone tell, by what counted most on both sides of the sample."""
    if not counts_alone(given):
        return cause in by_bits(given.causes[n])
    beside = [k for k in (n - 1, n) if 0 <= k < len(given.clock_mhz) - 1]
    rises = {each: [even_rise(given, k, each) for k in beside] for each in given.limited_ns}
    totals = [sum(column, Fraction(0)) for column in zip(*rises.values(), strict=True)]
    most = min(max(1 - total, Fraction(0)) for total in totals)
    both = {each: min(column) for each, column in rises.items()}
    return both[cause] > 0 and both[cause] == max(most, *both.values())


def borders(given: Sampled, n: int) -> bool:
    """Whether a counted cause has one end of a piece alone, and counts in a piece beside it."""
    beside = [k for k in (n - 1, n + 1) if 0 <= k < len(given.clock_mhz) - 1]
    return any(
        named_at(given, n, cause) != named_at(given, n + 1, cause)
        and read_around(counter, n) is not None
        and any(Fraction(5, 100) <= even_rise(given, k, cause) <= Fraction(3, 2) for k in beside)
        for cause, counter in given.limited_ns.items()
    )


def counted_at_ends(given: Sampled, n: int, cause: Cause) -> tuple[Fraction, Fraction] | None:
    """A cause's time by its counter at both ends of a piece, in halves of the piece.

    The rise between two reads is of the ends that name the cause, each at most twice as long as
    it stands for; what is more is spread evenly.
    """
    counter = given.limited_ns[cause]
    around = read_around(counter, n)
    if around is None:
        return None
    before, after = around
    ends = [end for k in range(before, after) for end in (k, k + 1)]
    named = Fraction(sum(named_at(given, end, cause) for end in ends) * SPACING_NS, 2)
    total = rise(counter, before, after)
    taken = min(total, 2 * named)
    each = taken / named if named else Fraction(0)
    spread = (total - taken) / ((after - before) * SPACING_NS)
    left, right = (each * named_at(given, end, cause) + spread for end in (n, n + 1))
    return left, right


def even_rise(given: Sampled, n: int, cause: Cause) -> Fraction:
    """What a counter rises by over a piece if it rises evenly between its reads, in pieces."""
    around = read_around(given.limited_ns[cause], n)
    if around is None:
        return Fraction(0)
    before, after = around
    return rise(given.limited_ns[cause], before, after) / ((after - before) * SPACING_NS)


def ends_shares(given: Sampled, n: int) -> tuple[Shares, Shares]:
    """How the loss at sample n and at the next splits, on the piece between them."""
    bits = by_bits(given.causes[n]), by_bits(given.causes[n + 1])
    rises = {cause: even_rise(given, n, cause) for cause in given.limited_ns}
    above = sum((r for cause, r in rises.items() if cause in PROTECTIONS), Fraction(0))
    below = sum((r for cause, r in rises.items() if cause in OUTRANKED), Fraction(0))
    part = min(Fraction(1), max(1 - above, Fraction(0)) / below) if above and below else Fraction(1)
    if all(given.causes[end] & PROTECTIONS for end in (n, n + 1)):
        part = Fraction(0)
    scale = {cause: part if cause in OUTRANKED else Fraction(1) for cause in CAUSES}
    moved = sum((r * scale[cause] for cause, r in rises.items()), Fraction(0))
    if moved < Fraction(5, 100) and not borders(given, n):
        return bits
    if counts_alone(given):
        room = Fraction(1, 10**6)
        bits = tuple(  # type: ignore[assignment]
            {
                cause: share
                * (room if any(named_at(given, end, each) for each in given.limited_ns) else 1)
                for cause, share in mine.items()
            }
            for end, mine in zip((n, n + 1), bits, strict=True)
        )
    counted: dict[Cause, tuple[Fraction, Fraction]] = {}
    for cause in given.limited_ns:
        found = counted_at_ends(given, n, cause)
        if found is not None:
            over = scale[cause] / max(moved, Fraction(1))
            counted[cause] = found[0] * over, found[1] * over
    time = sum((sum(both, Fraction(0)) / 2 for both in counted.values()), Fraction(0))
    return with_rest(bits, counted, max(1 - time, Fraction(0)))


def with_rest(
    bits: tuple[Shares, Shares], counted: dict[Cause, tuple[Fraction, Fraction]], rest: Fraction
) -> tuple[Shares, Shares]:
    """What was counted, and the rest by bits: those that no counter tells of, if there are any."""
    untold = sum(
        (share for end in bits for cause, share in end.items() if cause not in counted), Fraction(0)
    )
    shares: tuple[Shares, Shares] = ({}, {})
    for side in (0, 1):
        for cause in CAUSES:
            mine = bits[side].get(cause, Fraction(0))
            if untold:
                mine *= 0 if cause in counted else 2 * rest / untold
            else:
                mine *= rest
            both = counted.get(cause)
            shares[side][cause] = mine + (both[side] if both else 0)
    return shares


def lost_by_cause(given: Sampled) -> Mapping[Cause, Fraction]:
    """The loss of compute by cause, ns: each end's own deficit by its own causes.

    What counters give more or less than the loss is taken off or added in proportion.
    """
    limit = min(given.limit_mhz or REFERENCE_MHZ, REFERENCE_MHZ)
    user, below = Fraction(0), Fraction(0)
    parts = dict.fromkeys(CAUSES, Fraction(0))
    for n in range(1, len(given.clock_mhz) - 2):
        left, right = given.clock_mhz[n], given.clock_mhz[n + 1]
        lost = deficit(left, right, limit)
        below += lost
        user += deficit(left, right, REFERENCE_MHZ) - lost
        ends = max(limit - left, 0), max(limit - right, 0)
        for share, end in zip(ends_shares(given, n), ends, strict=True):
            for cause, mine in share.items():
                parts[cause] += mine * lost * Fraction(end, sum(ends) or 1)
    whole = sum(parts.values(), Fraction(0))
    if not whole:
        parts[Cause.UNEXPLAINED] = whole = Fraction(1)
    by_cause = {cause: below * part / whole / REFERENCE_MHZ for cause, part in parts.items()}
    by_cause[Cause.USER_LIMIT] += user / REFERENCE_MHZ
    return by_cause


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
