"""Traces that are sent to the agent or named to it: uploads, and copies of files.

Each asks from a thread of its own; only so many are on their way at a time.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from chopperd.clock import Clock
from chopperd.errors import IngestError, IngestReason
from chopperd.ingest.file_names import sent_name, shown_name
from chopperd.ingest.incoming import Incoming
from chopperd.ingest.intake import Intake, Sender
from chopperd.ingest.named_files import opened_under
from chopperd.ingest.queue import Spool
from chopperd.ingest.uploads import TraceUpload
from chopperd.model.captures import TraceEntry

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
