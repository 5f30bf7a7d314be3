"""The tables of the store, as numbered changes from each version to the next.

A change, once released, is never edited: the next one is added below it. Statements name the
database that they change by `{at}`.
"""

import sqlite3
from collections.abc import Sequence
from typing import Final, TypeAlias

#: What takes a store from one version to the next.
Migration: TypeAlias = tuple[str, ...]

#: Ids of captures are unix ms of their making. Step rows have -1 where a number is not known, as
#: they are ordered by it; what is shown comes from `body`. `order_unix_ns` is the row's start, or
#: (`timed` 0) when its capture was made. `owner_uid` of what belongs to several is null.
_FIRST: Final[Migration] = (
    """
    CREATE TABLE {at}.traces (
        id TEXT PRIMARY KEY, name TEXT NOT NULL, job TEXT, owner_uid INTEGER,
        state TEXT NOT NULL, reason TEXT, stored_bytes INTEGER NOT NULL,
        received_unix_ns INTEGER NOT NULL, finished_unix_ns INTEGER,
        rank INTEGER, run TEXT, capture INTEGER, begin_unix_ns INTEGER, end_unix_ns INTEGER
    )
    """,
    "CREATE INDEX {at}.traces_by_time ON traces (received_unix_ns)",
    "CREATE INDEX {at}.traces_by_capture ON traces (capture) WHERE capture IS NOT NULL",
    "CREATE INDEX {at}.traces_by_state ON traces (state)",
    "CREATE TABLE {at}.reports (trace TEXT PRIMARY KEY, capture INTEGER NOT NULL, body BLOB)",
    "CREATE INDEX {at}.reports_by_capture ON reports (capture)",
    """
    CREATE TABLE {at}.captures (
        id INTEGER PRIMARY KEY, job TEXT, run TEXT, owner_uid INTEGER, note TEXT,
        begin_unix_ns INTEGER, end_unix_ns INTEGER, newest_unix_ns INTEGER NOT NULL,
        changed_unix_ns INTEGER NOT NULL, step_count INTEGER NOT NULL
    )
    """,
    "CREATE INDEX {at}.captures_by_job ON captures (job, newest_unix_ns)",
    "CREATE INDEX {at}.captures_by_time ON captures (newest_unix_ns)",
    "CREATE INDEX {at}.captures_by_change ON captures (changed_unix_ns)",
    "CREATE TABLE {at}.documents (capture INTEGER PRIMARY KEY, body BLOB NOT NULL)",
    """
    CREATE TABLE {at}.steps (
        capture INTEGER NOT NULL, order_unix_ns INTEGER NOT NULL, timed INTEGER NOT NULL,
        step INTEGER NOT NULL, rank INTEGER NOT NULL, device INTEGER NOT NULL,
        twin INTEGER NOT NULL, job TEXT, run TEXT, gpu TEXT, owner_uid INTEGER, body BLOB NOT NULL
    )
    """,
    "CREATE INDEX {at}.steps_by_capture ON steps (capture)",
    # With what else is asked for, so that rows that do not match are not looked up.
    "CREATE INDEX {at}.steps_by_time ON steps (order_unix_ns, step, rank, gpu)",
    "CREATE INDEX {at}.steps_by_job ON steps (job, order_unix_ns, step, rank, gpu)",
    "CREATE INDEX {at}.steps_by_owner ON steps (owner_uid, order_unix_ns)",
    "CREATE INDEX {at}.steps_by_number ON steps (step, job, order_unix_ns)",
    """
    CREATE TABLE {at}.totals (
        capture INTEGER NOT NULL, rank INTEGER NOT NULL, device INTEGER NOT NULL, gpu TEXT,
        owner_uid INTEGER, body BLOB NOT NULL
    )
    """,
    "CREATE INDEX {at}.totals_by_capture ON totals (capture)",
)

#: `end_unix_ns` is null while a drop goes on.
_DROPS: Final[Migration] = (
    """
    CREATE TABLE {at}.drops (
        uuid TEXT NOT NULL, begin_unix_ns INTEGER NOT NULL, gpu TEXT NOT NULL,
        end_unix_ns INTEGER, body BLOB NOT NULL, PRIMARY KEY (uuid, begin_unix_ns)
    )
    """,
    "CREATE INDEX {at}.drops_by_time ON drops (begin_unix_ns)",
    "CREATE INDEX {at}.drops_open ON drops (uuid) WHERE end_unix_ns IS NULL",
)

#: Files that this store takes the place of, and how many of their rows it took over: `lost` is
#: null where that is not known.
_QUARANTINE: Final[Migration] = (
    """
    CREATE TABLE {at}.quarantine (
        name TEXT PRIMARY KEY, found_unix_ns INTEGER NOT NULL, reason TEXT NOT NULL,
        recovered INTEGER NOT NULL, lost INTEGER
    )
    """,
)

#: What a trace says of its run (`RunIdentity`, MessagePack); null of what came before.
_IDENTITIES: Final[Migration] = ("ALTER TABLE {at}.traces ADD COLUMN identity BLOB",)

MIGRATIONS: Final[tuple[Migration, ...]] = (_FIRST, _DROPS, _QUARANTINE, _IDENTITIES)


def version_of(connection: sqlite3.Connection, at: str) -> int:
    """The version of a database: how many migrations it has had."""
    return int(connection.execute(f"PRAGMA {at}.user_version").fetchone()[0])


def stored_bytes(connection: sqlite3.Connection, at: str) -> int:
    """What the pages of a database take that hold something."""
    pages, free, size_bytes = (
        int(connection.execute(f"PRAGMA {at}.{name}").fetchone()[0])
        for name in ("page_count", "freelist_count", "page_size")
    )
    return (pages - free) * size_bytes


def migrate(connection: sqlite3.Connection, at: str, migrations: Sequence[Migration]) -> None:
    """Bring a database up to the newest version, each migration in a transaction of its own.

    Args:
        connection: In autocommit mode.
        at: Name of the database in the connection.
        migrations: All there are, from version 0 on.
    """
    for version in range(version_of(connection, at), len(migrations)):
        connection.execute("BEGIN")
        try:
            for statement in migrations[version]:
                connection.execute(statement.format(at=at))
            connection.execute(f"PRAGMA {at}.user_version = {version + 1}")
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
