"""The flight recorder's writer: every sample to disk, within limits.

Samples go into the journal at once and, each minute, as one compressed chunk into the files of
samples. A kill between the two leaves samples in both; readers count them once.
"""

import errno
import fcntl
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from chopperd.clock import Clock
from chopperd.errors import StoreError
from chopperd.model.live import ArchiveLive
from chopperd.model.samples import ProcessRow
from chopperd.sampling.memory.layout import Records
from chopperd.store.disk import DiskLimits
from chopperd.store.recorder.chunk import (
    Origin,
    SampleChunk,
    identity,
    in_stored_resolution,
    merged,
)
from chopperd.store.recorder.files import JOURNAL, LOCK, Journal, SampleFiles, chunk_frame
from chopperd.units import NS_PER_S, TimeTriple

logger = logging.getLogger(__name__)

#: A chunk is written after this time, or when this many samples wait for it.
_CHUNK_NS: Final = 60 * NS_PER_S
_CHUNK_ROWS: Final = 20_000
#: Most in a frame of the journal, so that a failed attempt on a full disk costs little.
_FRAME_ROWS: Final = 2_000
#: Most that wait in memory while they can't be written: samples of some minutes.
_MOST_WAITING_ROWS: Final = 4 * _CHUNK_ROWS
#: The journal's largest share of the limit; with a small limit chunks are written more often.
_LARGEST_JOURNAL_SHARE: Final = 1 / 8
#: Time until the next attempt after a chunk could not be written.
_RETRY_NS: Final = 5 * NS_PER_S
_FOLDER_MODE: Final = 0o755
#: Errors of a full disk or an exhausted quota; open files stay usable.
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_NEARLY_FULL: Final = "the disk is nearly full: the oldest samples are deleted for new ones"


@dataclass(frozen=True, slots=True)
class _Files:
    """The open files of a usable folder."""

    lock_fd: int
    journal: Journal
    samples: SampleFiles

    def close(self) -> None:
        self.journal.close()
        self.samples.close()
        os.close(self.lock_fd)


class FlightRecorder:
    """The only writer of samples to a folder, which is created if missing.

    No method raises for errors of the disk: samples wait in memory, beyond a limit they are counted
    as lost, and `live` reports the problem; each `append` tries again. For one thread; `live` for
    any.
    """

    def __init__(self, folder: Path, limits: DiskLimits, clock: Clock) -> None:
        self.folder, self._limits, self._clock = folder, limits, clock
        self._files: _Files | None = None
        self._waiting: list[SampleChunk] = []
        self._waiting_rows = self._journaled_count = 0
        self._waiting_since_mono_ns = clock.mono_ns()
        self._last_mono_ns: dict[tuple[str, str], int] = {}
        self._last_triple: dict[str, tuple[TimeTriple, ...]] = {}
        self._took_over = False
        self._retry_mono_ns = 0
        self._lost_count = self._unreported_lost_count = self._damaged_count = 0
        #: The state; reading it never waits for the disk.
        self.live = ArchiveLive()

    def tend(self) -> None:
        """Do what is due when there is nothing to append: open, retry, delete old files."""
        self._attempt(self._write)

    def append(
        self,
        origin: Origin,
        records: Mapping[int, Records],
        triples: Sequence[TimeTriple],
        *,
        lost_count: int = 0,
        processes: tuple[ProcessRow, ...] = (),
    ) -> None:
        """Store the samples since the last call; if possible, they are on disk on return.

        Records, (n,) of `RECORD` by slot, and clock triples rise; `lost_count` samples of
        that time are known to be missing; processes only if they were read since the last
        call.
        """
        self._lost_count += lost_count
        self._unreported_lost_count += lost_count
        if chunk := self._stored(origin, records, triples):
            chunk = replace(chunk, processes=processes)
            if not self._waiting:
                self._waiting_since_mono_ns = self._clock.mono_ns()
            self._waiting.append(chunk)
            self._waiting_rows += chunk.row_count
        self._attempt(self._write)

    def close(self) -> None:
        """Close the files; the next writer continues the journal."""
        self._attempt(self._write_journal)
        self._close_files()

    def _stored(
        self, origin: Origin, records: Mapping[int, Records], triples: Sequence[TimeTriple]
    ) -> SampleChunk | None:
        """Make a chunk of the new samples, in stored resolution; None if there are none."""
        boot_id = origin.boot_id
        kept: dict[int, Records] = {}
        for slot, rows in records.items():
            key = boot_id, identity(origin.gpus[slot])
            stored = in_stored_resolution(rows, self._last_mono_ns.get(key, -1))
            self._lost_count += len(rows) - len(stored)
            if len(stored):
                kept[slot] = stored
                self._last_mono_ns[key] = int(stored["t_mono_ns"][-1])
        known = (*self._last_triple.get(boot_id, ()), *triples)
        self._last_triple[boot_id] = known[-1:]
        if not kept:
            return None
        chunk = SampleChunk(
            origin=origin,
            records=kept,
            triples=known or (self._clock.triple(),),
            lost_count=self._unreported_lost_count,
        )
        self._unreported_lost_count = 0
        return chunk

    def _attempt(self, action: Callable[[], None]) -> None:
        """Run an action that the disk may refuse, and update `live`."""
        try:
            action()
            trouble = None
        except StoreError as error:
            trouble = str(error)
        except OSError as error:
            trouble = f"{error.filename or self.folder}: {error.strerror or error}"
            if error.errno not in _FULL:
                self._close_files()
        self._drop_what_waits_too_long()
        self._publish(trouble)

    def _write(self) -> None:
        try:
            self._write_journal()
        finally:
            if self._chunk_is_due():
                self._write_chunks()
        self._ready().samples.delete_old(self._clock.unix_ns())

    def _ready(self) -> _Files:
        """Open the files if need be; chunks that an earlier writer left in its journal go first."""
        if self._files is None:
            self._files = _opened(self.folder, self._limits)
            # After a failure the waiting samples are still in memory: they are journaled once more.
            self._journaled_count = 0
            if not self._took_over:
                left_over, damaged_count = self._files.journal.left_over()
                self._waiting[:0] = left_over
                self._waiting_rows += _row_count(left_over)
                self._journaled_count = len(left_over)
                self._damaged_count += damaged_count
                self._took_over = True
        return self._files

    def _write_journal(self) -> None:
        files = self._ready()
        for group in _groups(self._waiting[self._journaled_count :], _FRAME_ROWS):
            frame, _ = chunk_frame(merged(group), quick=True)
            files.samples.make_room(len(frame), files.journal.size_bytes)
            files.journal.append(frame)
            self._journaled_count += len(group)

    def _chunk_is_due(self) -> bool:
        now_ns = self._clock.mono_ns()
        if not self._waiting or self._files is None or now_ns < self._retry_mono_ns:
            return False
        largest_journal = self._limits.max_bytes * _LARGEST_JOURNAL_SHARE
        return (
            now_ns - self._waiting_since_mono_ns >= _CHUNK_NS
            or self._files.journal.size_bytes >= largest_journal
            or self._waiting_rows >= _CHUNK_ROWS
        )

    def _write_chunks(self) -> None:
        """Write the waiting samples to the files of samples, and empty the journal."""
        files = self._ready()
        self._retry_mono_ns = self._clock.mono_ns() + _RETRY_NS
        for group in list(_groups(self._waiting, _CHUNK_ROWS)):
            frame, span_ns = chunk_frame(merged(group), quick=False)
            files.samples.append(frame, span_ns, files.journal.size_bytes)
            del self._waiting[: len(group)]
            self._waiting_rows -= _row_count(group)
            self._journaled_count = max(self._journaled_count - len(group), 0)
        self._retry_mono_ns = 0
        files.journal.replace()

    def _drop_what_waits_too_long(self) -> None:
        while self._waiting_rows > _MOST_WAITING_ROWS:
            dropped = self._waiting.pop(0)
            self._waiting_rows -= dropped.row_count
            self._journaled_count = max(self._journaled_count - 1, 0)
            self._lost_count += dropped.row_count
            self._unreported_lost_count += dropped.row_count + dropped.lost_count

    def _publish(self, trouble: str | None) -> None:
        if trouble and not self.live.trouble:
            logger.warning("samples can't be stored for now: %s", trouble)
        elif self.live.trouble and not trouble:
            logger.warning("samples are stored again in %s", self.folder)
        size_bytes, damaged_count, oldest_ns = self.live.bytes, self._damaged_count, None
        if (files := self._files) is not None:
            oldest_ns = files.samples.oldest_unix_ns
            size_bytes = files.journal.size_bytes + files.samples.size_bytes
            damaged_count += files.samples.damaged_count
            if trouble is None and files.samples.disk_is_nearly_full:
                trouble = _NEARLY_FULL
        if oldest_ns is None and self._waiting:
            oldest_ns = self._waiting[0].span_ns()[0]
        self.live = ArchiveLive(
            bytes=size_bytes,
            max_bytes=self._limits.max_bytes,
            oldest_unix_ns=oldest_ns,
            lost_samples=self._lost_count,
            damaged_chunks=damaged_count,
            trouble=trouble,
        )

    def _close_files(self) -> None:
        if self._files is not None:
            self._damaged_count += self._files.samples.damaged_count
            self._files.close()
            self._files = None


def _opened(folder: Path, limits: DiskLimits) -> _Files:
    """Open a folder's files, created if missing; StoreError if another process writes to it."""
    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(_FOLDER_MODE)
    with ExitStack() as undo:
        lock_fd = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        undo.callback(os.close, lock_fd)
        try:
            fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StoreError(f"another process writes samples to {folder}") from error
        journal = Journal(folder / JOURNAL)
        undo.callback(journal.close)
        files = _Files(lock_fd, journal, SampleFiles(folder, limits))
        undo.pop_all()
    return files


def _groups(chunks: Sequence[SampleChunk], most_rows: int) -> Iterator[list[SampleChunk]]:
    """Group adjacent chunks of one origin, at most `most_rows` in a group, or one chunk."""
    group: list[SampleChunk] = []
    for chunk in chunks:
        is_other = bool(group) and chunk.origin != group[0].origin
        if is_other or (group and _row_count(group) + chunk.row_count > most_rows):
            yield group
            group = []
        group.append(chunk)
    if group:
        yield group


def _row_count(chunks: Sequence[SampleChunk]) -> int:
    return sum(chunk.row_count for chunk in chunks)
