"""The hash of a file that one thread reads, worked out by another."""

import hashlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Final, Self

_AT_ONCE_BYTES: Final = 1 << 17
"""What a core's own cache holds."""


@dataclass(frozen=True, slots=True)
class _Hashed:
    """A hash, of how many bytes, and of which file in which state."""

    digest: str
    size_bytes: int
    opened: os.stat_result


class FileHash:
    """The SHA-256 of a file as stored.

    Args:
        path: The file; one that can't be read, or is no regular one, has no hash.
    """

    @classmethod
    def begun(cls, path: Path) -> Self:
        """One that a thread of its own works out, which does not keep the process from ending."""
        made = cls(path)
        Thread(target=made.work, name="file-hash", daemon=True).start()
        return made

    def __init__(self, path: Path) -> None:
        self._path = path
        self._hashed: _Hashed | None = None
        self._is_done = Event()

    def work(self) -> None:
        """Work it out; lets other threads run nearly all the time."""
        try:
            self._hashed = _hashed(self._path)
        finally:
            self._is_done.set()

    def of(self, opened: os.stat_result, size_bytes: int) -> str | None:
        """The hash in hex, when it is done; waits for that.

        None unless it is of the very file that a reader opened, in the same state, and of as many
        bytes as that has read.

        Args:
            opened: The file when the reader opened it.
            size_bytes: How much the reader has read.
        """
        self._is_done.wait()
        hashed = self._hashed
        if hashed is None or _state(hashed.opened) != _state(opened):
            return None
        return hashed.digest if hashed.size_bytes == size_bytes else None


def hash_of(file: int, most_bytes: int | None = None) -> tuple[str, int]:
    """The SHA-256 in hex of an open file, or of its beginning, and of how many bytes it is.

    Raises:
        OSError: It can't be read.
    """
    found, taken = hashlib.sha256(), 0
    memory = memoryview(bytearray(_AT_ONCE_BYTES))
    while most_bytes is None or taken < most_bytes:
        wanted = _AT_ONCE_BYTES if most_bytes is None else most_bytes - taken
        count = os.preadv(file, [memory[:wanted]], taken)
        if not count:
            break
        found.update(memory[:count])
        taken += count
    return found.hexdigest(), taken


def _hashed(path: Path) -> _Hashed | None:
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        opened = os.fstat(file)
        return _Hashed(*hash_of(file), opened) if stat.S_ISREG(opened.st_mode) else None
    except OSError:
        return None
    finally:
        os.close(file)


def _state(file: os.stat_result) -> tuple[int, int, int, int]:
    return file.st_dev, file.st_ino, file.st_size, file.st_mtime_ns
