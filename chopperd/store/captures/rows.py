"""Conversion to and from stored rows: traces; a capture's document, steps and totals; drops."""

import logging
import sqlite3
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, TypeVar

import msgspec

from chopperd.model.captures import DropQuery, DropState, GpuDrop, TraceEntry, TraceState
from chopperd.model.report import ReportDocument, without_parts
from chopperd.model.report_rows import Row
from chopperd.store.captures.schema import COMMON_OWNER
from chopperd.units import NS_PER_MS, NS_PER_S

logger = logging.getLogger(__name__)

Stored = TypeVar("Stored")

#: Unknown numbers in columns that rows are ordered by.
_UNKNOWN: Final = -1

_STEP: Final = "INSERT INTO steps VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_TOTALS: Final = "INSERT INTO totals VALUES (?, ?, ?, ?, ?, ?)"
#: Fields of a `TraceEntry` in columns of the same name; `filing` sets the one of its capture.
_OF_TRACE: Final = (
    *("id", "name", "job", "owner_uid", "state", "reason", "stored_bytes"),
    *("received_unix_ns", "finished_unix_ns", "rank", "run"),
)
_TRACE_COLUMNS: Final = (*_OF_TRACE, "capture")
FIND_TRACES: Final = f"SELECT {', '.join(_TRACE_COLUMNS)} FROM traces"
_KNOWN_BY_TRACE: Final = ("job", "rank", "run")
_PUT_TRACE: Final = (
    f"INSERT INTO traces ({', '.join(_OF_TRACE)}) VALUES ({', '.join('?' * len(_OF_TRACE))})"
    " ON CONFLICT (id) DO UPDATE SET "
    + ", ".join(
        f"{name} = COALESCE(excluded.{name}, {name})"
        if name in _KNOWN_BY_TRACE
        else f"{name} = excluded.{name}"
        for name in _OF_TRACE
    )
)
_LEVEL: Final = 6
_ENCODER: Final = msgspec.json.Encoder()
_ROWS: Final = msgspec.json.Decoder(Row)
_DOCUMENTS: Final = msgspec.json.Decoder(ReportDocument)
#: Most drops stored, the newest ones.
MAX_DROPS: Final = 10_000

_PUT_DROP: Final = "INSERT OR REPLACE INTO drops VALUES (?, ?, ?, ?, ?)"
_DROPS: Final = msgspec.msgpack.Decoder(GpuDrop)


def put_trace(db: sqlite3.Connection, entry: TraceEntry) -> bool:
    """Store a trace or its new state; return whether it is new.

    An unknown job, rank or run does not replace a known one.
    """
    is_new = db.execute("SELECT 1 FROM traces WHERE id = ?", (entry.id,)).fetchone() is None
    db.execute(_PUT_TRACE, [getattr(entry, name) for name in _OF_TRACE])
    return is_new


def trace_of(row: Sequence[object]) -> TraceEntry:
    """Convert a row of `FIND_TRACES` to a trace."""
    values = dict(zip(_TRACE_COLUMNS, row, strict=True))
    values["state"] = TraceState(str(values["state"]))
    return TraceEntry(**values)  # type: ignore[arg-type]


def packed(value: Row | ReportDocument) -> bytes:
    """Encode a row or document for the store, as compressed JSON."""
    return zlib.compress(_ENCODER.encode(value), _LEVEL)


def row_of(body: bytes) -> Row | None:
    """Decode a stored row; None, which is logged, if this version can't read it."""
    return _unpacked(body, _ROWS, "row")


def document_of(body: bytes) -> ReportDocument | None:
    """Decode a stored document; None, which is logged, if this version can't read it."""
    return _unpacked(body, _DOCUMENTS, "document")


def _unpacked(body: bytes, decoder: msgspec.json.Decoder[Stored], what: str) -> Stored | None:
    try:
        return decoder.decode(zlib.decompress(body))
    except (zlib.error, msgspec.DecodeError) as error:
        logger.warning("a stored %s can't be read: %s", what, error)
        return None


def write_document(
    db: sqlite3.Connection, capture_id: int, document: ReportDocument, body: bytes
) -> int:
    """Replace a capture's rows by those of its document; return how many steps it gained.

    Raises:
        LookupError: There is no such capture.
    """
    query = "SELECT job, run, owner_uid, step_count FROM captures WHERE id = ?"
    found = db.execute(query, (capture_id,)).fetchone()
    if found is None:
        raise LookupError(capture_id)
    job, run, owner_uid, step_count = found
    query = f"SELECT rank, {COMMON_OWNER} FROM traces WHERE capture = ? GROUP BY rank"
    owners = dict(db.execute(query, (capture_id,)).fetchall())  # else of all, if unambiguous
    for table in ("steps", "totals"):
        db.execute(f"DELETE FROM {table} WHERE capture = ?", (capture_id,))
    twins: Counter[tuple[int, int, int]] = Counter()
    steps = []
    for row in document.steps:
        key = (_ordered(row.step), _ordered(row.rank), _ordered(row.device))
        start_ns = row.marker_start_unix_ns if row.start_unix_ns is None else row.start_unix_ns
        order_ns = capture_id * NS_PER_MS if start_ns is None else start_ns
        # Found by these, and stored with that job and run, without its parts.
        found_by = (job, run, row.gpu, owners.get(row.rank, owner_uid))
        stored = packed(replace(without_parts(row), job=job, run=run))
        is_timed = int(start_ns is not None)
        steps.append((capture_id, order_ns, is_timed, *key, twins[key], *found_by, stored))
        twins[key] += 1
    totals = [
        (
            *(capture_id, _ordered(row.rank), _ordered(row.device)),
            *(row.gpu, owners.get(row.rank, owner_uid), packed(row)),
        )
        for row in document.totals
    ]
    db.executemany(_STEP, steps)
    db.executemany(_TOTALS, totals)
    db.execute("INSERT OR REPLACE INTO documents VALUES (?, ?)", (capture_id, body))
    db.execute("UPDATE captures SET step_count = ? WHERE id = ?", (len(document.steps), capture_id))
    return len(document.steps) - int(step_count)


def _ordered(number: int | None) -> int:
    """Return a number to order rows by; -1 if it is unknown."""
    return _UNKNOWN if number is None else number


def put_drops(db: sqlite3.Connection, drops: Sequence[GpuDrop]) -> None:
    """Store drops, each replacing its earlier version."""
    rows = [
        (each.uuid, each.begin_unix_ns, each.gpu, each.end_unix_ns, msgspec.msgpack.encode(each))
        for each in drops
    ]
    db.executemany(_PUT_DROP, rows)


def interrupt_open(db: sqlite3.Connection) -> None:
    """Mark open drops as interrupted, with the last time that they were seen as their end."""
    found = db.execute("SELECT body FROM drops WHERE end_unix_ns IS NULL").fetchall()
    put_drops(db, [_interrupted(_DROPS.decode(body)) for (body,) in found])


def _interrupted(drop: GpuDrop) -> GpuDrop:
    end_unix_ns = drop.begin_unix_ns + round(drop.length_s * NS_PER_S)
    return replace(drop, state=DropState.INTERRUPTED, end_unix_ns=end_unix_ns)


def found_drops(db: sqlite3.Connection, query: DropQuery, limit: int) -> tuple[GpuDrop, ...]:
    """Return the drops that match a query, newest first."""
    found = db.execute(
        """
        SELECT body FROM drops
        WHERE (:gpu IS NULL OR :gpu IN (gpu, uuid))
            AND (:start IS NULL OR end_unix_ns IS NULL OR end_unix_ns > :start)
            AND (:end IS NULL OR begin_unix_ns < :end)
        ORDER BY begin_unix_ns DESC, uuid LIMIT :limit
        """,
        {"gpu": query.gpu, "start": query.from_unix_ns, "end": query.to_unix_ns, "limit": limit},
    )
    return tuple(_DROPS.decode(body) for (body,) in found)


def prune_drops(db: sqlite3.Connection, oldest_unix_ns: int, most: int = MAX_DROPS) -> int:
    """Delete drops that began before a time, and the oldest beyond a count; return how many."""
    return db.execute(
        """
        DELETE FROM drops WHERE begin_unix_ns < MAX(:oldest, COALESCE((
            SELECT begin_unix_ns FROM drops ORDER BY begin_unix_ns DESC LIMIT 1 OFFSET :last
        ), 0))
        """,
        {"oldest": oldest_unix_ns, "last": most - 1},
    ).rowcount
