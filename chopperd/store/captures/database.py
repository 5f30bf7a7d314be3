"""The database behind the store: one connection, a lock, and what happens when the disk refuses.

Memory is always there (`main`); the file is attached to it (`disk`) while it can be. A change that
the disk refuses is made in memory instead, bounded, and moved to the disk once that works again.
Here is no knowledge of what the tables mean.
"""

import logging
import shutil
import sqlite3
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from chopperd.clock import Clock
from chopperd.errors import StoreError
from chopperd.store.captures import overflow
from chopperd.store.captures.disk_file import DiskFile
from chopperd.store.captures.disk_trouble import Trouble, UnusableFileError, trouble_of
from chopperd.store.captures.schema import MIGRATIONS, Migration, migrate, stored_bytes
from chopperd.units import NS_PER_S

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

MEMORY: Final = "main"
DISK: Final = "disk"

#: Most that is kept in memory while the disk refuses.
MEMORY_LIMIT_BYTES: Final = 64 * 2**20
#: The log keeps so much of the disk for itself: deleting needs it when the disk is full.
LOG_BYTES: Final = 4 * 2**20
RETRY_NS: Final = 30 * NS_PER_S
_BUSY_S: Final = 2.0
_ATTEMPTS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A transaction under way: where its statements are to write.

    Attributes:
        connection: What to execute on; plain table names read everything there is.
        at: Name of the database to write to.
        attached: Whether the disk can be read.
    """

    connection: sqlite3.Connection
    at: str
    attached: bool

    def execute(self, sql: str, values: Sequence[object] | dict[str, object] = ()) -> int:
        """Execute a statement, `{at}` being the database to write to; the count of rows changed."""
        return self.connection.execute(sql.format(at=self.at), values).rowcount

    def many(self, sql: str, rows: Sequence[Sequence[object]]) -> None:
        """Execute a statement once a row."""
        self.connection.executemany(sql.format(at=self.at), rows)

    def adopt_trace(self, trace_id: str) -> None:
        """Make a trace changeable where this writes."""
        if self.at == MEMORY and self.attached:
            overflow.adopt_trace(self.connection, trace_id)

    def adopt_capture(self, capture_id: int) -> None:
        """Make a capture changeable where this writes."""
        if self.at == MEMORY and self.attached:
            overflow.adopt_capture(self.connection, capture_id)

    def give_shadow(self, capture_id: int, owner: int) -> None:
        """Note that a capture has become part of another."""
        if self.at == MEMORY:
            self.execute("UPDATE {at}.shadows SET owner = ? WHERE owner = ?", (owner, capture_id))


class Database:
    """The store's database, on disk where it may be; all methods from any thread.

    Attributes:
        trouble: Why it does not write to disk now, for people; None where it does.
        dropped: Captures and traces given up as there was no more room in memory.
        log_bytes: How large the file's log may stay.
    """

    def __init__(
        self,
        path: Path | None,
        *,
        clock: Clock,
        min_free_ratio: float = 0.0,
        log_bytes: int = LOG_BYTES,
        memory_limit_bytes: int = MEMORY_LIMIT_BYTES,
        migrations: Sequence[Migration] = MIGRATIONS,
    ) -> None:
        self.trouble: str | None = None
        self.dropped = 0
        self.log_bytes = log_bytes
        self._clock = clock
        self._min_free_ratio = min_free_ratio
        self._memory_limit_bytes = memory_limit_bytes
        self._retry_mono_ns = 0
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(
            ":memory:", timeout=_BUSY_S, isolation_level=None, check_same_thread=False, uri=True
        )
        self._connection.execute("PRAGMA temp_store = MEMORY")
        migrate(self._connection, MEMORY, migrations)
        overflow.make_shadows(self._connection)
        self._disk = DiskFile(
            path, self._connection, log_bytes=log_bytes, migrations=migrations, clock=clock
        )
        with self._lock:
            self._open_disk()

    @property
    def set_aside(self) -> str | None:
        """What became of a file that could not be used, for people; None if there was none."""
        return self._disk.set_aside

    @property
    def is_memory(self) -> bool:
        """Whether there is no file, by choice."""
        return self._disk.path is None

    @property
    def in_memory(self) -> int:
        """Rows that are not on disk yet (of a store that has none: 0)."""
        with self._lock:
            return overflow.row_count(self._connection)

    def size_bytes(self) -> int:
        """Size of the file and its log; 0 without one."""
        return self._disk.size_bytes()

    def used_bytes(self) -> int:
        """What the pages take that hold something; 0 where the file can't be read."""
        with self._lock:
            if not self._disk.attached:
                return 0
            try:
                return stored_bytes(self._connection, DISK)
            except sqlite3.Error as error:
                self._handle(error)
                return 0

    def missing_bytes(self) -> int:
        """How much of the disk would have to be given back to stay above the floor."""
        if self._disk.path is None:
            return 0
        try:
            usage = shutil.disk_usage(self._disk.path.parent)
        except OSError:
            return 0  # what is wrong with the folder shows when it is written to
        return max(0, round(self._min_free_ratio * usage.total) - usage.free)

    def read(self, query: Callable[[sqlite3.Connection], Result]) -> Result:
        """What a query gives; it may execute several statements, between which nothing changes.

        Raises:
            StoreError: Nothing can be read at all.
        """
        with self._lock:
            for _ in range(_ATTEMPTS):
                try:
                    return query(self._connection)
                except sqlite3.Error as error:
                    self._handle(error)
                    if self.trouble is not None:
                        self._leave_disk()
        raise StoreError("the store can't be read")

    def write(self, change: Callable[[Change], Result]) -> Result:
        """Make a change in one transaction; when this returns it is on disk, or trouble is said."""
        with self._lock:
            for _ in range(_ATTEMPTS):
                if not self._may_write_disk():
                    break
                try:
                    return self._transaction(change, DISK)
                except sqlite3.Error as error:
                    self._handle(error)
            else:
                self._give_up("every new file is damaged")
            result = self._transaction(change, MEMORY)
            self._bound_memory()
            return result

    def write_disk(self, change: Callable[[Change], Result]) -> Result | None:
        """Make a change of the disk only; None, and nothing is changed, where it refuses."""
        with self._lock:
            if not self._disk.is_writable:
                return None
            try:
                return self._transaction(change, DISK)
            except sqlite3.Error as error:
                self._handle(error)
                return None

    def try_disk(self, *, at_once: bool = False) -> bool:
        """Move what is in memory to the disk; whether all is there.

        `at_once`: also where it refused a moment ago.
        """
        with self._lock:
            if at_once:
                self._retry_mono_ns = self._clock.mono_ns()
            return self._may_write_disk()

    def give_back(self, pages: int) -> int:
        """Give free pages of the file back to the disk, some at a time; how many are left."""
        with self._lock:
            if not self._disk.is_writable:
                return 0
            run = self._connection.execute
            try:
                # As a script, since `execute` steps once, and each step frees but one page.
                self._connection.executescript(f"PRAGMA disk.incremental_vacuum({pages})")
                how = "TRUNCATE" if self._disk.log_size_bytes() > self.log_bytes else "PASSIVE"
                run(f"PRAGMA disk.wal_checkpoint({how})").fetchall()
                return int(run("PRAGMA disk.freelist_count").fetchone()[0])
            except sqlite3.Error as error:
                self._handle(error)
                return 0

    def close(self) -> None:
        """Write what can be written, and close the file."""
        self.try_disk(at_once=True)
        with self._lock:
            self._connection.close()

    def _transaction(self, change: Callable[[Change], Result], at: str) -> Result:
        """The caller's change between BEGIN and COMMIT, undone on any error."""
        self._connection.execute("BEGIN")
        try:
            made = Change(connection=self._connection, at=at, attached=self._disk.attached)
            result = change(made)
            self._connection.execute("COMMIT")
        except BaseException:
            self._undo()
            raise
        return result

    def _undo(self) -> None:
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    def _may_write_disk(self) -> bool:
        """Whether the disk takes changes now; tries again, not too often, where it did not."""
        if self._disk.is_gone:
            self._leave_disk()
            self._disk.note_gone()
            self._open_disk()
        if self.missing_bytes():
            self._give_up(f"less than {self._min_free_ratio:.0%} of the disk is free")
            return False
        if self.trouble is None:
            return True
        if self._clock.mono_ns() < self._retry_mono_ns:
            return False
        return self._recovered()

    def _recovered(self) -> bool:
        """Whether the disk takes changes again, and has taken what was kept in memory."""
        if not self._disk.is_writable:
            self._leave_disk()
            self._open_disk()
            if not self._disk.is_writable:
                return False
        try:
            overflow.move_to_disk(self._connection)
        except sqlite3.Error as error:
            self._handle(error)
            return False
        self.trouble = None
        self._lay_views()
        logger.info("the store writes to disk again")
        return True

    def _open_disk(self) -> None:
        """Attach the file; where that fails, memory must do."""
        try:
            self._disk.attach()
        except (OSError, UnusableFileError, sqlite3.Error) as error:
            self._give_up(str(error))
            return
        if self._disk.read_only:
            self._give_up(f"{self._disk.path} can't be written")
        self._lay_views()

    def _leave_disk(self) -> None:
        """Read from memory alone until the next attempt."""
        overflow.lay_views(self._connection, attached=False, overflowing=True)
        self._disk.detach()

    def _handle(self, error: sqlite3.Error) -> None:
        """Begin a new file for a damaged one, or keep to memory for a while; re-raise a bug."""
        self._undo()
        trouble = trouble_of(error)
        if trouble is None or not self._disk.attached:
            raise error
        if trouble is Trouble.REFUSED:
            self._give_up(str(error))
            return
        overflow.lay_views(self._connection, attached=False, overflowing=True)
        try:
            self._disk.replace(error)
        except (OSError, UnusableFileError, sqlite3.Error) as second:
            self._give_up(str(second))
        self._lay_views()

    def _give_up(self, reason: str) -> None:
        if self.trouble is None:
            logger.warning("the store keeps to memory: %s", reason)
        self.trouble = f"kept in memory only: {reason}"
        self._retry_mono_ns = self._clock.mono_ns() + RETRY_NS
        self._lay_views()

    def _lay_views(self) -> None:
        overflowing = self.trouble is not None or not overflow.is_empty(self._connection)
        overflow.lay_views(self._connection, attached=self._disk.attached, overflowing=overflowing)

    def _bound_memory(self) -> None:
        dropped = 0
        while stored_bytes(self._connection, MEMORY) > self._memory_limit_bytes:
            if not overflow.drop_oldest(self._connection):
                break
            dropped += 1
        if dropped:
            self.dropped += dropped
            logger.warning("no room in memory: the store gave up %d captures", dropped)
