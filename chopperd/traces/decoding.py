"""Which decoder reads the event array: the scanner in C where there is one, else Python."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Generic, Protocol, TypeVar

from chopperd.traces.blocks import Batch, EventArray
from chopperd.traces.decoded_rows import DecodedRows
from chopperd.traces.native.library import ScannerLibrary, scanner_library
from chopperd.traces.native.scanner import Scanner
from chopperd.traces.native.threads import ScannerThreads
from chopperd.traces.rows import TraceRows
from chopperd.traces.scanned import Scanned
from chopperd.traces.scanned_array import ScannedArray
from chopperd.traces.scanned_rows import ScannedRows

PieceT_co = TypeVar("PieceT_co", covariant=True)
PieceT = TypeVar("PieceT")

#: Stretches under way for each thread: one that is scanned, one that waits.
_STRETCHES_PER_THREAD: Final = 2


class Array(Protocol[PieceT_co]):
    """An event array as its bytes arrive: `EventArray`, `ScannedArray`."""

    damaged: int
    undecodable: int
    tail: bytes | None
    truncated: bool

    @property
    def pending_bytes(self) -> int:
        """How much waits for its end: part of an element, or the tail."""

    def feed(self, data: bytes) -> Iterator[PieceT_co]:
        """The events that `data` completes."""

    def finish(self) -> Iterator[PieceT_co]:
        """The events of what is left when the data have ended."""


class Events(Protocol):
    """The event array on its way into rows."""

    @property
    def array(self) -> Array[object]:
        """What is known of the array."""

    def feed(self, data: bytes) -> None:
        """Take the next bytes."""

    def finish(self) -> None:
        """Take what was waiting for more."""


class _Decoding(Generic[PieceT]):
    """`Events` of an array and of what takes its pieces."""

    def __init__(self, array: Array[PieceT], add: Callable[[PieceT], None]) -> None:
        self.array = array
        self._add = add

    def feed(self, data: bytes) -> None:
        for piece in self.array.feed(data):
            self._add(piece)

    def finish(self) -> None:
        for piece in self.array.finish():
            self._add(piece)


@contextmanager
def decoding(rows: TraceRows, threads: int, *, native: bool = True) -> Iterator[Events]:
    """Reads an event array into rows.

    Args:
        rows: Where to.
        threads: How many threads may read. The decoder in Python uses one.
        native: Whether the scanner in C may be used; it reads the same.
    """
    library = scanner_library() if native else None
    if library is None:
        yield _Decoding[Batch](EventArray(), DecodedRows(rows).add)
    elif threads < 2:
        array = ScannedArray(Scanner(library).scan)
        yield _Decoding[Scanned](array, ScannedRows(rows).add)
    else:
        with _side_by_side(library, threads) as array:
            yield _Decoding[Scanned](array, ScannedRows(rows).add)


@contextmanager
def _side_by_side(library: ScannerLibrary, threads: int) -> Iterator[ScannedArray]:
    others = ScannerThreads(library, threads)
    try:
        scan = Scanner(library).scan
        yield ScannedArray(scan, others.later, _STRETCHES_PER_THREAD * threads)
    finally:
        others.close()
