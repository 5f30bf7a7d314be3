"""Takes scanned rows into the rows of a trace: texts decoded once each, numbers made the file's."""

from collections.abc import Callable, Hashable, Sequence
from typing import Final, Generic, TypeVar

import numpy as np

from chopperd.model.arrays import Int32s
from chopperd.traces.columns import ABSENT, Column, ColumnParts, Interner
from chopperd.traces.decode import Scalar, scalars_of, values_of
from chopperd.traces.rows import ShapesKey, TraceRows
from chopperd.traces.scanned import JOIN, Rows, Scanned

KeyT = TypeVar("KeyT", bound=Hashable)
_SMALL: Final = frozenset({"kind", "is_end"})
_UNUSED: Final = "unused"
_NULL: Final = b"null"


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

    def add(self, found: Scanned) -> None:
        """Take the rows of one scan."""
        rows = self._rows
        for category, count in found.counts.items():
            if count:
                rows.counts[_texts([category])[0]] += count
        rows.undecodable += found.undecodable_rows
        rows.invalid_records += found.invalid_records
        rows.has_queues |= found.has_queues
        numbers = {
            "name": self._names.of(found.names),
            "thread": self._threads.of(found.threads),
            "collective": self._collectives.of(found.collectives),
            "shapes": self._shapes.of(found.shapes),
        }
        _add(rows.records, found.records, numbers)
        _add(rows.calls, found.calls, numbers)
        _add(rows.spans, found.spans, numbers)
        _add(rows.device_spans, found.device_spans, numbers)
        _add(rows.flows, found.flows, numbers)


class _Numbers(Generic[KeyT]):
    """The file's numbers of texts that each scan numbers anew; a text is decoded once a file."""

    def __init__(
        self, interner: Interner[KeyT], decode: Callable[[Sequence[bytes]], Sequence[KeyT]]
    ) -> None:
        self._interner = interner
        self._decode = decode
        self._known: dict[bytes, int] = {}

    def of(self, texts: Sequence[bytes]) -> Int32s:
        """The number of each text, and last that of none."""
        known = self._known
        new = [text for text in texts if text not in known]
        if new:
            known.update(zip(new, map(self._interner.__getitem__, self._decode(new)), strict=True))
        return np.array([*map(known.__getitem__, texts), ABSENT], np.int32)


def _add(table: ColumnParts, rows: Rows, numbers: dict[str, Int32s]) -> None:
    """Take rows apart into columns. -1, which stands for none, takes the last number."""
    if not len(rows):
        return
    columns: dict[str, Column] = {}
    for name in rows.dtype.names or ():
        column = rows[name]
        columns[name] = numbers[name][column] if name in numbers else column.copy()
    for name in _SMALL & columns.keys():
        columns[name] = columns[name].astype(np.int8)
    columns.pop(_UNUSED, None)
    table.add(**columns)


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
