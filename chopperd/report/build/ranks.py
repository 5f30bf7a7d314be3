"""The members of a process group in a few characters, from the list that a trace has."""

import re
from typing import Final

_RANK: Final = re.compile(r"\b\d{1,9}\b")
_CUT_OFF: Final = re.compile(r"\.\.\.\s*\]?\s*$")
#: Of a list of ranks, how many are read, and how many stretches of them are named.
_READ: Final = 1 << 16
_STRETCHES: Final = 8


def ranks_in_short(text: str) -> str | None:
    """Ranks as a trace lists them, "[0, 8, 16, 24, 3]", in short: "0-24 by 8, 3"; None without any.

    What is left out, by the trace or for length, is "...".

    Source: "Process Group Ranks" of communication kernels, of which torch leaves out what goes
        beyond its 30th entry.
    """
    ranks = [int(found[0]) for found, _ in zip(_RANK.finditer(text), range(_READ), strict=False)]
    stretches: list[str] = []
    at = 0
    while at < len(ranks) and len(stretches) < _STRETCHES:
        last = _last_of_stretch(ranks, at)
        stretches.append(_stretch(ranks[at], ranks[last], ranks[min(at + 1, last)]))
        at = last + 1
    if at < len(ranks) or (ranks and _CUT_OFF.search(text)):
        stretches.append("...")
    return ", ".join(stretches) or None


def _last_of_stretch(ranks: list[int], at: int) -> int:
    """Where the ranks that rise evenly from one on end; at it, where they are fewer than three."""
    end = at + 1
    while end < len(ranks) and ranks[end] - ranks[end - 1] == ranks[at + 1] - ranks[at] > 0:
        end += 1
    return end - 1 if end - at > 2 else at


def _stretch(first: int, last: int, second: int) -> str:
    if first == last:
        return f"{first}"
    return f"{first}-{last}" if second == first + 1 else f"{first}-{last} by {second - first}"
