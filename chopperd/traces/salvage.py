"""Reads a damaged stretch of the event array event by event, so that one bad name costs one event.

Used only where a whole block would not decode, and for the end of a file that was cut.
"""

import re
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from chopperd.traces.decode import (
    SCALAR_ARGS,
    Complete,
    Element,
    ExactEvent,
    ExactTime,
    Fault,
    Refusal,
    first_element,
    is_json,
)
from chopperd.traces.text import (
    may_lack_value,
    offset_without_floats,
    offset_without_nulls,
    repaired,
    with_floats,
    with_nulls,
)

EVENT_KEYS: Final = rb'"(?:ph|cat|name|pid|tid|ts|dur|id|args|s|bp)"'
EVENT_BORDER: Final = re.compile(rb"\}\s*,\s*(?=\{\s*" + EVENT_KEYS + rb")")
"""What stands between two events; also inside an event, where a string or a list looks like it."""

_WORD: Final = re.compile(rb"[\w.+-]++(?=[\s,\]]|\Z)")
"""An element on its own; without a separator behind it, it is a piece of something else."""
_LETTER: Final = re.compile(rb"[\w.+-]")
_SCALAR: Final = re.compile(
    rb"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?|true|false|null"
)
_CUT_SCALAR: Final = re.compile(
    rb"-?(?:(?:0|[1-9][0-9]*)(?:\.|(?:\.[0-9]+)?[eE][-+]?))?|tr?u?|fa?l?s?|nu?l?"
)
"""The beginnings of such a one that are none."""
_PLAIN: Final = re.compile(
    rb'"(?:[^"\\\x00-\x1f]++|\\["\\/bfnrt])*+"|\{[ \t\n\r]*+\}|\[[ \t\n\r]*+\]'
)
"""Texts and what is empty: values that are no events, told without a parser."""
_FLAT: Final = re.compile(
    rb'\{(?:[^{}"\\]++|"[^"\\]*+")*+\}(?=\s*+,\s*+\{\s*+' + EVENT_KEYS + rb")"
)
"""An object without others in it, and a border behind it."""
_SEPARATORS: Final = re.compile(rb"[\s,]*")
_ARRAY_END: Final = re.compile(rb'\}\s*(?=\]\s*(?:\}|,\s*"|\Z))')
_NESTING: Final = (b"{", b"[")
_ARGS: Final = re.compile(rb'"args"[ \t\n\r]*:[ \t\n\r]*\{')
_ARGS_TRIED: Final = 8
_VALUES: Final = tuple(
    re.compile(
        rb'"%s"[ \t\n\r]*:[ \t\n\r]*(?:[0-9]{1,18}|"[^"\\\x00-\x1f]*+")[ \t\n\r]*[,}]'
        % key.encode()
    )
    for key in SCALAR_ARGS
)
"""Arguments that can be told amid damage: numbers, and texts without escapes."""
_PHASE: Final = re.compile(rb'"ph"')
_LONGEST_TAIL_BYTES: Final = 1 << 17
_ENDS_TRIED: Final = 32


@dataclass(slots=True)
class Salvage:
    """What was read of a damaged stretch.

    Attributes:
        events: In file order, times as decimals.
        damaged: Elements that are not JSON.
        damaged_args: Those that are not in their arguments only; they are among `events`.
        undecodable: Elements that are JSON but no event.
        data: The stretch; `position` is an offset into it.
        position: Where reading stopped: an element not yet whole, or just after the array.
        ended: Whether the array's closing bracket was seen.
    """

    data: bytes
    events: list[ExactEvent] = field(default_factory=list)
    damaged: int = 0
    damaged_args: int = 0
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
    while found.damaged + found.damaged_args != damage_limit and _at_element(found):
        if word := _WORD.match(data, found.position):
            if not _take_word(found, word, final=final):
                break
            continue
        if plain := _PLAIN.match(data, found.position, len(data) - 1):
            found.undecodable += 1
            found.position = plain.end()
            continue
        element = element_at(data, found.position)
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


def element_at(data: bytes, position: int) -> Element | Refusal:
    """The element that starts at a position, whatever follows it.

    NaN and infinities stand for numbers in it, but not in the place of one.
    """
    if _LETTER.match(data, position):
        return Refusal(Fault.MALFORMED, 0)
    found = first_element(memoryview(data)[position:])
    if isinstance(found, Element):
        return found
    is_nested = data[position : position + 1] in _NESTING
    has_odd_number = found.fault is Fault.INVALID or may_lack_value(
        data, position + (found.offset or 0)
    )
    return _with_odd_numbers(data, position) if is_nested and has_odd_number else found


def _with_odd_numbers(data: bytes, position: int) -> Element | Refusal:
    """As `element_at`, of one that holds NaN, an infinity, or an integer of any length.

    Where it ends is not known before: ever more of the text is taken, up to what may be its end.
    """
    borders = EVENT_BORDER.finditer(data, position)
    found: Element | Refusal = Refusal(Fault.INCOMPLETE)
    for number, border in enumerate(borders, 1):
        if number & (number - 1) == 0:  # half as much again is looked at in vain at the most
            found = _with_odd_numbers_before(data, position, border.start() + 1)
            if isinstance(found, Element) or found.fault is not Fault.INCOMPLETE:
                return found
    return _with_odd_numbers_before(data, position, len(data))


def _with_odd_numbers_before(data: bytes, position: int, end: int) -> Element | Refusal:
    text = data[position:end]
    whole = with_nulls(text)
    found = first_element(memoryview(with_floats(whole)))
    if isinstance(found, Refusal):
        return found
    size_bytes = offset_without_floats(whole, found.size_bytes)
    return Element(found.event, offset_without_nulls(text, size_bytes))


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


def _take_word(found: Salvage, word: re.Match[bytes], *, final: bool) -> bool:
    """Take a number or a word between events; False where it may go on, or was cut.

    It ends where its letters do, and is damaged where it is no JSON value, as 00, nullx and NaN.
    """
    is_last = word.end() == len(found.data)
    if is_last and (not final or _CUT_SCALAR.fullmatch(word[0])):
        return False
    if _SCALAR.fullmatch(word[0]):
        found.undecodable += 1
    else:
        found.damaged += 1
    found.position = word.end()
    return True


def _take(found: Salvage, element: Element) -> None:
    found.position += element.size_bytes
    if element.event is None:
        found.undecodable += 1
    else:
        found.events.append(element.event)


def _step_over(found: Salvage, *, final: bool) -> bool:
    """Move behind a damaged element and count it; False if its end is not in sight."""
    end = _next_event(found.data, found.position, final=final)
    if end is None and final:
        end = array_end(found.data, found.position)
    if end is None:
        return False
    mended = mended_args(found.data[found.position : end])
    element = None if mended is None else element_at(mended, 0)
    if isinstance(element, Element) and element.event is not None:
        found.events.append(element.event)
        found.damaged_args += 1
    else:
        found.damaged += 1
    found.position = end
    return True


def mended_args(text: bytes) -> bytes | None:
    """A damaged event with those of its arguments that can still be told; None where that can't be.

    So may an event be that is sound up to its arguments, has a category and times, and is damaged
    in there: of these a row can be made.
    """
    for args in islice(_ARGS.finditer(text), _ARGS_TRIED):
        head = with_nulls(text[: args.start()])
        inside = text[args.end() - 1 :]
        if not is_json(head + b'"":0}') or isinstance(element_at(inside, 0), Element):
            continue
        found = [value[0] for pattern in _VALUES if (value := pattern.search(inside))]
        mended = head + b'"args":{' + b"".join(one[:-1] + b"," for one in found)
        mended = mended.removesuffix(b",") + b"}}"
        element = element_at(mended, 0)
        event = element.event if isinstance(element, Element) else None
        if isinstance(event, Complete) and event.cat is not None and _has_times(event):
            return mended
        return None
    return None


def _has_times(event: Complete[ExactTime]) -> bool:
    return all(time is not None and bytes(time) != b"null" for time in (event.ts, event.dur))


def _next_event(data: bytes, position: int, *, final: bool) -> int | None:
    """Where the next event starts after a damaged one; None if none does, or none in sight."""
    for border in EVENT_BORDER.finditer(data, position):
        starts = _starts_event(data, border.end(), final=final)
        if starts or starts is None:
            return border.end() if starts else None
    return None


def _starts_event(data: bytes, position: int, *, final: bool) -> bool | None:
    """Whether an event, damaged or not, starts here; None if what follows decides that.

    Objects nested in a damaged event look like events too, but have no phase.
    """
    flat = _FLAT.match(data, position)
    if flat and not _PHASE.search(flat[0]):
        return False
    element = element_at(data, position)
    if isinstance(element, Element):
        return element.event is not None
    border = EVENT_BORDER.search(data, position)
    if not final and (element.fault is Fault.INCOMPLETE or border is None):
        return None
    return _PHASE.search(data, position, border.start() if border else len(data)) is not None


def array_end(data: bytes, position: int) -> int | None:
    """Where the array's closing bracket stands behind a damaged last event; None if nowhere.

    With what follows it, it closes the document; lists in the damaged event do not. It is sought
    in the last 128 KiB, as keys behind the events are short, and among few brackets there.
    """
    since = max(position, len(data) - _LONGEST_TAIL_BYTES)
    ends = [end.end() for end in _ARRAY_END.finditer(data, since)]
    closing = (end for end in ends[-_ENDS_TRIED:] if _closes(data[end:]))
    return next(closing, ends[-1] if ends else None)


def _closes(rest: bytes) -> bool:
    """Whether a text that begins with the array's bracket closes the document."""
    return is_json(b'{"":[' + repaired(rest, final=True)) or not rest[1:].strip()
