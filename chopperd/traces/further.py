"""Events of a file that stand behind its event array: in a second list, or in a second document.

JSON lets a key be there twice and does not say which counts; files put one behind the other hold
two documents. One list is read; of the others it is told how many events they have.
"""

from typing import Final

from chopperd.traces.blocks import EventArray, find_opening

_LISTS_COUNTED: Final = 8
"""More are not looked for: each costs a look at all that is left."""


def further_events(tail: bytes) -> int:
    """How many events stand in the first few lists behind the event array.

    Args:
        tail: What follows the array.
    """
    count = 0
    for _ in range(_LISTS_COUNTED):
        text = b'{"":[]' + tail
        opening = find_opening(text)
        if opening is None:
            break
        array = EventArray()
        batches = (*array.feed(text[opening.position :]), *array.finish())
        count += sum(len(batch.events) for batch in batches) + array.damaged + array.undecodable
        tail = array.tail or b""
    return count
