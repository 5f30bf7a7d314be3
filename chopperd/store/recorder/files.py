"""The flight recorder's folder: its files of frames, their size, and deletion of the oldest.

`samples-NUMBER.rec` hold the samples in order of time; `journal.rec` holds the last minute. A frame
is a header with its own checksum, so that its length can be trusted, and a payload. One that ends
beyond the file is still being written: not damage. Other bytes are skipped up to the next header.
"""

import logging
import os
import re
import zlib
from contextlib import suppress
from enum import IntEnum
from pathlib import Path
from struct import Struct
from typing import Final

import msgspec

from chopperd.errors import StoreError
from chopperd.store.disk import AppendFile, DiskLimits, missing_bytes
from chopperd.store.recorder.chunk import SampleChunk, decoded_chunk, encoded_chunk
from chopperd.units import NS_PER_S

logger = logging.getLogger(__name__)

_MAGIC: Final = b"\x93chopper"
_VERSION: Final = 1
#: Magic, version, kind, payload's size and checksum, begin and end; then the header's checksum.
_FIELDS: Final = Struct("<8sHHIIqq")
_CHECK: Final = Struct("<I")
HEADER_BYTES: Final = _FIELDS.size + _CHECK.size


class FrameKind(IntEnum):
    """Samples, or an empty last frame with the first and last time of the file."""

    SAMPLES = 1
    END = 2


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """A frame in a file: its payload's offset, and first and last Unix time.

    `kind` is a `FrameKind` or, where a later version wrote the frame, another number.
    """

    kind: int
    offset: int
    payload_bytes: int
    check: int
    span_ns: tuple[int, int]

    @property
    def end(self) -> int:
        """Offset in the file at which the frame ends."""
        return self.offset + self.payload_bytes


class Scan(msgspec.Struct, frozen=True, kw_only=True):
    """The whole frames of a file in order, with payloads unread, and the offsets of other bytes.

    `whole_bytes` is the offset of the first incomplete frame; the file's size without one.
    """

    frames: tuple[Frame, ...]
    damaged_offsets: tuple[int, ...]
    whole_bytes: int

    @property
    def span_ns(self) -> tuple[int, int] | None:
        """First and last time in the file; None without frames."""
        if not self.frames:
            return None
        begins, ends = zip(*(frame.span_ns for frame in self.frames), strict=True)
        return min(begins), max(ends)


def encoded_frame(kind: FrameKind, payload: bytes, span_ns: tuple[int, int]) -> bytes:
    """Encode a frame as the bytes of a file."""
    check = zlib.crc32(payload)
    fields = _FIELDS.pack(_MAGIC, _VERSION, kind, len(payload), check, *span_ns)
    return b"".join((fields, _CHECK.pack(zlib.crc32(fields)), payload))


def scanned(fd: int) -> Scan:
    """Find the frames of a file, also while it is being written."""
    size = os.fstat(fd).st_size
    frames: list[Frame] = []
    damaged: list[int] = []
    position = 0
    while position + HEADER_BYTES <= size:
        frame = _frame_at(fd, position)
        if frame is not None and frame.end <= size:
            frames.append(frame)
            position = frame.end
            continue
        # A frame whose writer was stopped may claim those after it as its payload.
        begin = frames[-1].offset if frames and frame is None else position + 1
        found = _next_header(fd, begin, size)
        if frame is not None and found == size:
            break
        if frames and found < frames[-1].end:
            position = frames.pop().offset
        damaged.append(position)
        position = found
    return Scan(
        frames=tuple(frames), damaged_offsets=tuple(damaged), whole_bytes=min(position, size)
    )


def file_span_ns(fd: int) -> tuple[int, int] | None:
    """Read the first and last Unix time in a file, scanned if it has not ended; None if empty."""
    last = _frame_at(fd, max(os.fstat(fd).st_size - HEADER_BYTES, 0))
    return last.span_ns if last and last.kind == FrameKind.END else scanned(fd).span_ns


def read_chunk(fd: int, frame: Frame) -> SampleChunk | None:
    """Read the chunk of a frame; None if it is damaged, or the frame holds something else."""
    data = os.pread(fd, frame.payload_bytes, frame.offset)
    if zlib.crc32(data) != frame.check:
        return None
    try:
        return decoded_chunk(data)
    except StoreError:
        return None


def _frame_at(fd: int, position: int) -> Frame | None:
    """Read the frame whose header begins at an offset; None if there is none."""
    data = os.pread(fd, HEADER_BYTES, position)
    if len(data) < HEADER_BYTES or not data.startswith(_MAGIC):
        return None
    if zlib.crc32(data[: _FIELDS.size]) != _CHECK.unpack_from(data, _FIELDS.size)[0]:
        return None
    _, version, kind, payload_bytes, check, *span_ns = _FIELDS.unpack_from(data)
    return Frame(
        kind=kind if version == _VERSION else -version,
        offset=position + HEADER_BYTES,
        payload_bytes=payload_bytes,
        check=check,
        span_ns=(span_ns[0], span_ns[1]),
    )


def _next_header(fd: int, position: int, size: int) -> int:
    """Find the offset of the next header at or after a position; the file's size if none."""
    data = os.pread(fd, size - position, position)
    found = data.find(_MAGIC)
    while found >= 0:
        if _frame_at(fd, position + found) is not None:
            return position + found
        found = data.find(_MAGIC, found + 1)
    return size


JOURNAL: Final = "journal.rec"
LOCK: Final = "lock"
_NAME: Final = re.compile(r"samples-(\d{8,})\.rec")
#: A file is ended after so long, or when it is so large a share of all.
_LONGEST_FILE_NS: Final = 3600 * NS_PER_S
_LARGEST_FILE_SHARE: Final = 1 / 64
_LEAST_FILE_BYTES: Final = 32 * 1024


class SampleFile(msgspec.Struct, kw_only=True):
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

        `other_bytes` is the size of the recorder's other files.

        Raises:
            StoreError: There is no room, and nothing to delete.
        """
        if self._open is None and self._files and not self._newest_is_ended:
            self._continue_newest()
        if self._open is not None and self._is_full(self._open, span_ns[0], len(frame)):
            self._end_file(self._open)
        self.make_room(len(frame), other_bytes)
        if self._open is None:
            path = self._folder / f"samples-{self._next_number:08d}.rec"
            self._open = AppendFile(path, is_new=True)
            self._newest_is_ended = False
            self._next_number += 1
            self._files.append(SampleFile(path=path))
        file = self._open
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
        """Size in bytes."""
        return self._file.size_bytes

    def left_over(self) -> tuple[list[SampleChunk], int]:
        """Read the chunks in the journal when it was opened; also count those that are damaged."""
        found = [read_chunk(self._file.fd, frame) for frame in self._scan.frames]
        chunks = [chunk for chunk in found if chunk is not None]
        return chunks, len(self._scan.damaged_offsets) + len(found) - len(chunks)

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
