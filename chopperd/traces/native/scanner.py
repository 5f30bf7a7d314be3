"""Scans stretches of events with the C library."""

from collections.abc import Mapping
from ctypes import addressof, c_char
from itertools import pairwise
from typing import Final

import numpy as np

from chopperd.traces.native.library import (
    ENDED,
    STUCK,
    TABLES,
    TEXTS,
    ScannerLibrary,
    Table,
    TextTable,
)
from chopperd.traces.read.rows import SHAPED, Column
from chopperd.traces.read.scanned import Scanned, Stop, Texts
from chopperd.traces.read.text_buffer import TextBuffer

_SHAPED: Final = b"".join(word.encode() + b"\0" for word in SHAPED) + b"\0"
_SMALL: Final = frozenset({"kind", "is_end"})
_UNUSED: Final = "unused"


class Scanner:
    """One scan at a time; its memory is used again by the next.

    Texts keep their numbers from one scan to the next.

    Args:
        library: The library.
    """

    def __init__(self, library: ScannerLibrary) -> None:
        self._library = library
        self._known: list[list[bytes]] = [[] for _ in range(TEXTS)]
        self._scan = library.open(_SHAPED)
        if not self._scan:
            raise MemoryError

    def __del__(self) -> None:
        """Give the memory back."""
        if self._scan:
            self._library.close(self._scan)

    def scan(self, text: TextBuffer, limit: int, *, final: bool, searched: int = 0) -> Stop:
        """Read the elements of `text`, which starts between two, that start before `limit`.

        Lets go of Python's lock while it reads.

        Args:
            text: JSON text; behind `limit` it is looked at only where an element goes on there.
            limit: Where to stop; `len(text)` to read all.
            final: Whether the file ends with the text.
            searched: As an earlier scan of the beginning of the text gave it.
        """
        start = c_char.from_buffer(text.memory)  # while it is there the memory can't move
        self._library.events(self._scan, addressof(start), len(text), limit, final, searched)
        scan = self._scan.contents
        if scan.out_of_memory:
            raise MemoryError
        return Stop(
            scan.consumed,
            searched=scan.searched,
            ended=scan.outcome == ENDED,
            stuck=scan.outcome == STUCK,
        )

    def scan_file(self, file: int, offset: int, most_bytes: int) -> int:
        """Read elements of a plain file from `offset` on, which is between two.

        Lets go of Python's lock from its first byte to its last.

        Args:
            file: The file's descriptor.
            offset: Where to begin.
            most_bytes: About how much to read.

        Returns:
            Where the next element starts. With less than `most_bytes` read, the array or the file
            ends soon, or an element is too long for this.
        """
        position: int = self._library.file(self._scan, file, offset, most_bytes)
        if self._scan.contents.out_of_memory:
            raise MemoryError
        return position

    def take(self) -> Scanned:
        """What the scans since the last call have read."""
        scan = self._scan.contents
        names, threads, collectives, shapes, places, categories = map(
            _texts, scan.texts, self._known
        )
        counts = _numbers(scan.category_counts, 0, categories.count)
        records, calls, spans, device_spans, flows = map(_columns, scan.tables, TABLES)
        scanned = Scanned(
            records=records,
            calls=calls,
            spans=spans,
            device_spans=device_spans,
            flows=flows,
            names=names,
            threads=threads,
            collectives=collectives,
            shapes=shapes,
            places=places,
            counts={known: n for known, n in zip(categories.known, counts, strict=True) if n},
            damaged=scan.damaged,
            damaged_args=scan.damaged_args,
            undecodable=scan.undecodable,
            undecodable_rows=scan.undecodable_rows,
            invalid_records=scan.invalid_records,
            has_queues=bool(scan.has_queues),
        )
        self._library.empty(self._scan)
        return scanned


def _columns(table: Table, row: "np.dtype[np.void]") -> Mapping[str, Column]:
    """Copies of a table's columns; none of a table without rows."""
    if not table.count:
        return {}
    rows = np.frombuffer(_memory(table.rows, 0, table.count * row.itemsize), row)
    return {
        name: rows[name].astype(np.int8) if name in _SMALL else rows[name].copy()
        for name in row.names or ()
        if name != _UNUSED
    }


def _texts(texts: TextTable, known: list[bytes]) -> Texts:
    """What is known by now: those that are new are put behind the others."""
    first = len(known)
    if texts.count > first:
        ends = _numbers(texts.ends, first, texts.count)
        begin = _numbers(texts.ends, first - 1, first)[0] if first else 0
        new = bytes(_memory(texts.bytes, begin, ends[-1]))
        known += [new[a - begin : b - begin] for a, b in pairwise((begin, *ends))]
    return Texts(known, texts.count)


def _numbers(address: int | None, start: int, end: int) -> list[int]:
    """Some of the library's 64-bit numbers."""
    size = np.dtype(np.int64).itemsize
    memory = _memory(address, start * size, end * size)
    numbers: list[int] = np.frombuffer(memory, np.int64).tolist()
    return numbers


def _memory(address: int | None, start: int, end: int) -> memoryview:
    """The library's memory from one byte to another, as it is until the next scan."""
    if not address or start == end:
        return memoryview(b"")
    return memoryview((c_char * (end - start)).from_address(address + start)).cast("B")
