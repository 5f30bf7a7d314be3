"""The scanner in C as Python calls it: its library, its structures, one scan at a time."""

import logging
from collections.abc import Mapping, Sequence
from ctypes import (
    CDLL,
    POINTER,
    Structure,
    addressof,
    c_char,
    c_char_p,
    c_int32,
    c_int64,
    c_void_p,
    sizeof,
)
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np

from chopperd.traces.read.rows import SHAPED, Column
from chopperd.traces.read.scanned import TABLES, TEXTS, Scanned, Stop

logger = logging.getLogger(__name__)

#: `SCANNER_VERSION` of scanner.h: changes with what its functions do.
_VERSION: Final = 6
_STEM: Final = Path(__file__).with_name("_scanner")

MORE, ENDED, STUCK = range(3)
"""How a scan ends."""
_SHAPED: Final = b"".join(word.encode() + b"\0" for word in SHAPED) + b"\0"
_SMALL: Final = frozenset({"kind", "is_end"})
_UNUSED: Final = "unused"
_END: Final = 1
"""A NUL behind the text, which no JSON value contains: the scanner stops there."""
_SPARE_BYTES: Final = 1 << 16


class Table(Structure):
    """`table_t`."""

    _fields_ = [("rows", c_void_p), ("count", c_int64), ("room", c_int64), ("row_bytes", c_int64)]


class TextTable(Structure):
    """`strings_t`."""

    _fields_ = [
        *((name, c_void_p) for name in ("bytes", "ends", "hashes", "marks", "slots")),
        *((name, c_int64) for name in ("used", "room", "count", "count_room", "slot_room")),
    ]


class Scan(Structure):
    """`scan_t`."""

    _fields_ = [
        ("tables", Table * len(TABLES)),
        ("texts", TextTable * len(TEXTS)),
        ("category_counts", c_void_p),
        ("category_room", c_int64),
        ("consumed", c_int64),
        ("searched", c_int64),
        ("outcome", c_int64),
        *((name, c_int64) for name in ("damaged", "damaged_args", "undecodable")),
        ("undecodable_rows", c_int64),
        *((name, c_int64) for name in ("invalid_records", "has_queues")),
        ("out_of_memory", c_int64),
        ("joined", c_void_p),
        ("joined_room", c_int64),
        ("shaped", c_void_p),
        ("pieces", c_void_p),
        ("text", c_void_p),
    ]


class ScannerLibrary:
    """The functions of the library.

    Args:
        path: The library.

    Raises:
        OSError: It can't be loaded, or is of another version than this package.
    """

    def __init__(self, path: Path) -> None:
        library = CDLL(str(path))
        library.scanner_version.restype = c_int64
        if library.scanner_version() != _VERSION:
            raise OSError(f"{path} is of another version than this package")
        library.scan_bytes.restype = c_int64
        library.scan_row_bytes.restype = c_int64
        library.scan_row_bytes.argtypes = [c_int64]
        rows_bytes = [library.scan_row_bytes(number) for number in range(len(TABLES))]
        if library.scan_bytes() != sizeof(Scan) or rows_bytes != [
            one.itemsize for one in TABLES.values()
        ]:
            raise OSError(f"{path} lays out its structures otherwise")
        library.scan_open.restype = POINTER(Scan)
        library.scan_open.argtypes = [c_char_p]
        library.scan_close.restype = None
        library.scan_close.argtypes = [POINTER(Scan)]
        library.scan_events.restype = c_int64
        library.scan_events.argtypes = [POINTER(Scan), c_void_p, *[c_int64] * 4]
        library.scan_file.restype = c_int64
        library.scan_file.argtypes = [POINTER(Scan), c_int32, c_int64, c_int64]
        library.scan_empty.restype = None
        library.scan_empty.argtypes = [POINTER(Scan)]
        self.open = library.scan_open
        self.close = library.scan_close
        self.events = library.scan_events
        self.file = library.scan_file
        self.empty = library.scan_empty


@cache
def scanner_library() -> ScannerLibrary | None:
    """The library; None where it was not compiled, or can't be used, which is logged."""
    paths: Sequence[Path] = [_STEM.with_name(_STEM.name + end) for end in EXTENSION_SUFFIXES]
    path = next((one for one in paths if one.exists()), None)
    if path is None:
        return None
    try:
        return ScannerLibrary(path)
    except OSError as error:
        logger.warning("traces are read without the native scanner: %s", error)
        return None


class TextBuffer:
    """Text at the front of a piece of memory; behind it a NUL.

    Fresh memory costs as much as reading into it: it is grown, and never given back.

    Attributes:
        memory: The text and the room behind it. It moves where the text outgrows it, which can't be
            while somebody holds a view of it.
        size_bytes: How much of it is text.

    Args:
        data: The first text.
    """

    def __init__(self, data: bytes | bytearray | memoryview = b"") -> None:
        self.memory = bytearray(_END)
        self.size_bytes = 0
        self.append(data)

    def __len__(self) -> int:
        """How much text there is."""
        return self.size_bytes

    def append(self, data: bytes | bytearray | memoryview) -> None:
        """Put text behind the rest."""
        end = self.size_bytes + len(data)
        if end + _END > len(self.memory):
            self.memory.extend(bytes(end + end // 4 + _SPARE_BYTES - len(self.memory)))
        self.memory[self.size_bytes : end] = data
        self._ends_at(end)

    def text(self, start: int = 0, end: int | None = None) -> bytes:
        """A copy of the text between two places."""
        with memoryview(self.memory) as memory:
            return bytes(memory[start : self.size_bytes if end is None else end])

    def drop(self, count: int) -> None:
        """Take so much off the front."""
        rest = self.size_bytes - count
        self.memory[:rest] = self.memory[count : self.size_bytes]
        self._ends_at(rest)

    def clear(self) -> None:
        """Take everything off."""
        self._ends_at(0)

    def _ends_at(self, end: int) -> None:
        self.size_bytes = end
        self.memory[end] = 0


class Scanner:
    """One scan at a time; its memory is used again by the next.

    Texts keep their numbers from one scan to the next.

    Args:
        library: The library.
    """

    def __init__(self, library: ScannerLibrary) -> None:
        self._library = library
        self._known: list[list[bytes]] = [[] for _ in TEXTS]
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
            text: JSON text; text behind `limit` is read only if an element continues there.
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
        for texts, known in zip(scan.texts, self._known, strict=True):
            _add_new(texts, known)
        *numbered, categories = self._known
        counts = _numbers(scan.category_counts, 0, len(categories))
        scanned = Scanned(
            tables=dict(zip(TABLES, map(_columns, scan.tables, TABLES.values()), strict=True)),
            texts=dict(zip(TEXTS[:-1], numbered, strict=True)),
            counts={text: n for text, n in zip(categories, counts, strict=True) if n},
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


def _add_new(texts: TextTable, known: list[bytes]) -> None:
    """Append to the known texts those that the last scans have numbered."""
    first = len(known)
    if texts.count > first:
        ends = _numbers(texts.ends, first, texts.count)
        begin = _numbers(texts.ends, first - 1, first)[0] if first else 0
        new = bytes(_memory(texts.bytes, begin, ends[-1]))
        known += [new[a - begin : b - begin] for a, b in pairwise((begin, *ends))]


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
