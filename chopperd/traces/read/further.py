"""Events of a file that stand behind its event array: in a second list, or in a second document.

JSON lets a key be there twice and does not say which counts; files put one behind the other hold
two documents. One list is read; of the others it is told how many events they have.
"""

from typing import Final

from chopperd.traces.read.document import find_opening
from chopperd.traces.read.event_array import event_array
from chopperd.traces.read.rows import TraceRows

_LISTS_COUNTED: Final = 8
"""More are not looked for: each costs a look at all that is left."""
_FIRST_PIECE_BYTES: Final = 1 << 12
_PIECE_BYTES: Final = 1 << 20
_BEFORE: Final = b'{"":[]'
"""With it before them, keys that follow a list are a document."""


def further_events(tail: bytes, *, native: bool = True) -> int:
    """How many events stand in the first few lists behind the event array.

    Args:
        tail: What follows the array.
        native: Whether the scanner in C may be used.
    """
    count = 0
    for _ in range(_LISTS_COUNTED):
        opening = find_opening(_BEFORE + tail)
        if opening is None:
            break
        found, tail = _counted(memoryview(tail)[opening.position - len(_BEFORE) :], native=native)
        count += found
    return count


def _counted(text: memoryview, *, native: bool) -> tuple[int, bytes]:
    """How many events a list has, and what follows it. Their rows are made, and given up."""
    rows, at, size = TraceRows(), 0, _FIRST_PIECE_BYTES
    array = event_array(rows, _PIECE_BYTES, native=native)
    while at < len(text) and array.tail is None:
        array.feed(bytes(text[at : at + size]))
        at, size = at + size, min(4 * size, _PIECE_BYTES)
    array.finish()
    tail = (array.tail or b"") + text[at:]
    return rows.counts.total() + array.damaged + array.undecodable, tail
