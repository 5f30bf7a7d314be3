"""The store's database: a connection to its file, and a queue of changes that the disk refused.

Knows nothing of the tables.
"""

import logging
import sqlite3
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

from chopperd.clock import Clock
from chopperd.errors import StoreError
from chopperd.store.captures import schema
from chopperd.store.captures.disk_file import DiskFile, is_damage, is_refusal
from chopperd.store.disk import missing_bytes
from chopperd.units import NS_PER_S

logger = logging.getLogger(__name__)

Result = TypeVar("Result")
Other = TypeVar("Other")

#: Size of the file's log that is not given back: deleting rows of a full disk needs it.
LOG_BYTES: Final = 4 * 2**20
RETRY_NS: Final = 30 * NS_PER_S
_ATTEMPTS: Final = 3


class RefusedError(StoreError):
    """The disk does not take a change now; nothing was changed."""


class Database:
    """The store's database, a file or (without a path) memory; all methods from any thread.

    Other threads may read the properties of `file`. `trouble` is why changes are refused now,
    for people; None while they are written.
    """

    def __init__(
        self,
        path: Path | None,
        *,
        clock: Clock,
        min_free_ratio: float = 0.0,
        log_bytes: int = LOG_BYTES,
    ) -> None:
        self.trouble: str | None = None
        self.log_bytes = log_bytes
        self._clock = clock
        self._min_free_ratio = min_free_ratio
        self._retry_mono_ns = 0
        self._lock = threading.Lock()
        self.file = DiskFile(path, log_bytes=log_bytes, clock=clock)
        with self._lock:
            self._open()

    def used_bytes(self) -> int:
        """Return the size of the pages in use, in bytes; 0 if the file can't be read."""
        with self._lock:
            return self._attempt(schema.stored_bytes, 0) if self.file.is_open else 0

    def missing_bytes(self) -> int:
        """Return how many bytes to free until the disk has its free share; 0 if unknown."""
        if self.file.path is None:
            return 0
        try:
            return missing_bytes(self.file.path.parent, self._min_free_ratio)
        except OSError:
            return 0  # a problem of the folder appears when it is written to

    def read(self, query: Callable[[sqlite3.Connection], Result]) -> Result:
        """Return the result of a query of one or several statements; nothing changes between them.

        While the file can't be read, the query sees an empty store.

        Raises:
            StoreError: No attempt succeeded.
        """
        with self._lock:
            for _ in range(_ATTEMPTS):
                try:
                    return query(self.file.connection)
                except sqlite3.Error as error:
                    self._handle(error)
                    if self.trouble is not None:
                        self.file.close()
        raise StoreError("the store can't be read")

    def write(self, change: Callable[[sqlite3.Connection], Result]) -> Result:
        """Make a change in one transaction, durable on return; return its result.

        Raises:
            RefusedError: The disk refuses, or did so less than `RETRY_NS` ago.
        """
        with self._lock:
            for _ in range(_ATTEMPTS):
                if not self._may_write():
                    raise RefusedError(str(self.trouble))
                try:
                    result = self._transaction(change)
                except sqlite3.Error as error:
                    self._handle(error)
                else:
                    if self.trouble is not None:
                        self.trouble = None
                        logger.info("the store writes to disk again")
                    return result
            self._refuse("every new file is damaged")
            raise RefusedError(str(self.trouble))

    def make_room(self, delete: Callable[[sqlite3.Connection], Result]) -> Result | None:
        """Delete rows in one transaction, also where the disk is too full for other changes.

        None, and nothing is deleted, where that is refused too.
        """
        with self._lock:
            if not self.file.is_writable:
                return None
            return self._attempt(lambda _db: self._transaction(delete), None)

    def retry_now(self) -> None:
        """Let the next change be tried even if the disk refused a moment ago."""
        with self._lock:
            self._retry_mono_ns = self._clock.mono_ns()

    def give_back(self, pages: int) -> int:
        """Give up to `pages` free pages of the file back to the disk; return how many are left."""

        def vacuum(db: sqlite3.Connection) -> int:
            # As a script, since `execute` steps once, and each step frees but one page.
            db.executescript(f"PRAGMA incremental_vacuum({pages})")
            how = "TRUNCATE" if self.file.log_size_bytes() > self.log_bytes else "PASSIVE"
            db.execute(f"PRAGMA wal_checkpoint({how})").fetchall()
            return int(db.execute("PRAGMA freelist_count").fetchone()[0])

        with self._lock:
            return self._attempt(vacuum, 0) if self.file.is_writable else 0

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self.file.close()

    def _attempt(
        self, action: Callable[[sqlite3.Connection], Result], otherwise: Other
    ) -> Result | Other:
        """Return the result of an action; after a database error, handle it, return `otherwise`."""
        try:
            return action(self.file.connection)
        except sqlite3.Error as error:
            self._handle(error)
            return otherwise

    def _transaction(self, change: Callable[[sqlite3.Connection], Result]) -> Result:
        """Run the caller's change between BEGIN and COMMIT, undone on any error."""
        with schema.transaction(self.file.connection, "BEGIN IMMEDIATE"):
            return change(self.file.connection)

    def _may_write(self) -> bool:
        """Whether a change may be tried now; opens the file again where that is due."""
        if self.file.is_gone:
            self.file.close()
            self.file.note_gone()
            self._open()
        if self.missing_bytes():
            self._refuse(f"less than {self._min_free_ratio:.0%} of the disk is free")
            return False
        if self.trouble is None:
            return True
        if self._clock.mono_ns() < self._retry_mono_ns:
            return False
        if not self.file.is_writable:
            self.file.close()
            self._open()
        return self.file.is_writable

    def _open(self) -> None:
        """Open the file; where that fails, changes are refused and reads find nothing."""
        try:
            self.file.open()
        except (OSError, schema.UnusableFileError, sqlite3.Error) as error:
            self._refuse(str(error))
            return
        if self.file.read_only:
            self._refuse(f"{self.file.path} can't be written")

    def _handle(self, error: sqlite3.Error) -> None:
        """Replace a damaged file, or refuse changes for a while; re-raise a bug."""
        if not self.file.is_open or not (is_damage(error) or is_refusal(error)):
            raise error
        if is_refusal(error):
            self._refuse(str(error))
            return
        try:
            self.file.replace(error)
        except (OSError, schema.UnusableFileError, sqlite3.Error) as second:
            self._refuse(str(second))

    def _refuse(self, reason: str) -> None:
        if self.trouble is None:
            logger.warning("the store can't write for now, changes wait in memory: %s", reason)
        self.trouble = f"in memory only: {reason}"
        self._retry_mono_ns = self._clock.mono_ns() + RETRY_NS


# Writes that the disk refused wait in memory, in their order and bounded, and are retried.

#: Most memory that refused writes may take.
QUEUE_BYTES: Final = 64 * 2**20
#: Memory of a waiting write in addition to its data.
_WRITE_BYTES: Final = 1024


class WriteQueue:
    """Makes writes to a database in their order, at once or when the disk accepts them again.

    A write raises `RefusedError` where the database refuses. All methods may be called from any
    thread. Beyond `limit_bytes` of memory the oldest waiting writes are dropped, which
    `dropped` counts.
    """

    def __init__(self, database: Database, *, limit_bytes: int = QUEUE_BYTES) -> None:
        self.dropped = 0
        self._database = database
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._waiting: deque[tuple[Callable[[], object], int, int]] = deque()
        self._rows = 0
        self._size_bytes = 0
        self._dropped_before = 0

    @property
    def rows(self) -> int:
        """Number of rows that wait to be written."""
        with self._lock:
            return self._rows

    def put(
        self,
        write: Callable[[], Result],
        *,
        later: Callable[[], object] | None = None,
        rows: int = 1,
        size_bytes: int = 0,
    ) -> Result | None:
        """Make a write after all waiting ones, return its result; None if it has to wait too.

        `later` makes the write after a wait, if that is another; `rows` and `size_bytes` of
        memory are counted while it waits.
        """
        with self._lock:
            if self._flush():
                with suppress(RefusedError):
                    return write()
            size_bytes += _WRITE_BYTES
            self._waiting.append((later or write, rows, size_bytes))
            self._rows += rows
            self._size_bytes += size_bytes
            while self._size_bytes > self._limit_bytes:
                if self.dropped == self._dropped_before:
                    logger.warning("no room in memory: the oldest unwritten changes are dropped")
                self._take_oldest()
                self.dropped += 1
            return None

    def flush(self, *, at_once: bool = False) -> None:
        """Make the writes that wait, if the disk takes them; `at_once` even after a refusal."""
        with self._lock:
            if at_once:
                self._database.retry_now()
            if self._flush() and self._database.trouble is not None:
                with suppress(RefusedError):
                    self._database.write(lambda _db: None)  # shows whether the disk writes again

    def close(self) -> None:
        """Make the writes that wait if that is possible now; those that can't be made are lost."""
        self.flush(at_once=True)
        if self._waiting:
            logger.warning("%d writes of the store were not made", len(self._waiting))

    def _flush(self) -> bool:
        """Make the writes that wait; return whether none is left."""
        while self._waiting:
            try:
                self._waiting[0][0]()
            except RefusedError:
                return False
            except Exception:  # one that can never be made must not hold up the others
                self.dropped += 1
                logger.exception("a write of the store failed and was dropped")
            self._take_oldest()
        if self.dropped > self._dropped_before:
            dropped_count = self.dropped - self._dropped_before
            logger.warning("%d unwritten changes of the store were dropped", dropped_count)
            self._dropped_before = self.dropped
        return True

    def _take_oldest(self) -> None:
        _, rows, size_bytes = self._waiting.popleft()
        self._rows -= rows
        self._size_bytes -= size_bytes
