"""Bytes of a trace file as a stream: decompressed if gzip, bounded in size, hashed."""

import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Final, Self, TypeAlias, cast

from isal import isal_zlib
from msgspec import Struct

from chopperd.errors import TraceFormatError

_GZIP: Final = b"\x1f\x8b"
_GZIP_WINDOW_BITS: Final = 31
_BROKEN: Final = cast("type[Exception]", isal_zlib.error)
_CHECKSUM: Final = "checksum"
_OTHER_FORMATS: Final = {
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\xfd7zXZ": "xz",
    b"BZh": "bzip2",
    b"PK\x03\x04": "zip",
}
_MAGIC_BYTES: Final = max(map(len, (_GZIP, *_OTHER_FORMATS)))
_WINDOW_BYTES: Final = 1 << 11
_WINDOW_GROWTH: Final = 4
"""After the end of a gzip member the next is fed little, as it may end soon too; then more."""
_VIEW_BYTES: Final = 1 << 17
"""Read at once: it stays in the core's own cache while it is hashed and scanned."""
_MIB: Final = 1 << 20
_GIB: Final = 1 << 30

Progress = Callable[[int, int | None], None]
Buffer: TypeAlias = bytes | bytearray | memoryview


class ReadLimits(Struct, frozen=True, kw_only=True):
    """Sizes beyond which a file is refused."""

    stored_bytes: int = 8 * _GIB
    expanded_bytes: int = 32 * _GIB  # size after decompression
    element_bytes: int = 64 * _MIB  # size of one event, and of all text before or after the events
    block_bytes: int = 2 * _MIB  # how much is decoded at once; affects memory only


class TraceSource:
    """A trace file, open for reading once from start to end.

    `truncated`: whether a compressed stream is incomplete; known when `chunks` has ended.
    `expanded_bytes`, `stored_bytes`: how much text was returned, and how much of the file read.
    `progress`: called with (stored bytes read, size of the file). `name`: its name in errors.
    `hashed`: whether its hash will be asked for; in a large file it costs a fifth of the reading.
    """

    def __init__(
        self,
        path: Path,
        limits: ReadLimits,
        progress: Progress | None = None,
        *,
        name: str | None = None,
        hashed: bool = True,
    ) -> None:
        self.truncated = False
        self.expanded_bytes = 0
        self.stored_bytes = 0
        self._name = str(path) if name is None else name
        self._limits = limits
        self._progress = progress
        self._view = memoryview(bytearray(min(limits.block_bytes, _VIEW_BYTES)))
        self._hash = hashlib.sha256() if hashed else None
        self._hash_bytes = 0
        with self._readable():
            # Without waiting for a pipe's writer: only regular files are read.
            self.file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        self._opened = os.fstat(self.file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.file)

    def chunks(self) -> Iterator[bytes]:
        """Yield the text as `views` does, but as copies of about `block_bytes` each."""
        return _joined(map(bytes, self.views()), self._limits.block_bytes)

    def views(self) -> Iterator[Buffer]:
        """Yield the text, decompressed if it is gzip, in pieces that fit a core's cache.

        A piece is valid until the next is requested: it may be a view of memory that is reused.

        Raises:
            TraceFormatError: The file is no regular file, empty, too large, or its compression is
                broken or not supported.
        """
        self._check_kind()
        stored = self._stored()
        first = next(stored, b"")
        begins = bytes(first[:_MAGIC_BYTES])
        for magic, name in _OTHER_FORMATS.items():
            if begins.startswith(magic):
                raise self.error(f"is compressed with {name}; decompress it first")
        pieces: Iterator[Buffer] = chain([first] if first else [], stored)
        if begins.startswith(_GZIP):
            pieces = self._expanded(pieces)
        for piece in pieces:
            self.expanded_bytes += len(piece)
            self._check_size(self.expanded_bytes, self._limits.expanded_bytes, "decompressed text")
            yield piece
        if not self.expanded_bytes:
            raise self.error("is an empty trace")

    @property
    def sha256(self) -> str:
        """SHA-256 of the bytes read so far, as stored, in hex; "" where they are not hashed."""
        return self._hash.hexdigest() if self._hash else ""

    @property
    def is_plain(self) -> bool:
        """Whether the file can be read, and is not compressed."""
        try:
            return os.pread(self.file, len(_GZIP), 0) != _GZIP
        except OSError:
            return False

    def go_on_at(self, position: int) -> None:
        """Continue a plain file at an offset; hash what the scanner has read before it."""
        os.lseek(self.file, position, os.SEEK_SET)
        self.stored_bytes = self.expanded_bytes = position
        with self._readable():
            while self._hash and self._hash_bytes < position:
                begin = self._hash_bytes
                count = os.preadv(self.file, [self._view[: position - begin]], begin)
                if not count:
                    break
                self._hash_next(begin, self._view[:count])
        self._check_size(position, self._limits.stored_bytes, "file")
        if self._progress:
            self._progress(position, self._opened.st_size)

    @property
    def still_written(self) -> bool:
        """Whether the file has changed since it was opened."""
        now = os.fstat(self.file)
        return (now.st_size, now.st_mtime_ns) != (self._opened.st_size, self._opened.st_mtime_ns)

    def error(self, problem: str, offset: int | None = None) -> TraceFormatError:
        """Make an error that names the file, and the offset in its decompressed text if known."""
        where = "" if offset is None else f" (byte {offset})"
        return TraceFormatError(f"{self._name} {problem}{where}", path=self._name, offset=offset)

    def _check_kind(self) -> None:
        if stat.S_ISDIR(self._opened.st_mode):
            raise self.error("is a directory, not a trace file")
        if not stat.S_ISREG(self._opened.st_mode):
            raise self.error("is not a regular file")
        if not self._opened.st_size:
            raise self.error("is an empty trace")
        self._check_size(self._opened.st_size, self._limits.stored_bytes, "file")

    def _check_size(self, size: int, limit: int, what: str) -> None:
        if size > limit:
            raise self.error(
                f"is too large: its {what} exceeds the limit of {limit / _MIB:.6g} MiB"
            )

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise self.error(f"can't be read: {reason}") from error

    def _stored(self) -> Iterator[Buffer]:
        """Yield the bytes as stored, hashed and reported: views of the same memory each time."""
        while True:
            with self._readable():
                count = os.readv(self.file, [self._view])
            if not count:
                return
            data = self._view[:count]
            begin, self.stored_bytes = self.stored_bytes, self.stored_bytes + count
            self._check_size(self.stored_bytes, self._limits.stored_bytes, "file")
            self._hash_next(begin, data)
            if self._progress:
                self._progress(self.stored_bytes, self._opened.st_size)
            yield data

    def _hash_next(self, begin: int, data: memoryview) -> None:
        """Hash the bytes of `data`, which is at offset `begin`, that were not hashed before."""
        if self._hash:
            self._hash.update(data[max(self._hash_bytes - begin, 0) :])
        self._hash_bytes = max(self._hash_bytes, begin + len(data))

    def _expanded(self, stored: Iterator[Buffer]) -> Iterator[bytes]:
        """Yield the text of all gzip members; end early where broken, and set `truncated`."""
        inflater = _Inflater(len(self._view))
        try:
            for data in stored:
                yield from _joined(inflater.feed(data), len(self._view))
        except _BROKEN as error:
            if not self.expanded_bytes or _CHECKSUM in str(error):
                raise self.error(f"is broken gzip: {error}") from error
            self.truncated = True
        else:
            self.truncated = not inflater.at_end
        for _ in stored:
            """The hash is of the whole file, even if its text is incomplete."""


def _joined(pieces: Iterable[bytes], least_bytes: int) -> Iterator[bytes]:
    """Yield pieces joined until they have `least_bytes`; the last may be shorter."""
    parts: list[bytes] = []
    size = 0
    for piece in pieces:
        parts.append(piece)
        size += len(piece)
        if size >= least_bytes:
            yield b"".join(parts)
            parts, size = [], 0
    if parts:
        yield b"".join(parts)


class _Inflater:
    """Decompresses gzip members in sequence, a bounded piece at a time."""

    def __init__(self, piece_bytes: int) -> None:
        self._piece_bytes = piece_bytes
        self._member = isal_zlib.decompressobj(wbits=_GZIP_WINDOW_BITS)
        self._between = b""
        self._window_bytes = _WINDOW_BYTES

    @property
    def at_end(self) -> bool:
        """Whether the last member is whole."""
        return self._member.eof

    def feed(self, data: Buffer) -> Iterator[bytes]:
        """Yield the text of a file's next bytes; what follows the end of a member is copied."""
        view, at = memoryview(data), 0
        while at < len(view):
            window = view[at : at + self._window_bytes]
            at += len(window)
            self._window_bytes = min(_WINDOW_GROWTH * self._window_bytes, _VIEW_BYTES)
            yield from self._window(window)

    def _window(self, data: Buffer) -> Iterator[bytes]:
        piece = b""
        while data or len(piece) == self._piece_bytes:
            if self._member.eof:
                self._window_bytes = _WINDOW_BYTES
                data = self._next_member(data)
                if not data:
                    return
            piece = self._member.decompress(data, self._piece_bytes)
            data = self._member.unused_data if self._member.eof else self._member.unconsumed_tail
            if piece:
                yield piece

    def _next_member(self, data: Buffer) -> bytes:
        """Begin another member; return its bytes, or none if padding or other data follow."""
        begins = (self._between + data).lstrip(b"\0")
        if not begins.startswith(_GZIP):
            self._between = begins[: len(_GZIP)]
            return b""
        self._between = b""
        self._member = isal_zlib.decompressobj(wbits=_GZIP_WINDOW_BITS)
        return begins
