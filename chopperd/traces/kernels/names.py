"""Questions about interned names, answered once a name instead of once a row."""

import re
import zlib
from collections.abc import Iterable
from typing import Final

import numpy as np

from chopperd.model.arrays import Bools, Int32s

#: Characters of a name that a report has, whatever a trace calls things.
LONGEST_NAME: Final = 200

_LONGEST_SEARCHED: Final = 1 << 13


def bounded(name: str) -> str:
    """The name, cut where it is longer than `LONGEST_NAME`, a checksum telling it from its like.

    The middle is left out: paths of modules differ at their ends.
    """
    if len(name) <= LONGEST_NAME:
        return name
    half = LONGEST_NAME // 2
    return f"{name[:half]}~{checksum(name)}~{name[-half:]}"


def checksum(text: str) -> str:
    """Eight digits that tell long names apart."""
    return f"{zlib.crc32(text.encode('utf-8', 'surrogatepass')):08x}"


def names_matching(names: tuple[str, ...], pattern: re.Pattern[str]) -> Bools:
    """Which names the pattern is found in: (len(names),) bool, to be indexed by a name column.

    Of names that are longer than any that people or compilers give, the beginning counts.
    """
    found = (pattern.search(name, 0, _LONGEST_SEARCHED) is not None for name in names)
    return np.fromiter(found, np.bool_, count=len(names))


def any_of(patterns: Iterable[str]) -> re.Pattern[str]:
    """One pattern, found where any of the given ones is, in any case; none: found nowhere."""
    return re.compile("|".join(f"(?:{pattern})" for pattern in patterns) or r"(?!)", re.IGNORECASE)


def used_names(column: Int32s, count: int) -> Int32s:
    """The name indices that occur in a column, rising; `count` is the number of names."""
    return np.flatnonzero(np.bincount(column, minlength=count)).astype(np.int32)
