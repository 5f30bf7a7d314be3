"""Rows of a scanner as rows of a trace: its texts decoded, its numbers replaced."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Final, Generic, TypeVar

import numpy as np

from chopperd.model.arrays import Int32s, Ints
from chopperd.traces.native.scanner import JOIN, Scanned
from chopperd.traces.read.json_text import Scalar, scalars_of, values_of
from chopperd.traces.read.rows import (
    ABSENT,
    BEYOND,
    ColumnParts,
    Interner,
    ShapesKey,
    TraceRows,
)

KeyT = TypeVar("KeyT", bound=Hashable)
_NULL: Final = b"null"


class ScannedRows:
    """Adds the rows of one scanner to the rows of a trace."""

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
        """Add the rows of one scan."""
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
    """Converts a scanner's numbers of texts to a trace's: equal values have one number.

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
            texts: Those of the last call, and new ones.
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


def _add(table: ColumnParts, columns: Mapping[str, Ints], numbers: dict[str, Int32s]) -> None:
    """Add columns, numbered ones with the trace's numbers."""
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
