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

_RECORD_ROW: Final = np.dtype(
    [
        *((name, "i8") for name in ("start_ns", "end_ns", "stream", "correlation", "external_id")),
        ("copied_bytes", "i8"),
        *((name, "i4") for name in ("device", "name", "collective", "kind", "place", "unused")),
    ]
)
_CALL_ROW: Final = np.dtype(
    [
        *((name, "i8") for name in ("start_ns", "end_ns", "correlation", "external_id")),
        ("size_bytes", "i8"),
        *((name, "i4") for name in ("thread", "name")),
    ]
)
_SPAN_ROW: Final = np.dtype(
    [
        *((name, "i8") for name in ("start_ns", "end_ns", "external_id", "sequence")),
        ("forward_thread", "i8"),
        *((name, "i4") for name in ("thread", "name", "kind", "shapes", "collective", "unused")),
    ]
)
_DEVICE_SPAN_ROW: Final = np.dtype(
    [
        *((name, "i8") for name in ("start_ns", "end_ns", "stream")),
        *((name, "i4") for name in ("device", "name")),
    ]
)
_FLOW_ROW: Final = np.dtype(
    [*((name, "i8") for name in ("flow", "t_ns")), *((name, "i4") for name in ("thread", "is_end"))]
)
"""Rows as the scanner lays them out (scanner.h)."""

TABLES: Final[Mapping[str, "np.dtype[np.void]"]] = {
    "records": _RECORD_ROW,
    "calls": _CALL_ROW,
    "spans": _SPAN_ROW,
    "device_spans": _DEVICE_SPAN_ROW,
    "flows": _FLOW_ROW,
}
"""Row layouts in the scanner's order."""
TEXTS: Final = ("name", "thread", "collective", "shapes", "place", "category")
"""What the scanner numbers, in its order; all but the last by the column that indexes it."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Where a scan stopped, between two elements.

    Attributes:
        consumed: Offset in the text.
        searched: How far behind it no event starts, if a damaged element without an end is there;
            else 0.
        ended: Whether the array ends there.
        stuck: Whether a damaged element is there that no event follows.
    """

    consumed: int
    searched: int
    ended: bool
    stuck: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Scanned:
    """Some events, in file order.

    Attributes:
        tables: Columns of `TABLES`: valid rows only, times in ns. Numbered columns index `texts`.
        texts: By name of a numbered column, all JSON texts that the scanner has numbered so far.
            Texts of several values are joined by `JOIN`; an absent value is empty.
        counts: Events by the JSON text of their category.
        damaged: Elements that are not JSON.
        damaged_args: Elements damaged in their arguments only, of which rows were taken.
        undecodable: Elements that are no events.
        undecodable_rows: Rows left out because a time or the device is missing or impossible.
        invalid_records: Device records left out because of their duration.
        has_queues: Whether a device record names its HSA queue.
    """

    tables: Mapping[str, Columns]
    texts: Mapping[str, Sequence[bytes]]
    counts: Mapping[bytes, int]
    damaged: int
    damaged_args: int
    undecodable: int
    undecodable_rows: int
    invalid_records: int
    has_queues: bool


JOIN: Final = b"\x1f"
"""Separates texts; no JSON text contains it."""


class ScannedRows:
    """Takes the rows of one scanner into the rows of a trace.

    Args:
        rows: Takes the rows.
    """

    def __init__(self, rows: TraceRows) -> None:
        self._rows = rows
        self._numbers: Mapping[str, Callable[[Sequence[bytes]], Int32s]] = {
            "name": _Numbers(rows.names, _texts).of,
            "thread": _Numbers(rows.threads, _threads).of,
            "collective": _Numbers(rows.collectives, _joined).of,
            "shapes": _Numbers(rows.shapes, _shapes).of,
            "place": _Numbers(rows.places, scalars_of).of,
        }

    def add(self, found: Scanned) -> None:
        """Take the rows of one scan."""
        rows = self._rows
        for category, count in found.counts.items():
            rows.counts[_texts([category])[0]] += count
        rows.undecodable += found.undecodable_rows
        rows.invalid_records += found.invalid_records
        rows.has_queues |= found.has_queues
        numbers = {name: self._numbers[name](texts) for name, texts in found.texts.items()}
        for name, columns in found.tables.items():
            table: ColumnParts = getattr(rows, name)
            _add(table, columns, numbers)


class _Numbers(Generic[KeyT]):
    """Numbers of a scanner's texts as the trace's: equal values have one number.

    Args:
        interner: Numbers the values.
        decode: The values of JSON texts.
    """

    def __init__(
        self, interner: Interner[KeyT], decode: Callable[[Sequence[bytes]], Sequence[KeyT]]
    ) -> None:
        self._interner = interner
        self._decode = decode
        self._known: dict[bytes, int] = {}
        self._count = 0
        self._room: Int32s = np.array([ABSENT], np.int32)

    def of(self, texts: Sequence[bytes]) -> Int32s:
        """(len(texts) + 1,) the number of each text; `ABSENT` last, which -1 indexes.

        Args:
            texts: As given before, and new ones.
        """
        start, self._count = self._count, len(texts)
        if self._count > start:
            if self._count >= len(self._room):
                self._room = np.resize(self._room, 2 * self._count + 1)
            self._room[start : self._count] = self._numbered(texts[start:])
            self._room[self._count] = ABSENT
        return self._room[: self._count + 1]

    def _numbered(self, texts: Sequence[bytes]) -> list[int]:
        """Numbers of new texts; a full table knows texts by their bytes only."""
        if self._interner.is_full:
            return [self._known.get(text, BEYOND) for text in texts]
        numbers = self._interner.numbers(self._decode(texts))
        if self._interner.most is not None:
            self._known.update(zip(texts, numbers, strict=True))
        return numbers


def _add(table: ColumnParts, columns: Columns, numbers: dict[str, Int32s]) -> None:
    """Take columns, numbered ones by the file's numbers."""
    table.add(
        **{
            name: numbers[name][column] if name in numbers else column
            for name, column in columns.items()
        }
    )


def _texts(texts: Sequence[bytes]) -> list[str]:
    """Decoded values as texts."""
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
