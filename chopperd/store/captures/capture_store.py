"""The store of traces, captures, steps, families and drops: the agent writes, the API reads it."""

import logging
import sqlite3
import threading
from collections.abc import Callable, Sequence
from functools import update_wrapper
from pathlib import Path
from typing import Concatenate, Final, ParamSpec, TypeVar

from msgspec.structs import replace

from chopperd.clock import Clock
from chopperd.model.captures import AnalysedTrace, Filed, GpuDrop, TraceEntry, Viewer
from chopperd.model.live import StoreLive
from chopperd.model.report import ReportDocument
from chopperd.store.captures import queries, schema
from chopperd.store.captures.database import LOG_BYTES, Database, WriteQueue
from chopperd.store.captures.filing import file_trace, filed_captures
from chopperd.store.captures.schema import document_of, packed, write_document
from chopperd.store.disk import DiskLimits

logger = logging.getLogger(__name__)

Given = ParamSpec("Given")
Found = TypeVar("Found")

#: The file's log takes at most the limit divided by this.
_LOG_PARTS: Final = 8
#: Memory that a drop takes while it waits to be written.
_DROP_BYTES: Final = 2048
#: Captures deleted in one transaction, whose log has to fit into the log's reserve on a full disk.
_CAPTURES_AT_ONCE: Final = 16
#: To save space, one in so many captures is deleted at a time, to delete few more than needed.
_CAPTURES_FOR_ONE: Final = 64
_FOR_EVER: Final = 2**63 - 1
_TRACES_AT_ONCE: Final = 500
_PAGES_AT_ONCE: Final = 500
#: Largest store in memory, where that was chosen.
_MEMORY_BYTES: Final = 64 * 2**20
#: A store that is too large is pruned to a little less than its limit.
_TARGET_RATIO: Final = 0.95


def _read(
    query: Callable[Concatenate[sqlite3.Connection, Given], Found],
) -> Callable[Concatenate["CaptureStore", Given], Found]:
    """Make a method of the store that returns the result of a query."""

    def read(store: "CaptureStore", /, *given: Given.args, **named: Given.kwargs) -> Found:
        return store.database.read(lambda db: query(db, *given, **named))

    return update_wrapper(read, query)


class CaptureStore:
    """Stores traces, captures, steps, families and drops in a database file, or (None) memory.

    The file is created if missing, a damaged one replaced. While the disk refuses changes they
    wait in memory, within a bound; answers come from the file. Implements
    `model.services.StepSource` and `DropSource`. All methods may be called from any thread; `live`
    never waits for the disk.
    """

    def __init__(self, path: Path | None, *, limits: DiskLimits, clock: Clock) -> None:
        log_bytes = min(LOG_BYTES, limits.max_bytes // _LOG_PARTS)
        free_ratio = limits.min_free_ratio
        self.database = Database(path, clock=clock, min_free_ratio=free_ratio, log_bytes=log_bytes)
        self._queue = WriteQueue(self.database)
        self._late_lock = threading.Lock()
        self._late_traces: list[AnalysedTrace] = []
        self._late_captures: dict[int, None] = {}
        self._limits = limits
        self._clock = clock
        self._live = StoreLive()
        self._queue.put(lambda: self.database.write(schema.interrupt_open), rows=0)
        self._renew(recount=True)

    def close(self) -> None:
        """Write what can be written and close the file; no method may be called afterwards."""
        self._queue.close()
        self.database.close()

    def put_trace(self, entry: TraceEntry) -> None:
        """Store a trace, or a change of its state; its capture does not change.

        Job, rank and run stay as they are where the entry has none.
        """
        is_new = self._queue.put(
            lambda: self.database.write(lambda db: schema.put_trace(db, entry))
        )
        self._renew(added_traces=int(is_new or False))

    def file_analysed(self, trace: AnalysedTrace) -> tuple[Filed, ...]:
        """Put a trace into the capture that it belongs to; its state does not change.

        Traces of one owner and run that overlap in time form one capture, those without an anchor
        another, of at most `filing.MAX_TRACES`. Filing a trace again replaces its report.

        Returns:
            The capture, then others that changed with it, each with its reports; empty where the
            disk refuses: `take_filed` returns them later.
        """
        now_unix_ns = self._clock.unix_ns()

        def write() -> tuple[tuple[Filed, ...], bool]:
            return self.database.write(lambda db: file_trace(db, trace, now_unix_ns))

        def write_later() -> None:
            filed, _ = write()
            with self._late_lock:
                self._late_traces.append(replace(trace, report=b""))
                self._late_captures.update(dict.fromkeys(each.entry.id for each in filed))

        done = self._queue.put(write, later=write_later, size_bytes=len(trace.report))
        filed, is_new = done or ((), False)
        self._renew(added_traces=int(is_new))
        return filed

    def take_filed(self) -> tuple[tuple[AnalysedTrace, ...], tuple[Filed, ...]]:
        """Take the traces filed after they waited for the disk, and the captures they changed.

        Each is returned once; the traces come without their reports.
        """
        with self._late_lock:
            traces, captures = tuple(self._late_traces), tuple(self._late_captures)
            self._late_traces.clear()
            self._late_captures.clear()
        if not traces:
            return (), ()
        return traces, self.database.read(lambda db: filed_captures(db, captures))

    def put_document(self, capture_id: int, document: ReportDocument) -> None:
        """Store a capture's document; its steps and families replace those stored before.

        Durable on return, unless `live` reports that the disk refuses. For a capture that no longer
        exists nothing is stored, which is logged.
        """
        body = packed(document)

        def write(document: ReportDocument | None) -> int:
            try:
                return self.database.write(
                    lambda db: write_document(db, capture_id, document, body) if document else 0
                )
            except LookupError:
                logger.warning("a report arrived for a capture that is no longer in the store")
                return 0

        added_steps = self._queue.put(
            lambda: write(document),
            later=lambda: write(document_of(body)),
            rows=len(document.steps),
            size_bytes=len(body),
        )
        self._renew(added_steps=added_steps or 0)
        if _is_too_large(self.database, self._limits):
            self.prune()

    def put_drops(self, drops: Sequence[GpuDrop]) -> None:
        """Store drops of the busy clock, each replacing its earlier version."""
        drops = tuple(drops)
        self._queue.put(
            lambda: self.database.write(lambda db: schema.put_drops(db, drops)),
            rows=len(drops),
            size_bytes=_DROP_BYTES * len(drops),
        )
        self._renew()

    known = _read(queries.trace_entry)
    waiting = _read(queries.waiting_traces)
    drops = _read(schema.found_drops)
    jobs = _read(queries.job_entries)
    steps = _read(queries.step_page)
    step = _read(queries.step_rows)
    kernels = _read(queries.step_kernels)
    latest_document = _read(queries.newest_document)
    traces = _read(queries.trace_entries)

    def trace(self, trace_id: str, viewer: Viewer) -> TraceEntry | None:
        """Return a trace by its id; None if there is none that the viewer may see."""
        entry = self.known(trace_id)
        return entry if entry is not None and viewer.may_see(entry.owner_uid) else None

    def live(self) -> StoreLive:
        """Return the store's size, counts and problems as of the last change."""
        return self._live

    def prune(self) -> None:
        """Delete what exceeds the limits of age, size and disk space; retry refused writes."""
        self._queue.flush()
        if deleted_count := _prune(self.database, self._limits, self._clock.unix_ns()):
            self._queue.flush(at_once=True)
            logger.info("%d captures were deleted for age or size", deleted_count)
        self._renew(recount=True)

    def _renew(self, *, added_steps: int = 0, added_traces: int = 0, recount: bool = False) -> None:
        """Update `live` after a change; count rows only on demand, after a refusal or a loss."""
        before, database = self.live(), self.database
        steps, traces = before.steps + added_steps, before.traces + added_traces
        losses = database.file.losses
        if recount or database.trouble or before.trouble or losses != before.set_aside:
            steps, traces = database.read(queries.counts)
        self._live = StoreLive(
            bytes=database.file.size_bytes(),
            steps=steps,
            traces=traces,
            in_memory=self._queue.rows,
            trouble=database.trouble,
            dropped=self._queue.dropped,
            set_aside=losses,
        )


# Retention by age, size and free space of the disk.


def _prune(database: Database, limits: DiskLimits, now_unix_ns: int) -> int:
    """Delete what exceeds the limits, oldest captures first; return the number of captures.

    The newest capture is never deleted for size. Free space goes back to the disk.
    """
    oldest_unix_ns = limits.oldest_unix_ns(now_unix_ns)
    deleted_count = 0
    while count := database.make_room(lambda db: _drop_captures(db, oldest_unix_ns)):
        deleted_count += count
    while database.make_room(lambda db: _drop_traces(db, oldest_unix_ns)):
        pass
    database.make_room(lambda db: schema.prune_drops(db, oldest_unix_ns))
    most_bytes = _most_bytes(database, limits)
    while database.used_bytes() > most_bytes:
        count = database.make_room(_drop_captures)
        if not count and not database.make_room(_drop_traces):
            break
        deleted_count += count or 0
    left, before = database.give_back(_PAGES_AT_ONCE), -1
    while left and left != before:
        left, before = database.give_back(_PAGES_AT_ONCE), left
    return deleted_count


def _is_too_large(database: Database, limits: DiskLimits) -> bool:
    if database.file.path is None:
        return database.used_bytes() > _most_bytes(database, limits)
    return database.file.size_bytes() > limits.max_bytes


def _most_bytes(database: Database, limits: DiskLimits) -> int:
    """Return how many bytes may be in use; less than now where the disk lacks room."""
    if database.file.path is None:
        return min(limits.max_bytes, _MEMORY_BYTES)
    most_bytes = limits.max_bytes
    if database.file.size_bytes() > limits.max_bytes:
        most_bytes = round(_TARGET_RATIO * limits.max_bytes) - database.log_bytes
    if missing := database.missing_bytes():
        most_bytes = min(most_bytes, database.used_bytes() - missing)
    return max(most_bytes, 0)


def _drop_captures(db: sqlite3.Connection, before_unix_ns: int = _FOR_EVER) -> int:
    """Delete the oldest few captures, or those from before a time; return how many.

    Without a time the newest capture stays.
    """
    most = _CAPTURES_AT_ONCE
    if before_unix_ns == _FOR_EVER:
        count = db.execute("SELECT count(*) FROM captures").fetchone()[0]
        most = min(most, 1 + count // _CAPTURES_FOR_ONE, max(count - 1, 0))
    found = db.execute(
        "SELECT id FROM captures WHERE changed_unix_ns < ? ORDER BY changed_unix_ns, id LIMIT ?",
        (before_unix_ns, most),
    ).fetchall()
    for table in ("reports", "documents", "steps"):
        db.executemany(f"DELETE FROM {table} WHERE capture = ?", found)
    db.executemany("UPDATE traces SET capture = NULL WHERE capture = ?", found)
    db.executemany("DELETE FROM captures WHERE id = ?", found)
    return len(found)


def _drop_traces(db: sqlite3.Connection, before_unix_ns: int = _FOR_EVER) -> int:
    """Delete the oldest finished traces that are in no capture; return how many."""
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
