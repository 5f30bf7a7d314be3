"""An event array as one of the decoders reads it, in a form that is fast to compare.

Rows are taken before they become a trace's tables: these are made of them by the same code,
whoever read them, and that costs more than the reading itself.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Final, TypeAlias

import numpy as np

from chopperd.traces.read.event_array import DecodedArray, EventArray, event_array
from chopperd.traces.read.json_text import repaired
from chopperd.traces.read.numbering import compacted
from chopperd.traces.read.rows import ColumnParts, ShapesKey, TraceRows

Row: TypeAlias = tuple[object, ...]

_TIMES: Final = ("start_ns", "end_ns")
_COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "records": (
        *("kind", "device", "stream", *_TIMES, "correlation", "external_id", "copied_bytes"),
        *("name", "collective", "place", "seq", "comms_id"),
    ),
    "calls": (*_TIMES, "correlation", "external_id", "size_bytes", "name", "thread"),
    "spans": (
        *("kind", *_TIMES, "external_id", "sequence", "forward_thread"),
        *("name", "thread", "shapes", "collective"),
    ),
    "device_spans": ("device", "stream", *_TIMES, "name"),
    "flows": ("flow", "is_end", "t_ns", "thread"),
    "frames": (*_TIMES, "function", "thread"),
    "comms": ("external_id", "seq", "comms_id"),
    "memory": (
        *("at_ns", "bytes", "address", "allocated_bytes", "reserved_bytes", "device", "is_oom"),
        "thread",
    ),
}


@dataclass(slots=True)
class ArrayReading:
    """What a decoder made of an event array.

    Attributes:
        rows: Of all tables, each with its table's name, numbers of texts replaced by the texts.
        counts: Events by category.
        lost: Elements and rows that became none, by kind.
        ending: What follows the array; None where its end is missing.
        truncated: Whether the text ended inside an element.
    """

    rows: Counter[Row]
    counts: Mapping[str, int]
    lost: Mapping[str, int]
    ending: bytes | None
    truncated: bool

    @property
    def event_count(self) -> int:
        """Events that were read."""
        return sum(self.counts.values())


def read_array(pieces: Sequence[bytes], *, native: bool) -> ArrayReading:
    """The events of an array whose text comes in pieces, a block being as long as the longest."""
    rows = TraceRows()
    array = (event_array if native else DecodedArray)(rows, max(map(len, pieces)))
    for piece in pieces:
        array.feed(piece)
    array.finish()
    return _reading(rows, array)


def _reading(rows: TraceRows, array: EventArray) -> ArrayReading:
    return ArrayReading(
        rows=rows_of(rows),
        counts=rows.counts,
        lost={
            "damaged": array.damaged,
            "damaged args": array.damaged_args,
            "undecodable": array.undecodable,
            "undecodable rows": rows.undecodable,
            "invalid records": rows.invalid_records,
            "queues": int(rows.has_queues),
        },
        ending=array.tail,
        truncated=array.truncated,
    )


def rows_of(rows: TraceRows) -> Counter[Row]:
    """The rows of all tables; their columns are given up."""
    texts: dict[str, Sequence[object]] = {
        "name": list(rows.names),
        "function": list(rows.functions),
        "thread": list(rows.threads),
        "collective": [*rows.collectives, None],
        "shapes": [*map(_plain, rows.shapes), None],
        "place": [*rows.places, None],
    }
    found: Counter[Row] = Counter()
    for table, columns in _COLUMNS.items():
        parts: ColumnParts = getattr(rows, table)
        starts = parts.take(columns[0], np.int64).tolist()
        if starts:
            others = (parts.take(column, np.int64).tolist() for column in columns[1:])
            values = (
                map(texts[column].__getitem__, one) if column in texts else one
                for column, one in zip(columns[1:], others, strict=True)
            )
            found.update(zip(repeat(table), starts, *values))
    return found


def _plain(texts: ShapesKey) -> tuple[str, ...]:
    """Shapes without blanks: they are kept as they were written, or as they were decoded."""
    return tuple(compacted(texts))


def unlike(one: ArrayReading, other: ArrayReading) -> str:
    """The first difference of two readings; "" where there is none."""
    if one.rows != other.rows:
        left, right = one.rows - other.rows, other.rows - one.rows
        return f"rows: {dict(left)} / {dict(right)}; {one.lost} / {other.lost}"
    for name in ("counts", "lost", "truncated"):
        values = getattr(one, name), getattr(other, name)
        if values[0] != values[1]:
            return f"{name}: {values[0]} / {values[1]}"
    if one.ending != other.ending and _bare(one.ending) != _bare(other.ending):
        return f"ending: {one.ending!r} / {other.ending!r}"
    return ""


def _bare(ending: bytes | None) -> bytes | None:
    return None if ending is None else repaired(ending).strip()
