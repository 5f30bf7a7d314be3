"""Split lost clock by cause: standing limits first, then driver counters, then reason bits."""

from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np
from msgspec import Struct

from chopperd.correlate.clock.signal import ClassClock
from chopperd.model import kinds
from chopperd.model.arrays import Bools, Float64s, Int64s
from chopperd.model.samples import GpuSamples
from chopperd.plausible import most_limited_ns

#: A cause whose counter rose by less of a piece was not in force there.
MIN_COUNTER_SHARE: Final = 0.05
#: A counter that rises by more of a piece is updated less often than it is read: it does not
#: count for the piece next to that one.
_MOST_OF_PIECE: Final = 1.5
#: A sample represents half of the piece on either side of it: a cause that one end of a piece
#: names, and that was counted for all of it, has twice that end's loss. What was counted beyond
#: that, the samples did not see.
_MOST_PER_END: Final = 2.0
#: What a sample without a reason weighs in the rest of a piece, where counters name its cause.
_EXPLAINED: Final = 1e-6
#: An idle GPU that is no warmer is under no limit of its own power or temperature.
_COOL_C: Final = 50.0
_MIN_IDLE_SAMPLES: Final = 5
_OF_LOAD: Final = (kinds.Cause.POWER_CAP, kinds.Cause.THERMAL, kinds.Cause.HW_THERMAL)
#: Shares that differ by less are the same.
_LEAST: Final = 1e-9


def bit_shares(causes: Int64s) -> Float64s:
    """Split the loss at each sample evenly over the limits reported there: (n, causes), rows sum 1.

    Hardware protections outrank other bits (`ranked`); no bit is `unexplained`.

    `causes`: (n,) bit sets of `Cause`.

    Source: DESIGN.md section 2, "Cause".
    """
    causes = kinds.ranked(causes)
    shares = np.zeros((len(causes), len(kinds.CAUSES)))
    for cause in kinds.REPORTED_CAUSES:
        shares[:, cause] = (causes & cause.bit) != 0
    total = shares.sum(axis=1, keepdims=True)
    shares[:, kinds.Cause.UNEXPLAINED] = total[:, 0] == 0
    even: Float64s = shares / np.maximum(total, 1.0)
    return even


class EndShares(Struct, frozen=True, kw_only=True):
    """Share of each cause in the loss at the two samples that a piece's line joins, (m, causes).

    A counted cause's time is split over the ends, so that a row of one end may not sum to 1; over a
    window the causes are scaled to its loss. Each cause's column is contiguous in memory.
    """

    left: Float64s
    right: Float64s

    @classmethod
    def by_bits(cls, by_bits: Float64s, ends: tuple[Int64s, Int64s]) -> "EndShares":
        """Build the shares from rows of `by_bits`, given the row of each piece's two ends, (m,)."""
        shares = cls(left=_columns(len(ends[0])), right=_columns(len(ends[0])))
        for column in np.flatnonzero(by_bits.any(axis=0)):
            shares.left[:, column] = by_bits[ends[0], column]
            shares.right[:, column] = by_bits[ends[1], column]
        return shares


class _Counted(Struct, kw_only=True):
    """One cause's counter over the pieces: (m,) whether it was read, and its `EndShares`."""

    is_read: Bools
    left: Float64s
    right: Float64s


def end_shares(
    clock: ClassClock, causes: Int64s, limited_ns: Mapping[kinds.Cause, Float64s]
) -> EndShares:
    """Split the loss at both ends of each piece of the clock by cause.

    The reason bits of the samples that the piece's line joins decide. Where the driver's cumulative
    counters moved by at least 5 % of the piece's length, a cause that is counted has the time that
    its counter rose by, at the ends that name it (at both where neither does), and the bits split
    the rest. A piece with a cause at one end alone goes by its counter however little that rose
    there, if it counts in a piece next to this one. Where no sample has a reason, counters name
    them.

    `clock`: m pieces over n = m + 1 samples. `causes`: (n,) bit sets. `limited_ns`: (n,) cumulative
    counters by cause; NaN where not read.

    Source: DESIGN.md section 2, "Cause".
    """
    # Few bit sets occur, and most causes not at all: only columns that hold something are filled.
    sets = np.unique(causes)
    of_sample = np.searchsorted(sets, causes)  # faster than `return_inverse`, which sorts
    by_bits = bit_shares(sets)
    samples = clock.left_sample, clock.right_sample
    ends = of_sample[samples[0]], of_sample[samples[1]]
    shares = EndShares.by_bits(by_bits, ends)
    length_ns = np.diff(clock.edges_ns).astype(np.float64)
    risen_ns = counter_increments(limited_ns, clock.edges_ns)
    by_counters = {}
    if not (sets & ~kinds.Cause.UNKNOWN.bit).any():
        by_counters = named_by_counters(risen_ns, length_ns, limited_ns)
    named = {
        cause: [by_counters[cause][at] for at in samples]
        if by_counters
        else [by_bits[end, cause] > 0 for end in ends]
        for cause in limited_ns
    }
    counted = {
        cause: _counted(counter, clock.edges_ns, named[cause])
        for cause, counter in limited_ns.items()
    }
    is_read = {cause: each.is_read for cause, each in counted.items()}
    at_border = counts_at_border(risen_ns / length_ns[:, np.newaxis], is_read, named)
    is_held = kinds.has_protection(sets) != 0
    left_to_others = _left_to_outranked(risen_ns, length_ns, is_held[ends[0]] & is_held[ends[1]])
    for cause in kinds.OUTRANKED:
        risen_ns[:, cause] *= left_to_others
    moved_ns = risen_ns.sum(axis=1)
    some = (moved_ns >= MIN_COUNTER_SHARE * length_ns) & (moved_ns > 0) | at_border
    if some.any():
        for cause in set(counted).intersection(kinds.OUTRANKED):
            counted[cause].left *= left_to_others
            counted[cause].right *= left_to_others
        if by_counters:
            explained = np.logical_or.reduce(list(by_counters.values()))
            _make_room(shares, [some & explained[at] for at in samples])
        _count_in(shares, counted, some, np.maximum(moved_ns / length_ns, 1.0))
    return shares


def _make_room(shares: EndShares, explained: list[Bools]) -> None:
    """Scale unexplained and unknown shares to near 0 at the ends whose cause counters name."""
    for end, at in zip((shares.left, shares.right), explained, strict=True):
        for cause in (kinds.Cause.UNEXPLAINED, kinds.Cause.UNKNOWN):
            end[at, cause] *= _EXPLAINED


def _counted(counter: Float64s, t_ns: Int64s, named: list[Bools]) -> _Counted:
    """Split a counter's time over the ends that name its cause, as shares of half a piece.

    Between two reads of the counter its rise belongs to the ends that name the cause there, up to
    twice their time; what is beyond, or where none does, is spread evenly. `counter`: (n,), NaN
    where not read. `named`: of the left and the right ends, (m,).
    """
    read = np.flatnonzero(np.isfinite(counter))
    interval = np.searchsorted(read, np.arange(len(t_ns) - 1), "right") - 1
    is_read = (interval >= 0) & (interval < len(read) - 1)
    if len(read) < 2:
        none = np.zeros((2, len(is_read)))
        return _Counted(is_read=is_read, left=none[0], right=none[1])
    named_ns = np.diff(t_ns) * (named[0].astype(np.float64) + named[1]) / 2
    until_ns = np.concatenate(([0.0], np.cumsum(named_ns)))[read]
    apart_ns, at_most_ns = np.diff(t_ns[read]), _MOST_PER_END * np.diff(until_ns)
    rise_ns = _risen(counter[read], apart_ns)
    taken_ns = np.minimum(rise_ns, at_most_ns)
    scale = np.divide(taken_ns, at_most_ns, out=np.zeros(len(taken_ns)), where=at_most_ns > 0)
    at = np.clip(interval, 0, len(apart_ns) - 1)
    per_end = np.where(is_read, _MOST_PER_END * scale[at], 0.0)
    spread = np.where(is_read, ((rise_ns - taken_ns) / apart_ns)[at], 0.0)
    return _Counted(
        is_read=is_read, left=per_end * named[0] + spread, right=per_end * named[1] + spread
    )


def _left_to_outranked(risen_ns: Float64s, length_ns: Float64s, held: Bools) -> Float64s:
    """Compute what fraction of outranked causes' counted time hardware protections leave, (m,).

    `risen_ns`: (m, causes), what the counters rose by. `held`: (m,), whether a protection is set at
    both ends of a piece.
    """
    above_ns, below_ns = (
        risen_ns[:, list(some)].sum(axis=1) for some in (kinds.PROTECTIONS, kinds.OUTRANKED)
    )
    room_ns = np.where(above_ns > 0, np.maximum(length_ns - above_ns, 0.0), below_ns)
    room_ns[held] = 0.0
    part = np.divide(room_ns, below_ns, out=np.ones(len(held)), where=below_ns > 0)
    at_most: Float64s = np.minimum(part, 1.0)
    return at_most


def _count_in(
    shares: EndShares, counted: Mapping[kinds.Cause, _Counted], some: Bools, over: Float64s
) -> None:
    """Replace the shares of `some` pieces, in place, by what was counted; the bits split the rest.

    That goes to causes without a counter there, where one is in force or none at all, else by the
    bits. `over`: (m,), by how much more than a piece's length was counted in it.
    """
    none = np.zeros(len(some))
    time = sum(((each.left + each.right) / 2 for each in counted.values()), none) / over
    by_read = sum(
        (
            (shares.left[:, cause] + shares.right[:, cause]) * each.is_read
            for cause, each in counted.items()
        ),
        none,
    )
    whole = shares.left.sum(axis=1) + shares.right.sum(axis=1)
    rest, by_unread = np.maximum(1.0 - time, 0.0), whole - by_read
    has_unread = by_unread > _LEAST
    to_unread = np.divide(2.0 * rest, by_unread, out=none, where=has_unread)
    to_read = np.where(has_unread, 0.0, rest)
    scale = np.where(some, to_unread, 1.0)
    for end in (shares.left, shares.right):
        for cause in set(kinds.CAUSES).difference(counted):
            end[:, cause] *= scale
    for cause, each in counted.items():
        to_cause = np.where(each.is_read, to_read, to_unread)
        for end, by_count in ((shares.left, each.left), (shares.right, each.right)):
            by_both = end[:, cause] * to_cause + by_count / over
            np.copyto(end[:, cause], by_both, where=some)


def _columns(count: int) -> Float64s:
    return np.zeros((count, len(kinds.CAUSES)), order="F")


def counter_increments(limited_ns: Mapping[kinds.Cause, Float64s], t_ns: Int64s) -> Float64s:
    """Compute by how many ns each counter rose between neighbouring samples: (m, causes) float64.

    Between reads it is taken as linear; a counter that fell, or rose by more than time passed, adds
    nothing there, nor does it outside its first and last read.
    """
    rise = _columns(max(len(t_ns) - 1, 0))
    for cause, counter in limited_ns.items():
        read = np.isfinite(counter)
        if read.sum() < 2 or not len(rise):
            continue
        counted_ns = np.append(0.0, np.cumsum(_risen(counter[read], np.diff(t_ns[read]))))
        rise[:, cause] = np.diff(np.interp(t_ns, t_ns[read], counted_ns))
    return rise


def _risen(counter_ns: Float64s, apart_ns: Int64s) -> Float64s:
    """Return by how many ns a counter rose between reads `apart_ns` apart; 0 where implausible."""
    risen_ns = np.diff(counter_ns)
    is_measured = risen_ns <= most_limited_ns(apart_ns.astype(np.float64))
    return np.where(is_measured, np.maximum(risen_ns, 0.0), 0.0)


def edge_weights(
    clock: ClassClock, shares: EndShares, level_mhz: float
) -> tuple[Float64s, Float64s]:
    """Compute each cause's share of the deficit at each piece's start and end: (m, causes) twice.

    On the line that a piece is part of, the loss of a cause is linear from its part of the left
    sample's deficit to its part of the right sample's.
    """
    edges_ns = clock.edges_ns
    start_ns = edges_ns[clock.left_sample]
    length_ns = np.maximum(edges_ns[clock.right_sample] - start_ns, 1)
    at_mhz = np.append(clock.left_mhz, np.nan)
    at_mhz[1:] = np.where(np.isfinite(at_mhz[1:]), at_mhz[1:], clock.right_mhz)
    below = np.nan_to_num(np.maximum(level_mhz - at_mhz, 0.0))
    weights = []
    for edge_ns in (edges_ns[:-1], edges_ns[1:]):
        way = (edge_ns - start_ns) / length_ns
        left, right = below[clock.left_sample] * (1.0 - way), below[clock.right_sample] * way
        both = left + right
        from_left = np.divide(left, both, out=1.0 - way, where=both > 0)[:, np.newaxis]
        weights.append(_mixed(shares, from_left))
    return weights[0], weights[1]


def _mixed(shares: EndShares, from_left: Float64s) -> Float64s:
    """Mix both ends' shares, the left weighted by `from_left`, (m, 1), the right by the rest."""
    if (from_left == 1.0).all():
        return shares.left
    if (from_left == 0.0).all():
        return shares.right
    mixed = _columns(len(from_left))
    np.subtract(shares.left, shares.right, out=mixed)
    mixed *= from_left
    mixed += shares.right
    return mixed


def named_by_counters(
    risen_ns: Float64s, length_ns: Float64s, causes: Iterable[kinds.Cause]
) -> dict[kinds.Cause, Bools]:
    """Find the samples at which each cause was in force by its counter: (n,) bool for each cause.

    It is in force where on both sides its counter rose by more than any other cause's and by more
    than the time that no cause counted; at the ends one side decides. Empty if no counter rose.
    `risen_ns`: (m, causes), what the counters rose by between n = m + 1 samples.
    """
    if not risen_ns.any():
        return {}
    nothing = np.maximum(length_ns - risen_ns.sum(axis=1), 0.0)
    ratio = np.column_stack((risen_ns, nothing)) / length_ns[:, np.newaxis]
    both_sides = np.minimum(np.vstack((ratio[:1], ratio)), np.vstack((ratio, ratio[-1:])))
    most = both_sides.max(axis=1)
    at_most = (most > 0) & (most * (1.0 - _LEAST) <= both_sides.T)
    return {cause: at_most[cause] for cause in causes}


def counts_at_border(
    ratio: Float64s, is_read: Mapping[kinds.Cause, Bools], named: Mapping[kinds.Cause, list[Bools]]
) -> Bools:
    """Find pieces where a cause is at one end alone and its counter rises next to them: (m,) bool.

    There the counter is right however little it rose: reason bits would give the cause half of a
    piece of which it had less than 5 %, and never take half of one of which it had all but that.
    That alone biased a cause's share by up to 2.8 points where limits change each 0.3 s at 10 Hz.

    `ratio`: (m, causes), what the counters rose by over the pieces' lengths. `is_read`: whether
    each cause's counter was read around a piece. `named`: of each cause with a counter the left and
    the right ends at which it is in force.
    """
    found = np.zeros(len(ratio), bool)
    for cause, (left, right) in named.items():
        of_cause = ratio[:, cause]
        counts = (of_cause >= MIN_COUNTER_SHARE) & (of_cause <= _MOST_OF_PIECE)
        next_to = np.append(False, counts[:-1]) | np.append(counts[1:], False)
        found |= (left ^ right) & next_to & is_read[cause]
    return found


def false_causes(samples: GpuSamples) -> int:
    """Return the bit set of limits that mean nothing, as they are also set while idle and cool.

    On Navi 48 the hotspot's bit is set at all times. At least five idle and cool samples are
    needed (else 0), more than half with the bit. Only power and temperature limits are judged:
    brakes and slowdowns from outside may be in force on an idle GPU.
    """
    activity, bit = samples.activity_ratio, kinds.Cause.LOW_UTILIZATION.bit
    idle = (activity == 0) | (((samples.causes & bit) != 0) & ~(activity > 0))
    causes = samples.causes[idle & (samples.temperature_c <= _COOL_C)]
    if len(causes) < _MIN_IDLE_SAMPLES:
        return 0
    return sum(c.bit for c in _OF_LOAD if np.count_nonzero(causes & c.bit) > len(causes) / 2)
