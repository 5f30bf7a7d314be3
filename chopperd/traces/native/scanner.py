"""Scans stretches of events with the C library."""

from ctypes import string_at
from typing import Final

import numpy as np

from chopperd.traces.native.library import ENDED, STUCK, TABLES, ScannerLibrary, Table, Texts
from chopperd.traces.rows import SHAPED
from chopperd.traces.scanned import Rows, Scanned

_SHAPED: Final = b"".join(word.encode() + b"\0" for word in SHAPED) + b"\0"


class Scanner:
    """One scan at a time; its memory is used again by the next. Threads need one each.

    Args:
        library: The library.
    """

    def __init__(self, library: ScannerLibrary) -> None:
        self._library = library
        self._scan = library.open(_SHAPED)
        if not self._scan:
            raise MemoryError

    def __del__(self) -> None:
        """Give the memory back."""
        if self._scan:
            self._library.close(self._scan)

    def scan(self, text: bytes, limit: int, *, final: bool) -> Scanned:
        """Read the elements of `text`, which starts between two, that start before `limit`.

        Lets go of Python's lock while it reads.

        Args:
            text: JSON text; behind `limit` it is looked at only where an element goes on there.
            limit: Where to stop; `len(text)` to read all.
            final: Whether the file ends with the text.
        """
        self._library.events(self._scan, text, len(text), limit, final)
        scan = self._scan.contents
        if scan.out_of_memory:
            raise MemoryError
        names, threads, collectives, shapes, categories = map(_texts, scan.texts)
        counts = _numbers(scan.category_counts, len(categories))
        records, calls, spans, device_spans, flows = map(_rows, scan.tables, TABLES)
        return Scanned(
            records=records,
            calls=calls,
            spans=spans,
            device_spans=device_spans,
            flows=flows,
            names=names,
            threads=threads,
            collectives=collectives,
            shapes=shapes,
            counts=dict(zip(categories, counts, strict=True)),
            consumed=scan.consumed,
            ended=scan.outcome == ENDED,
            stuck=scan.outcome == STUCK,
            damaged=scan.damaged,
            undecodable=scan.undecodable,
            undecodable_rows=scan.undecodable_rows,
            invalid_records=scan.invalid_records,
            has_queues=bool(scan.has_queues),
        )


def _rows(table: Table, row: "np.dtype[np.void]") -> Rows:
    return np.frombuffer(_bytes(table.rows, table.count * row.itemsize), row)


def _texts(texts: Texts) -> list[bytes]:
    text, ends = _bytes(texts.bytes, texts.used), _numbers(texts.ends, texts.count)
    return [text[a:b] for a, b in zip([0, *ends], ends, strict=False)]


def _numbers(address: int | None, count: int) -> list[int]:
    numbers: list[int] = np.frombuffer(_bytes(address, count * 8), np.int64).tolist()
    return numbers


def _bytes(address: int | None, size: int) -> bytes:
    """A copy of the library's memory."""
    return string_at(address, size) if address and size else b""
