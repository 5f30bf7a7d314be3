"""The flight recorder's folder: its files, their size, and deletion of the oldest.

`samples-NUMBER.rec` hold the samples in order of time; `journal.rec` holds the last minute.
"""

import logging
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from chopperd.errors import StoreError
from chopperd.store.disk import AppendFile, DiskLimits, missing_bytes
from chopperd.store.recorder.chunk import SampleChunk, decoded_chunk, encoded_chunk
from chopperd.store.recorder.frames import (
    FrameKind,
    Scan,
    encoded_frame,
    file_span_ns,
    read_payload,
    scanned,
)
from chopperd.units import NS_PER_S

logger = logging.getLogger(__name__)

JOURNAL: Final = "journal.rec"
LOCK: Final = "lock"
_NAME: Final = re.compile(r"samples-(\d{8,})\.rec")
#: A file is ended after so long, or when it is so large a share of all.
_LONGEST_FILE_NS: Final = 3600 * NS_PER_S
_LARGEST_FILE_SHARE: Final = 1 / 64
_LEAST_FILE_BYTES: Final = 32 * 1024


@dataclass(slots=True, kw_only=True)
class SampleFile:
    """A file of samples, and its first and last Unix time; None if it holds none to be read."""

    path: Path
    size_bytes: int = 0
    span_ns: tuple[int, int] | None = None


def sample_paths(folder: Path) -> list[Path]:
    """List the files of samples in a folder, oldest first.

    Raises:
        OSError: The folder can't be read.
    """
    names = os.listdir(folder)  # noqa: PTH208 - names are enough, of thousands of files
    return [folder / name for name in sorted(filter(_NAME.fullmatch, names), key=_number)]


def _number(name: str) -> int:
    return int(name.removeprefix("samples-").removesuffix(".rec"))


class SampleFiles:
    """The files of samples in a folder, for their only writer.

    Methods raise OSError where the disk fails.
    """

    def __init__(self, folder: Path, limits: DiskLimits) -> None:
        self._folder = folder
        self._limits = limits
        self._files = [_read_file(path) for path in sample_paths(folder)]
        self._next_number = 1 + max((_number(file.path.name) for file in self._files), default=0)
        self._open: AppendFile | None = None
        self._newest_is_ended = False
        self._ceiling_bytes: int | None = None
        self.damaged_count = 0

    @property
    def size_bytes(self) -> int:
        """Size of all files, in bytes."""
        return sum(file.size_bytes for file in self._files)

    @property
    def oldest_unix_ns(self) -> int | None:
        """The first time in any file; None if there is none."""
        return min((file.span_ns[0] for file in self._files if file.span_ns), default=None)

    @property
    def disk_is_nearly_full(self) -> bool:
        """Whether so little of the disk is free that the files no longer grow."""
        return self._ceiling_bytes is not None

    def append(self, frame: bytes, span_ns: tuple[int, int], other_bytes: int) -> None:
        """Add a frame with the samples of a time, and wait until it is on disk, or store nothing.

        Args:
            frame: The frame.
            span_ns: Unix times of its first and last sample.
            other_bytes: Size of the recorder's other files.

        Raises:
            StoreError: There is no room, and nothing to delete.
        """
        self._end_what_is_full(span_ns[0], len(frame))
        self.make_room(len(frame), other_bytes)
        file = self._open or self._new_file()
        file.append(frame)
        last = self._files[-1]
        last.size_bytes = file.size_bytes
        begin_ns, end_ns = last.span_ns or span_ns
        last.span_ns = min(begin_ns, span_ns[0]), max(end_ns, span_ns[1])
        file.sync()

    def make_room(self, more_bytes: int, other_bytes: int) -> None:
        """Delete the oldest files until there is room for more bytes.

        Raises:
            StoreError: There is none, and nothing to delete.
        """
        limit_bytes = min(self._limits.max_bytes, self._allowed_bytes(other_bytes))
        while self.size_bytes + other_bytes + more_bytes > limit_bytes:
            if len(self._files) <= (not self._newest_is_ended):
                full = "the disk is nearly full" if self.disk_is_nearly_full else "no room"
                raise StoreError(f"{full}: samples are not stored")
            self._delete_oldest()

    def delete_old(self, now_unix_ns: int) -> None:
        """Delete files that ended too long ago, but not the newest."""
        before_ns = self._limits.oldest_unix_ns(now_unix_ns)
        while len(self._files) > 1 and (self._files[0].span_ns or (0, 0))[1] < before_ns:
            self._delete_oldest()

    def close(self) -> None:
        """Close the file that is being written; a later writer may continue it."""
        if self._open is not None:
            self._open.close()
            self._open = None

    def _allowed_bytes(self, other_bytes: int) -> int:
        """Return the size limit; while the disk lacks free space, the size when that began."""
        if not missing_bytes(self._folder, self._limits.min_free_ratio):
            self._ceiling_bytes = None
            return self._limits.max_bytes
        if self._ceiling_bytes is None:
            self._ceiling_bytes = self.size_bytes + other_bytes
        return self._ceiling_bytes

    def _end_what_is_full(self, begin_ns: int, more_bytes: int) -> None:
        """End the file being written if the next frame belongs in a new one."""
        if self._open is None and self._files and not self._newest_is_ended:
            self._continue_newest()
        if self._open is not None and self._is_full(self._open, begin_ns, more_bytes):
            self._end_file(self._open)

    def _new_file(self) -> AppendFile:
        path = self._folder / f"samples-{self._next_number:08d}.rec"
        self._open = AppendFile(path, is_new=True)
        self._newest_is_ended = False
        self._next_number += 1
        self._files.append(SampleFile(path=path))
        return self._open

    def _continue_newest(self) -> None:
        """Open the file that an earlier writer did not end."""
        file, scan = _opened_whole(self._files[-1].path)
        if scan.frames and scan.frames[-1].kind == FrameKind.END:
            self._newest_is_ended = True
            file.close()
        else:
            self._open = file
            self.damaged_count += len(scan.damaged_offsets)

    def _is_full(self, file: AppendFile, begin_ns: int, more_bytes: int) -> bool:
        last = self._files[-1]
        largest = max(self._limits.max_bytes * _LARGEST_FILE_SHARE, _LEAST_FILE_BYTES)
        is_long = last.span_ns is not None and abs(begin_ns - last.span_ns[0]) >= _LONGEST_FILE_NS
        has_grown = file.size_bytes > 0 and file.size_bytes + more_bytes > largest
        return file.spoiled or has_grown or is_long

    def _end_file(self, file: AppendFile) -> None:
        """Close a file for good, with its span in a last frame; readers scan one without."""
        last = self._files[-1]
        if last.span_ns is not None and not file.spoiled:
            with suppress(OSError):
                file.append(encoded_frame(FrameKind.END, b"", last.span_ns))
        last.size_bytes = file.size_bytes
        self._newest_is_ended = True
        self.close()

    def _delete_oldest(self) -> None:
        oldest = self._files[0]
        oldest.path.unlink(missing_ok=True)
        del self._files[0]
        logger.debug("deleted %s, the oldest of the flight recorder", oldest.path)


def _read_file(path: Path) -> SampleFile:
    """Read the size and times of a file on disk; one that can't be read has no times."""
    found = SampleFile(path=path)
    with suppress(OSError):
        found.size_bytes = path.stat().st_size
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            found.span_ns = file_span_ns(fd)
        finally:
            os.close(fd)
    return found


def _opened_whole(path: Path) -> tuple[AppendFile, Scan]:
    """Open a file for appending, cut off an incomplete last frame; return it and its frames."""
    file = AppendFile(path)
    try:
        scan = scanned(file.fd)
        if scan.whole_bytes < file.size_bytes:
            file.cut(scan.whole_bytes)
    except OSError:
        file.close()
        raise
    return file, scan


class Journal:
    """A file, created if missing, of chunks that are not yet in the files of samples.

    Methods raise OSError where the disk fails; the journal is then as before.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file, self._scan = _opened_whole(path)

    @property
    def size_bytes(self) -> int:
        """Size of the file, in bytes."""
        return self._file.size_bytes

    def left_over(self) -> tuple[list[SampleChunk], int]:
        """Read the chunks in the journal when it was opened; also count those that are damaged."""
        chunks, damaged_count = [], len(self._scan.damaged_offsets)
        for frame in self._scan.frames:
            try:
                chunks.append(decoded_chunk(read_payload(self._file.fd, frame) or b""))
            except StoreError:
                damaged_count += 1
        return chunks, damaged_count

    def append(self, frame: bytes) -> None:
        """Add a frame; if the file is spoiled, begin an empty journal first."""
        if self._file.spoiled:
            self.replace()
        self._file.append(frame)

    def replace(self) -> None:
        """Begin an empty journal; readers of the old file still find all of it."""
        fresh_path = self._path.with_name(f"{self._path.name}.new")
        fresh_path.unlink(missing_ok=True)
        fresh = AppendFile(fresh_path, is_new=True)
        try:
            fresh_path.rename(self._path)
        except OSError:
            fresh.close()
            raise
        self._file.close()
        self._file = fresh
        self._file.path = self._path

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def chunk_frame(chunk: SampleChunk, *, quick: bool) -> tuple[bytes, tuple[int, int]]:
    """Encode a chunk as a frame, quickly or small; return it and its first and last Unix time."""
    span_ns = chunk.span_ns()
    payload = encoded_chunk(chunk, quick=quick)
    return encoded_frame(FrameKind.SAMPLES, payload, span_ns), span_ns
