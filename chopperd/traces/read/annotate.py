"""Insert events into the text of a trace as a stream; no byte of the trace itself changes.

Inserted events come first in the event array, in which order means nothing, so that the file's own
need not be read. Only a file that was cut off loses the beginning of its last event, and gets the
brackets that close it.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, TypeAlias

from chopperd.traces.native.scanner import Scanner, ScannerLibrary, TextBuffer
from chopperd.traces.read.document import find_opening
from chopperd.traces.read.json_text import (
    ANY_VALUE,
    EVENT_BORDER,
    Refusal,
    Scalar,
    first_value,
    is_json,
    scalar,
)
from chopperd.traces.read.rows import integer

Pids: TypeAlias = Mapping[int, Scalar]

_CATEGORIES: Final = ("kernel", "Kernel", "gpu_memcpy", "Memcpy", "gpu_memset", "Memset")
_RECORDS_TRIED: Final = 64
"""Records of a kind that are read in each piece of text."""
_EVENT_BYTES: Final = 16 * 1024
"""Longer records are skipped."""
_BETWEEN: Final = b",\n"
_BLANK: Final = b" \t\r\n"
_SEPARATORS: Final = _BLANK + b","
_HELD_BYTES: Final = 1 << 21


class Annotator:
    """Inserts events, JSON objects, into the text of one trace, a piece at a time.

    `opened`: whether the event array was found. `dropped_bytes`: how much of the end of a cut file
    is omitted; known after `finish`. `closes`: the scanner if the file was cut off, to find its
    last whole event; the text is closed after it.
    """

    def __init__(self, events: Iterable[bytes], *, closes: ScannerLibrary | None) -> None:
        self.opened = False
        self.dropped_bytes = 0
        self._events = events
        self._text = b""
        self._bare = False
        self._begun = False
        self._has_inserted = False
        self._end = None if closes is None else _CutEnd(closes)

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Take the next text; yield what can be written by now."""
        if self._begun:
            yield from self._rest(data)
            return
        self._text += data
        if not self.opened:
            yield from self._open()
        if self.opened and self._text.strip(_BLANK):
            yield from self._begin()

    def finish(self) -> Iterator[bytes]:
        """Yield the rest, when the text has ended; set `dropped_bytes`."""
        if self._end is None:
            yield self._text
            return
        end = self._end
        keep, closing = end.closing(bare=self._bare)
        self.dropped_bytes = len(end.held[keep:].strip(_SEPARATORS))
        if keep:
            yield end.comma
        yield end.held[:keep]
        yield closing

    def _open(self) -> Iterator[bytes]:
        """Yield the text up to the array's bracket, and the events, as soon as the array opens."""
        opening = find_opening(self._text)
        if opening is None:
            return
        self.opened, self._bare = True, not opening.head
        yield self._text[: opening.position]
        self._text = self._text[opening.position :]
        between = b"\n"
        for event in self._events:
            yield between + event
            between, self._has_inserted = _BETWEEN, True

    def _begin(self) -> Iterator[bytes]:
        """Yield the comma before the file's own events, where it has any, and the first of them."""
        text, self._text, self._begun = self._text, b"", True
        has_events = text.lstrip(_BLANK)[:1] not in b"],"
        comma = b"," if has_events and self._has_inserted else b""
        if self._end is None:
            yield comma
        else:
            self._end.comma = comma
        yield from self._rest(text)

    def _rest(self, data: bytes) -> Iterator[bytes]:
        if self._end is None:
            yield data
        else:
            yield from self._end.feed(data)


class _CutEnd:
    """Holds back the end of a file that was cut, until its last whole event is known.

    `held`: text not yet returned; it starts between two events. `comma`: separates the inserted
    events from the first of the file.
    """

    def __init__(self, library: ScannerLibrary) -> None:
        self._scanner = Scanner(library)
        self.held = b""
        self.comma = b""
        self._ended = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Take the next text; yield what is certainly no part of a cut event."""
        self.held += data
        if len(self.held) <= _HELD_BYTES or self._ended:
            return
        end, self._ended = self._whole(final=False)
        if end and not self._ended:
            yield self.comma
            yield self.held[:end]
            self.comma, self.held = b"", self.held[end:]

    def closing(self, *, bare: bool) -> tuple[int, bytes]:
        """Return how many held bytes are retained, and the brackets that close the document."""
        end, ended = self._whole(final=True)
        if not ended:
            whole = len(self.held[:end].rstrip(_SEPARATORS))
            return whole, b"\n]" if bare else b"\n]}"
        if bare:
            return end, b""
        whole, closing = _closed_keys(self.held[end:])
        return end + whole, closing

    def _whole(self, *, final: bool) -> tuple[int, bool]:
        """Return where the held text's last whole event ends, and whether the array ends there."""
        stop = self._scanner.scan(TextBuffer(self.held), final=final)
        self._scanner.take()
        return stop.consumed, stop.ended


def _closed_keys(keys: bytes) -> tuple[int, bytes]:
    """Return how many bytes after the array are retained, and the bracket that they may need."""
    opened = b'{"":[]'
    if is_json(opened + keys):
        return len(keys), b""
    commas = [comma.start() for comma in re.finditer(rb",", keys)]
    ends = (len(keys), *reversed(commas))
    whole = next((end for end in ends if is_json(opened + keys[:end] + b"}")), 0)
    return whole, b"}"


def device_pids(chunks: Iterable[bytes], devices: Iterable[int]) -> Pids:
    """Find the `pid` of each device's records, as the file writes it; else the device's number.

    Kineto writes the number itself; a file that another tool wrote may have a text. Only as much of
    the file is read as it takes.
    """
    wanted = set(devices)
    found: dict[int, Scalar] = {}
    for text in chunks:
        for event in _records(text):
            device = _device(event)
            pid = scalar(event.get("pid"))
            if device in wanted and pid is not None:
                found.setdefault(device, pid)
        if found.keys() >= wanted:
            break
    return {device: found.get(device, device) for device in wanted}


def _records(text: bytes) -> Iterator[Mapping[str, object]]:
    for category in _CATEGORIES:
        word = f'"{category}"'.encode()
        position = text.find(word)
        for _ in range(_RECORDS_TRIED):
            if position < 0:
                break
            event = _event_around(text, position)
            if event is not None and event.get("cat") == category:
                yield event
            position = text.find(word, position + len(word))


def _event_around(text: bytes, position: int) -> Mapping[str, object] | None:
    """Return the event that holds a position; None if there is none or it exceeds the text."""
    begin = max(position - _EVENT_BYTES, 0)
    starts = [border.end() for border in EVENT_BORDER.finditer(text, begin, position)]
    found = first_value(ANY_VALUE, memoryview(text)[starts[-1] :]) if starts else None
    if found is None or isinstance(found, Refusal):
        return None
    event = found[0]
    return event if isinstance(event, dict) and event.get("ph") == "X" else None


def _device(event: Mapping[str, object]) -> int:
    args = event.get("args")
    device = scalar(args.get("device")) if isinstance(args, dict) else None
    return integer(scalar(event.get("pid")) if device is None else device)
