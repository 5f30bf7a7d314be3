"""Which chunks of a flight recorder's folder hold something of a time; reading, no writing."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from chopperd.errors import StoreError
from chopperd.store.recorder.chunk import Origin, SampleChunk, decoded_chunk
from chopperd.store.recorder.files import JOURNAL, kept_paths
from chopperd.store.recorder.frames import Frame, FrameKind, file_span_ns, read_payload, scanned

Made = TypeVar("Made")


class ChunkFiles:
    """One look into the folder for the chunks of a time.

    Args:
        folder: The recorder's.
        from_unix_ns, to_unix_ns: Chunks that may hold samples of `[from, to)` are wanted.

    Attributes:
        newest: Origin of the newest samples in the folder; None if there are none.
        damaged: Where in which file something is passed over that belongs, or may belong, to the
            time.
        unreadable: Files that may not be read.
    """

    def __init__(self, folder: Path, from_unix_ns: int, to_unix_ns: int) -> None:
        self._folder = folder
        self._from_unix_ns, self._to_unix_ns = from_unix_ns, to_unix_ns
        self.newest: Origin | None = None
        self.damaged: set[tuple[str, int]] = set()
        self.unreadable: set[str] = set()

    def chunks(self) -> list[SampleChunk]:
        """The chunks, in no certain order; some samples may be in two of them.

        The journal is read first: what leaves it meanwhile is then found in the other files.

        Raises:
            OSError: The folder can't be read.
        """
        journal = self._folder / JOURNAL
        chunks = self._read(journal, self._of_file) or []
        self.newest = self._read(journal, _last_origin)
        paths = [path for _, path in kept_paths(self._folder)]
        for path in paths:
            chunks.extend(self._read(path, self._of_file) or [])
        for path in reversed(paths):
            self.newest = self.newest or self._read(path, _last_origin)
        return chunks

    def _of_file(self, fd: int, path: Path) -> list[SampleChunk]:
        if not self._is_wanted(file_span_ns(fd)):
            return []
        scan = scanned(fd)
        self.damaged.update((path.name, offset) for offset in scan.damaged_offsets)
        wanted = [f for f in scan.frames if f.touches(self._from_unix_ns, self._to_unix_ns)]
        chunks = [self._decoded(path, fd, frame) for frame in wanted]
        return [chunk for chunk in chunks if chunk is not None]

    def _is_wanted(self, span_ns: tuple[int, int] | None) -> bool:
        """Whether a file may hold something; one of which nothing is known is damaged or empty."""
        if span_ns is None:
            return True
        return span_ns[0] < self._to_unix_ns and span_ns[1] >= self._from_unix_ns

    def _decoded(self, path: Path, fd: int, frame: Frame) -> SampleChunk | None:
        """The chunk of a frame; None if it has none, or none that can be read."""
        if frame.kind == FrameKind.END:
            return None
        try:
            if frame.kind == FrameKind.SAMPLES and (payload := read_payload(fd, frame)):
                return decoded_chunk(payload)
        except StoreError:
            pass
        self.damaged.add((path.name, frame.offset))
        return None

    def _read(self, path: Path, work: Callable[[int, Path], Made]) -> Made | None:
        """What is made of an open file; None if it is gone, or can't be read, which is noted."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                return work(fd, path)
            finally:
                os.close(fd)
        except FileNotFoundError:
            return None
        except OSError:
            self.unreadable.add(path.name)
            return None


def _last_origin(fd: int, _path: Path) -> Origin | None:
    """Where the last samples of a file come from; None if it has none that can be read."""
    for frame in reversed(scanned(fd).frames):
        try:
            return decoded_chunk(read_payload(fd, frame) or b"").origin
        except StoreError:
            continue
    return None
