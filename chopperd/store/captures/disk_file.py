"""The store's database file: opened, checked, quarantined where it is damaged."""

import logging
import os
import sqlite3
from pathlib import Path
from typing import Final

from chopperd.clock import Clock
from chopperd.store.captures import schema
from chopperd.store.captures.quarantine import quarantine, quarantined, salvage

logger = logging.getLogger(__name__)

_BUSY_S: Final = 2.0
#: How long the check at start may take.
_CHECK_S: Final = 2.0
_PAGE_BYTES: Final = 4096
_FOUND: Final = "found at start"


#: Primary result codes of a damaged file, and of one that can't be written or read now.
#: Source: sqlite3.h, "Result Codes".
_DAMAGE: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_REFUSAL: Final = frozenset(
    getattr(sqlite3, f"SQLITE_{name}")
    for name in (
        *("FULL", "IOERR", "READONLY", "CANTOPEN", "BUSY", "LOCKED"),
        *("PERM", "AUTH", "PROTOCOL", "NOLFS"),
    )
)


def is_damage(error: BaseException) -> bool:
    """Whether an error means that the file is not a sound database."""
    return isinstance(error, schema.DamagedError) or _code_of(error) in _DAMAGE


def is_refusal(error: BaseException) -> bool:
    """Whether an error means that the file can't be written or read now."""
    return isinstance(error, OSError) or _code_of(error) in _REFUSAL


def _code_of(error: BaseException) -> int | None:
    code = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


class DiskFile:
    """A connection to the store's file; for one thread at a time.

    `path` is None for a database in memory, by choice; `read_only`: the file can't be written.
    """

    def __init__(self, path: Path | None, *, log_bytes: int, clock: Clock) -> None:
        self.path = path
        self.read_only = False
        self._clock = clock
        self._removed: str | None = None
        self._why: dict[str, str] = {}
        self._losses: tuple[tuple[Path, str], ...] = ()
        self._opened: tuple[int, int] | None = None
        self._connection: sqlite3.Connection | None = None
        self._empty: sqlite3.Connection | None = None
        self._log_bytes = log_bytes

    @property
    def is_open(self) -> bool:
        """Whether the file can be read."""
        return self._connection is not None

    @property
    def connection(self) -> sqlite3.Connection:
        """The connection to the file; while that is closed, to an empty store."""
        if self._connection is not None:
            return self._connection
        if self._empty is None:
            self._empty = _connected("file::memory:")
            schema.migrate(self._empty, schema.MIGRATIONS)
        return self._empty

    @property
    def losses(self) -> str | None:
        """Text on rows lost with unusable files, until these are removed; None without a loss."""
        texts = [text for file, text in self._losses if file.exists()]
        texts += [self._removed] if self._removed else []
        return "; ".join(texts) or None

    @property
    def is_writable(self) -> bool:
        """Whether changes may be tried."""
        return self.is_open and not self.read_only

    @property
    def is_gone(self) -> bool:
        """Whether the file that is open has been removed, or another put in its place."""
        return self.is_open and self.path is not None and _identity(self.path) != self._opened

    def note_gone(self) -> None:
        """Log, and report in `losses`, that the file is gone with its rows."""
        self._removed = (
            f"{self.path} was removed while it was in use, with its rows; restart to acknowledge"
        )
        logger.warning("the store begins a new file: %s", self._removed)

    def open(self) -> None:
        """Open the file, created if missing; an unusable one is quarantined first.

        Raises:
            OSError: It can't be created or quarantined.
            sqlite3.Error: It can't be read now.
            UnusableFileError: The new one is unusable too.
        """
        try:
            self._open_checked()
        except (OSError, schema.UnusableFileError, sqlite3.Error) as error:
            if is_refusal(error):
                self.close()
                raise
            self.replace(error)

    def replace(self, error: Exception) -> None:
        """Quarantine the file because of `error`, and begin a new one with its readable rows.

        Raises as `open`.
        """
        why = "newer" if isinstance(error, schema.NewerError) else "damaged"
        if self.path is not None:
            try:
                renamed = quarantine(self.path, why)
            finally:
                self.close()  # only now: closing removes a log that is still in its place
            self._why[renamed.name] = str(error)
            logger.warning("%s is quarantined as %s: %s", self.path, renamed.name, error)
        try:
            self._open_checked()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file; it can be opened again."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def size_bytes(self) -> int:
        """Return the size of the file and its log, in bytes; 0 without a file."""
        if self.path is None:
            return 0
        return _size_bytes(self.path) + self.log_size_bytes()

    def log_size_bytes(self) -> int:
        """Return the size of the file's log, in bytes; 0 without one."""
        return 0 if self.path is None else _size_bytes(Path(f"{self.path}-wal"))

    def _open_checked(self) -> None:
        if self.path is None:
            self._connection = _connected("file::memory:")
        else:
            self._open(self.path)
            schema.check_sound(self.connection, _CHECK_S)
            self._opened = _identity(self.path)
        schema.migrate(self.connection, schema.MIGRATIONS)
        if self.path is not None:
            self._take_over(self.path)

    def _take_over(self, path: Path) -> None:
        """Salvage quarantined files where that is not done yet, and read the losses of all."""
        run = self.connection.execute
        done = {name for (name,) in run("SELECT name FROM quarantine")}
        unfinished = []
        for file in quarantined(path):
            if file.name not in done and not self.read_only:
                try:
                    self._salvage(file)
                except sqlite3.Error as error:
                    text = f"its rows are salvaged at the next start, as now the disk says {error}"
                    unfinished.append((file, f"{file.name} is quarantined: {text}"))
        rows = run("SELECT name, reason, recovered, lost FROM quarantine").fetchall()
        known = [(file := path.with_name(name), _loss_text(file, *loss)) for name, *loss in rows]
        self._losses = (*known, *unfinished)
        for file, text in self._losses:
            if file.name not in done:
                logger.warning("%s", text)

    def _salvage(self, file: Path) -> None:
        """Copy the readable rows of a quarantined file and store their number, in a transaction."""
        reason = self._why.get(file.name)
        with schema.transaction(self.connection):
            try:
                recovered, lost = salvage(file, self.connection)
            except schema.UnusableFileError as error:
                recovered, lost = 0, None
                reason = reason or str(error)
            values = (file.name, self._clock.unix_ns(), reason or _FOUND, recovered, lost)
            self.connection.execute("INSERT INTO quarantine VALUES (?, ?, ?, ?, ?)", values)

    def _open(self, path: Path) -> None:
        """Open for writing or, if that is refused and the log is empty, for reading."""
        self.read_only = False
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            self._connection = _connected(f"{path.absolute().as_uri()}?mode=rw")
            schema.check_ours(self._connection, len(schema.MIGRATIONS))
            self._prepare()
        except (OSError, sqlite3.Error) as error:
            if not is_refusal(error) or self.log_size_bytes() or not path.is_file():
                raise
            self.close()
            self._connection = _connected(f"{path.absolute().as_uri()}?mode=ro&immutable=1")
            self.read_only = True
            schema.check_ours(self._connection, len(schema.MIGRATIONS))

    def _prepare(self) -> None:
        """Set how the file is written; permanent settings while it is empty."""
        run = self.connection.execute
        if not run("PRAGMA page_count").fetchone()[0]:
            run(f"PRAGMA page_size = {_PAGE_BYTES}")
            run("PRAGMA auto_vacuum = INCREMENTAL")
            run(f"PRAGMA application_id = {schema.APPLICATION_ID}")
        run("PRAGMA journal_mode = WAL").fetchall()
        run("PRAGMA synchronous = FULL")
        run(f"PRAGMA journal_size_limit = {self._log_bytes}").fetchall()
        run(f"PRAGMA wal_autocheckpoint = {self._log_bytes // _PAGE_BYTES}").fetchall()


def _connected(uri: str) -> sqlite3.Connection:
    connection = sqlite3.connect(
        uri, timeout=_BUSY_S, isolation_level=None, check_same_thread=False, uri=True
    )
    connection.execute("PRAGMA temp_store = MEMORY")
    return connection


def _loss_text(file: Path, reason: str, recovered: int, lost: int | None) -> str:
    """Describe how many rows were lost with a quarantined file, and how to acknowledge that."""
    which = "an unknown number" if lost is None else f"{lost:,}"
    return (
        f"the store file could not be used ({reason}): {recovered:,} of its rows were recovered,"
        f" {which} lost; remove {file} to acknowledge"
    )


def _size_bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _identity(path: Path) -> tuple[int, int] | None:
    """Device and inode of a file; None if there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
