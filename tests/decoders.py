"""One event array read by either decoder, and what it takes for two readings to be the same."""

import json
import re
from pathlib import Path
from typing import NoReturn
from unittest.mock import patch

import numpy as np
from msgspec import Struct

from chopperd.model.trace import Trace, TraceMeta
from chopperd.traces.read.assemble import assemble
from chopperd.traces.read.document import find_opening
from chopperd.traces.read.event_array import DecodedArray, event_array
from chopperd.traces.read.json_text import repaired
from chopperd.traces.read.reader import DEFAULT_LIMITS, read_trace
from chopperd.traces.read.rows import TraceRows
from chopperd.traces.read.source import ReadLimits

LONE_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
"""Any surrogate: few texts have one, and those are left out as a whole."""

TABLES = ("records", "calls", "spans", "device_spans", "flows", "frames", "memory")


class Reading(Struct, frozen=True, kw_only=True):
    """What a decoder made of an event array."""

    tables: Trace
    counts: dict[str, int]
    lost: dict[str, int]
    has_queues: bool
    tail: bytes | None
    truncated: bool


def reading(text: bytes, *, native: bool, piece_bytes: int = 1 << 20) -> Reading:
    """The events of a document whose bytes come in pieces."""
    opening = find_opening(text)
    array_text = b"" if opening is None else text[opening.position :]
    rows = TraceRows()
    array = (event_array if native else DecodedArray)(rows, piece_bytes)
    for at in range(0, len(array_text), piece_bytes):
        array.feed(array_text[at : at + piece_bytes])
    array.finish()
    tail = array.tail
    return Reading(
        tables=assemble(rows, TraceMeta(path="", sha256="")),
        counts=dict(rows.counts),
        lost={
            "damaged": array.damaged,
            "damaged_args": array.damaged_args,
            "undecodable": array.undecodable,
            "undecodable_rows": rows.undecodable,
            "invalid_records": rows.invalid_records,
        },
        has_queues=rows.has_queues,
        tail=None if tail is None else repaired(tail).strip(),
        truncated=array.truncated,
    )


def read_without_scanner(path: Path, *, limits: ReadLimits = DEFAULT_LIMITS) -> Trace:
    """The trace in a file as where the C scanner is missing."""
    with patch("chopperd.traces.read.event_array.scanner_library", return_value=None):
        return read_trace(path, limits=limits)


def is_sound(text: bytes) -> bool:
    """Whether a text is strict JSON, by Python's own reader: UTF-8, whole pairs of surrogates."""

    def refuse(constant: str) -> NoReturn:
        raise ValueError(constant)

    try:
        json.loads(text.decode(), parse_constant=refuse)
    except (ValueError, RecursionError):
        return False
    return LONE_SURROGATE.search(text) is None


def assert_alike(one: Reading, other: Reading) -> None:
    """Both are the same, to the order of rows and the numbers of names."""
    for name in one.__struct_fields__:
        if name != "tables":
            assert getattr(one, name) == getattr(other, name), name
    assert_same_columns(one.tables, other.tables)


def assert_same_columns(one: Trace, other: Trace) -> None:
    """All columns of all tables are the same, and the texts that they number."""
    for name in ("names", "functions", "threads", "collectives", "shapes", "marks", "span_ns"):
        assert getattr(one, name) == getattr(other, name), name
    for table in TABLES:
        first, second = getattr(one, table), getattr(other, table)
        for name in first.__struct_fields__:
            columns = getattr(first, name), getattr(second, name)
            assert columns[0].dtype == columns[1].dtype, (table, name)
            assert np.array_equal(*columns), (table, name)
