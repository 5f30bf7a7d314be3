"""The inbox: a folder in which any job may drop traces, and from which they are taken.

Everything in it is others' doing. No link is followed, nothing but plain files is opened, and what
is looked at once may be something else a moment later.
"""

import logging
import os
import stat
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from chopperd.clock import Clock, RepeatLimiter
from chopperd.errors import IngestError, IngestReason
from chopperd.ingest.admission import Intake, Sender, Trouble
from chopperd.ingest.incoming import is_being_written, shown_name
from chopperd.ingest.queue import Spool
from chopperd.ingest.trace_store import Tally
from chopperd.units import NS_PER_MS, NS_PER_S

logger = logging.getLogger(__name__)

#: Anyone may drop a file, nobody may list or take away another's.
_MODE: Final = 0o1733
#: One look at the inbox goes no further; what lies beyond has its turn when those are taken.
_MOST_ENTRIES: Final = 50_000
_FOLDER_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: O_NONBLOCK: what has become a pipe in the meantime must not hold us up.
_FILE_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class ChangedError(Exception):
    """A file of the inbox is no longer what it was when it was found."""


@dataclass(frozen=True, slots=True)
class _Key:
    """Where a file lies: its folder ("" for the inbox itself) and name, as the system has them."""

    folder: str
    name: str


@dataclass(frozen=True, slots=True)
class _Stand:
    """How a file stands; if this is the same later, nobody has written to it."""

    device: int
    inode: int
    size: int
    mtime_ns: int

    @staticmethod
    def of(status: os.stat_result) -> "_Stand":
        return _Stand(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A file that stands still.

    Attributes:
        name: Its name, fit to be shown.
        job: Name of the folder that it lies in, fit to be shown; None for the inbox itself.
        owner_uid: Whose it is.
        stored_bytes: Its size.
        written_unix_ns: When it was last written to.
    """

    name: str
    job: str | None
    owner_uid: int
    stored_bytes: int
    written_unix_ns: int
    key: _Key
    stand: _Stand


class Inbox:
    """The inbox folder; for one thread.

    Args:
        folder: Where it is.
        settle_s: A file is done when its size and time have not changed for so long.
        clock: Tells the time.
    """

    def __init__(self, folder: Path, settle_s: float, clock: Clock) -> None:
        self._folder = folder
        self._settle_ns = round(settle_s * NS_PER_S)
        self._clock = clock
        self._since: dict[_Key, tuple[_Stand, int]] = {}
        self._passed_over: dict[_Key, _Stand] = {}
        self._odd: dict[_Key, _Stand] = {}
        self._odd_count = 0
        # Anyone can make any number of odd entries: the log has one a minute, and their number.
        self._logging = RepeatLimiter(clock)

    @property
    def odd_count(self) -> int:
        """Entries found that are no traces: links, pipes, files that can't be read."""
        return self._odd_count

    def open(self) -> None:
        """Make the folder if it is not there.

        Raises:
            OSError: It can't be.
        """
        if not self._folder.is_dir():
            self._folder.mkdir(parents=True)
            self._folder.chmod(_MODE)

    def scan(self) -> list[Arrival]:
        """Files that stand still, those that were first written first.

        Raises:
            OSError: The folder can't be read.
        """
        now_ns = self._clock.mono_ns()
        since: dict[_Key, tuple[_Stand, int]] = {}
        arrivals = []
        for key, status in islice(self._entries(), _MOST_ENTRIES):
            stand = _Stand.of(status)
            before, first_ns = self._since.get(key, (None, now_ns))
            since[key] = (stand, first_ns if before == stand else now_ns)
            if (why := _why_odd(status)) is not None:
                self._count_odd(key, stand, why)
            elif now_ns - since[key][1] >= self._settle_ns and self._passed_over.get(key) != stand:
                arrivals.append(_arrival(key, stand, status.st_uid))
        self._since = since
        self._passed_over = {k: s for k, s in self._passed_over.items() if k in since}
        self._odd = {k: s for k, s in self._odd.items() if k in since}
        return sorted(arrivals, key=lambda arrival: arrival.written_unix_ns)

    @contextmanager
    def opened(self, arrival: Arrival) -> Iterator[int]:
        """The file's descriptor, to be read from its start.

        Raises:
            ChangedError: It is gone or another, or was written to meanwhile: found out at the
                start and again at the end of the block.
            OSError: It can't be read.
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
        """Take the file away; one that may not be is passed over from now on."""
        self.pass_over(arrival)
        try:
            with self._entered(arrival.key.folder) as folder_fd:
                status = os.stat(arrival.key.name, dir_fd=folder_fd, follow_symlinks=False)
                if _Stand.of(status) == arrival.stand:
                    os.unlink(arrival.key.name, dir_fd=folder_fd)
        except OSError as error:
            logger.info("%s stays in the inbox: %s", arrival.name, error.strerror)

    def pass_over(self, arrival: Arrival) -> None:
        """Leave the file as it is, until it is written to."""
        self._passed_over[arrival.key] = arrival.stand

    def note_odd(self, arrival: Arrival, why: str) -> None:
        """Pass over a file that can't be taken, and count it."""
        self.pass_over(arrival)
        self._count_odd(arrival.key, arrival.stand, why)

    def _count_odd(self, key: _Key, stand: _Stand, why: str) -> None:
        if self._odd.get(key) == stand:
            return
        self._odd[key] = stand
        self._odd_count += 1
        if self._logging.is_due():
            text = "inbox: %s %s: it stays where it is (%d such so far)"
            logger.warning(text, shown_name(key.name), why, self._odd_count)

    def _entries(self) -> Iterator[tuple[_Key, os.stat_result]]:
        """All but folders in the inbox, and in the folders in it; nothing that is being written."""
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
        """A descriptor of the inbox, or of a folder in it."""
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


def _why_odd(status: os.stat_result) -> str | None:
    """Why it can't be a trace that somebody handed in; None if it can."""
    if not stat.S_ISREG(status.st_mode):
        return "is no plain file"
    # Another's file may have been linked here, which need not be one that the job may read.
    return None if status.st_nlink == 1 else "has a name elsewhere too"


def _arrival(key: _Key, stand: _Stand, owner_uid: int) -> Arrival:
    return Arrival(
        name=shown_name(key.name),
        job=shown_name(key.folder) if key.folder else None,
        owner_uid=owner_uid,
        stored_bytes=stand.size,
        written_unix_ns=stand.mtime_ns,
        key=key,
        stand=stand,
    )


def _check(arrival: Arrival, file_fd: int) -> None:
    status = os.fstat(file_fd)
    if _Stand.of(status) != arrival.stand or _why_odd(status) is not None:
        raise ChangedError


# Traces that jobs drop: the inbox is looked into again and again, and what stands still is taken.
#
# One thread does it.

_SCAN_EVERY_NS: Final = 500 * NS_PER_MS
#: A look at a crowded inbox takes longer; it may take this share of the time.
_SCAN_SHARE: Final = 20
_TAKE_NS: Final = 250 * NS_PER_MS
_RETRY_NS: Final = 5 * NS_PER_S


class InboxRounds:
    """Takes what jobs drop, a moment's worth at a time.

    Args:
        inbox: Where they drop it.
        spool: Where it is copied to, and where it is said what was refused.
        intake: Keeps it.
        tally: Counts what was refused.
        trouble: Told why nothing can be taken.
        is_stopped: Whether the agent ends: what is being copied is left where it is.
        clock: Tells the time.
    """

    def __init__(
        self,
        inbox: Inbox,
        spool: Spool,
        intake: Intake,
        *,
        tally: Tally,
        trouble: Trouble,
        is_stopped: Callable[[], bool],
        clock: Clock,
    ) -> None:
        self._inbox = inbox
        self._spool = spool
        self._intake = intake
        self._tally = tally
        self._trouble = trouble
        self._is_stopped = is_stopped
        self._clock = clock
        self._arrivals: deque[Arrival] = deque()
        self._scan_ns = 0

    @property
    def has_more(self) -> bool:
        """Whether there is more to take at once."""
        return bool(self._arrivals)

    def go(self, is_halted: Callable[[], bool]) -> None:
        """Take files that stand still, for a moment; the rest has its turn in the next round.

        Args:
            is_halted: Whether no further file is to be taken.
        """
        begin_ns = self._clock.mono_ns()
        if not self._arrivals and begin_ns >= self._scan_ns:
            self._spool.make_folders()  # somebody may have removed them
            self._inbox.open()
            self._arrivals.extend(self._inbox.scan())
            end_ns = self._clock.mono_ns()
            self._scan_ns = end_ns + max(_SCAN_EVERY_NS, _SCAN_SHARE * (end_ns - begin_ns))
        while self._arrivals and self._clock.mono_ns() - begin_ns < _TAKE_NS:
            if is_halted():
                return
            self._take(self._arrivals.popleft())

    def _take(self, arrival: Arrival) -> None:
        try:
            with suppress(ChangedError):
                self._copy(arrival)
        except IngestError as error:
            if error.reason is IngestReason.TOO_LARGE:
                self._refuse(arrival, f"{arrival.name} {error}")
                return
            self._trouble.note(str(error))
            self._arrivals.clear()
            self._scan_ns = self._clock.mono_ns() + _RETRY_NS
        except OSError as error:
            self._inbox.note_odd(arrival, f"can't be read: {error.strerror}")

    def _copy(self, arrival: Arrival) -> None:
        sender = _sender(arrival, self._clock)
        with self._spool.begin(arrival.stored_bytes) as incoming:
            with self._inbox.opened(arrival) as fd:
                if not incoming.copy(fd, self._is_stopped):
                    return
            self._intake.take(incoming, sender)
        self._trouble.clear()
        self._inbox.remove(arrival)

    def _refuse(self, arrival: Arrival, reason: str) -> None:
        """Leave a file that is too large to be taken or kept where it is, and say why.

        It may be the only one; with other limits it is taken at the next start.
        """
        logger.warning("%s: it stays in the inbox", reason)
        self._spool.explain(arrival.name, reason)
        self._intake.note_refused(_sender(arrival, self._clock), arrival.stored_bytes, reason)
        self._inbox.pass_over(arrival)
        self._tally.add("rejected")


def _sender(arrival: Arrival, clock: Clock) -> Sender:
    return Sender(
        name=arrival.name,
        job=arrival.job,
        owner_uid=arrival.owner_uid,
        written_unix_ns=min(arrival.written_unix_ns, clock.unix_ns()),
    )
