"""The event array of a trace, read into rows as its bytes arrive.

The C scanner makes no object per event and skips damage. Where it was not compiled, msgspec reads
strict JSON, and damage raises `DamagedTextError`.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from itertools import islice
from typing import Final

from chopperd.traces.native.scanner import Scanner, ScannerLibrary, TextBuffer, scanner_library
from chopperd.traces.read import json_text
from chopperd.traces.read.event_rows import EventRows
from chopperd.traces.read.rows import ScannedRows, TraceRows
from chopperd.traces.read.source import Buffer, TraceSource

_FILE_BYTES: Final = 1 << 24
"""How much of a file is scanned at once: rows wait in the scanner's memory."""
_FAR_MORE: Final = 8
_CUTS_TRIED: Final = 4
_FIRST_SEARCH_BYTES: Final = 16 * 1024
_ARRAY_END: Final = re.compile(rb'\}\s*(?=\]\s*(?:\}|,\s*"|\Z))')
_LONGEST_TAIL_BYTES: Final = 1 << 17
_ENDS_TRIED: Final = 32
_NEXT_EVENT: Final = b',{"ph":""}'
"""Put after a damaged last event, so that the scanner finds its end."""


def event_array(rows: TraceRows, block_bytes: int) -> "EventArray":
    """Make the reader of an event array: the C scanner if there is one, else the decoder."""
    library = scanner_library()
    if library is None:
        return DecodedArray(rows, block_bytes)
    return ScannedArray(library, rows, block_bytes)


class EventArray(ABC):
    """The elements of `traceEvents`, read into rows as their bytes arrive.

    `damaged`, `damaged_args`, `undecodable`: elements damaged or lost, as in `Damage`. `tail`: what
    follows the array; None until its end is seen. `truncated`: the data ended inside an element.
    """

    def __init__(self, block_bytes: int, wanted_bytes: int) -> None:
        self.damaged = 0
        self.damaged_args = 0
        self.undecodable = 0
        self.tail: bytes | None = None
        self.truncated = False
        self._block_bytes = block_bytes
        self._wanted_bytes = wanted_bytes
        self._pending = TextBuffer()

    @property
    def pending_bytes(self) -> int:
        """How many bytes wait for their end: part of an element, or the tail."""
        return len(self._pending) + len(self.tail or b"")

    def feed(self, data: Buffer) -> None:
        """Take the next bytes, and read elements once enough bytes are pending.

        Raises:
            DamagedTextError: They are not JSON, which only the scanner can read.
        """
        if self.tail is not None:
            self.tail += data
            return
        self._pending.append(data)
        if len(self._pending) >= self._wanted_bytes:
            self._read_pending()

    @abstractmethod
    def read_file(self, source: TraceSource) -> None:
        """Read events of a plain file that follow the text fed so far, if the reader can."""

    @abstractmethod
    def finish(self) -> None:
        """Read the text still pending, when all is fed.

        Raises:
            DamagedTextError: It is not JSON, or the array has no end; only the scanner reads that.
        """

    @abstractmethod
    def _read_pending(self) -> None:
        """Read whole elements of the pending text."""

    def _begin_tail(self, at: int = 0) -> None:
        """Store the pending text from an offset on as the tail; no text is pending then."""
        self.tail = self._pending.text()[at:]
        self._pending.clear()


class ScannedArray(EventArray):
    """An event array that the C scanner reads; damage is counted and skipped."""

    def __init__(self, library: ScannerLibrary, rows: TraceRows, block_bytes: int) -> None:
        super().__init__(block_bytes, wanted_bytes=0)
        self._scanner = Scanner(library)
        self._rows = ScannedRows(rows)
        self._scanned_bytes = 0
        self._searched_bytes = 0

    def read_file(self, source: TraceSource) -> None:
        """Read the following events of a plain file until a long or damaged element."""
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
            self._take_scanned()
            source.go_on_at(position)

    def finish(self) -> None:  # noqa: D102
        self._read_pending(final=True)
        self.truncated = self.tail is None and len(self._pending) > 0

    def _read_pending(self, *, final: bool = False) -> None:
        """Scan the pending text; take the rows of all that is scanned when there are enough."""
        if self.tail is not None:
            return
        stop = self._scanner.scan(self._pending, final=final, searched=self._searched_bytes)
        self._searched_bytes = stop.searched
        self._scanned_bytes += stop.consumed
        self._pending.drop(stop.consumed)
        if final or stop.ended or self._scanned_bytes >= self._block_bytes:
            self._scanned_bytes = 0
            self._take_scanned()
        # Text without an end in sight is scanned again when there is far more of it.
        self._wanted_bytes = 0 if stop.consumed else _FAR_MORE * len(self._pending)
        if stop.ended:
            self._begin_tail()
        elif stop.stuck:
            self._skip_last_damage()

    def _skip_last_damage(self) -> None:
        """If the array's end is found, count the damaged element before it and begin the tail."""
        text = self._pending.text()
        end = _array_end(text)
        if end is None:
            return
        self._scanner.scan(TextBuffer(text[:end] + _NEXT_EVENT), final=True, limit=end)
        self._take_scanned()
        self._begin_tail(end + 1)

    def _take_scanned(self) -> None:
        found = self._scanner.take()
        self.damaged += found.damaged
        self.damaged_args += found.damaged_args
        self.undecodable += found.undecodable
        self._rows.add(found)


def _array_end(data: bytes) -> int | None:
    """Find the offset of the array's closing bracket after a damaged last event; None if none.

    With what follows it, it closes the document. Only the last 128 KiB are searched, as keys after
    the events are short and have few brackets.
    """
    since = max(0, len(data) - _LONGEST_TAIL_BYTES)
    ends = [end.end() for end in _ARRAY_END.finditer(data, since)]
    closing = (
        end
        for end in ends[-_ENDS_TRIED:]
        if json_text.is_json(b'{"":[' + json_text.repaired(data[end:]))
        or not data[end + 1 :].strip()
    )
    return next(closing, ends[-1] if ends else None)


class DamagedTextError(Exception):
    """The text is not strict JSON, which only the C scanner can read."""


class DecodedArray(EventArray):
    """An event array that msgspec decodes; nothing in it may be damaged.

    A block is cut where two events seem to meet; the cut is right if the block before it decodes.
    """

    def __init__(self, rows: TraceRows, block_bytes: int) -> None:
        super().__init__(block_bytes, wanted_bytes=block_bytes)
        self._rows = EventRows(rows)

    def read_file(self, source: TraceSource) -> None:
        """Do nothing: the text must be fed."""

    def finish(self) -> None:  # noqa: D102
        if self.tail is None:
            text = self._pending.text()
            found = self._decoded(b"[" + text)
            if found is None:
                self.tail = b""
            else:
                self._close(text, found)

    def _read_pending(self) -> None:
        """Decode up to the last border of two events; wait for far more text if none is right."""
        text = self._pending.text()
        for end, start in islice(cuts(text), _CUTS_TRIED):
            found = self._decoded(b"".join((b"[", memoryview(text)[:end], b"]")))
            if found is None:
                self._pending.drop(start)
                self._wanted_bytes = self._block_bytes
                return
            if found.fault is not json_text.Fault.INCOMPLETE:
                self._close(text, found)
                return
        self._wanted_bytes = _FAR_MORE * len(self._pending)

    def _close(self, text: bytes, trailing: json_text.Refusal) -> None:
        """Take the last events; the tail begins where the parser of `[` + text found more."""
        end = (trailing.offset or 0) - 1
        if trailing.fault is not json_text.Fault.TRAILING or self._decoded(b"[" + text[:end]):
            raise DamagedTextError
        self._begin_tail(end)

    def _decoded(self, array: bytes) -> json_text.Refusal | None:
        """Add the events of an array; return a refusal, or None if it is one whole array."""
        try:
            elements = json_text.ANY_VALUE.decode(array)
        except json_text.REFUSALS as error:
            return json_text.refusal_of(error, len(array))
        self.undecodable += self._rows.add(elements)
        return None


def cuts(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield where an element seems to end and the next to start, last first, in growing windows."""
    stop, window = len(data), _FIRST_SEARCH_BYTES
    while stop > 0:
        begin = max(stop - window, 0)
        borders = [b for b in json_text.EVENT_BORDER.finditer(data, begin) if b.start() < stop]
        for border in reversed(borders):
            yield border.start() + 1, border.end()
        stop, window = begin, window * 8
