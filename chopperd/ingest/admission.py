"""Admission of traces: each is stored once, on disk and in the database, then analysed.

`Uploads` takes those that clients send or name; `inbox` finds those that jobs drop.
"""

import hashlib
import logging
import os
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from msgspec.structs import replace

from chopperd.api.access import is_member_of
from chopperd.clock import Clock, RepeatLimiter
from chopperd.errors import IngestError, IngestReason
from chopperd.ingest.analyses import Analyses
from chopperd.ingest.incoming import ID_DIGITS, Incoming, sent_name, shown_name
from chopperd.ingest.queue import QueuedTrace, TraceQueue
from chopperd.model.captures import TraceEntry, TraceState
from chopperd.store.captures.capture_store import CaptureStore

logger = logging.getLogger(__name__)

#: Traces are analysed here, stored for later ("spool"), or not taken.
Mode = Literal["here", "off", "spool"]

_WAITING: Final = frozenset({TraceState.QUEUED, TraceState.SPOOLED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Sender:
    """Name, job, owner, time and device map that come with a trace's bytes."""

    name: str
    job: str | None  # the job that it belongs to; None: the one that the trace itself names
    owner_uid: int | None  # its owner; None: unknown
    written_unix_ns: int  # it was written no later than this
    #: Which GPU each of its devices is, by the sender; None: not given.
    device_map: str | None = None


class Admission:
    """Stores traces and queues them for analysis; `admit` is for any thread.

    `wake` is called when there is one more trace.
    """

    def __init__(
        self,
        queue: TraceQueue,
        store: CaptureStore,
        analyses: Analyses,
        *,
        mode: Mode,
        wake: Callable[[], None],
        clock: Clock,
    ) -> None:
        self._queue = queue
        self._store = store
        self._analyses = analyses
        self._is_here = mode == "here"
        self._waiting_state = TraceState.QUEUED if mode == "here" else TraceState.SPOOLED
        self._wake = wake
        self._clock = clock
        self._lock = threading.Lock()

    def admit(self, incoming: Incoming, sender: Sender) -> tuple[TraceEntry, bool]:
        """Store and queue a trace, unless its bytes are known; return its entry and if it is new.

        An analysed trace that comes again with a device map is analysed again.

        Raises:
            IngestError: There is no room, or the same trace still waits for its first analysis.
        """
        with self._lock:
            known, queued = self._store.known(incoming.trace_id), self._queue.get(incoming.trace_id)
            known = queued.entry if known is None and queued is not None else known
            if known is not None and not self._is_again(known, sender):
                self._analyses.tally.add("duplicate")
                return known, False
            entry = TraceEntry(
                id=incoming.trace_id,
                name=sender.name,
                job=sender.job,
                owner_uid=sender.owner_uid if known is None else known.owner_uid,
                state=self._waiting_state,
                reason=None,
                stored_bytes=incoming.size_bytes,
                received_unix_ns=self._clock.unix_ns(),
                device_map=sender.device_map,
            )
            fresh = QueuedTrace(entry=entry, written_unix_ns=sender.written_unix_ns)
            self._queue.put(incoming, fresh)
            self._store.put_trace(entry)
        if self._is_here:
            self._analyses.add([entry.id])
        else:
            self._analyses.tally.add("spooled")
        self._wake()
        return entry, True

    def note_refused(self, sender: Sender, size_bytes: int, reason: str) -> None:
        """Record as rejected a trace that was not copied."""
        now_ns = self._clock.unix_ns()
        identity = f"{sender.job}/{sender.name}/{sender.written_unix_ns}/{size_bytes}"
        self._store.put_trace(
            TraceEntry(
                id=hashlib.sha256(identity.encode()).hexdigest()[:ID_DIGITS],
                name=sender.name,
                job=sender.job,
                owner_uid=sender.owner_uid,
                state=TraceState.REJECTED,
                reason=reason,
                stored_bytes=size_bytes,
                received_unix_ns=now_ns,
                finished_unix_ns=now_ns,
            )
        )
        self._analyses.tally.add("rejected")

    def recover(self) -> None:
        """Queue the traces of an earlier run, and record as failed those whose file is gone."""
        waiting = {one.entry.id: None for one in self._queue.all() if self._is_to_do(one)}
        for entry in self._store.waiting():
            if entry.id not in waiting:
                lost = replace(entry, state=TraceState.FAILED, reason="its file is gone")
                self._store.put_trace(replace(lost, finished_unix_ns=self._clock.unix_ns()))
                self._analyses.tally.add("failed")
        if self._is_here:
            self._analyses.add(waiting)

    def _is_again(self, known: TraceEntry, sender: Sender) -> bool:
        """Whether a known trace is sent again by its owner to be analysed with a device map."""
        is_owner = sender.owner_uid is None or sender.owner_uid == known.owner_uid
        if sender.device_map is None or not is_owner or not self._is_here:
            return False
        queued = self._queue.get(known.id)
        states = {known.state, known.state if queued is None else queued.entry.state}
        if states & _WAITING:
            text = "the same trace waits for its analysis: hand it in again after that"
            raise IngestError(text, reason=IngestReason.BUSY)
        return True

    def _is_to_do(self, one: QueuedTrace) -> bool:
        """Whether a trace found on disk waits for analysis; makes disk and database agree."""
        if one.entry.state is TraceState.ANALYSED:
            return False
        known = self._store.known(one.entry.id)
        if known is not None and known.state not in _WAITING:
            self._queue.discard(one.entry.id)
            return False
        if known is None or known.state is not self._waiting_state:
            self._store.put_trace(replace(one.entry, state=self._waiting_state))
        return True


class Problem:
    """Stores and logs why a part of the agent does not work now, at most once a minute.

    `text` is None where the part works, and for any thread; the log also has the consequence.
    """

    def __init__(self, consequence: str, clock: Clock) -> None:
        self._consequence = consequence
        self._logging = RepeatLimiter(clock)
        self.text: str | None = None

    def note(self, text: str, error: Exception | None = None) -> None:
        """Store why the part does not work, and log it if due, with the traceback of `error`."""
        self.text = text
        if self._logging.is_due():
            logger.warning("%s: %s", self._consequence, text, exc_info=error)

    def clear(self) -> None:
        """Clear the text: the part works again."""
        self.text = None


#: Each upload has a thread of the API; no more are in progress at a time.
_MOST_AT_A_TIME: Final = 8


class TraceUpload:
    """An upload in progress (`model.services.Upload`); for one thread at a time."""

    def __init__(
        self,
        incoming: Incoming,
        admit: Callable[[Incoming], tuple[TraceEntry, bool]],
        ended: Callable[[], None],
    ) -> None:
        self._incoming = incoming
        self._admit = admit
        self._ended: Callable[[], None] | None = ended

    def write(self, data: bytes) -> None:
        """Append the next bytes.

        Raises:
            IngestError: The trace is too large, or there is no room; then `abort` it.
        """
        self._incoming.write(data)

    def finish(self) -> tuple[TraceEntry, bool]:
        """Store the trace; return its entry, and whether it is new.

        Raises:
            IngestError: It can't be stored.
        """
        try:
            return self._admit(self._incoming)
        finally:
            self.abort()

    def abort(self) -> None:
        """Remove the bytes that came so far; does nothing once the trace is stored."""
        self._incoming.abort()
        ended, self._ended = self._ended, None
        if ended is not None:
            ended()


class Uploads:
    """Takes traces that clients send or name (`model.services.Ingest`); for any thread.

    `refuse` raises `IngestError` where no traces are taken now.
    """

    def __init__(
        self,
        queue: TraceQueue,
        admission: Admission,
        *,
        roots: tuple[Path, ...],
        refuse: Callable[[], None],
        is_stopped: Callable[[], bool],
        clock: Clock,
    ) -> None:
        self._queue = queue
        self._admission = admission
        self._roots = roots
        self._refuse = refuse
        self._is_stopped = is_stopped
        self._clock = clock
        self._places = threading.BoundedSemaphore(_MOST_AT_A_TIME)

    def open_upload(
        self,
        *,
        name: str,
        job: str | None,
        owner_uid: int | None,
        expected_bytes: int | None,
        device_map: str | None = None,
    ) -> TraceUpload:
        """Begin an upload, whose bytes the caller then writes.

        Raises:
            IngestError: No traces are taken now, or this one is too large.
        """
        sender = self._sender(name, job, owner_uid, device_map)
        self._enter()
        try:
            incoming = self._queue.begin(expected_bytes)
        except BaseException:
            self._places.release()
            raise
        return TraceUpload(
            incoming, lambda whole: self._admission.admit(whole, sender), self._places.release
        )

    def take_file(
        self, path: str, *, job: str | None, owner_uid: int | None, device_map: str | None = None
    ) -> tuple[TraceEntry, bool]:
        """Copy a file below `ingest.roots`; return the trace's entry, and whether it is new.

        The owner must be able to read it; None: one who may read all.

        Raises:
            IngestError: It is not below a root, no plain file, or not readable by its owner.
        """
        sender = self._sender(path, job, owner_uid, device_map)
        self._enter()
        try:
            with opened_under(path, self._roots, owner_uid) as fd, self._queue.begin() as incoming:
                try:
                    is_whole = incoming.copy(fd, self._is_stopped)
                except OSError as error:
                    text = f"it can't be read: {error.strerror}"
                    raise IngestError(text, reason=IngestReason.NOT_FOUND) from error
                if not is_whole:
                    raise IngestError("the agent ends", reason=IngestReason.BUSY)
                return self._admission.admit(incoming, sender)
        finally:
            self._places.release()

    def _sender(
        self, name: str, job: str | None, owner_uid: int | None, device_map: str | None
    ) -> Sender:
        return Sender(
            name=sent_name(name),
            job=shown_name(job) if job else None,
            owner_uid=owner_uid,
            written_unix_ns=self._clock.unix_ns(),
            device_map=device_map,
        )

    def _enter(self) -> None:
        """Count one more upload in progress, until `_places` is released."""
        self._refuse()
        if not self._places.acquire(blocking=False):
            text = f"{_MOST_AT_A_TIME} traces are on their way already: try again soon"
            raise IngestError(text, reason=IngestReason.BUSY)


# Named files are opened only where, and as, the client could open them itself.

_FOLDER_FLAGS: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_READ: Final = 4
_ENTER: Final = 1


@contextmanager
def opened_under(path: str, roots: Sequence[Path], uid: int | None) -> Iterator[int]:
    """Open a plain file below one of the roots; gives its descriptor.

    The path is resolved first, then walked from `/`, one name at a time and following no link:
    a link that was made meanwhile leads nowhere. With a `uid` that user must be able to read
    it.

    Raises:
        IngestError: The file is not below a root, no plain file, or not readable by this user.
    """
    target = _resolved(path, roots)
    folder_fd = os.open("/", _FOLDER_FLAGS)
    try:
        for name in target.parts[1:-1]:
            _check(folder_fd, uid, _ENTER)
            above_fd, folder_fd = folder_fd, os.open(name, _FOLDER_FLAGS, dir_fd=folder_fd)
            os.close(above_fd)
        _check(folder_fd, uid, _ENTER)
        file_fd = os.open(target.name, _FILE_FLAGS, dir_fd=folder_fd)
    except OSError as error:
        is_missing = isinstance(error, FileNotFoundError | NotADirectoryError)
        reason = IngestReason.NOT_FOUND if is_missing else IngestReason.FORBIDDEN
        text = f"{path} can't be read: {error.strerror or error}"
        raise IngestError(text, reason=reason) from error
    finally:
        os.close(folder_fd)
    try:
        if not stat.S_ISREG(os.fstat(file_fd).st_mode):
            raise IngestError(f"{path} is no plain file", reason=IngestReason.FORBIDDEN)
        _check(file_fd, uid, _READ)
        yield file_fd
    finally:
        os.close(file_fd)


def _may(uid: int | None, status: os.stat_result, what: int) -> bool:
    """Whether a file's mode permits a user `what`; access control lists are not read."""
    if uid in (None, 0):
        return True
    if status.st_uid == uid:
        return bool(status.st_mode >> 6 & what)
    is_in_group = is_member_of(uid, status.st_gid)
    return bool((status.st_mode >> 3 if is_in_group else status.st_mode) & what)


def _resolved(path: str, roots: Sequence[Path]) -> Path:
    """Resolve the links of a path; IngestError if it is not below a root."""
    try:
        target = Path(os.path.realpath(path))
        is_below = Path(path).is_absolute() and any(
            Path(os.path.realpath(root)) in target.parents for root in roots
        )
    except (OSError, ValueError):
        is_below = False
    if not is_below:
        raise IngestError(
            "only files below ingest.roots may be named: send the bytes, or add the folder there",
            reason=IngestReason.FORBIDDEN,
        )
    return target


def _check(fd: int, uid: int | None, what: int) -> None:
    if not _may(uid, os.fstat(fd), what):
        raise IngestError(
            "you may not read this file: send its bytes, or open it to you (chmod, setfacl)",
            reason=IngestReason.FORBIDDEN,
        )
