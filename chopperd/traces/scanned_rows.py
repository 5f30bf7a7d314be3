"""Takes scanned rows into the rows of a trace: texts decoded once each, numbers made the file's."""

from collections.abc import Callable, Hashable, Sequence
from typing import Final, Generic, TypeVar

import numpy as np

from chopperd.model.arrays import Int32s
from chopperd.traces.columns import ABSENT, Column, ColumnParts, Interner
from chopperd.traces.decode import Scalar, scalar_of, text_of
from chopperd.traces.rows import CollectiveKey, ShapesKey, TraceRows
from chopperd.traces.scanned import JOIN, Rows, Scanned

KeyT = TypeVar("KeyT", bound=Hashable)
_SMALL: Final = frozenset({"kind", "is_end"})
_UNUSED: Final = "unused"


class ScannedRows:
    """Takes what scans give.

    Args:
        rows: Where to.
    """

    def __init__(self, rows: TraceRows) -> None:
        self._rows = rows
        self._names = _Numbers(rows.names, text_of)
        self._threads = _Numbers(rows.threads, _thread)
        self._collectives = _Numbers(rows.collectives, _collective)
        self._shapes = _Numbers(rows.shapes, _shapes)

    def add(self, found: Scanned) -> None:
        """Take the rows of one scan."""
        rows = self._rows
        for category, count in found.counts.items():
            if count:
                rows.counts[text_of(category)] += count
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
    """The file's numbers of texts that each scan numbers anew."""

    def __init__(self, interner: Interner[KeyT], decode: Callable[[bytes], KeyT]) -> None:
        self._interner = interner
        self._decode = decode
        self._known: dict[bytes, int] = {}

    def of(self, texts: Sequence[bytes]) -> Int32s:
        """The number of each text, and last that of none."""
        return np.array([*map(self._number, texts), ABSENT], np.int32)

    def _number(self, text: bytes) -> int:
        number = self._known.get(text)
        if number is None:
            number = self._known[text] = self._interner[self._decode(text)]
        return number


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


def _thread(text: bytes) -> tuple[Scalar, Scalar]:
    process, thread = map(scalar_of, text.split(JOIN))
    return process, thread


def _collective(text: bytes) -> CollectiveKey:
    return tuple(map(scalar_of, text.split(JOIN)))


def _shapes(text: bytes) -> ShapesKey:
    dims, types, values = text.split(JOIN)
    return dims, types, values
