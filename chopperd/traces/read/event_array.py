"""The event array of a trace, read into rows as its bytes arrive.

The C scanner makes no object per event and passes over damage. Where it was not compiled, msgspec
reads strict JSON, and damage raises `DamagedTextError`.
"""

import re
from collections.abc import Iterator
from itertools import islice
from typing import Final, TypeAlias

from chopperd.traces.native.scanner import (
    Scanned,
    Scanner,
    ScannerLibrary,
    TextBuffer,
    scanner_library,
)
from chopperd.traces.read.event_rows import EventRows
from chopperd.traces.read.json_text import (
    ANY_VALUE,
    EVENT_BORDER,
    REFUSALS,
    Fault,
    Refusal,
    is_json,
    refusal_of,
    repaired,
)
from chopperd.traces.read.rows import TraceRows
from chopperd.traces.read.scanned import ScannedRows
from chopperd.traces.read.source import Buffer, TraceSource

_FILE_BYTES: Final = 1 << 24
"""Of a file that is read at once: rows wait in the scanner's memory."""
_FAR_MORE: Final = 8
_CUTS_TRIED: Final = 4
_FIRST_SEARCH_BYTES: Final = 16 * 1024
_ARRAY_END: Final = re.compile(rb'\}\s*(?=\]\s*(?:\}|,\s*"|\Z))')
_LONGEST_TAIL_BYTES: Final = 1 << 17
_ENDS_TRIED: Final = 32
_NEXT_EVENT: Final = b',{"ph":""}'
"""Behind a damaged last event, so that the scanner sees where it ends."""


def event_array(rows: TraceRows, block_bytes: int, *, native: bool = True) -> "EventArray":
    """Reads an event array into rows, with the C scanner if there is one.

    Args:
        rows: Takes the rows.
        block_bytes: How much text to take into rows at once.
        native: Whether the scanner may be used.
    """
    library = scanner_library() if native else None
    if library is None:
        return DecodedArray(rows, block_bytes)
    return ScannedArray(library, rows, block_bytes)


class ScannedArray:
    """The elements of `traceEvents`, scanned into rows as their bytes arrive.

    Attributes:
        damaged, damaged_args, undecodable: Elements damaged or lost, as in `Damage`.
        tail: What follows the array; None until its end is seen.
        truncated: Whether the data ended inside an element.

    Args:
        library: The scanner.
        rows: Takes the rows.
        block_bytes: How much text to take into rows at once.
    """

    def __init__(self, library: ScannerLibrary, rows: TraceRows, block_bytes: int) -> None:
        self.damaged = 0
        self.damaged_args = 0
        self.undecodable = 0
        self.tail: bytes | None = None
        self.truncated = False
        self._scanner = Scanner(library)
        self._rows = ScannedRows(rows)
        self._scanned_bytes = 0
        self._searched_bytes = 0
        self._block_bytes = block_bytes
        self._pending = TextBuffer()
        self._wanted_bytes = 0

    @property
    def pending_bytes(self) -> int:
        """How much waits for its end: part of an element, or the tail."""
        return len(self._pending) + len(self.tail or b"")

    def feed(self, data: Buffer) -> None:
        """Take the next bytes."""
        if self.tail is not None:
            self.tail += data
            return
        self._pending.append(data)
        if len(self._pending) >= self._wanted_bytes:
            self._read(final=False)

    def read_file(self, source: TraceSource) -> None:
        """Take the events of a plain file that follow the text that was fed, as far as easy."""
        if self.tail is not None:
            return
        position = source.stored_bytes - len(self._pending)
        self._pending.clear()
        self._searched_bytes = 0
        self._wanted_bytes = 0
        read_bytes = _FILE_BYTES
        while read_bytes >= _FILE_BYTES:
            end = self._scanner.scan_file(source.file, position, _FILE_BYTES)
            read_bytes, position = end - position, end
            self._take(self._scanner.take())
            source.go_on_at(position)

    def finish(self) -> None:
        """Take what was waiting for more."""
        self._read(final=True)
        self.truncated = self.tail is None and len(self._pending) > 0

    def _read(self, *, final: bool) -> None:
        """Scan what is pending; take the rows of all that is scanned when there are enough."""
        if self.tail is not None:
            return
        text, searched = self._pending, self._searched_bytes
        stop = self._scanner.scan(text, final=final, searched=searched)
        self._searched_bytes = stop.searched
        self._scanned_bytes += stop.consumed
        self._pending.drop(stop.consumed)
        if final or stop.ended or self._scanned_bytes >= self._block_bytes:
            self._scanned_bytes = 0
            self._take(self._scanner.take())
        # Text without an end in sight is scanned again when there is far more of it.
        self._wanted_bytes = 0 if stop.consumed else _FAR_MORE * len(self._pending)
        if stop.ended:
            self._take_tail()
        elif stop.stuck:
            self._pass_last_damage()

    def _pass_last_damage(self) -> None:
        """Take the array's end behind a damaged element that no event follows, if it is found."""
        text = self._pending.text()
        end = _array_end(text)
        if end is None:
            return
        self._scanner.scan(TextBuffer(text[:end] + _NEXT_EVENT), final=True, limit=end)
        self._take(self._scanner.take())
        self._pending.drop(end + 1)
        self._take_tail()

    def _take_tail(self) -> None:
        """What is pending is the tail."""
        self.tail = self._pending.text()
        self._pending.clear()

    def _take(self, found: Scanned) -> None:
        self.damaged += found.damaged
        self.damaged_args += found.damaged_args
        self.undecodable += found.undecodable
        self._rows.add(found)


def _array_end(data: bytes) -> int | None:
    """Offset of the array's closing bracket behind a damaged last event; None if there is none.

    With what follows it, it closes the document; lists in the damaged event do not. Only the last
    128 KiB are searched, as keys behind the events are short, and few brackets in them.
    """
    since = max(0, len(data) - _LONGEST_TAIL_BYTES)
    ends = [end.end() for end in _ARRAY_END.finditer(data, since)]
    closing = (end for end in ends[-_ENDS_TRIED:] if _closes(data[end:]))
    return next(closing, ends[-1] if ends else None)


def _closes(rest: bytes) -> bool:
    """Whether a text that begins with the array's bracket closes the document."""
    return is_json(b'{"":[' + repaired(rest)) or not rest[1:].strip()


class DamagedTextError(Exception):
    """The text is not strict JSON, which only the C scanner can read."""


class DecodedArray:
    """The elements of `traceEvents`, decoded into rows as their bytes arrive.

    No brackets are counted and no layout is assumed: a block is cut where two events seem to meet,
    and the cut is right if the block before it decodes.

    Attributes:
        damaged, damaged_args: Always 0: damage is not passed over.
        undecodable: Elements that are no events.
        tail: What follows the array; None until its end is seen.
        truncated: Always False: a file that was cut off is damaged.

    Args:
        rows: Takes the rows.
        block_bytes: How much text to decode at once.
    """

    def __init__(self, rows: TraceRows, block_bytes: int) -> None:
        self.damaged = 0
        self.damaged_args = 0
        self.undecodable = 0
        self.tail: bytes | None = None
        self.truncated = False
        self._rows = EventRows(rows)
        self._block_bytes = block_bytes
        self._wanted_bytes = block_bytes
        self._pending = bytearray()

    @property
    def pending_bytes(self) -> int:
        """How much waits for its end: part of an element, or the tail."""
        return len(self._pending) + len(self.tail or b"")

    def feed(self, data: Buffer) -> None:
        """Take the next bytes.

        Raises:
            DamagedTextError: They are not JSON.
        """
        if self.tail is not None:
            self.tail += data
            return
        self._pending += data
        if len(self._pending) >= self._wanted_bytes:
            self._read_block()

    def read_file(self, source: TraceSource) -> None:
        """Does nothing: the text must be fed."""

    def finish(self) -> None:
        """Take what was waiting for more.

        Raises:
            DamagedTextError: It is not JSON, or the array has no end.
        """
        if self.tail is None:
            found = self._decoded(b"[" + self._pending)
            if found is None:
                self.tail = b""
            else:
                self._close(found)

    def _read_block(self) -> None:
        """Decode up to the last border of two events; waits for far more text if none is right."""
        for end, start in islice(_cuts(self._pending), _CUTS_TRIED):
            found = self._decoded(b"".join((b"[", memoryview(self._pending)[:end], b"]")))
            if found is None:
                self._pending = self._pending[start:]
                self._wanted_bytes = self._block_bytes
                return
            if found.fault is not Fault.INCOMPLETE:
                self._close(found)
                return
        self._wanted_bytes = _FAR_MORE * len(self._pending)

    def _close(self, trailing: Refusal) -> None:
        """Take the last events; the tail begins where the parser of `[` + pending found more."""
        end = (trailing.offset or 0) - 1
        if trailing.fault is not Fault.TRAILING or self._decoded(b"[" + self._pending[:end]):
            raise DamagedTextError
        self.tail, self._pending = bytes(self._pending[end:]), bytearray()

    def _decoded(self, array: bytes) -> Refusal | None:
        """Take the events of an array; a refusal if it is not one whole array."""
        try:
            elements = ANY_VALUE.decode(array)
        except REFUSALS as error:
            return refusal_of(error, len(array))
        self.undecodable += self._rows.add(elements)
        return None


def _cuts(data: bytearray) -> Iterator[tuple[int, int]]:
    """Where an element seems to end and the next to start, last first.

    The search goes backwards in growing windows: the last border is usually in the last one.
    """
    stop, window = len(data), _FIRST_SEARCH_BYTES
    while stop > 0:
        begin = max(stop - window, 0)
        borders = [b for b in EVENT_BORDER.finditer(data, begin) if b.start() < stop]
        for border in reversed(borders):
            yield border.start() + 1, border.end()
        stop, window = begin, window * 8


EventArray: TypeAlias = ScannedArray | DecodedArray
