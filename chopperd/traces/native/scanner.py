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
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from msgspec import Struct

from chopperd.model.arrays import Ints

logger = logging.getLogger(__name__)

#: `SCANNER_VERSION` of scanner.h: changes with what its functions do.
_VERSION: Final = 9
_STEM: Final = Path(__file__).with_name("_scanner")

MORE, ENDED, STUCK = range(3)
"""How a scan ends."""
_END: Final = 1
"""A NUL after the text, which no JSON value contains: the scanner stops there."""
_SPARE_BYTES: Final = 1 << 16

SHAPED: Final = (
    *("mm", "matmul", "linear", "conv", "attention", "attn", "flash", "einsum", "sdpa", "mha"),
)
"""Shapes are stored of operators whose name contains one of these: FLOPs are counted of them."""
_SHAPED: Final = b"".join(word.encode() + b"\0" for word in SHAPED) + b"\0"

RowType: TypeAlias = "np.dtype[np.void]"


def _row(wide: str, narrow: str) -> RowType:
    """Return the layout of a row: columns of 64 bits, then of 32, named in texts with blanks."""
    return np.dtype([(name, "i8") for name in wide.split()] + [(n, "i4") for n in narrow.split()])


TABLES: Final[Mapping[str, RowType]] = {
    "records": _row(
        "start_ns end_ns stream correlation external_id copied_bytes seq comms_id",
        "device name collective kind place mark",
    ),
    "calls": _row("start_ns end_ns correlation external_id size_bytes", "thread name"),
    "spans": _row(
        "start_ns end_ns external_id sequence forward_thread",
        "thread name kind shapes collective unused",
    ),
    "device_spans": _row("start_ns end_ns stream", "device name"),
    "flows": _row("flow t_ns", "thread is_end"),
    "frames": _row("start_ns end_ns", "thread function"),
    "comms": _row("external_id seq comms_id", ""),
    "memory": _row(
        "at_ns bytes address allocated_bytes reserved_bytes", "thread device is_oom unused"
    ),
}
"""Row layouts in the scanner's order (scanner.h)."""
_UNUSED: Final = "unused"
_SMALL: Final = frozenset({"kind", "is_end", "is_oom"})
COLUMN_TYPES: Final[Mapping[str, type[np.signedinteger]]] = {
    name: np.int8 if name in _SMALL else np.int64 if row[name].itemsize > 4 else np.int32
    for row in TABLES.values()
    for name in row.names or ()
    if name != _UNUSED
}
"""Type of each column; columns of one name have the same in all tables."""
TEXTS: Final = ("name", "thread", "collective", "shapes", "place", "mark", "function", "category")
"""What the scanner numbers, in its order; all but the last by the column that indexes it."""
JOIN: Final = b"\x1f"
"""Separates the values of one text; no JSON text contains it."""


class Stop(NamedTuple):
    """Where a scan stopped, between two elements."""

    consumed: int  # offset in the text
    # How far after it no event starts, if a damaged element without an end is there; else 0
    searched: int
    ended: bool  # whether the array ends there
    stuck: bool  # whether a damaged element is there that no event follows


class Scanned(Struct, frozen=True, kw_only=True):
    """Rows and counts of the events that one or more scans read, in file order."""

    # Columns of `TABLES`, (n,) each, valid rows only; numbered columns index `texts`
    tables: Mapping[str, Mapping[str, Ints]]
    # All JSON texts numbered so far, by the column that indexes them. Several values are joined by
    # `JOIN`; an absent value is empty.
    texts: Mapping[str, Sequence[bytes]]
    counts: Mapping[bytes, int]  # events by the JSON text of their category
    damaged: int  # elements that are not JSON
    damaged_args: int  # elements damaged in their arguments only, of which rows were taken
    undecodable: int  # elements that are no events
    undecodable_rows: int  # rows left out because a time or the device is missing or impossible
    invalid_records: int  # device records left out because of their duration
    has_queues: bool  # whether a device record names its HSA queue


class Table(Structure):
    """`table_t` of scanner.h: the rows of one table."""

    _fields_ = [("rows", c_void_p), ("count", c_int64), ("room", c_int64), ("row_bytes", c_int64)]


class TextTable(Structure):
    """`strings_t` of scanner.h: numbered distinct texts of one of `TEXTS`."""

    _fields_ = [
        *((name, c_void_p) for name in ("bytes", "ends", "hashes", "marks", "slots")),
        *((name, c_int64) for name in ("used", "room", "count", "count_room", "slot_room")),
    ]


class Scan(Structure):
    """`scan_t` of scanner.h: the state and the results of a scanner."""

    _fields_ = [
        ("tables", Table * len(TABLES)),
        ("texts", TextTable * len(TEXTS)),
        ("category_counts", c_void_p),
        *((name, c_int64) for name in ("category_room", "consumed", "searched", "outcome")),
        *((name, c_int64) for name in ("damaged", "damaged_args", "undecodable")),
        *((name, c_int64) for name in ("undecodable_rows", "invalid_records", "has_queues")),
        ("out_of_memory", c_int64),
        ("joined", c_void_p),
        ("joined_room", c_int64),
        *((name, c_void_p) for name in ("shaped", "pieces", "text")),
    ]


class StacksOf(Structure):
    """`stacks_t` of scanner.h: things that may be open, and where what is found of them goes."""

    _fields_ = [
        *((name, c_int64) for name in ("count", "threads", "from_ns", "to_ns", "backward_text")),
        *((name, c_int64) for name in ("launches", "launch", "moves", "edges")),
        *((name, c_void_p) for name in ("order", "thread", "start_ns", "end_ns", "kind", "text")),
        *((name, c_void_p) for name in ("user", "backward", "launch_thread", "launch_ns")),
        *((name, c_void_p) for name in ("edge_thread", "edge_ns", "edge_inner")),
        *((name, c_void_p) for name in ("named", "whole", "region", "whole_until_ns")),
    ]


_FUNCTIONS: Final[Mapping[str, tuple[object, Sequence[object]]]] = {
    "scan_bytes": (c_int64, ()),
    "scan_row_bytes": (c_int64, (c_int64,)),
    "scan_open": (POINTER(Scan), (c_char_p,)),
    "scan_close": (None, (POINTER(Scan),)),
    "scan_events": (c_int64, (POINTER(Scan), c_void_p, *[c_int64] * 4)),
    "scan_file": (c_int64, (POINTER(Scan), c_int32, c_int64, c_int64)),
    "scan_empty": (None, (POINTER(Scan),)),
    "stacks_walk": (c_int64, (POINTER(StacksOf),)),
}
"""Results and arguments of the library's functions."""


class ScannerLibrary:
    """The functions of the scanner's compiled library.

    Raises:
        OSError: The library can't be loaded, or is of another version than this package.
    """

    def __init__(self, path: Path) -> None:
        library = CDLL(str(path))
        if library.scanner_version() != _VERSION:
            raise OSError(f"{path} is of another version than this package")
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
        rows_bytes = [library.scan_row_bytes(number) for number in range(len(TABLES))]
        expected = [row.itemsize for row in TABLES.values()]
        if library.scan_bytes() != sizeof(Scan) or rows_bytes != expected:
            raise OSError(f"{path} lays out its structures differently")
        self.open = library.scan_open
        self.close = library.scan_close
        self.events = library.scan_events
        self.file = library.scan_file
        self.empty = library.scan_empty
        self.stacks = library.stacks_walk


@cache
def scanner_library() -> ScannerLibrary | None:
    """Load the scanner's library once; None if not compiled, or unusable, which is logged."""
    paths: Sequence[Path] = [_STEM.with_name(_STEM.name + end) for end in EXTENSION_SUFFIXES]
    path = next((each for each in paths if each.exists()), None)
    if path is None:
        return None
    try:
        return ScannerLibrary(path)
    except OSError as error:
        logger.warning("traces are read without the native scanner: %s", error)
        return None


class TextBuffer:
    """Text at the start of a buffer that grows and is never freed; a NUL follows the text.

    It is reused, as fresh memory costs as much as reading into it. `memory` moves when it grows,
    which fails while somebody holds a view of it.
    """

    def __init__(self, data: bytes | bytearray | memoryview = b"") -> None:
        self.memory = bytearray(_END)
        self._size_bytes = 0
        self.append(data)

    def __len__(self) -> int:
        return self._size_bytes

    def append(self, data: bytes | bytearray | memoryview) -> None:
        """Add text at the end."""
        end = self._size_bytes + len(data)
        if end + _END > len(self.memory):
            self.memory.extend(bytes(end + end // 4 + _SPARE_BYTES - len(self.memory)))
        self.memory[self._size_bytes : end] = data
        self._end_at(end)

    def text(self) -> bytes:
        """Return a copy of the text."""
        with memoryview(self.memory) as memory:
            return bytes(memory[: self._size_bytes])

    def drop(self, count: int) -> None:
        """Remove `count` bytes from the front."""
        rest = self._size_bytes - count
        self.memory[:rest] = self.memory[count : self._size_bytes]
        self._end_at(rest)

    def clear(self) -> None:
        """Remove all text."""
        self._end_at(0)

    def _end_at(self, end: int) -> None:
        self._size_bytes = end
        self.memory[end] = 0


class Scanner:
    """Scans text for events, one scan at a time; texts keep their numbers from scan to scan."""

    def __init__(self, library: ScannerLibrary) -> None:
        self._library = library
        self._known: list[list[bytes]] = [[] for _ in TEXTS]
        self._scan = library.open(_SHAPED)
        if not self._scan:
            raise MemoryError

    def __del__(self) -> None:
        if self._scan:
            self._library.close(self._scan)

    def scan(
        self, text: TextBuffer, *, final: bool, limit: int | None = None, searched: int = 0
    ) -> Stop:
        """Read events into the scanner, for `take`, from a text; releases Python's lock.

        `text` starts between two elements; `final`: the file ends with it. `limit`: offset from
        which on no element is begun. `searched`: as an earlier scan of the beginning of the text
        returned it.
        """
        start = c_char.from_buffer(text.memory)  # while it exists the memory can't move
        end = len(text) if limit is None else limit
        self._library.events(self._scan, addressof(start), len(text), end, final, searched)
        scan = self._scan.contents
        if scan.out_of_memory:
            raise MemoryError
        ended, stuck = scan.outcome == ENDED, scan.outcome == STUCK
        return Stop(scan.consumed, searched=scan.searched, ended=ended, stuck=stuck)

    def scan_file(self, file: int, offset: int, most_bytes: int) -> int:
        """Read events into the scanner, for `take`, from a plain file; releases Python's lock.

        Returns the offset of the next element. With less than `most_bytes` read, the array or the
        file ends soon, or an element is too long for this.
        """
        position: int = self._library.file(self._scan, file, offset, most_bytes)
        if self._scan.contents.out_of_memory:
            raise MemoryError
        return position

    def take(self) -> Scanned:
        """Return the events read by the scans since the last call, and remove them here."""
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


def _columns(table: Table, row: RowType) -> Mapping[str, Ints]:
    """Return copies of a table's columns by name; none of a table without rows."""
    if not table.count:
        return {}
    rows = np.frombuffer(_memory(table.rows, 0, table.count * row.itemsize), row)
    return {
        name: rows[name].astype(COLUMN_TYPES[name]) for name in row.names or () if name != _UNUSED
    }


def _add_new(texts: TextTable, known: list[bytes]) -> None:
    first = len(known)
    if texts.count > first:
        ends = _numbers(texts.ends, first, texts.count)
        begin = _numbers(texts.ends, first - 1, first)[0] if first else 0
        new = bytes(_memory(texts.bytes, begin, ends[-1]))
        known += [new[a - begin : b - begin] for a, b in pairwise((begin, *ends))]


def _numbers(address: int | None, start: int, end: int) -> list[int]:
    """Return the 64-bit numbers from index `start` to `end` of the library's array at `address`."""
    size = np.dtype(np.int64).itemsize
    memory = _memory(address, start * size, end * size)
    numbers: list[int] = np.frombuffer(memory, np.int64).tolist()
    return numbers


def _memory(address: int | None, start: int, end: int) -> memoryview:
    """Return a view of the library's bytes `start` to `end`; valid until the next scan."""
    if not address or start == end:
        return memoryview(b"")
    return memoryview((c_char * (end - start)).from_address(address + start)).cast("B")
