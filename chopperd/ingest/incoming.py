"""An incoming trace, written, hashed and measured as its bytes come; names made safe."""

import hashlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from chopperd.errors import IngestError, IngestReason

if TYPE_CHECKING:
    from chopperd.ingest.queue import TraceQueue

#: Hex digits of a trace's id.
ID_DIGITS: Final = 16
#: The disk's free space is checked each time this much was written.
_CHECK_EVERY_BYTES: Final = 16 << 20
_CHUNK_BYTES: Final = 1 << 20
_ZEROS: Final = memoryview(bytes(_CHUNK_BYTES))


class Incoming:
    """A file of a trace's bytes as they come; ended by `close`, once it is stored, or `abort`."""

    def __init__(self, room: "TraceQueue", path: Path, fd: int) -> None:
        self._room = room
        self.path = path
        self._fd = fd
        self._hash = hashlib.sha256()
        self.size_bytes = 0
        self._check_at = 0

    def __enter__(self) -> Self:
        """Return this object."""
        return self

    def __exit__(self, *_error: object) -> None:
        """Remove the file, unless it was stored and closed."""
        self.abort()

    @property
    def trace_id(self) -> str:
        """Id of a trace with the bytes so far: the first hex digits of their SHA-256."""
        return self._hash.hexdigest()[:ID_DIGITS]

    def write(self, data: bytes) -> None:
        """Append the next bytes.

        Raises:
            IngestError: It gets too large, or there is no room.
        """
        is_due = self.size_bytes >= self._check_at
        self._room.claim(self.size_bytes, len(data), check_disk=is_due)
        self._check_at = self.size_bytes + _CHECK_EVERY_BYTES if is_due else self._check_at
        self.size_bytes += len(data)
        self._hash.update(data)
        try:
            self._put(memoryview(data))
        except OSError as error:
            raise no_room(error) from error

    def _put(self, data: memoryview) -> None:
        """Append to the file; a run of zeros becomes a hole, as in the sparse file it came from."""
        if len(data) <= len(_ZEROS) and data == _ZEROS[: len(data)]:
            os.ftruncate(self._fd, self.size_bytes)
            os.lseek(self._fd, 0, os.SEEK_END)
            return
        while data:
            data = data[os.write(self._fd, data) :]

    def copy(self, fd: int, stopped: Callable[[], bool]) -> bool:
        """Append all bytes of an open file; return False if stopped before the end.

        Raises:
            IngestError: It gets too large, or there is no room.
            OSError: The file can't be read.
        """
        while data := os.read(fd, _CHUNK_BYTES):
            if stopped():
                return False
            self.write(data)
        return True

    def close(self) -> None:
        """Close the file, which was stored under another name, and release its claimed space."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            self._room.unclaim(self.size_bytes)

    def abort(self) -> None:
        """Close and remove the file, unless `close` was called."""
        if self._fd >= 0:
            self.close()
            self.path.unlink(missing_ok=True)


def no_room(error: OSError) -> IngestError:
    """Make the error for a trace that can't be written."""
    return IngestError(f"there is no room: {error.strerror or error}", reason=IngestReason.NO_ROOM)


# Names that others chose, made printable and safe as file names.

_MOST_CHARACTERS: Final = 255
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]+")
_MOST_KEPT: Final = 100
_BEING_WRITTEN: Final = (".part", ".tmp")


def shown_name(name: str) -> str:
    """Make a name printable on one line; other characters become "�"."""
    text = os.fsencode(name).decode("utf-8", "replace")
    return "".join(c if c.isprintable() else "�" for c in text)[-_MOST_CHARACTERS:]


def sent_name(name: str) -> str:
    """Return the last part of a path that came over the network, made printable."""
    text = name.encode("utf-8", "replace").decode()
    return shown_name(Path(text.replace("\0", "�")).name) or "trace"


def safe_name(name: str) -> str:
    """Reduce a name to safe characters of a file name; only the end of a long one stays."""
    return _UNSAFE.sub("_", name)[-_MOST_KEPT:].lstrip(".-") or "trace"


def is_being_written(name: str) -> bool:
    """Whether the name marks an incomplete or hidden file."""
    return name.startswith(".") or name.endswith(_BEING_WRITTEN)
