"""What scans of some events give: columns of each table, and the texts that they number."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeAlias, TypeVar

import numpy as np

from chopperd.model.arrays import Int32s
from chopperd.traces.read.json_text import Scalar, scalars_of, values_of
from chopperd.traces.read.rows import (
    ABSENT,
    BEYOND,
    Column,
    ColumnParts,
    Interner,
    ShapesKey,
    TraceRows,
)

KeyT = TypeVar("KeyT", bound=Hashable)
_NULL: Final = b"null"
Columns: TypeAlias = Mapping[str, Column]
"""Columns of one table by name, (n,) each; those that are numbered index `Texts`."""

RECORD_ROW: Final = np.dtype(
    [
        *((name, "i8") for name in ("start_ns", "end_ns", "stream", "correlation", "external_id")),
        ("copied_bytes", "i8"),
        *((name, "i4") for name in ("device", "name", "collective", "kind", "place", "unused")),
    ]
)
CALL_ROW: Final = np.dtype(
    [
        *((name, "i8") for name in ("start_ns", "end_ns", "correlation", "external_id")),
        ("size_bytes", "i8"),
        *((name, "i4") for name in ("thread", "name")),
    ]
)
SPAN_ROW: Final = np.dtype(
    [
        *((name, "i8") for name in ("start_ns", "end_ns", "external_id", "sequence")),
        ("forward_thread", "i8"),
        *((name, "i4") for name in ("thread", "name", "kind", "shapes", "collective", "unused")),
    ]
)
DEVICE_SPAN_ROW: Final = np.dtype(
    [
        *((name, "i8") for name in ("start_ns", "end_ns", "stream")),
        *((name, "i4") for name in ("device", "name")),
    ]
)
FLOW_ROW: Final = np.dtype(
    [*((name, "i8") for name in ("flow", "t_ns")), *((name, "i4") for name in ("thread", "is_end"))]
)
"""Rows as the scanner lays them out (scanner.h)."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Where a scan stopped, between two elements.

    Attributes:
        consumed: Offset in the text.
        searched: How far behind it no event starts, where a damaged element stands there whose end
            is not in sight; else 0.
        ended: Whether the array's end was seen there.
        stuck: Whether a damaged element stands there that no event follows.
    """

    consumed: int
    searched: int
    ended: bool
    stuck: bool


@dataclass(frozen=True, slots=True)
class Texts:
    """The texts that a scanner has numbered so far.

    Attributes:
        known: Text i has number i. It grows with each scan; what is in it stays.
        count: How many of them the rows that come with this may index.
    """

    known: Sequence[bytes]
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scanned:
    """Some events, in file order.

    Attributes:
        records, calls, spans, device_spans, flows: Valid rows only, times in ns.
        names: JSON texts, quotes included. threads: Of process and thread, joined by `JOIN`.
        collectives, shapes: Of each key, joined likewise; an absent one is empty.
        places: Of the processes of records where these are not their devices.
        counts: Events by the JSON text of their category.
        damaged: Elements that are not JSON.
        damaged_args: Of which rows were taken nevertheless, for that is so in their arguments only.
        undecodable: Elements that are no events.
        undecodable_rows: Rows left out because a time or the device is missing or absurd.
        invalid_records: Device records left out because of their duration.
        has_queues: Whether a device record names its HSA queue.
    """

    records: Columns
    calls: Columns
    spans: Columns
    device_spans: Columns
    flows: Columns
    names: Texts
    threads: Texts
    collectives: Texts
    shapes: Texts
    places: Texts
    counts: Mapping[bytes, int]
    damaged: int
    damaged_args: int
    undecodable: int
    undecodable_rows: int
    invalid_records: int
    has_queues: bool


JOIN: Final = b"\x1f"
"""Stands in no JSON text."""


class ScannedRows:
    """Takes what scans give.

    Args:
        rows: Where to.
    """

    def __init__(self, rows: TraceRows) -> None:
        self._rows = rows
        self._names = _Numbers(rows.names, _texts)
        self._threads = _Numbers(rows.threads, _threads)
        self._collectives = _Numbers(rows.collectives, _joined)
        self._shapes = _Numbers(rows.shapes, _shapes)
        self._places = _Numbers(rows.places, scalars_of)

    def add(self, found: Scanned) -> None:
        """Take the rows of one scan."""
        rows = self._rows
        for category, count in found.counts.items():
            rows.counts[_texts([category])[0]] += count
        rows.undecodable += found.undecodable_rows
        rows.invalid_records += found.invalid_records
        rows.has_queues |= found.has_queues
        numbers = {
            "name": self._names.of(found.names),
            "thread": self._threads.of(found.threads),
            "collective": self._collectives.of(found.collectives),
            "shapes": self._shapes.of(found.shapes),
            "place": self._places.of(found.places),
        }
        _add(rows.records, found.records, numbers)
        _add(rows.calls, found.calls, numbers)
        _add(rows.spans, found.spans, numbers)
        _add(rows.device_spans, found.device_spans, numbers)
        _add(rows.flows, found.flows, numbers)


class _Numbers(Generic[KeyT]):
    """The file's numbers of texts that each scanner numbers on its own."""

    def __init__(
        self, interner: Interner[KeyT], decode: Callable[[Sequence[bytes]], Sequence[KeyT]]
    ) -> None:
        self._interner = interner
        self._decode = decode
        self._by_scanner: dict[int, _Translation] = {}
        self._known: dict[bytes, int] = {}

    def of(self, texts: Texts) -> Int32s:
        """The number of each text, and last that of none."""
        known = texts.known
        translation = self._by_scanner.setdefault(id(known), _Translation(known))
        if texts.count > translation.count:
            translation.add(self._numbers(known[translation.count : texts.count]))
        return translation.numbers

    def _numbers(self, texts: Sequence[bytes]) -> list[int]:
        """Those of new texts; of a table that is full a text is known by its bytes, or is not."""
        if self._interner.is_full:
            return [self._known.get(text, BEYOND) for text in texts]
        numbers = self._interner.numbers(self._decode(texts))
        if self._interner.most is not None:
            self._known.update(zip(texts, numbers, strict=True))
        return numbers


class _Translation:
    """Numbers of a scanner's texts as the file's.

    Attributes:
        known: The texts; kept, so that no others take their place in memory.
        count: How many are translated.
    """

    def __init__(self, known: Sequence[bytes]) -> None:
        self.known = known
        self.count = 0
        self._room: Int32s = np.array([ABSENT], np.int32)

    @property
    def numbers(self) -> Int32s:
        """(count + 1,) numbers, `ABSENT` last: that is where -1 leads."""
        return self._room[: self.count + 1]

    def add(self, numbers: Sequence[int]) -> None:
        """Those of the next texts."""
        start, self.count = self.count, self.count + len(numbers)
        if self.count >= len(self._room):
            self._room = np.resize(self._room, 2 * self.count + 1)
        self._room[start : self.count] = numbers
        self._room[self.count] = ABSENT


def _add(table: ColumnParts, columns: Columns, numbers: dict[str, Int32s]) -> None:
    """Take columns, numbered ones by the file's numbers."""
    table.add(
        **{
            name: numbers[name][column] if name in numbers else column
            for name, column in columns.items()
        }
    )


def _texts(texts: Sequence[bytes]) -> list[str]:
    """The texts that JSON values are, or stand for."""
    return list(map(str, values_of(texts)))


def _joined(texts: Sequence[bytes]) -> list[tuple[Scalar, ...]]:
    """The scalars of each text of several values, an absent one being None."""
    parts = [part or _NULL for text in texts for part in text.split(JOIN)]
    values, each = scalars_of(parts), len(parts) // len(texts)
    return list(zip(*(values[at::each] for at in range(each)), strict=True))


def _threads(texts: Sequence[bytes]) -> list[tuple[Scalar, Scalar]]:
    return [(process, thread) for process, thread in _joined(texts)]


def _shapes(texts: Sequence[bytes]) -> list[ShapesKey]:
    return [(dims, types, values) for dims, types, values in (text.split(JOIN) for text in texts)]
