"""Intake of traces that clients send over the API, or name as a file on this node."""

import os
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from chopperd.api.access import is_member_of
from chopperd.clock import Clock
from chopperd.errors import IngestError, IngestReason
from chopperd.ingest.admission import Admission, Sender
from chopperd.ingest.incoming import Incoming, sent_name, shown_name
from chopperd.ingest.queue import TraceQueue
from chopperd.model.captures import TraceEntry

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
        self._lock = threading.Lock()
        self._in_progress_count = 0

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
            self._leave()
            raise
        return TraceUpload(
            incoming, lambda whole: self._admission.admit(whole, sender), self._leave
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
            self._leave()

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
        """Count one more upload in progress."""
        self._refuse()
        with self._lock:
            if self._in_progress_count >= _MOST_AT_A_TIME:
                text = f"{_MOST_AT_A_TIME} traces are on their way already: try again soon"
                raise IngestError(text, reason=IngestReason.BUSY)
            self._in_progress_count += 1

    def _leave(self) -> None:
        with self._lock:
            self._in_progress_count -= 1


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
