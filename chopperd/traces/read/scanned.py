"""What scans of some events give: columns of each table, and the texts that they number."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from chopperd.traces.read.columns import Column

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
