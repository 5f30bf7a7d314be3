"""Retention by age, by size, and by the free space of the disk."""

import sqlite3
from dataclasses import dataclass
from typing import Final

from chopperd.store.captures import rows
from chopperd.store.captures.database import Database
from chopperd.units import NS_PER_S

_NS_PER_DAY: Final = 86_400 * NS_PER_S
#: Of one transaction: its log has to fit into the log's reserve on a full disk.
_CAPTURES_AT_ONCE: Final = 16
#: For size, of so many captures one at a time, so that not much more goes than must.
_CAPTURES_FOR_ONE: Final = 64
_FOR_EVER: Final = 2**63 - 1
_TRACES_AT_ONCE: Final = 500
_PAGES_AT_ONCE: Final = 500
#: Most of a store that is in memory by choice.
_MEMORY_BYTES: Final = 64 * 2**20
#: What is pruned for size is pruned a little below it.
_TARGET_RATIO: Final = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreLimits:
    """How much is retained.

    Attributes:
        max_bytes: Size of the file and its log.
        max_days: Since a capture's last trace, or a trace, came.
        min_free_ratio: Share of the disk that is left free.
    """

    max_bytes: int
    max_days: float
    min_free_ratio: float


def prune(database: Database, limits: StoreLimits, now_unix_ns: int) -> list[int]:
    """Delete what is too old or too much, oldest captures first; ids of those deleted.

    The newest capture is never deleted for size. Free space goes back to the disk.
    """
    oldest_unix_ns = now_unix_ns - round(limits.max_days * _NS_PER_DAY)
    pruned = _prune_old(database, oldest_unix_ns)
    most_bytes = _most_bytes(database, limits)
    while database.used_bytes() > most_bytes:
        batch = database.make_room(_drop_captures)
        if not batch and not database.make_room(_drop_traces):
            break
        pruned += batch or []
    _give_back(database)
    return pruned


def is_too_large(database: Database, limits: StoreLimits) -> bool:
    """Whether there is more than may be kept."""
    if database.is_memory:
        return database.used_bytes() > _most_bytes(database, limits)
    return database.size_bytes() > limits.max_bytes


def _most_bytes(database: Database, limits: StoreLimits) -> int:
    """How much of the database may be in use; less than now where the disk lacks room."""
    if database.is_memory:
        return min(limits.max_bytes, _MEMORY_BYTES)
    most_bytes = limits.max_bytes
    if database.size_bytes() > limits.max_bytes:
        most_bytes = round(_TARGET_RATIO * limits.max_bytes) - database.log_bytes
    if missing_bytes := database.missing_bytes():
        most_bytes = min(most_bytes, database.used_bytes() - missing_bytes)
    return max(most_bytes, 0)


def _give_back(database: Database) -> None:
    left, before = database.give_back(_PAGES_AT_ONCE), -1
    while left and left != before:
        left, before = database.give_back(_PAGES_AT_ONCE), left


def _prune_old(database: Database, oldest_unix_ns: int) -> list[int]:
    def old_captures(db: sqlite3.Connection) -> list[int]:
        return _drop_captures(db, before_unix_ns=oldest_unix_ns)

    def old_traces(db: sqlite3.Connection) -> int:
        return _drop_traces(db, before_unix_ns=oldest_unix_ns)

    pruned: list[int] = []
    while batch := database.make_room(old_captures):
        pruned += batch
    while database.make_room(old_traces):
        pass
    database.make_room(lambda db: rows.prune_drops(db, oldest_unix_ns))
    return pruned


def _drop_captures(db: sqlite3.Connection, before_unix_ns: int = _FOR_EVER) -> list[int]:
    """The oldest few captures, taken out; all but the newest, or all from before a time."""
    most = _CAPTURES_AT_ONCE
    if before_unix_ns == _FOR_EVER:
        count = db.execute("SELECT count(*) FROM captures").fetchone()[0]
        most = min(most, 1 + count // _CAPTURES_FOR_ONE, max(count - 1, 0))
    found = db.execute(
        "SELECT id FROM captures WHERE changed_unix_ns < ? ORDER BY changed_unix_ns, id LIMIT ?",
        (before_unix_ns, most),
    ).fetchall()
    for table in ("reports", "documents", "steps", "totals"):
        db.executemany(f"DELETE FROM {table} WHERE capture = ?", found)
    db.executemany("UPDATE traces SET capture = NULL WHERE capture = ?", found)
    db.executemany("DELETE FROM captures WHERE id = ?", found)
    return [capture for (capture,) in found]


def _drop_traces(db: sqlite3.Connection, before_unix_ns: int = _FOR_EVER) -> int:
    """The oldest traces that are done with and in no capture, taken out; how many."""
    return db.execute(
        """
        DELETE FROM traces WHERE id IN (
            SELECT id FROM traces
            WHERE received_unix_ns < ? AND capture IS NULL AND state NOT IN ('queued', 'spooled')
            ORDER BY received_unix_ns LIMIT ?
        )
        """,
        (before_unix_ns, _TRACES_AT_ONCE),
    ).rowcount
