"""Writes that the disk refused: kept in memory in their order, bounded, and retried."""

import logging
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeVar

from chopperd.store.captures.database import Database, RefusedError

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

#: Most memory that refused writes may take.
QUEUE_BYTES: Final = 64 * 2**20
#: Taken for a write besides the bytes that it brings.
_WRITE_BYTES: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class _Waiting:
    write: Callable[[], object]
    rows: int
    size_bytes: int


class WriteQueue:
    """Writes to a database, in their order, each made at once or when the disk takes it again.

    All methods may be called from any thread.

    Args:
        database: What is written to; a write raises `RefusedError` where that refuses.
        limit_bytes: Beyond it the oldest writes are dropped.

    Attributes:
        dropped: Writes given up since start.
    """

    def __init__(self, database: Database, *, limit_bytes: int = QUEUE_BYTES) -> None:
        self.dropped = 0
        self._database = database
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._waiting: deque[_Waiting] = deque()
        self._rows = 0
        self._size_bytes = 0
        self._dropped_before = 0

    @property
    def rows(self) -> int:
        """Rows that wait to be written."""
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
        """Make a write after those that wait; None if it has to wait with them.

        Args:
            write: Makes it.
            later: Makes it after a wait, if that differs.
            rows: How many rows it writes.
            size_bytes: What it takes in memory while it waits.
        """
        with self._lock:
            if self._flush():
                with suppress(RefusedError):
                    return write()
            size_bytes += _WRITE_BYTES
            self._waiting.append(_Waiting(write=later or write, rows=rows, size_bytes=size_bytes))
            self._rows += rows
            self._size_bytes += size_bytes
            while self._size_bytes > self._limit_bytes:
                self._drop_oldest()
            return None

    def flush(self, *, at_once: bool = False) -> None:
        """Make the writes that wait, as far as the disk takes them.

        Args:
            at_once: Try also if the disk refused a moment ago.
        """
        with self._lock:
            if at_once:
                self._database.retry_now()
            if self._flush() and self._database.trouble is not None:
                with suppress(RefusedError):
                    self._database.write(lambda _db: None)  # shows whether the disk writes again

    def close(self) -> None:
        """Make the writes that wait if that is possible now; those that can't be made are lost."""
        self.flush(at_once=True)
        with self._lock:
            if self._waiting:
                logger.warning("%d writes of the store were not made", len(self._waiting))

    def _flush(self) -> bool:
        """Make the writes that wait; whether none is left."""
        while self._waiting:
            try:
                self._waiting[0].write()
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
        oldest = self._waiting.popleft()
        self._rows -= oldest.rows
        self._size_bytes -= oldest.size_bytes

    def _drop_oldest(self) -> None:
        self._take_oldest()
        if self.dropped == self._dropped_before:
            logger.warning("no room in memory: the store drops its oldest unwritten changes")
        self.dropped += 1
