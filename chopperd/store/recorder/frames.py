"""Frames of the flight recorder's files; reading resumes at the next frame after damage.

A frame is a header with a checksum of its own, so that its length can be trusted, and a payload.
A frame that ends beyond the file is being written, or its writer was killed: that is not damage.
Other bytes are skipped up to the next header.
"""

import os
import zlib
from dataclasses import dataclass
from enum import IntEnum
from struct import Struct
from typing import Final

_MAGIC: Final = b"\x93chopper"
_VERSION: Final = 1
#: Magic, version, kind, payload's size and checksum, begin and end; then the header's checksum.
_FIELDS: Final = Struct("<8sHHIIqq")
_CHECK: Final = Struct("<I")
HEADER_BYTES: Final = _FIELDS.size + _CHECK.size


class FrameKind(IntEnum):
    """Kind of a frame: samples, or an empty last frame with the first and last time of the file."""

    SAMPLES = 1
    END = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
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


def read_payload(fd: int, frame: Frame) -> bytes | None:
    """Read the payload of a frame; None if it is damaged."""
    data = os.pread(fd, frame.payload_bytes, frame.offset)
    return data if zlib.crc32(data) == frame.check else None


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
