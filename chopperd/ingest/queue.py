"""On-disk queue of traces: pending, retained and rejected.

`traces/ID` holds the bytes as they came, `traces/ID.entry` a `QueuedTrace`; `rejected/` the
newest rejected ones, each with its reason in a file. All are bounded together, and by a floor of
free disk space.
"""

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec

from chopperd.errors import IngestError, IngestReason
from chopperd.ingest.incoming import Incoming, no_room, safe_name
from chopperd.model.captures import TraceEntry, TraceState

logger = logging.getLogger(__name__)

_ENTRY: Final = ".entry"
_INCOMING: Final = ".incoming-"
_REASON: Final = ".reason"
_FOLDER_MODE: Final = 0o700
_FILE_MODE: Final = 0o600
_MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLimits:
    """Limits: bytes of one trace and of all, number of rejected ones, free share of the disk."""

    file_bytes: int
    all_bytes: int
    failed_count: int
    min_free_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedTrace:
    """The entry of a stored trace, with when it was written and how often analysis began."""

    entry: TraceEntry  # as it was admitted; its state is `ANALYSED` if it is only retained
    written_unix_ns: int  # when the file was last written to: the trace had ended by then
    start_count: int = 0  # how often its analysis began


class TraceQueue:
    """Stores traces until they are analysed; `all`, `get` and `bytes` never wait for the disk.

    For any thread. Its folder has `traces` and `rejected` in it.
    """

    def __init__(self, folder: Path, limits: QueueLimits) -> None:
        self._traces = folder / "traces"
        self._rejected = folder / "rejected"
        self._limits = limits
        #: Held while room is made and entries are written, by those that may wait for the disk.
        self._disk_lock = threading.Lock()
        #: Held only to read or change the attributes that follow.
        self._lock = threading.Lock()
        self._stored: dict[str, QueuedTrace] = {}
        self._sizes: dict[Path, int] = {}
        self._incoming_bytes = 0
        self._incoming_count = 0

    @property
    def bytes(self) -> int:
        """Size of all traces in bytes, also of incoming ones."""
        with self._lock:
            return sum(self._sizes.values()) + self._incoming_bytes

    def open(self) -> None:
        """Load the traces of an earlier run; remove incomplete ones.

        Raises:
            OSError: The folders can't be made or read.
        """
        self.make_folders()
        for path in self._traces.glob(f"{_INCOMING}*"):
            path.unlink(missing_ok=True)
        sizes = dict(_sizes(self._traces)) | dict(_sizes(self._rejected))
        stored = {one.entry.id: one for one in self._read_entries(sizes)}
        with self._lock:
            self._sizes, self._stored = sizes, stored

    def make_folders(self) -> None:
        """Make the folders that are missing.

        Raises:
            OSError: They can't be made.
        """
        for folder in (self._traces, self._rejected):
            if not folder.is_dir():
                folder.mkdir(parents=True)
                folder.chmod(_FOLDER_MODE)

    def all(self) -> tuple[QueuedTrace, ...]:
        """Return the stored traces in the order in which they came."""
        with self._lock:
            return tuple(sorted(self._stored.values(), key=lambda one: one.entry.received_unix_ns))

    def get(self, trace_id: str) -> QueuedTrace | None:
        """Return a stored trace by its id; None if it is not stored."""
        with self._lock:
            return self._stored.get(trace_id)

    def path(self, trace_id: str) -> Path:
        """Return the path of the file with the bytes of a trace."""
        return self._traces / trace_id

    def begin(self, expected_bytes: int | None = None) -> Incoming:
        """Make room and open a file for an incoming trace.

        Raises:
            IngestError: It is too large, or there is no room.
        """
        size_bytes = expected_bytes or 0
        self._check_size(size_bytes)
        with self._disk_lock:
            self._make_room(size_bytes)
            self._check_free(size_bytes)
            self._incoming_count += 1
            path = self._traces / f"{_INCOMING}{os.getpid()}-{self._incoming_count}"
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _FILE_MODE)
        except OSError as error:
            raise no_room(error) from error
        return Incoming(self, path, fd)

    def claim(self, size_bytes: int, more_bytes: int, *, check_disk: bool) -> None:
        """Reserve space for an incoming trace that grows.

        Raises:
            IngestError: It gets too large, or there is no room.
        """
        self._check_size(size_bytes + more_bytes)
        with self._disk_lock:
            self._make_room(more_bytes)
            if check_disk:
                self._check_free(more_bytes)
            with self._lock:
                self._incoming_bytes += more_bytes

    def unclaim(self, size_bytes: int) -> None:
        """Release the claimed bytes: the trace is not incoming any more."""
        with self._lock:
            self._incoming_bytes -= size_bytes

    def put(self, incoming: Incoming, queued: QueuedTrace) -> None:
        """Store a complete trace with its entry, and close `incoming`.

        Raises:
            IngestError: There is no room for its entry.
        """
        trace_id = queued.entry.id
        try:
            self._write_entry(queued)
            incoming.path.rename(self.path(trace_id))
        except OSError as error:
            _unlink(self._entry_path(trace_id))
            raise no_room(error) from error
        with self._lock:
            self._sizes[self.path(trace_id)] = incoming.size_bytes
            self._stored[trace_id] = queued
        incoming.close()

    def note_start(self, trace_id: str, change: int = 1) -> int:
        """Record on disk that the analysis begins; return how often it has begun."""
        with self._disk_lock:
            queued = self.get(trace_id)
            if queued is None:
                return 1
            queued = replace(queued, start_count=max(queued.start_count + change, 0))
            self._replace(queued)
            return queued.start_count

    def forgive_start(self, trace_id: str) -> None:
        """Undo the last `note_start`: the trace is not to blame for the end of its analysis."""
        self.note_start(trace_id, -1)

    def retain(self, entry: TraceEntry) -> None:
        """Retain an analysed trace for as long as there is room."""
        with self._disk_lock:
            queued = self.get(entry.id)
            if queued is not None:
                self._replace(replace(queued, entry=entry))

    def discard(self, trace_id: str) -> None:
        """Remove a trace's bytes and entry."""
        self._forget(trace_id)
        self._remove(self.path(trace_id))

    def reject(self, trace_id: str, name: str, reason: str) -> None:
        """Move a trace to the rejected ones, with a file that gives the reason."""
        self._forget(trace_id)
        target = self._rejected / f"{trace_id}-{safe_name(name)}"
        try:
            self.path(trace_id).rename(target)
        except OSError as error:
            logger.warning("%s can't be stored among the rejected traces: %s", name, error.strerror)
            self._remove(self.path(trace_id))
            return
        with self._lock:
            self._sizes[target] = self._sizes.pop(self.path(trace_id), 0)
        self.explain(target.name, reason)

    def explain(self, name: str, reason: str) -> None:
        """Write why a trace was rejected to a file named after it; remove the oldest rejected."""
        path = self._rejected / f"{safe_name(name)}{_REASON}"
        try:
            path.write_text(f"{reason}\n", encoding="utf-8", errors="replace")
        except OSError as error:
            logger.warning("the reason can't be written down (%s): %s", error.strerror, reason)
        self._prune_rejected()

    def _check_size(self, size_bytes: int) -> None:
        for limit, key in (
            (self._limits.file_bytes, "ingest.max_stored_bytes"),
            (self._limits.all_bytes, "analysis.spool_max_bytes"),
        ):
            if size_bytes > limit:
                most = f"{limit / _MIB:.6g} MiB"
                text = f"is too large: more than {most}; profile fewer steps, or raise {key}"
                raise IngestError(text, reason=IngestReason.TOO_LARGE)

    def _make_room(self, more_bytes: int) -> None:
        """Remove retained and rejected traces, the largest first, until there is room."""
        with self._lock:
            stored = self._stored.items()
            waiting = {name for name, one in stored if one.entry.state is not TraceState.ANALYSED}
            dispensable = [each for each in self._sizes.items() if each[0].name not in waiting]
        excess_bytes = self.bytes + more_bytes - self._limits.all_bytes
        for path, size_bytes in sorted(dispensable, key=lambda each: -each[1]):
            if excess_bytes <= 0:
                return
            logger.info("%s is given up: analysis.spool_max_bytes is reached", path.name)
            self._forget(path.name)
            self._remove(path)
            excess_bytes -= size_bytes
        if excess_bytes <= 0:
            return
        raise IngestError(
            f"there is no room: the traces that wait take {self.bytes / _MIB:.6g} MiB; wait until"
            " some are analysed, or raise analysis.spool_max_bytes",
            reason=IngestReason.NO_ROOM,
        )

    def _check_free(self, more_bytes: int) -> None:
        try:
            disk = os.statvfs(self._traces)
        except OSError as error:
            raise no_room(error) from error
        floor_bytes = self._limits.min_free_ratio * disk.f_blocks * disk.f_frsize
        if disk.f_bavail * disk.f_frsize - more_bytes < floor_bytes:
            raise IngestError(
                "there is no room: the disk is nearly full; free some, or set store.min_free_ratio",
                reason=IngestReason.NO_ROOM,
            )

    def _replace(self, queued: QueuedTrace) -> None:
        """Replace a trace's entry in memory and on disk; if the disk fails, in memory only."""
        with self._lock:
            self._stored[queued.entry.id] = queued
        try:
            self._write_entry(queued)
        except OSError as error:
            logger.warning("%s can't be put down: %s", queued.entry.name, error.strerror)

    def _write_entry(self, queued: QueuedTrace) -> None:
        path = self._entry_path(queued.entry.id)
        fresh = path.with_name(f"{_INCOMING}{path.name}")
        fresh.write_bytes(msgspec.json.encode(queued))
        fresh.rename(path)

    def _entry_path(self, trace_id: str) -> Path:
        return self._traces / f"{trace_id}{_ENTRY}"

    def _read_entries(self, sizes: dict[Path, int]) -> Iterator[QueuedTrace]:
        """Yield the entries of stored traces; remove a trace without one."""
        for path in sorted(sizes):
            if path.parent != self._traces:
                continue
            try:
                yield msgspec.json.decode(
                    self._entry_path(path.name).read_bytes(), type=QueuedTrace
                )
            except (OSError, msgspec.DecodeError) as error:
                logger.warning("the trace %s has lost its entry: %s", path.name, error)
                del sizes[path]
                self.discard(path.name)

    def _forget(self, trace_id: str) -> None:
        with self._lock:
            self._stored.pop(trace_id, None)
        _unlink(self._entry_path(trace_id))

    def _remove(self, path: Path) -> None:
        with self._lock:
            self._sizes.pop(path, None)
        _unlink(path)
        if path.parent == self._rejected:
            _unlink(path.with_name(f"{path.name}{_REASON}"))

    def _prune_rejected(self) -> None:
        """Remove all but the newest rejected traces, each with its reason."""
        with suppress(OSError):
            reasons = sorted(
                self._rejected.glob(f"*{_REASON}"), key=lambda path: -path.stat().st_mtime_ns
            )
            for reason in reasons[self._limits.failed_count :]:
                self._remove(reason.with_name(reason.name.removesuffix(_REASON)))


def _sizes(folder: Path) -> Iterator[tuple[Path, int]]:
    """Yield the files of traces in a folder, and their sizes."""
    for path in folder.iterdir():
        if not path.name.endswith((_ENTRY, _REASON)) and path.is_file():
            yield path, path.stat().st_size


def _unlink(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        logger.warning("%s can't be removed: %s", path.name, error.strerror)
