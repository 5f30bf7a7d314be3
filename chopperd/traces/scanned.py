"""What one scan of a stretch of events gives: rows of each table, and the texts they number."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

Rows: TypeAlias = npt.NDArray[np.void]

RECORD_ROW: Final = np.dtype(
    [
        *((name, "i8") for name in ("start_ns", "end_ns", "stream", "correlation", "external_id")),
        ("copied_bytes", "i8"),
        *((name, "i4") for name in ("device", "name", "collective", "kind")),
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Scanned:
    """Some events, in file order.

    Numbers of names, threads, collectives and shapes are those of this stretch's own texts.

    Attributes:
        records, calls, spans, device_spans, flows: (n,) rows, valid ones only, times in ns.
        names: JSON texts, quotes included. threads: Of process and thread, joined by `JOIN`.
        collectives, shapes: Of each key, joined likewise; an absent one is empty.
        counts: Events by the JSON text of their category.
        consumed: Where the scan stopped, between two elements.
        ended: Whether the array's end was seen there. stuck: Whether a damaged element stands
            there that no event follows.
        damaged: Elements that are not JSON.
        undecodable: Elements that are no events.
        undecodable_rows: Rows left out because a time or the device is missing or absurd.
        invalid_records: Device records left out because of their duration.
        has_queues: Whether a device record names its HSA queue.
    """

    records: Rows
    calls: Rows
    spans: Rows
    device_spans: Rows
    flows: Rows
    names: Sequence[bytes]
    threads: Sequence[bytes]
    collectives: Sequence[bytes]
    shapes: Sequence[bytes]
    counts: Mapping[bytes, int]
    consumed: int
    ended: bool
    stuck: bool
    damaged: int
    undecodable: int
    undecodable_rows: int
    invalid_records: int
    has_queues: bool


JOIN: Final = b"\x1f"
"""Stands in no JSON text."""
