"""Align the requests of two steps: the longest common subsequence, with most equal addresses.

What a request is worth, and which steps are compared, is not known here.

Source: DESIGN.md section 2, "FSDP and memory"; the band is Ukkonen's (Algorithms for approximate
string matching, 1985).
"""

from typing import Final, NamedTuple

import numpy as np
from msgspec import Struct

from chopperd.model.arrays import Bools, Int64s, Ints

_MIB: Final = 1 << 20
#: Rows of the table of alignments cost as much as so many of their cells.
_ROW_CELLS: Final = 4000
_FIRST_BAND: Final = 16
#: Bytes or so of what each size matches that are kept at a time.
_MOST_KEPT: Final = 1 << 23


class Requests(Struct, frozen=True, kw_only=True):
    """Allocations and frees of one step in order, (n,) each.

    `size`: signed bytes, a free's below 0. `address`: -1 unknown. `is_block`: whether sizes are
    those of blocks, which keep up to 1 MiB unsplit, and not what was asked for.
    """

    size: Int64s
    address: Int64s
    is_block: bool

    def __len__(self) -> int:
        return len(self.size)

    @property
    def has_addresses(self) -> bool:
        """Whether all addresses are known."""
        return bool((self.address >= 0).all())

    def range_of(self) -> tuple[Int64s, Int64s]:
        """Return the least and largest signed size that matches each, both included, (n,) each."""
        slack = np.where((np.abs(self.size) > _MIB) & self.is_block, _MIB, 0)
        low, high = self.size - slack, self.size + slack
        least = _MIB + 1
        low[slack > 0] = np.where(self.size > 0, np.maximum(low, least), low)[slack > 0]
        high[slack > 0] = np.where(self.size < 0, np.minimum(high, -least), high)[slack > 0]
        return low, high


class Alignment(NamedTuple):
    """Aligned pairs of two steps, and those of them at the same address."""

    pairs: int
    same: int
    cells: int  # work that it took


def align(a: Requests, b: Requests, most_cells: int) -> Alignment | None:
    """Return the longest alignment of two steps with the most equal addresses; None if too long.

    Two sizes match when equal; of blocks also when both exceed 1 MiB, have one sign and differ by
    at most that. Pairs at the ends that match as well as can be belong to a best alignment.
    Between these a table is filled in a band around its diagonal: an alignment that leaves a band
    of half width k skips more than k requests of the shorter step, so a longer one inside is best.

    `most_cells`: of work.
    """
    if len(a) > len(b):
        a, b = b, a
    low, high = a.range_of()
    if len(a) == len(b):
        matched = _match(low, high, b.size)
        if matched.all():  # only by position are all aligned
            return Alignment(len(a), int((a.address == b.address).sum()), len(a))
    first, last = _ends(a, b, low, high)
    inner = slice(first, len(a) - last), slice(first, len(b) - last)
    low, high, near = low[inner[0]], high[inner[0]], a.address[inner[0]]
    size, address = b.size[inner[1]], b.address[inner[1]]
    half, cells = max(_FIRST_BAND, 2 * _without_equal(a.size, b.size)), 0
    while len(low):
        half = min(half, len(low))
        width = len(size) - len(low) + 2 * half + 1
        cells += len(low) * (width + _ROW_CELLS)
        if cells > most_cells:
            return None
        pairs, same = _banded(low, high, near, size, address, half)
        missing = len(low) - pairs
        if half >= missing:
            return Alignment(first + last + pairs, first + last + same, cells)
        half = min(missing, 4 * half)
    return Alignment(first + last, first + last, cells)


def _match(low: Int64s, high: Int64s, size: Int64s) -> Bools:
    matched: Bools = (low <= size) & (size <= high)
    return matched


def _ends(a: Requests, b: Requests, low: Int64s, high: Int64s) -> tuple[int, int]:
    """Count the leading and trailing pairs of equal address that match; `a` is the shorter."""
    count = len(a)
    ahead = _match(low, high, b.size[:count]) & (a.address == b.address[:count])
    first = count if ahead.all() else int(np.argmin(ahead))
    behind = _match(low, high, b.size[len(b) - count :])
    behind &= a.address == b.address[len(b) - count :]
    back = behind[first:][::-1]
    return first, len(back) if back.all() else int(np.argmin(back))


def _without_equal(a: Int64s, b: Int64s) -> int:
    """Count the sizes, of large ones the whole MiB, that one step has more often than the other.

    A guess at how many requests of `a` stay unpaired.
    """
    coarse = [np.where(np.abs(each) > _MIB, each // _MIB * _MIB, each) for each in (a, b)]
    place = np.unique(np.concatenate(coarse), return_inverse=True)[1]
    count = np.bincount(place[: len(a)], minlength=len(place))
    count -= np.bincount(place[len(a) :], minlength=len(place))
    return int(np.maximum(count, 0).sum())


def _banded(
    low: Int64s, high: Int64s, near: Int64s, size: Int64s, address: Int64s, half: int
) -> tuple[int, int]:
    """Return pairs and equal addresses of the best alignment within a band.

    Row i of the table is for the first i requests of the shorter step; its columns go from `half`
    before the diagonal to `half` behind the longer step's. A pair is worth so much that no number
    of equal addresses, worth 1 each, outweighs it.

    `low`, `high`, `near`: (n,), of the shorter step. `size`, `address`: (m,), of the other.
    """
    pair = len(low) + 1
    width = len(size) - len(low) + 2 * half + 1
    whole = np.dtype(np.int32 if pair * pair < 1 << 31 else np.int64)
    known, code = np.unique(size, return_inverse=True)  # small numbers are compared faster
    low, high = np.searchsorted(known, low, "left"), np.searchsorted(known, high, "right")
    codes = np.pad(code.astype(np.int32), half, constant_values=-1)
    numbers = np.unique(np.concatenate((near, address)), return_inverse=True)[1].astype(np.int32)
    places = np.pad(numbers[len(near) :], half, constant_values=-1)
    best, worth = np.zeros(width + 1, whole), np.empty(width, whole)
    same = np.empty(width, np.bool_)
    known_matches: dict[tuple[int, int], tuple[Bools, Ints]] = {}
    rows = zip(low.tolist(), high.tolist(), numbers.tolist(), strict=False)
    for row, (least, beyond, at) in enumerate(rows):
        if (least, beyond) not in known_matches:
            if len(known_matches) * len(codes) > _MOST_KEPT:
                known_matches.clear()
            every = (codes >= least) & (codes < beyond)
            known_matches[least, beyond] = every, np.multiply(every, pair, dtype=whole)
        matched, worths = known_matches[least, beyond]
        np.add(worths[row : row + width], best[:-1], out=worth)
        np.equal(places[row : row + width], at, out=same)
        same &= matched[row : row + width]
        np.add(worth, same, out=worth)
        np.maximum(worth, best[1:], out=worth)
        np.maximum.accumulate(worth, out=best[:-1])
    pairs, equal = divmod(int(best[width - 1 - half]), pair)
    return pairs, equal
