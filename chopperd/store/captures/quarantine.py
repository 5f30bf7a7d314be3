"""Quarantine of unusable database files, and salvage of their readable rows.

A file is renamed, never deleted or repaired; readable rows are copied into the new file.
"""

import re
import sqlite3
import zlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import count, islice
from pathlib import Path
from typing import Final

import msgspec

from chopperd.model.captures import GpuDrop, TraceState
from chopperd.store.captures.schema import COMMON_OWNER, DamagedError, check_ours, version_of

#: Suffixes of the files to rename; the database itself last: a kill before leaves it in place.
_PARTS: Final = ("-wal", "-shm", "-journal", "")
#: Tables in the order of copying: what others refer to comes first.
_TABLES: Final = ("traces", "captures", "reports", "documents", "steps", "drops")
_ROWS_AT_ONCE: Final = 256
#: Row numbers tried one by one after an unreadable row if no index has the next.
_NEAR_ROWS: Final = 4096
_LOWEST_ROWID: Final = -(2**63)
_HIGHEST_ROWID: Final = 2**63 - 1
_DROPS: Final = msgspec.msgpack.Decoder(GpuDrop)
_STATES: Final = frozenset(state.value for state in TraceState)

#: Captures whose own row is lost, as their traces and step rows describe them.
_LOST_CAPTURES: Final = f"""
    INSERT OR IGNORE INTO captures
    SELECT capture, min(job), min(run), {COMMON_OWNER}, 'salvaged',
        min({{begin}}), max({{end}}), COALESCE(max({{end}}), max({{changed}})), max({{changed}}), 0
    FROM {{table}} WHERE capture IS NOT NULL GROUP BY capture
"""
_CAPTURES_AGAIN: Final = (
    _LOST_CAPTURES.format(
        table="traces", begin="begin_unix_ns", end="end_unix_ns", changed="received_unix_ns"
    ),
    _LOST_CAPTURES.format(
        table="steps", begin="order_unix_ns", end="order_unix_ns", changed="order_unix_ns"
    ),
)
_STEP_COUNTS: Final = """
    UPDATE captures SET step_count =
        (SELECT count(*) FROM steps WHERE steps.capture = captures.id)
"""


def quarantine(path: Path, why: str) -> Path:
    """Rename a database and its side files to the first free `<name>.<why>-<n>`; return that.

    Raises:
        OSError: It can't be renamed.
    """
    candidates = (path.with_name(f"{path.name}.{why}-{n}") for n in count(1))
    target = next(candidate for candidate in candidates if not candidate.exists())
    for part in _PARTS:
        file = path.with_name(path.name + part)
        if file.exists():
            file.rename(target.with_name(target.name + part))
    return target


def quarantined(path: Path) -> list[Path]:
    """List the files that `quarantine` renamed and that still exist, lowest number first.

    Raises:
        OSError: The folder can't be read.
    """
    name = re.compile(re.escape(path.name) + r"\.(damaged|newer)-[0-9]+")
    found = (file for file in path.parent.iterdir() if name.fullmatch(file.name))
    return sorted(found, key=lambda file: (len(file.name), file.name))


def salvage(source: Path, target: sqlite3.Connection) -> tuple[int, int | None]:
    """Copy every readable row of a store into another, past damaged pages.

    A row is readable only if its compressed body passes its checksum. Rows that the target
    already has do not change. A capture whose own row is lost is made again from its traces or
    step rows; without these its other rows are lost. The target is at its newest version, in
    the caller's transaction.

    Returns:
        Number of rows copied, and of rows that the file's indexes name but that could not be
        copied: None if no index of one of its tables could be read to its end.

    Raises:
        UnusableFileError: The source is not a store, or its table of contents is damaged.
        sqlite3.Error: The target refuses.
    """
    recovered, lost_count, lost_known = 0, 0, True
    uri = f"{source.absolute().as_uri()}?mode=ro"
    with closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as connection:
        for table in _tables_of(connection, version_of(target)):
            known, complete = _known_rowids(connection, table)
            copied = _copy(connection, table, known, target)
            recovered += copied
            lost_count += max(0, len(known) - copied)
            lost_known = lost_known and complete
    for statement in _CAPTURES_AGAIN:
        target.execute(statement)
    without_capture = "WHERE capture NOT IN (SELECT id FROM captures)"
    orphans = sum(
        target.execute(f"DELETE FROM {table} {without_capture}").rowcount
        for table in ("reports", "documents", "steps")
    )
    target.execute(_STEP_COUNTS)
    lost = lost_count + orphans if lost_known else None
    return recovered - orphans, lost


def _tables_of(connection: sqlite3.Connection, version: int) -> list[str]:
    try:
        # Without it SQLite refuses a file that is shorter than in its header.
        connection.execute("PRAGMA writable_schema = ON")
        check_ours(connection, version)
        found = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
    except sqlite3.Error as error:
        raise DamagedError(f"its table of contents can't be read: {error}") from error
    names = {name for (name,) in found}
    return [table for table in _TABLES if table in names]


def _copy(
    connection: sqlite3.Connection, table: str, known: Sequence[int], target: sqlite3.Connection
) -> int:
    """Copy a table's readable rows; return how many were readable."""
    theirs = [name for _, name, *_ in connection.execute(f"PRAGMA table_info({table})")]
    ours = {name for _, name, *_ in target.execute(f"PRAGMA table_info({table})")}
    names = [name for name in theirs if name in ours]
    marks = ", ".join("?" * len(names))
    insert = f"INSERT OR IGNORE INTO {table} ({', '.join(names)}) VALUES ({marks})"
    copied = 0
    readable = _readable_rows(connection, table, names, known)
    while rows := list(islice(readable, _ROWS_AT_ONCE)):
        sound = [row for row in rows if _is_sound(table, dict(zip(names, row, strict=True)))]
        target.executemany(insert, sound)
        copied += len(sound)
    return copied


def _readable_rows(
    connection: sqlite3.Connection, table: str, names: Sequence[str], known: Sequence[int]
) -> Iterator[tuple[object, ...]]:
    """Yield rows by rising rowid; after an unreadable one resume at the next readable one."""
    query = (
        f"SELECT rowid, {', '.join(names)} FROM {table} NOT INDEXED"
        " WHERE rowid >= ? ORDER BY rowid LIMIT ?"
    )
    begin: int | None = _LOWEST_ROWID
    count = -1  # without limit; one row alone where the next is unreadable, as a cursor reads ahead
    while begin is not None:
        try:
            for rowid, *row in connection.execute(query, (begin, count)):
                begin = rowid + 1
                yield tuple(row)
        except sqlite3.Error:
            if count == 1:
                begin = _next_readable(connection, table, begin, known)
            count = -count
        else:
            if count < 0:
                return
            count = -1
            begin = _next_readable(connection, table, begin, known)


def _next_readable(
    connection: sqlite3.Connection, table: str, unreadable: int, known: Sequence[int]
) -> int | None:
    """Return the next readable rowid after the row at or after `unreadable`; None at the end."""
    query = f"SELECT rowid FROM {table} NOT INDEXED WHERE rowid >= ? ORDER BY rowid LIMIT 1"
    for candidate in _candidates(unreadable, known):
        try:
            found = connection.execute(query, (candidate,)).fetchone()
        except sqlite3.Error:
            continue
        return None if found is None else int(found[0])
    return None


def _candidates(unreadable: int, known: Sequence[int]) -> Iterator[int]:
    """Yield rowids at which to resume: those in an index, then ones further and further on."""
    first = bisect_right(known, unreadable - 1) + 1
    yield from known[first:]
    begin = max(unreadable, known[-1] if known else 0)
    yield from range(begin + 1, begin + _NEAR_ROWS)
    step = _NEAR_ROWS
    while begin + step < _HIGHEST_ROWID:
        yield begin + step
        step += step // 8


def _known_rowids(connection: sqlite3.Connection, table: str) -> tuple[list[int], bool]:
    """Read the rowids in a table's best index; return them sorted, and whether they are all."""
    best: list[int] = []
    for query in _rowid_queries(connection, table):
        rowids: list[int] = []
        try:
            for (rowid,) in connection.execute(query):
                rowids.append(rowid)
        except sqlite3.Error:  # damaged, or a partial index, which names some rows only
            best = max(best, rowids, key=len)
        else:
            return sorted(set(rowids)), True
    return sorted(set(best)), False


def _rowid_queries(connection: sqlite3.Connection, table: str) -> list[str]:
    if table == "documents":  # has no index; each capture with steps has one document
        return ["SELECT DISTINCT capture FROM steps INDEXED BY steps_by_capture"]
    found = connection.execute(
        "SELECT name FROM sqlite_schema WHERE type = 'index' AND tbl_name = ?", (table,)
    )
    return [f'SELECT rowid FROM {table} INDEXED BY "{name}"' for (name,) in found]


def _is_sound(table: str, row: dict[str, object]) -> bool:
    """Whether a row that could be read holds what was written."""
    body = row.get("body")
    if table == "traces":
        return row["state"] in _STATES
    if not isinstance(body, bytes):
        return body is None
    try:
        _DROPS.decode(body) if table == "drops" else zlib.decompress(body)
    except (zlib.error, msgspec.MsgspecError):
        return False
    return True
