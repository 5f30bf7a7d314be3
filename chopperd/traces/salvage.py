"""Reads a damaged stretch of the event array event by event, so that one bad name costs one event.

Used only where a whole block would not decode, and for the end of a file that was cut.
"""

import re
from dataclasses import dataclass, field
from typing import Final

from chopperd.traces.decode import Element, ExactEvent, Fault, first_element, is_json
from chopperd.traces.text import repaired

EVENT_KEYS: Final = rb'"(?:ph|cat|name|pid|tid|ts|dur|id|args|s|bp)"'
EVENT_BORDER: Final = re.compile(rb"\}\s*,\s*(?=\{\s*" + EVENT_KEYS + rb")")
"""What stands between two events; also inside an event, where a string or a list looks like it."""

_SEPARATORS: Final = re.compile(rb"[\s,]*")
_ARRAY_END: Final = re.compile(rb'\}\s*(?=\]\s*(?:\}|,\s*"|\Z))')
_PHASE: Final = re.compile(rb'"ph"')
_LONGEST_TAIL_BYTES: Final = 1 << 20
_ENDS_TRIED: Final = 32


@dataclass(slots=True)
class Salvage:
    """What was read of a damaged stretch.

    Attributes:
        events: In file order, times as decimals.
        damaged: Elements that are not JSON.
        undecodable: Elements that are JSON but no event.
        data: The stretch; `position` is an offset into it.
        position: Where reading stopped: an element not yet whole, or just after the array.
        ended: Whether the array's closing bracket was seen.
    """

    data: bytes
    events: list[ExactEvent] = field(default_factory=list)
    damaged: int = 0
    undecodable: int = 0
    position: int = 0
    ended: bool = False

    @property
    def rest(self) -> bytes:
        """What was not read."""
        return self.data[self.position :]


def salvage(data: bytes, *, final: bool, damage_limit: int | None = None) -> Salvage:
    """The whole events of `data`, which starts between two elements of the array.

    Args:
        data: JSON elements in repaired text, commas between them, perhaps the array's end and
            what follows it.
        final: Whether the file ends here. If not, an element without an end is left for later.
        damage_limit: After so many damaged elements to stop; None reads to the end.
    """
    found = Salvage(data)
    view = memoryview(data)
    while found.damaged != damage_limit and _at_element(found):
        element = first_element(view[found.position :])
        if isinstance(element, Element):
            if element.event is None and not final and _reaches_end(found, element):
                break  # A number may go on.
            _take(found, element)
            continue
        if element.fault is Fault.INCOMPLETE:
            break  # All that is left is the sound beginning of one element.
        if not _step_over(found, final=final):
            break
    return found


def _at_element(found: Salvage) -> bool:
    """Move to the next element; False at the array's end or where the data run out."""
    separators = _SEPARATORS.match(found.data, found.position)
    found.position = separators.end() if separators else found.position
    if found.data[found.position : found.position + 1] == b"]":
        found.position += 1
        found.ended = True
        return False
    return found.position < len(found.data)


def _reaches_end(found: Salvage, element: Element) -> bool:
    return found.position + element.size_bytes == len(found.data)


def _take(found: Salvage, element: Element) -> None:
    found.position += element.size_bytes
    if element.event is None:
        found.undecodable += 1
    else:
        found.events.append(element.event)


def _step_over(found: Salvage, *, final: bool) -> bool:
    """Move behind a damaged element and count it; False if its end is not in sight."""
    end = _next_event(found.data, found.position)
    if end is None and final:
        end = array_end(found.data, found.position)
    if end is None:
        return False
    found.damaged += 1
    found.position = end
    return True


def _next_event(data: bytes, position: int) -> int | None:
    """Where the next event starts after a damaged one; None if none does."""
    borders = EVENT_BORDER.finditer(data, position)
    return next((b.end() for b in borders if _starts_event(data, b.end())), None)


def _starts_event(data: bytes, position: int) -> bool:
    """Whether an event, damaged or not, starts here.

    Objects nested in a damaged event look like events too, but have no phase.
    """
    element = first_element(memoryview(data)[position:])
    if isinstance(element, Element):
        return element.event is not None
    border = EVENT_BORDER.search(data, position)
    return _PHASE.search(data, position, border.start() if border else len(data)) is not None


def array_end(data: bytes, position: int) -> int | None:
    """Where the array's closing bracket stands behind a damaged last event; None if nowhere.

    With what follows it, it closes the document; lists in the damaged event do not. It is sought
    in the last MiB, as keys behind the events are short, and among few brackets there.
    """
    since = max(position, len(data) - _LONGEST_TAIL_BYTES)
    ends = [end.end() for end in _ARRAY_END.finditer(data, since)]
    closing = (end for end in ends[-_ENDS_TRIED:] if _closes(data[end:]))
    return next(closing, ends[-1] if ends else None)


def _closes(rest: bytes) -> bool:
    """Whether a text that begins with the array's bracket closes the document."""
    return is_json(b'{"":[' + repaired(rest, final=True)) or not rest[1:].strip()
