"""The event array read by the scanner: as `blocks.EventArray`, without an object per event.

A plain file the scanner reads by itself, from where feeding has come to. Of text that is fed,
stretches are scanned side by side where several threads may: a stretch is cut where an event seems
to start, before it is known that one does. Each scan tells where it stopped; if that is not the
cut, what came behind it is scanned again from there.
"""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final, Protocol

from chopperd.traces.salvage import EVENT_BORDER, array_end, mended_args
from chopperd.traces.scanned import Scanned, Stop
from chopperd.traces.text import valid_text
from chopperd.traces.text_buffer import Buffer, TextBuffer

_FILE_BYTES: Final = 1 << 24
"""Of a file that is read at once: rows wait in the scanner's memory."""
_LOOK_AHEAD_BYTES: Final = 8 * 1024
"""Behind a cut, so that an event that follows a damaged one is seen whole."""
_CUT_WITHIN_BYTES: Final = 1 << 17
_FAR_MORE: Final = 8


class OwnScanner(Protocol):
    """`native.scanner.Scanner`, one that no other thread is using."""

    def scan(self, text: TextBuffer, limit: int, *, final: bool, searched: int) -> Stop:
        """Read the elements of `text` that start before `limit`."""

    def scan_file(self, file: int, offset: int, most_bytes: int) -> int:
        """Read elements of a plain file; where the next one starts."""

    def take(self) -> Scanned:
        """What the scans since the last call have read."""


class OtherThreads(Protocol):
    """`native.threads.ScannerThreads`."""

    def later(self, text: TextBuffer, limit: int) -> "Future[tuple[Stop, Scanned]]":
        """Start a scan that is not the file's last."""

    def forget(self) -> None:
        """Number texts from 0 again in all scans that have not begun."""


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Text up to `limit`, which is being scanned, and some of what follows it."""

    text: TextBuffer
    limit: int
    scanned: "Future[tuple[Stop, Scanned]]"


class ScannedArray:
    """The elements of `traceEvents`, scanned as their bytes arrive.

    Attributes:
        damaged, damaged_args, undecodable: Elements damaged or lost, as in `Damage`.
        tail: What follows the array; None until its end is seen.
        truncated: Whether the data ended inside an element.
        read_to: After `read_file`, where in the file the next text that is fed must come from.

    Args:
        scanner: Scans in this thread.
        block_bytes: Of how much text rows are given at once; one stretch.
        others: Scan in other threads; None to do all in this one.
        side_by_side: How many stretches may be under way.
    """

    def __init__(
        self,
        scanner: OwnScanner,
        block_bytes: int,
        others: OtherThreads | None = None,
        side_by_side: int = 0,
    ) -> None:
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
        self._others = others
        self._side_by_side = side_by_side
        self._under_way: deque[_Stretch] = deque()
        self._pending = TextBuffer()
        self._free: list[TextBuffer] = []
        self._least_bytes = block_bytes if others else 0
        self._wanted_bytes = self._least_bytes

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
        if len(self._pending) < self._wanted_bytes:
            return
        cut = _cut(self._pending) if self._others else None
        if self._others and cut is not None:
            self._start(self._others, cut)
            self._wanted_bytes = self._least_bytes
            yield from self._done(at_most=self._side_by_side)
        else:
            yield from self._done(at_most=0)
            yield from self._read(final=False)

    def read_file(self, file: int, fed_to: int) -> Iterator[Scanned]:
        """The events that stand in a plain file behind the text that was fed, as far as easy.

        Args:
            file: The file's descriptor.
            fed_to: How much of the file was fed.
        """
        yield from self._done(at_most=0)
        if self.tail is not None:
            self.read_to = fed_to
            return
        position = fed_to - len(self._pending)
        self._pending.clear()
        self._searched_bytes = 0
        self._wanted_bytes = self._least_bytes
        read_bytes = _FILE_BYTES
        while read_bytes >= _FILE_BYTES:
            self.read_to = self._scanner.scan_file(file, position, _FILE_BYTES)
            read_bytes, position = self.read_to - position, self.read_to
            yield self._counted(self._scanner.take())

    def finish(self) -> Iterator[Scanned]:
        """The events of what is left when the data have ended."""
        yield from self._done(at_most=0)
        yield from self._read(final=True)
        self.truncated = self.tail is None and len(self._pending) > 0

    def _start(self, others: OtherThreads, cut: int) -> None:
        """Have what is pending scanned up to a cut; what is behind it stays pending."""
        text = self._pending
        self._searched_bytes = 0
        self._pending = self._free.pop() if self._free else TextBuffer()
        self._pending.append(text.text(cut))
        self._under_way.append(_Stretch(text, cut, others.later(text, cut)))

    def _done(self, *, at_most: int) -> Iterator[Scanned]:
        """What has been scanned, in order, until so many stretches are left under way."""
        while len(self._under_way) > at_most and self.tail is None:
            stretch = self._under_way.popleft()
            stop, found = stretch.scanned.result()
            yield self._counted(found)
            if stop.ended or stop.consumed != stretch.limit:
                self._go_back(stretch, stop)
            else:
                stretch.text.clear()
                self._free.append(stretch.text)

    def _go_back(self, stretch: _Stretch, stop: Stop) -> None:
        """Take back all that was cut behind the place where a scan stopped."""
        rest = TextBuffer(stretch.text.text(0, stretch.limit))
        for each in self._under_way:
            rest.append(each.text.text(0, each.limit))
            each.scanned.cancel()
        rest.append(self._pending.text())
        rest.drop(stop.consumed)  # may be behind the limit
        self._under_way.clear()
        self._pending = rest
        if not stop.consumed:
            self._wanted_bytes = _FAR_MORE * len(rest)
        self._searched_bytes = 0
        if self._others:
            self._others.forget()
        if stop.ended:
            self._take_tail()

    def _read(self, *, final: bool) -> Iterator[Scanned]:
        """Scan what is pending; the rows of all that is scanned, when there are enough."""
        if self.tail is not None:
            return
        text, searched = self._pending, self._searched_bytes
        stop = self._scanner.scan(text, len(text), final=final, searched=searched)
        self._searched_bytes = stop.searched
        self._scanned_bytes += stop.consumed
        self._pending.drop(stop.consumed)
        if final or stop.ended or self._others or self._scanned_bytes >= self._block_bytes:
            self._scanned_bytes = 0
            yield self._counted(self._scanner.take())
        # Text without an end in sight is looked at again when there is far more of it.
        self._wanted_bytes = self._least_bytes if stop.consumed else _FAR_MORE * len(self._pending)
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


def _cut(text: TextBuffer) -> int | None:
    """Where an event seems to start, with room to look ahead behind it; None where none does."""
    stop = len(text) - _LOOK_AHEAD_BYTES
    window, least = _LOOK_AHEAD_BYTES, max(stop - _CUT_WITHIN_BYTES, 0)
    while stop > least:
        begin = max(stop - window, 0)
        starts = [border.end() for border in EVENT_BORDER.finditer(text.memory, begin, stop)]
        if starts:
            return starts[-1]
        stop, window = begin, window * 8
    return None
