"""The scanner in C as Python sees it: where it is, what it gives, whether the two agree."""

import logging
from collections.abc import Sequence
from ctypes import CDLL, POINTER, Structure, c_char_p, c_int32, c_int64, c_void_p, sizeof
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Final

from chopperd.traces.read.scanned import CALL_ROW, DEVICE_SPAN_ROW, FLOW_ROW, RECORD_ROW, SPAN_ROW

logger = logging.getLogger(__name__)

#: `SCANNER_VERSION` of scanner.h: changes with what its functions do.
_VERSION: Final = 6
_STEM: Final = Path(__file__).with_name("_scanner")

TABLES: Final = (RECORD_ROW, CALL_ROW, SPAN_ROW, DEVICE_SPAN_ROW, FLOW_ROW)
"""Rows of each table, in the library's order."""
TEXTS: Final = 6
"""Names, threads, collectives, shapes, places, categories."""
MORE, ENDED, STUCK = range(3)
"""How a scan ends."""


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
        ("texts", TextTable * TEXTS),
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
        if library.scan_bytes() != sizeof(Scan) or rows_bytes != [one.itemsize for one in TABLES]:
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
