"""The inbox: a folder in which any job may drop traces, and the turns that take them.

Everything in it is under others' control: no link is followed, nothing but plain files is opened,
and a file may have been replaced between two system calls.
"""

import logging
import os
import stat
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from chopperd.clock import Clock, RepeatLimiter
from chopperd.errors import IngestError, IngestReason
from chopperd.ingest.admission import Admission, Problem, Sender
from chopperd.ingest.incoming import is_being_written, shown_name
from chopperd.ingest.queue import TraceQueue
from chopperd.units import NS_PER_MS, NS_PER_S

logger = logging.getLogger(__name__)

#: Anyone may drop a file, nobody may list or remove another's.
_MODE: Final = 0o1733
#: A scan reads no more entries; the rest is found once these are taken.
_MOST_ENTRIES: Final = 50_000
_FOLDER_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: O_NONBLOCK: a file that was replaced by a pipe must not block us.
_FILE_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class ChangedError(Exception):
    """A file of the inbox has changed since it was found."""


class _Key(NamedTuple):
    """A file's folder ("" for the inbox itself) and name, as the system has them."""

    folder: str
    name: str


class _Version(NamedTuple):
    """A file's state; while it is the same, nobody has written to the file."""

    device: int
    inode: int
    size: int
    mtime_ns: int


class Arrival(NamedTuple):
    """A file of the inbox that has stopped changing; name and job (its folder) are printable."""

    name: str
    job: str | None
    owner_uid: int
    key: _Key
    version: _Version


class Inbox:
    """Finds, opens and removes files in the inbox folder; for one thread.

    A file is complete when its size and time have not changed for `settle_s`. `odd_count`
    counts entries that are no traces: links, pipes, files that can't be read.
    """

    def __init__(self, folder: Path, settle_s: float, clock: Clock) -> None:
        self._folder = folder
        self._settle_ns = round(settle_s * NS_PER_S)
        self._clock = clock
        self._since: dict[_Key, tuple[_Version, int]] = {}
        self._passed_over: dict[_Key, _Version] = {}
        self._odd: dict[_Key, _Version] = {}
        self.odd_count = 0
        # Anyone can make any number of odd entries: the log has one a minute, and their number.
        self._logging = RepeatLimiter(clock)

    def open(self) -> None:
        """Make the folder if it is missing.

        Raises:
            OSError: It can't be made.
        """
        if not self._folder.is_dir():
            self._folder.mkdir(parents=True)
            self._folder.chmod(_MODE)

    def scan(self) -> list[Arrival]:
        """Find the files that have stopped changing, in the order in which they were written.

        Raises:
            OSError: The folder can't be read.
        """
        now_ns = self._clock.mono_ns()
        since: dict[_Key, tuple[_Version, int]] = {}
        arrivals = []
        for key, status in islice(self._entries(), _MOST_ENTRIES):
            version = _version(status)
            before, first_ns = self._since.get(key, (None, now_ns))
            since[key] = (version, first_ns if before == version else now_ns)
            is_settled = now_ns - since[key][1] >= self._settle_ns
            if (why := _why_odd(status)) is not None:
                self._count_odd(key, version, why)
            elif is_settled and self._passed_over.get(key) != version:
                job = shown_name(key.folder) if key.folder else None
                arrivals.append(Arrival(shown_name(key.name), job, status.st_uid, key, version))
        self._since = since
        self._passed_over = {k: s for k, s in self._passed_over.items() if k in since}
        self._odd = {k: s for k, s in self._odd.items() if k in since}
        return sorted(arrivals, key=lambda arrival: arrival.version.mtime_ns)

    @contextmanager
    def opened(self, arrival: Arrival) -> Iterator[int]:
        """Open the file for reading; gives its descriptor.

        Raises:
            ChangedError: It is gone, replaced or written to: checked at both ends of the block.
            OSError: The file can't be read.
        """
        with self._entered(arrival.key.folder) as folder_fd:
            try:
                file_fd = os.open(arrival.key.name, _FILE_FLAGS, dir_fd=folder_fd)
            except FileNotFoundError:
                raise ChangedError from None
        with _closing(file_fd):
            _check(arrival, file_fd)
            yield file_fd
            _check(arrival, file_fd)

    def remove(self, arrival: Arrival) -> None:
        """Remove the file, or pass it over from now on if that is not permitted."""
        self.pass_over(arrival)
        try:
            with self._entered(arrival.key.folder) as folder_fd:
                status = os.stat(arrival.key.name, dir_fd=folder_fd, follow_symlinks=False)
                if _version(status) == arrival.version:
                    os.unlink(arrival.key.name, dir_fd=folder_fd)
        except OSError as error:
            logger.info("%s stays in the inbox: %s", arrival.name, error.strerror)

    def pass_over(self, arrival: Arrival) -> None:
        """Ignore the file until it is written to."""
        self._passed_over[arrival.key] = arrival.version

    def note_odd(self, arrival: Arrival, why: str) -> None:
        """Count and log a file that can't be taken, and ignore it until it is written to."""
        self.pass_over(arrival)
        self._count_odd(arrival.key, arrival.version, why)

    def _count_odd(self, key: _Key, version: _Version, why: str) -> None:
        if self._odd.get(key) != version:
            self._odd[key] = version
            self.odd_count += 1
            if self._logging.is_due():
                text = "inbox: %s %s: it stays where it is (%d such so far)"
                logger.warning(text, shown_name(key.name), why, self.odd_count)

    def _entries(self) -> Iterator[tuple[_Key, os.stat_result]]:
        """Yield key and status of all but folders and files being written, two levels deep."""
        jobs = []
        with self._entered("") as folder_fd:
            for name, status in _listed(folder_fd):
                if stat.S_ISDIR(status.st_mode):
                    jobs.append(name)
                else:
                    yield _Key("", name), status
        for job in jobs:
            with suppress(OSError), self._entered(job) as folder_fd:
                for name, status in _listed(folder_fd):
                    if not stat.S_ISDIR(status.st_mode):
                        yield _Key(job, name), status

    @contextmanager
    def _entered(self, job: str) -> Iterator[int]:
        """Open the inbox, or a folder in it; gives its descriptor."""
        with _closing(os.open(self._folder, _FOLDER_FLAGS & ~os.O_NOFOLLOW)) as inbox_fd:
            if not job:
                yield inbox_fd
                return
            with _closing(os.open(job, _FOLDER_FLAGS, dir_fd=inbox_fd)) as folder_fd:
                yield folder_fd


@contextmanager
def _closing(fd: int) -> Iterator[int]:
    try:
        yield fd
    finally:
        os.close(fd)


def _listed(folder_fd: int) -> Iterator[tuple[str, os.stat_result]]:
    with os.scandir(folder_fd) as entries:
        for entry in entries:
            if not is_being_written(entry.name):
                with suppress(OSError):
                    yield entry.name, entry.stat(follow_symlinks=False)


def _version(status: os.stat_result) -> _Version:
    return _Version(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def _why_odd(status: os.stat_result) -> str | None:
    """Say why a file can't be a dropped trace; None if it can be."""
    if not stat.S_ISREG(status.st_mode):
        return "is no plain file"
    # Another's file may have been linked here that the job itself may not read.
    return None if status.st_nlink == 1 else "has a name elsewhere too"


def _check(arrival: Arrival, file_fd: int) -> None:
    status = os.fstat(file_fd)
    if _version(status) != arrival.version or _why_odd(status) is not None:
        raise ChangedError


_SCAN_EVERY_NS: Final = 500 * NS_PER_MS
#: A scan of a crowded inbox takes longer: the time between two is at least this many times that.
_SCAN_SHARE: Final = 20
_TURN_NS: Final = 250 * NS_PER_MS
_RETRY_NS: Final = 5 * NS_PER_S


class InboxPoller:
    """Takes the traces that jobs drop, for a quarter of a second at a time; for one thread.

    A copy in progress is dropped when the agent ends (`is_stopped`).
    """

    def __init__(
        self,
        inbox: Inbox,
        queue: TraceQueue,
        admission: Admission,
        *,
        problem: Problem,
        is_stopped: Callable[[], bool],
        clock: Clock,
    ) -> None:
        self._inbox = inbox
        self._queue = queue
        self._admission = admission
        self._problem = problem
        self._is_stopped = is_stopped
        self._clock = clock
        self._arrivals: deque[Arrival] = deque()
        self._scan_ns = 0

    def poll(self, is_halted: Callable[[], bool]) -> bool:
        """Take settled files until the turn's time is over or halted; return whether more wait."""
        begin_ns = self._clock.mono_ns()
        if not self._arrivals and begin_ns >= self._scan_ns:
            self._queue.make_folders()  # somebody may have removed them
            self._inbox.open()
            self._arrivals.extend(self._inbox.scan())
            end_ns = self._clock.mono_ns()
            self._scan_ns = end_ns + max(_SCAN_EVERY_NS, _SCAN_SHARE * (end_ns - begin_ns))
        while self._arrivals and self._clock.mono_ns() - begin_ns < _TURN_NS and not is_halted():
            self._take(self._arrivals.popleft())
        return bool(self._arrivals) and not is_halted()

    def _take(self, arrival: Arrival) -> None:
        sender = Sender(
            name=arrival.name,
            job=arrival.job,
            owner_uid=arrival.owner_uid,
            written_unix_ns=min(arrival.version.mtime_ns, self._clock.unix_ns()),
        )
        try:
            with suppress(ChangedError):
                self._copy(arrival, sender)
        except IngestError as error:
            if error.reason is IngestReason.TOO_LARGE:
                self._refuse(arrival, sender, f"{arrival.name} {error}")
                return
            self._problem.note(str(error))
            self._arrivals.clear()
            self._scan_ns = self._clock.mono_ns() + _RETRY_NS
        except OSError as error:
            self._inbox.note_odd(arrival, f"can't be read: {error.strerror}")

    def _copy(self, arrival: Arrival, sender: Sender) -> None:
        with self._queue.begin(arrival.version.size) as incoming:
            with self._inbox.opened(arrival) as fd:
                if not incoming.copy(fd, self._is_stopped):
                    return
            self._admission.admit(incoming, sender)
        self._problem.clear()
        self._inbox.remove(arrival)

    def _refuse(self, arrival: Arrival, sender: Sender, reason: str) -> None:
        """Leave a file that is too large in the inbox, and record why.

        It may be the only copy; with other limits it is taken at the next start.
        """
        logger.warning("%s: it stays in the inbox", reason)
        self._queue.explain(arrival.name, reason)
        self._admission.note_refused(sender, arrival.version.size, reason)
        self._inbox.pass_over(arrival)
