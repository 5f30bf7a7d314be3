"""Writing files whole or by whole pieces, even if the writer is killed; limits of disk use."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from msgspec import Struct

from chopperd.errors import StoreError
from chopperd.units import NS_PER_S

#: Readable by its owner only.
PRIVATE: Final = 0o600
_SHARED: Final = 0o666
_BUFFER_BYTES: Final = 1 << 20
#: Anyone may read samples, which say nothing of jobs.
_MODE: Final = 0o644
_NS_PER_DAY: Final = 86_400 * NS_PER_S


class DiskLimits(Struct, frozen=True, kw_only=True):
    """Limits of what is stored: bytes of all files, days, and the share of the disk left free."""

    max_bytes: int
    max_days: float
    min_free_ratio: float

    def oldest_unix_ns(self, now_unix_ns: int) -> int:
        """Return the Unix time in ns before which data is deleted."""
        return now_unix_ns - round(self.max_days * _NS_PER_DAY)


def missing_bytes(folder: Path, min_free_ratio: float) -> int:
    """Return how many bytes to free until this share of a folder's disk is free; 0 if it is.

    Raises:
        OSError: The free space can't be read.
    """
    usage = shutil.disk_usage(folder)
    return max(0, round(min_free_ratio * usage.total) - usage.free)


@contextmanager
def replaced_file(path: Path, *, mode: int = _SHARED) -> Iterator[BinaryIO]:
    """Open a new file for writing, which replaces `path` in one step at the end.

    What is there stays until then, and if anything fails.

    Raises:
        StoreError: It can't be written.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        try:
            part.unlink(missing_ok=True)
            fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
            with os.fdopen(fd, "wb", buffering=_BUFFER_BYTES) as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise StoreError(f"{path}: can't be written: {error.strerror or error}") from error


class AppendFile:
    """An open file, created if missing, that grows by whole pieces.

    A piece is stored once `append` returns, even if this process is then killed. One that can't be
    written whole is removed again; if that fails too, the file is `spoiled` and must not grow.
    Methods raise OSError where the disk fails; `is_new` also if the file exists.
    """

    def __init__(self, path: Path, *, is_new: bool = False) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        self.path = path
        self.fd = os.open(path, flags | (os.O_EXCL if is_new else 0), _MODE)
        self.spoiled = False
        try:
            os.fchmod(self.fd, _MODE)
            self.size_bytes = os.fstat(self.fd).st_size
        except OSError:
            self.close()
            raise

    def append(self, data: bytes) -> None:
        """Add a piece; after an OSError the file is as before, or `spoiled`."""
        if os.fstat(self.fd).st_nlink == 0:
            raise FileNotFoundError(errno.ENOENT, "was deleted", str(self.path))
        written = 0
        try:
            while written < len(data):
                written += os.write(self.fd, memoryview(data)[written:])
        except OSError:
            self._take_back()
            raise
        self.size_bytes += written

    def cut(self, size_bytes: int) -> None:
        """Truncate the file to this size."""
        os.ftruncate(self.fd, size_bytes)
        self.size_bytes = size_bytes

    def sync(self) -> None:
        """Wait until the added pieces survive a loss of power."""
        os.fdatasync(self.fd)

    def close(self) -> None:
        """Close the file."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def _take_back(self) -> None:
        try:
            os.ftruncate(self.fd, self.size_bytes)
        except OSError:
            self.spoiled = True
