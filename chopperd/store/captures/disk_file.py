"""The store's file, attached to a connection: opened, checked, put aside where it must be."""

import logging
import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from chopperd.clock import Clock
from chopperd.store.captures.disk_trouble import NewerError, Trouble, UnusableFileError, trouble_of
from chopperd.store.captures.quarantine import (
    APPLICATION_ID,
    check_ours,
    check_sound,
    quarantined,
    set_aside,
)
from chopperd.store.captures.salvage import Salvaged, salvage
from chopperd.store.captures.schema import Migration, migrate

logger = logging.getLogger(__name__)

#: How long the check at start may take.
_CHECK_S: Final = 2.0
_PAGE_BYTES: Final = 4096


class DiskFile:
    """A file attached to a connection as `disk`; not safe against threads.

    Attributes:
        path: The file; None stands for memory that is never given up.
        attached: Whether it can be read.
        read_only: Whether it can't be written.
    """

    def __init__(
        self,
        path: Path | None,
        connection: sqlite3.Connection,
        *,
        log_bytes: int,
        migrations: Sequence[Migration],
        clock: Clock,
    ) -> None:
        self.path = path
        self.attached = False
        self.read_only = False
        self._clock = clock
        self._removed: str | None = None
        self._why: dict[str, str] = {}
        self._losses: tuple[tuple[Path, str], ...] = ()
        self._opened: tuple[int, int] | None = None
        self._connection = connection
        self._log_bytes = log_bytes
        self._migrations = migrations

    @property
    def set_aside(self) -> str | None:
        """What became of files that could not be used, for people; None if there is none.

        A file is spoken of until somebody removes it, which acknowledges it.
        """
        texts = [text for file, text in self._losses if file.exists()]
        texts += [self._removed] if self._removed else []
        return "; ".join(texts) or None

    @property
    def is_writable(self) -> bool:
        """Whether changes may be tried."""
        return self.attached and not self.read_only

    @property
    def is_gone(self) -> bool:
        """Whether the file that is open has been removed, or another put in its place."""
        return self.attached and self.path is not None and _identity(self.path) != self._opened

    def note_gone(self) -> None:
        """Say that the file is gone, and what was in it with it."""
        self._removed = (
            f"{self.path} was removed while it was in use, with its rows; restart to acknowledge"
        )
        logger.warning("the store begins anew: %s", self._removed)

    def attach(self) -> None:
        """Open the file, made if it is missing; one that can't be used is put aside first.

        Raises:
            OSError: It can't be made, or not be put aside.
            sqlite3.Error: It can't be read now.
            UnusableFileError: The new one is no better.
        """
        try:
            self._open_checked()
        except (OSError, UnusableFileError, sqlite3.Error) as error:
            if trouble_of(error) is Trouble.REFUSED:
                self.detach()
                raise
            self.replace(error)

    def replace(self, error: Exception) -> None:
        """Quarantine the file for what was found of it, and begin a new one with its readable rows.

        Raises as `attach`.
        """
        why = "newer" if isinstance(error, NewerError) else "damaged"
        if self.path is not None:
            try:
                kept = set_aside(self.path, why)
            finally:
                self.detach()  # only now: closing removes a log that is still in its place
            self._why[kept.name] = str(error)
            logger.warning("%s is quarantined as %s: %s", self.path, kept.name, error)
        try:
            self._open_checked()
        except BaseException:
            self.detach()
            raise

    def detach(self) -> None:
        """Close the file."""
        if self.attached:
            self.attached = False
            self._connection.execute("DETACH disk")

    def size_bytes(self) -> int:
        """Size of the file and its log; 0 without one."""
        if self.path is None:
            return 0
        return _size_bytes(self.path) + self.log_size_bytes()

    def log_size_bytes(self) -> int:
        """Size of the file's log; 0 without one."""
        return 0 if self.path is None else _size_bytes(_log_of(self.path))

    def _open_checked(self) -> None:
        if self.path is None:
            self._attach("file::memory:")
        else:
            self._open(self.path)
            check_sound(self._connection, "disk", _CHECK_S)
            self._opened = _identity(self.path)
        migrate(self._connection, "disk", self._migrations)
        if self.path is not None:
            self._take_over(self.path)

    def _take_over(self, path: Path) -> None:
        """Salvage what has not been, from files quarantined here, and read what was lost of all."""
        run = self._connection.execute
        done = {name for (name,) in run("SELECT name FROM disk.quarantine")}
        files = quarantined(path)
        unfinished = []
        for file in files:
            if file.name not in done and not self.read_only:
                try:
                    self._salvage(file)
                except sqlite3.Error as error:
                    if self._connection.in_transaction:
                        run("ROLLBACK")
                    text = f"its rows are salvaged at the next start, as now the disk says {error}"
                    unfinished.append((file, f"{file.name} is quarantined: {text}"))
        rows = run("SELECT name, reason, recovered, lost FROM disk.quarantine").fetchall()
        told = [(file := path.with_name(name), _loss_text(file, *loss)) for name, *loss in rows]
        self._losses = (*told, *unfinished)
        for file, text in self._losses:
            if file.name not in done:
                logger.warning("%s", text)

    def _salvage(self, file: Path) -> None:
        """Copy the readable rows of a quarantined file, and note how many, in one transaction."""
        run = self._connection.execute
        reason = self._why.get(file.name, "found at start")
        run("BEGIN")
        try:
            salvaged = salvage(file, self._connection, "disk")
        except UnusableFileError as error:
            salvaged = Salvaged(recovered=0, lost=None)
            reason = reason if reason != "found at start" else str(error)
        values = (file.name, self._clock.unix_ns(), reason, salvaged.recovered, salvaged.lost)
        run("INSERT INTO disk.quarantine VALUES (?, ?, ?, ?, ?)", values)
        run("COMMIT")

    def _open(self, path: Path) -> None:
        """For writing; where that is refused, for reading, if nothing is left in its log."""
        self.read_only = False
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            self._attach(f"{path.absolute().as_uri()}?mode=rw")
            check_ours(self._connection, "disk", len(self._migrations))
            self._prepare()
        except (OSError, sqlite3.Error) as error:
            refused = trouble_of(error) is Trouble.REFUSED
            if not refused or self.log_size_bytes() or not path.is_file():
                raise
            self.detach()
            self._attach(f"{path.absolute().as_uri()}?mode=ro&immutable=1")
            self.read_only = True
            check_ours(self._connection, "disk", len(self._migrations))

    def _attach(self, uri: str) -> None:
        self._connection.execute("ATTACH ? AS disk", (uri,))
        self.attached = True

    def _prepare(self) -> None:
        """Set how the file is written; what lasts is set while it is empty."""
        run = self._connection.execute
        if not run("PRAGMA disk.page_count").fetchone()[0]:
            run(f"PRAGMA disk.page_size = {_PAGE_BYTES}")
            run("PRAGMA disk.auto_vacuum = INCREMENTAL")
            run(f"PRAGMA disk.application_id = {APPLICATION_ID}")
        run("PRAGMA disk.journal_mode = WAL").fetchall()
        run("PRAGMA disk.synchronous = FULL")
        run(f"PRAGMA disk.journal_size_limit = {self._log_bytes}").fetchall()
        run(f"PRAGMA wal_autocheckpoint = {self._log_bytes // _PAGE_BYTES}").fetchall()


def _loss_text(file: Path, reason: str, recovered: int, lost: int | None) -> str:
    """What a quarantined file cost, and how to acknowledge it."""
    which = "an unknown number" if lost is None else f"{lost:,}"
    return (
        f"the store file could not be used ({reason}): {recovered:,} of its rows were recovered,"
        f" {which} lost; remove {file} to acknowledge"
    )


def _log_of(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def _size_bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _identity(path: Path) -> tuple[int, int] | None:
    """What tells a file from any other; None where there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
