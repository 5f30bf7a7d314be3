"""Frames of the flight recorder's files; reading resumes at the next frame after damage.

A frame is a header with a check sum of its own, so that its length can be trusted, and a payload.
A frame that ends beyond the file is being written, or its writer was killed: no damage. Bytes that
are no frame are skipped up to the next header.
"""

import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from struct import Struct
from typing import Final

_MAGIC: Final = b"\x93chopper"
_VERSION: Final = 1
#: Magic, version, kind, payload bytes, payload check sum, begin and end; then its own check sum.
_FIELDS: Final = Struct("<8sHHIIqq")
_CHECK: Final = Struct("<I")
HEADER_BYTES: Final = _FIELDS.size + _CHECK.size


class FrameKind(IntEnum):
    """What a frame holds.

    `SAMPLES`: samples of a time. `END`: nothing; it ends a file, and its times are the file's.
    """

    SAMPLES = 1
    END = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """A frame found in a file.

    Attributes:
        kind: A `FrameKind`, or what a later version wrote.
        offset: Where the payload begins.
        payload_bytes, check: Its length and check sum.
        begin_unix_ns, end_unix_ns: First and last time in it.
    """

    kind: int
    offset: int
    payload_bytes: int
    check: int
    begin_unix_ns: int
    end_unix_ns: int

    @property
    def end(self) -> int:
        """Where the frame ends."""
        return self.offset + self.payload_bytes

    def touches(self, from_unix_ns: int, to_unix_ns: int) -> bool:
        """Whether it may hold something of `[from, to)`."""
        return self.begin_unix_ns < to_unix_ns and self.end_unix_ns >= from_unix_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """What is in a file.

    Attributes:
        frames: The whole ones, in order; payloads are not read.
        damaged_offsets: Offsets of bytes that are no frame.
        whole_bytes: Where the first frame begins that is not whole; the file's size if all are.
    """

    frames: tuple[Frame, ...]
    damaged_offsets: tuple[int, ...]
    whole_bytes: int

    @property
    def span_ns(self) -> tuple[int, int] | None:
        """First and last time in the file; None without frames."""
        if not self.frames:
            return None
        begins = [frame.begin_unix_ns for frame in self.frames]
        return min(begins), max(frame.end_unix_ns for frame in self.frames)


def encoded_frame(
    kind: FrameKind, payload: bytes, *, begin_unix_ns: int, end_unix_ns: int
) -> bytes:
    """A frame as the bytes of a file."""
    fields = _FIELDS.pack(
        _MAGIC, _VERSION, kind, len(payload), zlib.crc32(payload), begin_unix_ns, end_unix_ns
    )
    return b"".join((fields, _CHECK.pack(zlib.crc32(fields)), payload))


def scanned(fd: int) -> Scan:
    """The frames of a file, also while it is being written."""
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
    """First and last time in a file; None if it holds none.

    An ended file has its span in its last frame; others are scanned.
    """
    last = _frame_at(fd, max(os.fstat(fd).st_size - HEADER_BYTES, 0))
    if last is not None and last.kind == FrameKind.END:
        return last.begin_unix_ns, last.end_unix_ns
    return scanned(fd).span_ns


def is_ended(fd: int) -> bool:
    """Whether nothing is to be added to a file."""
    last = _frame_at(fd, max(os.fstat(fd).st_size - HEADER_BYTES, 0))
    return last is not None and last.kind == FrameKind.END


def read_payload(fd: int, frame: Frame) -> bytes | None:
    """The payload of a frame; None if it is damaged."""
    data = os.pread(fd, frame.payload_bytes, frame.offset)
    return data if zlib.crc32(data) == frame.check else None


def _frame_at(fd: int, position: int) -> Frame | None:
    """The frame whose header begins at an offset; None if there is none."""
    data = os.pread(fd, HEADER_BYTES, position)
    if len(data) < HEADER_BYTES or not data.startswith(_MAGIC):
        return None
    if zlib.crc32(data[: _FIELDS.size]) != _CHECK.unpack_from(data, _FIELDS.size)[0]:
        return None
    _, version, kind, payload_bytes, check, begin_ns, end_ns = _FIELDS.unpack_from(data)
    return Frame(
        kind=kind if version == _VERSION else -version,
        offset=position + HEADER_BYTES,
        payload_bytes=payload_bytes,
        check=check,
        begin_unix_ns=begin_ns,
        end_unix_ns=end_ns,
    )


def _next_header(fd: int, position: int, size: int) -> int:
    """Offset of the next header at or after a position; the file's size if there is none."""
    for found in _magics(fd, position, size):
        if _frame_at(fd, found) is not None:
            return found
    return size


def _magics(fd: int, position: int, size: int) -> Iterator[int]:
    """Offsets of the magic at or after a position."""
    data = os.pread(fd, size - position, position)
    found = data.find(_MAGIC)
    while found >= 0:
        yield position + found
        found = data.find(_MAGIC, found + 1)
