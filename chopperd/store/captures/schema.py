"""The tables of the store, as migrations from each version to the next, and their rows.

A released migration is never edited: a new one is added below it.
"""

import logging
import sqlite3
import threading
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, TypeAlias, TypeVar

import msgspec
from msgspec.structs import replace

from chopperd.model.captures import DropQuery, DropState, GpuDrop, TraceEntry, TraceState
from chopperd.model.report import ReportDocument
from chopperd.model.report_rows import Row
from chopperd.units import NS_PER_MS, NS_PER_S

#: SQL from one version of the store to the next.
Migration: TypeAlias = tuple[str, ...]

#: The id of a capture is the Unix ms when it was created. Step rows are ordered by numbers, which
#: are -1 if unknown; values for people come from `body`. `order_unix_ns` is the row's start, or
#: (`timed` 0) when its capture was created. `owner_uid` is null with several owners.
_FIRST: Final[Migration] = (
    """
    CREATE TABLE traces (
        id TEXT PRIMARY KEY, name TEXT NOT NULL, job TEXT, owner_uid INTEGER,
        state TEXT NOT NULL, reason TEXT, stored_bytes INTEGER NOT NULL,
        received_unix_ns INTEGER NOT NULL, finished_unix_ns INTEGER,
        rank INTEGER, run TEXT, capture INTEGER, begin_unix_ns INTEGER, end_unix_ns INTEGER
    )
    """,
    "CREATE INDEX traces_by_time ON traces (received_unix_ns)",
    "CREATE INDEX traces_by_capture ON traces (capture) WHERE capture IS NOT NULL",
    "CREATE INDEX traces_by_state ON traces (state)",
    "CREATE TABLE reports (trace TEXT PRIMARY KEY, capture INTEGER NOT NULL, body BLOB)",
    "CREATE INDEX reports_by_capture ON reports (capture)",
    """
    CREATE TABLE captures (
        id INTEGER PRIMARY KEY, job TEXT, run TEXT, owner_uid INTEGER, note TEXT,
        begin_unix_ns INTEGER, end_unix_ns INTEGER, newest_unix_ns INTEGER NOT NULL,
        changed_unix_ns INTEGER NOT NULL, step_count INTEGER NOT NULL
    )
    """,
    "CREATE INDEX captures_by_job ON captures (job, newest_unix_ns)",
    "CREATE INDEX captures_by_time ON captures (newest_unix_ns)",
    "CREATE INDEX captures_by_change ON captures (changed_unix_ns)",
    "CREATE TABLE documents (capture INTEGER PRIMARY KEY, body BLOB NOT NULL)",
    """
    CREATE TABLE steps (
        capture INTEGER NOT NULL, order_unix_ns INTEGER NOT NULL, timed INTEGER NOT NULL,
        step INTEGER NOT NULL, rank INTEGER NOT NULL, device INTEGER NOT NULL,
        twin INTEGER NOT NULL, job TEXT, run TEXT, gpu TEXT, owner_uid INTEGER, body BLOB NOT NULL
    )
    """,
    "CREATE INDEX steps_by_capture ON steps (capture)",
    # With the other columns of conditions, so that rows that do not match are not read.
    "CREATE INDEX steps_by_time ON steps (order_unix_ns, step, rank, gpu)",
    "CREATE INDEX steps_by_job ON steps (job, order_unix_ns, step, rank, gpu)",
    "CREATE INDEX steps_by_owner ON steps (owner_uid, order_unix_ns)",
    "CREATE INDEX steps_by_number ON steps (step, job, order_unix_ns)",
    """
    CREATE TABLE totals (
        capture INTEGER NOT NULL, rank INTEGER NOT NULL, device INTEGER NOT NULL, gpu TEXT,
        owner_uid INTEGER, body BLOB NOT NULL
    )
    """,
    "CREATE INDEX totals_by_capture ON totals (capture)",
)

#: `end_unix_ns` is null while a drop goes on.
_DROPS: Final[Migration] = (
    """
    CREATE TABLE drops (
        uuid TEXT NOT NULL, begin_unix_ns INTEGER NOT NULL, gpu TEXT NOT NULL,
        end_unix_ns INTEGER, body BLOB NOT NULL, PRIMARY KEY (uuid, begin_unix_ns)
    )
    """,
    "CREATE INDEX drops_by_time ON drops (begin_unix_ns)",
    "CREATE INDEX drops_open ON drops (uuid) WHERE end_unix_ns IS NULL",
)

#: Damaged files that this store replaces, and how many of their rows it has: `lost` is null if
#: that is not known.
_QUARANTINE: Final[Migration] = (
    """
    CREATE TABLE quarantine (
        name TEXT PRIMARY KEY, found_unix_ns INTEGER NOT NULL, reason TEXT NOT NULL,
        recovered INTEGER NOT NULL, lost INTEGER
    )
    """,
)

#: A trace's `RunIdentity` as MessagePack; null in older rows.
_IDENTITIES: Final[Migration] = ("ALTER TABLE traces ADD COLUMN identity BLOB",)

#: Kernels are stored with the steps that launched them.
_NO_TOTALS: Final[Migration] = ("DROP TABLE totals",)

MIGRATIONS: Final[tuple[Migration, ...]] = (_FIRST, _DROPS, _QUARANTINE, _IDENTITIES, _NO_TOTALS)


#: In a query: the owner of all rows of a group, if there is one.
COMMON_OWNER: Final = (
    "CASE WHEN count(owner_uid) = count(*) AND min(owner_uid) = max(owner_uid)"
    " THEN min(owner_uid) END"
)

#: "chpd": distinguishes our stores from other databases, also for `file`.
APPLICATION_ID: Final = 0x63687064


class UnusableFileError(Exception):
    """The file exists but is not a store that this program may use."""


class DamagedError(UnusableFileError):
    """A check found the file damaged; the text is its finding."""


class NewerError(UnusableFileError):
    """The file was made by a later version of the program."""


def version_of(db: sqlite3.Connection) -> int:
    """Return the version of a database: how many migrations it has had."""
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def stored_bytes(db: sqlite3.Connection) -> int:
    """Return the size of a database's pages in use, in bytes."""
    pages, free, size_bytes = (
        int(db.execute(f"PRAGMA {name}").fetchone()[0])
        for name in ("page_count", "freelist_count", "page_size")
    )
    return (pages - free) * size_bytes


@contextmanager
def transaction(db: sqlite3.Connection, begin: str = "BEGIN") -> Iterator[None]:
    """Run the block between BEGIN and COMMIT, undone on any error."""
    db.execute(begin)
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def migrate(db: sqlite3.Connection, migrations: Sequence[Migration]) -> None:
    """Apply the missing migrations to a database in autocommit mode, one transaction each."""
    for version in range(version_of(db), len(migrations)):
        with transaction(db):
            for statement in migrations[version]:
                db.execute(statement)
            db.execute(f"PRAGMA user_version = {version + 1}")


def check_ours(db: sqlite3.Connection, version: int) -> None:
    """Check that the file is empty, or a store of this `version` or earlier; nothing is written.

    Raises:
        NewerError: It is a store of a later version.
        DamagedError: It is another program's database.
        sqlite3.DatabaseError: It can't be read at all.
    """
    tables = db.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
    identity = db.execute("PRAGMA application_id").fetchone()[0]
    if tables and identity != APPLICATION_ID:
        raise DamagedError("it is not a database of chopperd")
    found = version_of(db)
    if found > version:
        raise NewerError(f"its version {found} is newer than this program's {version}")


def check_sound(db: sqlite3.Connection, limit_s: float) -> None:
    """Check that no malformed page is found in the file within a time.

    A thread watches the time, as a check of pages can only be interrupted.

    Raises:
        DamagedError: One was found.
        sqlite3.DatabaseError: It can't be read at all.
    """
    limit = threading.Timer(limit_s, db.interrupt)
    limit.name = "chopperd-store-check"
    limit.start()
    try:
        found = db.execute("PRAGMA quick_check(1)").fetchone()[0]
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_INTERRUPT:
            raise
        return
    finally:
        limit.cancel()
        limit.join()
    if found != "ok":
        raise DamagedError(str(found).splitlines()[-1])


logger = logging.getLogger(__name__)

Stored = TypeVar("Stored")

#: Unknown numbers in columns that rows are ordered by.
_UNKNOWN: Final = -1

_STEP: Final = "INSERT INTO steps VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
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
_DROP_ROWS: Final = msgspec.msgpack.Decoder(GpuDrop)


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
    db.execute("DELETE FROM steps WHERE capture = ?", (capture_id,))
    twins: Counter[tuple[int, int, int]] = Counter()
    steps = []
    for row in document.steps:
        key = (_ordered(row.step), _ordered(row.rank), _ordered(row.device))
        start_ns = row.marker_start_unix_ns if row.start_unix_ns is None else row.start_unix_ns
        order_ns = capture_id * NS_PER_MS if start_ns is None else start_ns
        # Found by these, and stored with that job and run, without its holders.
        found_by = (job, run, row.gpu, owners.get(row.rank, owner_uid))
        stored = packed(replace(row, held=(), job=job, run=run))
        is_timed = int(start_ns is not None)
        steps.append((capture_id, order_ns, is_timed, *key, twins[key], *found_by, stored))
        twins[key] += 1
    db.executemany(_STEP, steps)
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
    drops = [_DROP_ROWS.decode(body) for (body,) in found]
    ends_ns = [drop.begin_unix_ns + round(drop.length_s * NS_PER_S) for drop in drops]
    ended = zip(drops, ends_ns, strict=True)
    put_drops(db, [replace(d, state=DropState.INTERRUPTED, end_unix_ns=end) for d, end in ended])


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
    return tuple(_DROP_ROWS.decode(body) for (body,) in found)


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
