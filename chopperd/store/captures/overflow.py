"""What is kept in memory while the disk refuses: which rows stand for which of the disk, moving.

Both databases, `main` (memory) and `disk`, have the same tables. Reading goes through views of the
tables' names, which show memory's version of a capture, trace or drop where it has one.
"""

import sqlite3
from typing import Final

#: Tables whose rows belong to a capture, with the column that says to which.
_CAPTURE_COLUMN: Final = {
    "captures": "id",
    "reports": "capture",
    "documents": "capture",
    "steps": "capture",
    "totals": "capture",
}

#: Captures of the disk that memory has its own version of, or (`owner` another) that it joined.
_SHADOWS: Final = "CREATE TABLE main.shadows (id INTEGER PRIMARY KEY, owner INTEGER NOT NULL)"

_UPSERT_TRACES: Final = """
    INSERT INTO disk.traces SELECT * FROM main.traces WHERE true
    ON CONFLICT (id) DO UPDATE SET
        state = excluded.state, reason = excluded.reason, job = COALESCE(excluded.job, job),
        owner_uid = COALESCE(owner_uid, excluded.owner_uid),
        finished_unix_ns = COALESCE(excluded.finished_unix_ns, finished_unix_ns),
        rank = COALESCE(excluded.rank, rank), run = COALESCE(excluded.run, run),
        capture = COALESCE(excluded.capture, capture),
        begin_unix_ns = COALESCE(excluded.begin_unix_ns, begin_unix_ns),
        end_unix_ns = COALESCE(excluded.end_unix_ns, end_unix_ns),
        identity = COALESCE(excluded.identity, identity)
"""


def make_shadows(connection: sqlite3.Connection) -> None:
    """Make the table that says which captures of the disk are not shown."""
    connection.execute(_SHADOWS)


def lay_views(connection: sqlite3.Connection, *, attached: bool, overflowing: bool) -> None:
    """Make the tables' names mean what is to be read: the disk, memory, or both."""
    for table in ("traces", "drops", *_CAPTURE_COLUMN):
        connection.execute(f"DROP VIEW IF EXISTS temp.{table}")
        sources = []
        if attached:
            hidden = f" WHERE {_hidden(table)}" if overflowing else ""
            sources.append(f"SELECT * FROM disk.{table}{hidden}")
        if overflowing or not attached:
            sources.append(f"SELECT * FROM main.{table}")
        connection.execute(f"CREATE TEMP VIEW {table} AS {' UNION ALL '.join(sources)}")


def _hidden(table: str) -> str:
    if table == "traces":
        return "id NOT IN (SELECT id FROM main.traces)"
    if table == "drops":
        return "(uuid, begin_unix_ns) NOT IN (SELECT uuid, begin_unix_ns FROM main.drops)"
    return f"{_CAPTURE_COLUMN[table]} NOT IN (SELECT id FROM main.shadows)"


def adopt_trace(connection: sqlite3.Connection, trace_id: str) -> None:
    """Take the disk's version of a trace into memory, where it may be changed."""
    connection.execute(
        "INSERT OR IGNORE INTO main.traces SELECT * FROM disk.traces WHERE id = ?", (trace_id,)
    )


def adopt_capture(connection: sqlite3.Connection, capture_id: int) -> None:
    """Take the disk's version of a capture into memory, where it may be changed."""
    known = "SELECT EXISTS (SELECT 1 FROM main.shadows WHERE id = :id)"
    on_disk = "SELECT EXISTS (SELECT 1 FROM disk.captures WHERE id = :id)"
    where = {"id": capture_id}
    if connection.execute(known, where).fetchone()[0]:
        return
    if not connection.execute(on_disk, where).fetchone()[0]:
        return
    for table, column in _CAPTURE_COLUMN.items():
        connection.execute(
            f"INSERT INTO main.{table} SELECT * FROM disk.{table} WHERE {column} = :id", where
        )
    connection.execute(
        "INSERT OR IGNORE INTO main.traces SELECT * FROM disk.traces WHERE capture = :id", where
    )
    connection.execute("INSERT INTO main.shadows VALUES (:id, :id)", where)


def is_empty(connection: sqlite3.Connection) -> bool:
    """Whether memory holds nothing that the disk lacks."""
    found = connection.execute(
        "SELECT EXISTS (SELECT 1 FROM main.captures) OR EXISTS (SELECT 1 FROM main.traces) "
        "OR EXISTS (SELECT 1 FROM main.drops)"
    )
    return not found.fetchone()[0]


def row_count(connection: sqlite3.Connection) -> int:
    """Step rows, traces and drops that are in memory."""
    found = connection.execute(
        "SELECT (SELECT count(*) FROM main.steps) + (SELECT count(*) FROM main.traces) "
        "+ (SELECT count(*) FROM main.drops)"
    )
    return int(found.fetchone()[0])


def move_to_disk(connection: sqlite3.Connection) -> None:
    """Write what memory holds to the disk, in one transaction, and forget it here.

    Raises:
        sqlite3.Error: The disk refuses; memory still holds everything.
    """
    connection.execute("BEGIN")
    for table, column in _CAPTURE_COLUMN.items():
        connection.execute(
            f"DELETE FROM disk.{table} WHERE {column} IN (SELECT id FROM main.shadows)"
        )
        connection.execute(f"INSERT OR REPLACE INTO disk.{table} SELECT * FROM main.{table}")
    connection.execute(_UPSERT_TRACES)
    connection.execute("INSERT OR REPLACE INTO disk.drops SELECT * FROM main.drops")
    connection.execute("COMMIT")
    for table in ("shadows", "traces", "drops", *_CAPTURE_COLUMN):
        connection.execute(f"DELETE FROM main.{table}")


def drop_oldest(connection: sqlite3.Connection) -> bool:
    """Forget the capture that was changed longest ago, else the oldest trace; whether any was.

    Where it stood for one of the disk, the disk's version is shown again.
    """
    found = connection.execute(
        "SELECT id FROM main.captures ORDER BY changed_unix_ns, id LIMIT 1"
    ).fetchone()
    if found is None:
        return _drop_oldest_trace(connection)
    for table, column in _CAPTURE_COLUMN.items():
        connection.execute(f"DELETE FROM main.{table} WHERE {column} = ?", found)
    connection.execute("DELETE FROM main.traces WHERE capture = ?", found)
    connection.execute("DELETE FROM main.shadows WHERE owner = ?", found)
    return True


def _drop_oldest_trace(connection: sqlite3.Connection) -> bool:
    """Forget the oldest trace, else the oldest clock drop; whether any was."""
    for table, order in (("traces", "received_unix_ns"), ("drops", "begin_unix_ns")):
        if connection.execute(
            f"DELETE FROM main.{table} WHERE rowid = "
            f"(SELECT rowid FROM main.{table} ORDER BY {order}, rowid LIMIT 1)"
        ).rowcount:
            return True
    return False
