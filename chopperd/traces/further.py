"""Events of a file that stand behind its event array: in a second list, or in a second document.

JSON lets a key be there twice and does not say which counts; files put one behind the other hold
two documents. One list is read; of the others it is told how many events they have.
"""

from typing import Final

from chopperd.traces.blocks import find_opening
from chopperd.traces.decoding import decoding
from chopperd.traces.rows import TraceRows

_LISTS_COUNTED: Final = 8
"""More are not looked for: each costs a look at all that is left."""
_PIECE_BYTES: Final = 2 << 20


def further_events(tail: bytes, *, native: bool = True) -> int:
    """How many events stand in the first few lists behind the event array.

    Args:
        tail: What follows the array.
        native: Whether the scanner in C may be used.
    """
    count = 0
    for _ in range(_LISTS_COUNTED):
        text = b'{"":[]' + tail
        opening = find_opening(text)
        if opening is None:
            break
        found, tail = _counted(text[opening.position :], native=native)
        count += found
    return count


def _counted(text: bytes, *, native: bool) -> tuple[int, bytes]:
    """How many events a list has, and what follows it. Their rows are made, and given up."""
    rows = TraceRows()
    with decoding(rows, threads=1, block_bytes=_PIECE_BYTES, native=native) as events:
        for at in range(0, len(text), _PIECE_BYTES):
            events.feed(text[at : at + _PIECE_BYTES])
        events.finish()
    array = events.array
    return rows.counts.total() + array.damaged + array.undecodable, array.tail or b""
