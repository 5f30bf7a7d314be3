"""Find which collective of one rank is which of another: by torch's numbers, else by order.

All ranks are of one host, so that their times are on one clock.
Source: DESIGN.md section 2, "Ranks".
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final, Literal

import numpy as np
from msgspec import Struct

from chopperd.correlate.ranks.collectives import RankCollectives
from chopperd.model.arrays import Bools, Float64s, Int64s, Timed
from chopperd.units import NS_PER_US

#: Ends of one symmetric collective agree within this or this share of its transfer: within 7 us on
#: a node of eight GPUs, while those of neighbouring ones differ by 134 us and more.
_ENDS_APART_NS: Final = 50 * NS_PER_US
_ENDS_APART_SHARE: Final = 0.2
#: torch's numbers are believed for a group where so many of its collectives pass all checks.
_MOST_PASS: Final = 0.9
_MOST_FOUND: Final = 0.5

#: Shifts that are tried in one step, and steps' kinds in which any are: others are left out.
_MOST_SHIFTS: Final = 4
_MOST_REPAIRED: Final = 256
_NEVER: Final = int(np.iinfo(np.int64).max)

MatchedBy = Literal["seq", "order", "mixed"]


class Matches(Struct, frozen=True, kw_only=True):
    """Collectives that all traced ranks of their group have: (k,) each unless noted."""

    # For each rank (n,), the collective that each of its kernels is part of; -1 unmatched
    instance: tuple[Int64s, ...]
    last_start_ns: Int64s  # when the last rank came
    last_rank: Int64s  # the index of that rank
    transfer_ns: Int64s  # shortest duration over the ranks
    is_symmetric: Bools  # whether all its ranks end it together
    lacks_ranks: Bools  # whether ranks of its group have no trace here, or may have none
    matched_by: MatchedBy | None  # None where nothing is matched
    total: int  # number of collectives, matched or not: of each kind the most on any rank

    def __len__(self) -> int:
        return len(self.last_start_ns)


class _Kernels(Timed, frozen=True, kw_only=True):
    """Kernels of all ranks, rank after rank and in order of start: (n,) each."""

    rank: Int64s
    group: Int64s
    name: Int64s  # number of the collective's name; -1 unknown
    shape: Int64s
    size: Int64s  # of the group; 0 unknown
    symmetric: Bools
    comparable: Bools  # whether all ranks of a group take part
    step: Int64s
    seq: Int64s
    comms_id: Int64s


def match(ranks: Sequence[RankCollectives], world_size: int) -> Matches:
    """Match the collectives of the ranks of one job of `world_size` ranks, all on one clock.

    By (group, kind, Seq) in groups whose numbers pass the checks; else by order among those of a
    group and kind in a step, checked by the ends of symmetric ones: where these disagree, a rank is
    shifted by one, or what follows in the step is left out. Where torch writes "Comms Id", which is
    one on all ranks of a collective, those that differ are no match.
    """
    kernels = _kernels(ranks)
    traced = _traced_members(kernels)
    by_seq = _by_seq(kernels, traced)
    has_seq = _trusted(kernels, by_seq, traced)
    by_order = _by_order(kernels, kernels.comparable & ~has_seq & (traced > 1), traced)
    number = np.where(has_seq, by_seq, np.where(by_order >= 0, by_order + len(kernels), -1))
    found = _Instances(kernels, number, traced)
    keep = found.passes
    number = np.where(number >= 0, found.place_of(keep), -1)
    bounds = np.cumsum([0, *(len(each) for each in ranks)])
    seq_used, order_used = (bool((used & (number >= 0)).any()) for used in (has_seq, ~has_seq))
    return Matches(
        instance=tuple(number[a:b] for a, b in pairwise(bounds)),
        last_start_ns=found.last_start_ns[keep],
        last_rank=found.last_rank[keep],
        transfer_ns=found.transfer_ns[keep],
        is_symmetric=found.symmetric[keep],
        lacks_ranks=found.lacks_ranks(world_size)[keep],
        matched_by=_matched_by(by_seq=seq_used, by_order=order_used),
        total=_total(kernels),
    )


def _matched_by(*, by_seq: bool, by_order: bool) -> MatchedBy | None:
    if by_seq and by_order:
        return "mixed"
    return "seq" if by_seq else "order" if by_order else None


def _kernels(ranks: Sequence[RankCollectives]) -> _Kernels:
    names: dict[str, int] = {}
    tables = []
    for rank in ranks:
        rows = [
            (k.group, names.setdefault(k.name, len(names)), k.shape, k.group_size or 0, flags)
            for k in rank.kinds
            for flags in [2 * k.is_symmetric + (not k.is_pairwise)]
        ]
        tables.append(np.array([*rows, (0, -1, 0, 0, 0)], np.int64)[rank.kind])
    facts = np.concatenate([np.empty((0, 5), np.int64), *tables])
    none = np.empty(0, np.int64)
    columns: dict[str, Int64s] = {
        name: np.concatenate([none, *(getattr(each, name) for each in ranks)])
        for name in ("step", "seq", "comms_id", "start_ns", "end_ns")
    }
    return _Kernels(
        rank=np.repeat(np.arange(len(ranks)), [len(each) for each in ranks]),
        group=facts[:, 0],
        name=facts[:, 1],
        shape=facts[:, 2],
        size=facts[:, 3],
        symmetric=facts[:, 4] >= 2,
        comparable=facts[:, 4] % 2 == 1,
        **columns,
    )


def _numbered(*columns: Int64s) -> Int64s:
    """Number the distinct rows of columns from 0, in their order: (n,) int64."""
    if not len(columns[0]):
        return np.empty(0, np.int64)
    order = np.lexsort(columns[::-1])
    new = np.zeros(len(order), np.int64)
    for column in columns:
        new[1:] |= column[order][1:] != column[order][:-1]
    numbers = np.empty(len(order), np.int64)
    numbers[order] = np.cumsum(new)
    return numbers


def _nth(*columns: Int64s) -> Int64s:
    number = _numbered(*columns)
    order = np.argsort(number, kind="stable")
    first = np.flatnonzero(np.diff(number[order], prepend=-1))
    nth = np.empty(len(number), np.int64)
    nth[order] = np.arange(len(order)) - np.repeat(first, np.diff(first, append=len(order)))
    return nth


def _traced_members(kernels: _Kernels) -> Int64s:
    """Return for each kernel how many ranks have kernels of its group: (n,) int64."""
    group = _numbered(kernels.group)
    pairs = np.unique(np.stack((group, kernels.rank)), axis=1)
    return np.bincount(pairs[0], minlength=1)[group]


def _by_seq(kernels: _Kernels, traced: Int64s) -> Int64s:
    """Number kernels of one group, kind and Seq alike; -1 without a Seq.

    An operator that launches several kernels gives all of them one Seq: these are counted.
    """
    known = np.flatnonzero(kernels.comparable & (kernels.seq >= 0) & (traced > 1))
    keys = kernels.group[known], kernels.name[known], kernels.seq[known]
    number = np.full(len(kernels), -1, np.int64)
    number[known] = _numbered(*keys, _nth(kernels.rank[known], *keys))
    return number


def _trusted(kernels: _Kernels, number: Int64s, traced: Int64s) -> Bools:
    """Whether the Seq of a kernel's group is believed: (n,) bool.

    Of the group all kernels have one, most are found on all its traced ranks, and most of those
    pass the checks. (Numbers of some back ends count per process.)
    """
    found = _Instances(kernels, number, traced)
    group = _numbered(kernels.group)
    count = group.max(initial=-1) + 1
    of_instance = np.full(len(found), -1, np.int64)
    of_instance[number[number >= 0]] = group[number >= 0]
    passing = np.bincount(of_instance[found.passes], minlength=count)
    full = np.bincount(of_instance[found.full], minlength=count)
    every = kernels.comparable
    most = np.zeros(count, np.int64)
    pair = group * (kernels.rank.max(initial=0) + 1) + kernels.rank
    np.maximum.at(most, group[every], np.bincount(pair[every], minlength=1)[pair[every]])
    lacking = np.bincount(group[every & (number < 0)], minlength=count)
    enough = (passing >= _MOST_PASS * full) & (full >= _MOST_FOUND * most) & (full > 0)
    believed: Bools = (enough & (lacking == 0))[group] & every
    return believed


class _Instances:
    """Kernels of one number each, `numbers` rising: their checks and sums; (k,) columns.

    `number`: (n,) of each kernel; -1 none. `traced`: (n,), how many ranks of its group are traced.
    """

    def __init__(self, kernels: _Kernels, number: Int64s, traced: Int64s) -> None:
        rows = np.flatnonzero(number >= 0)
        rows = rows[np.argsort(number[rows], kind="stable")]
        first = np.flatnonzero(np.diff(number[rows], prepend=-1))
        self._rows, self._first, self._number = rows, first, number
        self.numbers = number[rows[first]]
        self._size = kernels.size[rows[first]]
        self._traced = traced[rows[first]]
        self.symmetric = kernels.symmetric[rows[first]]
        start_ns, end_ns, shape = (
            column[rows] for column in (kernels.start_ns, kernels.end_ns, kernels.shape)
        )
        self.last_start_ns = self._over(np.maximum, start_ns)
        self.transfer_ns = self._over(np.minimum, end_ns - start_ns)
        count = np.diff(first, append=len(rows))
        late = start_ns == np.repeat(self.last_start_ns, count)
        # Of several that came last the first.
        self.last_rank = self._over(np.minimum, np.where(late, kernels.rank[rows], _NEVER))
        self.full = count == self._traced
        apart_ns = self._over(np.maximum, end_ns) - self._over(np.minimum, end_ns)
        alike = self._over(np.maximum, shape) == self._over(np.minimum, shape)
        agree = (apart_ns <= _tolerance_ns(self.transfer_ns)) & alike
        comms_id = kernels.comms_id[rows]
        least = self._over(np.minimum, np.where(comms_id == -1, _NEVER, comms_id))
        is_one = self._over(np.maximum, np.where(comms_id == -1, ~_NEVER, comms_id)) <= least
        self.passes: Bools = self.full & (agree | ~self.symmetric) & is_one

    def __len__(self) -> int:
        return int(self._number.max(initial=-1)) + 1

    def _over(self, ufunc: np.ufunc, values: Int64s) -> Int64s:
        if not len(self._first):
            return np.empty(0, np.int64)
        return ufunc.reduceat(values, self._first)

    def place_of(self, kept: Bools) -> Int64s:
        """Return each kernel's place among the instances that are kept, -1 for others: (n,)."""
        place = np.where(kept, np.cumsum(kept) - 1, -1)
        of_number = np.full(len(self) + 1, -1, np.int64)
        of_number[self.numbers] = place
        return of_number[self._number]

    def lacks_ranks(self, world_size: int) -> Bools:
        """Whether ranks of the group have no trace; where its size is unknown, whether any have."""
        return self._traced < np.where(self._size > 0, self._size, world_size)


def _tolerance_ns(transfer_ns: Int64s | Float64s) -> Float64s:
    return np.maximum(_ENDS_APART_NS, _ENDS_APART_SHARE * transfer_ns)


def _total(kernels: _Kernels) -> int:
    """Count collectives that are or could be compared: of each kind the most on any rank."""
    counted = np.flatnonzero(kernels.comparable | (kernels.name < 0))
    kind = _numbered(kernels.group[counted], kernels.name[counted])
    nth = _nth(kernels.rank[counted], kind)
    most = np.zeros(kind.max(initial=-1) + 1, np.int64)
    np.maximum.at(most, kind, nth + 1)
    return int(most.sum())


# Matching by order.


def _by_order(kernels: _Kernels, wanted: Bools, traced: Int64s) -> Int64s:
    """Number kernels alike that are the same one, in order, of a group and kind in a step; else -1.

    `wanted`: (n,), which to number. `traced`: (n,), how many ranks of its group are traced.
    """
    rows = np.flatnonzero(wanted)
    block = _numbered(kernels.group[rows], kernels.name[rows], kernels.step[rows])
    nth = _nth(kernels.rank[rows], block)
    number = np.full(len(kernels), -1, np.int64)
    number[rows] = _numbered(block, nth)
    found = _Instances(kernels, number, traced)
    bad = np.zeros(len(found) + 1, np.bool_)
    bad[found.numbers] = ~found.passes
    wrong = np.unique(block[bad[number[rows]]])
    for at in _blocks(block, wrong[:_MOST_REPAIRED]):
        nth[at] = _repaired(kernels, rows[at], nth[at])
    nth[np.isin(block, wrong[_MOST_REPAIRED:])] = -1
    kept = nth >= 0
    number[rows] = -1
    number[rows[kept]] = _numbered(block[kept], nth[kept])
    return number


def _blocks(block: Int64s, wanted: Int64s) -> Iterator[Int64s]:
    order = np.argsort(block, kind="stable")
    first = np.searchsorted(block[order], wanted, "left")
    last = np.searchsorted(block[order], wanted, "right")
    for a, b in zip(first.tolist(), last.tolist(), strict=True):
        yield np.sort(order[a:b])


def _repaired(kernels: _Kernels, rows: Int64s, nth: Int64s) -> Int64s:
    """Return the numbers of a block's kernels in order, shifted where ends say so; -1 left out.

    Kernels whose ends need not agree can't be checked: all are left out if the ranks have
    different numbers of them.
    """
    if not kernels.symmetric[rows[0]]:
        counts = np.unique(np.unique(kernels.rank[rows], return_counts=True)[1])
        return nth if len(counts) == 1 else np.full(len(rows), -1, np.int64)
    ranks, rank = np.unique(kernels.rank[rows], return_inverse=True)
    start_ns, end_ns = kernels.start_ns[rows], kernels.end_ns[rows]
    return _Shifting(len(ranks), rank, start_ns, end_ns, nth).solved()


class _Shifting:
    """Aligns ranks' symmetric collectives of one kind in one step by their ends.

    `nth`: (n,), its place among its rank's.
    """

    def __init__(
        self, ranks: int, rank: Int64s, start_ns: Int64s, end_ns: Int64s, nth: Int64s
    ) -> None:
        self._ranks, self._rank, self._nth = ranks, rank, nth.copy()
        base_ns = int(start_ns.min())
        self._end_ns = (end_ns - base_ns).astype(np.float64)
        self._length_ns = (end_ns - start_ns).astype(np.float64)

    def solved(self) -> Int64s:
        """Return the places after all shifts, -1 for kernels left out."""
        for _ in range(_MOST_SHIFTS):
            first = self._run(self._nth, 0)
            if first == _NEVER:
                return self._nth
            best = max(self._shifts(first), key=lambda nth: self._run(nth, first))
            if self._run(best, first) == first:
                break
            self._nth = best
        self._nth[self._nth >= self._run(self._nth, 0)] = -1
        return self._nth

    def _matrix(self, values: Float64s, nth: Int64s) -> Float64s:
        matrix = np.full((int(nth.max(initial=0)) + 2, self._ranks), np.nan)
        there = nth >= 0
        matrix[nth[there], self._rank[there]] = values[there]
        return matrix

    def _agree(self, nth: Int64s) -> Bools:
        """Whether the ends at each place agree; also where fewer than two ranks have one."""
        ends_ns = self._matrix(self._end_ns, nth)
        lengths_ns = self._matrix(self._length_ns, nth)
        apart_ns = np.fmax.reduce(ends_ns, axis=1) - np.fmin.reduce(ends_ns, axis=1)
        agree: Bools = ~(apart_ns > _tolerance_ns(np.fmin.reduce(lengths_ns, axis=1)))
        return agree

    def _run(self, nth: Int64s, first: int) -> int:
        """Return the place before which all ends from `first` on agree."""
        wrong = np.flatnonzero(~self._agree(nth)[first:])
        return first + int(wrong[0]) if len(wrong) else _NEVER

    def _shifts(self, first: int) -> Iterator[Int64s]:
        """Yield the places with each rank shifted by one from `first` on, to either side."""
        for rank in range(self._ranks):
            mine = (self._rank == rank) & (self._nth >= first)
            yield np.where(mine, self._nth + 1, self._nth)
            earlier = np.where(self._nth == first, -1, self._nth - 1)
            yield np.where(mine, earlier, self._nth)
