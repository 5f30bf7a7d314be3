"""The event array read by the scanner: as `blocks.EventArray`, without an object per event.

A plain file the scanner reads by itself, from where feeding has come to.
"""

from collections.abc import Iterator
from typing import Final, Protocol

from chopperd.traces.salvage import array_end, mended_args
from chopperd.traces.scanned import Scanned, Stop
from chopperd.traces.text import valid_text
from chopperd.traces.text_buffer import Buffer, TextBuffer

_FILE_BYTES: Final = 1 << 24
"""Of a file that is read at once: rows wait in the scanner's memory."""
_FAR_MORE: Final = 8


class ScansText(Protocol):
    """`native.scanner.Scanner`."""

    def scan(self, text: TextBuffer, limit: int, *, final: bool, searched: int) -> Stop:
        """Read the elements of `text` that start before `limit`."""

    def scan_file(self, file: int, offset: int, most_bytes: int) -> int:
        """Read elements of a plain file; where the next one starts."""

    def take(self) -> Scanned:
        """What the scans since the last call have read."""


class ScannedArray:
    """The elements of `traceEvents`, scanned as their bytes arrive.

    Attributes:
        damaged, damaged_args, undecodable: Elements damaged or lost, as in `Damage`.
        tail: What follows the array; None until its end is seen.
        truncated: Whether the data ended inside an element.
        read_to: After `read_file`, where in the file the next text that is fed must come from.

    Args:
        scanner: Scans it.
        block_bytes: Of how much text rows are given at once.
    """

    def __init__(self, scanner: ScansText, block_bytes: int) -> None:
        self.damaged = 0
        self.damaged_args = 0
        self.undecodable = 0
        self.tail: bytes | None = None
        self.truncated = False
        self.read_to = 0
        self._scanner = scanner
        self._scanned_bytes = 0
        self._searched_bytes = 0
        self._block_bytes = block_bytes
        self._pending = TextBuffer()
        self._wanted_bytes = 0

    @property
    def pending_bytes(self) -> int:
        """How much waits for its end: part of an element, or the tail."""
        return len(self._pending) + len(self.tail or b"")

    def feed(self, data: Buffer) -> Iterator[Scanned]:
        """The events that are read by now."""
        if self.tail is not None:
            self.tail += data
            return
        self._pending.append(data)
        if len(self._pending) >= self._wanted_bytes:
            yield from self._read(final=False)

    def read_file(self, file: int, fed_to: int) -> Iterator[Scanned]:
        """The events that stand in a plain file behind the text that was fed, as far as easy.

        Args:
            file: The file's descriptor.
            fed_to: How much of the file was fed.
        """
        if self.tail is not None:
            self.read_to = fed_to
            return
        position = fed_to - len(self._pending)
        self._pending.clear()
        self._searched_bytes = 0
        self._wanted_bytes = 0
        read_bytes = _FILE_BYTES
        while read_bytes >= _FILE_BYTES:
            self.read_to = self._scanner.scan_file(file, position, _FILE_BYTES)
            read_bytes, position = self.read_to - position, self.read_to
            yield self._counted(self._scanner.take())

    def finish(self) -> Iterator[Scanned]:
        """The events of what is left when the data have ended."""
        yield from self._read(final=True)
        self.truncated = self.tail is None and len(self._pending) > 0

    def _read(self, *, final: bool) -> Iterator[Scanned]:
        """Scan what is pending; the rows of all that is scanned, when there are enough."""
        if self.tail is not None:
            return
        text, searched = self._pending, self._searched_bytes
        stop = self._scanner.scan(text, len(text), final=final, searched=searched)
        self._searched_bytes = stop.searched
        self._scanned_bytes += stop.consumed
        self._pending.drop(stop.consumed)
        if final or stop.ended or self._scanned_bytes >= self._block_bytes:
            self._scanned_bytes = 0
            yield self._counted(self._scanner.take())
        # Text without an end in sight is looked at again when there is far more of it.
        self._wanted_bytes = 0 if stop.consumed else _FAR_MORE * len(self._pending)
        if stop.ended:
            self._take_tail()
        elif stop.stuck:
            yield from self._pass_last_damage()

    def _pass_last_damage(self) -> Iterator[Scanned]:
        """The array's end behind a damaged element that no event follows, if it can be told."""
        text = self._pending.text()
        end = array_end(text, 0)
        if end is None:
            return
        if (mended := mended_args(valid_text(text[:end], final=True))) is not None:
            self._scanner.scan(TextBuffer(mended), len(mended), final=True, searched=0)
            self.damaged_args += 1
            yield self._counted(self._scanner.take())
        else:
            self.damaged += 1
        self._pending.drop(end + 1)
        self._take_tail()

    def _take_tail(self) -> None:
        """What is pending is the tail."""
        self.tail = self._pending.text()
        self._pending.clear()

    def _counted(self, found: Scanned) -> Scanned:
        self.damaged += found.damaged
        self.damaged_args += found.damaged_args
        self.undecodable += found.undecodable
        return found
