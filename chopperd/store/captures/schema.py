"""The tables of the store, as migrations from each version to the next.

A released migration is never edited: a new one is added below it.
"""

import sqlite3
import threading
from collections.abc import Sequence
from typing import Final, TypeAlias

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

MIGRATIONS: Final[tuple[Migration, ...]] = (_FIRST, _DROPS, _QUARANTINE, _IDENTITIES)


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


def migrate(db: sqlite3.Connection, migrations: Sequence[Migration]) -> None:
    """Apply the missing migrations to a database in autocommit mode, one transaction each."""
    for version in range(version_of(db), len(migrations)):
        db.execute("BEGIN")
        try:
            for statement in migrations[version]:
                db.execute(statement)
            db.execute(f"PRAGMA user_version = {version + 1}")
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise


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
