"""Which decoder reads the event array: the scanner in C where there is one, else Python."""

from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

from chopperd.traces.blocks import Batch, EventArray
from chopperd.traces.decoded_rows import DecodedRows
from chopperd.traces.native.library import scanner_library
from chopperd.traces.native.scanner import Scanner
from chopperd.traces.rows import TraceRows
from chopperd.traces.scanned import Scanned
from chopperd.traces.scanned_array import ScannedArray
from chopperd.traces.scanned_rows import ScannedRows
from chopperd.traces.source import TraceSource
from chopperd.traces.text_buffer import Buffer

PieceT_co = TypeVar("PieceT_co", covariant=True)
PieceT = TypeVar("PieceT")


class Array(Protocol[PieceT_co]):
    """An event array as its bytes arrive: `EventArray`, `ScannedArray`."""

    damaged: int
    damaged_args: int
    undecodable: int
    tail: bytes | None
    truncated: bool

    @property
    def pending_bytes(self) -> int:
        """How much waits for its end: part of an element, or the tail."""

    def feed(self, data: Buffer) -> Iterator[PieceT_co]:
        """The events that `data` completes."""

    def finish(self) -> Iterator[PieceT_co]:
        """The events of what is left when the data have ended."""


class Events(Protocol):
    """The event array on its way into rows."""

    @property
    def array(self) -> Array[object]:
        """What is known of the array."""

    def pieces_of(self, source: TraceSource) -> Iterator[Buffer]:
        """A file's text in pieces that suit the decoder."""

    def feed(self, data: Buffer) -> None:
        """Take the next bytes."""

    def read_file(self, source: TraceSource) -> None:
        """Take what stands in a plain file behind the text that was fed, if that is quicker."""

    def finish(self) -> None:
        """Take what was waiting for more."""


class _Decoding(Generic[PieceT]):
    """`Events` of an array and of what takes its pieces."""

    def __init__(
        self,
        array: Array[PieceT],
        add: Callable[[PieceT], None],
        pieces_of: Callable[[TraceSource], Iterator[Buffer]],
    ) -> None:
        self.array = array
        self.pieces_of = pieces_of
        self._add = add

    def feed(self, data: Buffer) -> None:
        for piece in self.array.feed(data):
            self._add(piece)

    def read_file(self, source: TraceSource) -> None:
        """No: what is decoded in Python must be fed."""

    def finish(self) -> None:
        for piece in self.array.finish():
            self._add(piece)


class _Scanning(_Decoding[Scanned]):
    """`Events` that the scanner reads."""

    def __init__(self, array: ScannedArray, rows: TraceRows) -> None:
        super().__init__(array, ScannedRows(rows).add, TraceSource.views)
        self._scanned = array

    def read_file(self, source: TraceSource) -> None:
        for piece in self._scanned.read_file(source.file, source.stored_bytes):
            self._add(piece)
            source.go_on_at(self._scanned.read_to)


def decoding(rows: TraceRows, block_bytes: int, *, native: bool = True) -> Events:
    """Reads an event array into rows.

    Args:
        rows: Where to.
        block_bytes: How much text is taken into rows at once.
        native: Whether the scanner in C may be used; it reads the same.
    """
    library = scanner_library() if native else None
    if library is None:
        return _Decoding[Batch](EventArray(), DecodedRows(rows).add, TraceSource.chunks)
    return _Scanning(ScannedArray(Scanner(library), block_bytes), rows)
