"""Traces that are sent to the agent: bytes as they come over a connection."""

import os
import pwd
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from chopperd.clock import Clock
from chopperd.errors import IngestError, IngestReason
from chopperd.ingest.admission import Intake, Sender
from chopperd.ingest.incoming import Incoming, sent_name, shown_name
from chopperd.ingest.queue import Spool
from chopperd.model.captures import TraceEntry

Filing = Callable[[Incoming], tuple[TraceEntry, bool]]


class TraceUpload:
    """A trace on its way in (`model.services.Upload`); for one thread at a time.

    Args:
        incoming: Takes the bytes.
        filing: Takes in what has come; aborts it where that fails.
        ended: Called once when it is over, however it ends.
    """

    def __init__(self, incoming: Incoming, filing: Filing, ended: Callable[[], None]) -> None:
        self._incoming = incoming
        self._filing = filing
        self._ended: Callable[[], None] | None = ended

    def write(self, data: bytes) -> None:
        """Take the next bytes.

        Raises:
            IngestError: It grows too large, or there is no room; `abort` it.
        """
        self._incoming.write(data)

    def finish(self) -> tuple[TraceEntry, bool]:
        """The trace as it was taken in, and whether it is new.

        Raises:
            IngestError: It can't be kept.
        """
        try:
            return self._filing(self._incoming)
        finally:
            self.abort()

    def abort(self) -> None:
        """Forget what came so far; nothing more once it is taken in."""
        self._incoming.abort()
        ended, self._ended = self._ended, None
        if ended is not None:
            ended()


# Files that somebody names to the agent: opened only where, and as, he could open them himself.

_FOLDER_FLAGS: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_READ: Final = 4
_ENTER: Final = 1


@contextmanager
def opened_under(path: str, roots: Sequence[Path], uid: int | None) -> Iterator[int]:
    """A descriptor of a plain file below one of the roots.

    What the path leads to is found out first; then it is walked from the top, a name at a time
    and following no link: what is changed meanwhile leads nowhere.

    Args:
        path: As it was named.
        roots: Where files may be named.
        uid: The user who must be able to read it by himself; None: one who may read all.

    Raises:
        IngestError: It is not below a root, not a plain file, or not for this user.
    """
    target = _resolved(path, roots)
    reader = None if uid is None else _Reader(uid)
    folder_fd = os.open("/", _FOLDER_FLAGS)
    try:
        for name in target.parts[1:-1]:
            _check(folder_fd, reader, _ENTER)
            folder_fd = _stepped(folder_fd, name)
        _check(folder_fd, reader, _ENTER)
        file_fd = os.open(target.name, _FILE_FLAGS, dir_fd=folder_fd)
    except OSError as error:
        raise _refused(path, error) from error
    finally:
        os.close(folder_fd)
    try:
        if not stat.S_ISREG(os.fstat(file_fd).st_mode):
            raise IngestError(f"{path} is no plain file", reason=IngestReason.FORBIDDEN)
        _check(file_fd, reader, _READ)
        yield file_fd
    finally:
        os.close(file_fd)


class _Reader:
    """A user, and what the modes of files allow him; lists beyond the modes are not looked at."""

    def __init__(self, uid: int) -> None:
        self._uid = uid
        self._groups = _groups_of(uid)

    def may(self, status: os.stat_result, what: int) -> bool:
        """Whether the mode gives him `what`: read (4) or enter (1)."""
        if self._uid == 0:
            return True
        if status.st_uid == self._uid:
            return bool(status.st_mode >> 6 & what)
        if status.st_gid in self._groups:
            return bool(status.st_mode >> 3 & what)
        return bool(status.st_mode & what)


def _groups_of(uid: int) -> frozenset[int]:
    """The groups of a user by this machine's list; none for a user who is not in it."""
    try:
        user = pwd.getpwuid(uid)
        return frozenset(os.getgrouplist(user.pw_name, user.pw_gid))
    except (KeyError, OSError):
        return frozenset()


def _resolved(path: str, roots: Sequence[Path]) -> Path:
    """Where the path leads, if that is below a root."""
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


def _stepped(folder_fd: int, name: str) -> int:
    """The folder of this name instead of the one that it is in."""
    below_fd = os.open(name, _FOLDER_FLAGS, dir_fd=folder_fd)
    os.close(folder_fd)
    return below_fd


def _check(fd: int, reader: _Reader | None, what: int) -> None:
    if reader is not None and not reader.may(os.fstat(fd), what):
        raise IngestError(
            "you may not read this file: send its bytes, or open it to you (chmod, setfacl)",
            reason=IngestReason.FORBIDDEN,
        )


def _refused(path: str, error: OSError) -> IngestError:
    is_missing = isinstance(error, FileNotFoundError | NotADirectoryError)
    reason = IngestReason.NOT_FOUND if is_missing else IngestReason.FORBIDDEN
    return IngestError(f"{path} can't be read: {error.strerror or error}", reason=reason)


# Traces that are sent to the agent or named to it: uploads, and copies of files.
#
# Each asks from a thread of its own; only so many are on their way at a time.

_MOST_AT_A_TIME: Final = 8


class HandedIn:
    """Takes traces that are handed in; for any thread.

    Args:
        spool: Where their bytes go.
        intake: Keeps them.
        roots: Where files may be taken from.
        refuse: Raises `IngestError` where none are taken now.
        is_stopped: Whether the agent ends.
        clock: Tells the time.
    """

    def __init__(
        self,
        spool: Spool,
        intake: Intake,
        *,
        roots: tuple[Path, ...],
        refuse: Callable[[], None],
        is_stopped: Callable[[], bool],
        clock: Clock,
    ) -> None:
        self._spool = spool
        self._intake = intake
        self._roots = roots
        self._refuse = refuse
        self._is_stopped = is_stopped
        self._clock = clock
        self._lock = threading.Lock()
        self._under_way_count = 0

    def open_upload(
        self,
        *,
        name: str,
        job: str | None,
        owner_uid: int | None,
        expected_bytes: int | None,
        device_map: str | None = None,
    ) -> TraceUpload:
        """Begin to take a trace.

        Raises:
            IngestError: Traces are not taken in now, or it is too large.
        """
        sender = self._sender(name, job, owner_uid, device_map)

        def keep(incoming: Incoming) -> tuple[TraceEntry, bool]:
            return self._intake.take(incoming, sender)

        self._enter()
        try:
            incoming = self._spool.begin(expected_bytes)
        except BaseException:
            self._leave()
            raise
        return TraceUpload(incoming, keep, self._leave)

    def take_file(
        self,
        path: str,
        *,
        job: str | None,
        owner_uid: int | None,
        device_map: str | None = None,
    ) -> tuple[TraceEntry, bool]:
        """Take a copy of a file; the trace, and whether it is new.

        Raises:
            IngestError: It is not under a root, not a plain file, or not to be read by its owner.
        """
        sender = self._sender(path, job, owner_uid, device_map)
        with (
            self._entered(),
            opened_under(path, self._roots, owner_uid) as fd,
            self._spool.begin() as incoming,
        ):
            if not _copied(incoming, fd, self._is_stopped):
                raise IngestError("the agent ends", reason=IngestReason.BUSY)
            return self._intake.take(incoming, sender)

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

    @contextmanager
    def _entered(self) -> Iterator[None]:
        self._enter()
        try:
            yield
        finally:
            self._leave()

    def _enter(self) -> None:
        """Let one more trace be on its way.

        Raises:
            IngestError: There are enough, or none are wanted.
        """
        self._refuse()
        with self._lock:
            if self._under_way_count >= _MOST_AT_A_TIME:
                text = f"{_MOST_AT_A_TIME} traces are on their way already: try again soon"
                raise IngestError(text, reason=IngestReason.BUSY)
            self._under_way_count += 1

    def _leave(self) -> None:
        with self._lock:
            self._under_way_count -= 1


def _copied(incoming: Incoming, fd: int, stopped: Callable[[], bool]) -> bool:
    try:
        return incoming.copy(fd, stopped)
    except OSError as error:
        text = f"it can't be read: {error.strerror}"
        raise IngestError(text, reason=IngestReason.NOT_FOUND) from error
