"""An incoming trace: written, hashed and measured as its bytes come."""

import hashlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self

from chopperd.errors import IngestError, IngestReason

#: Hex digits of a trace's id.
ID_DIGITS: Final = 16
#: The disk's free space is checked each time this much was written.
_CHECK_EVERY_BYTES: Final = 16 << 20
_CHUNK_BYTES: Final = 1 << 20
_ZEROS: Final = memoryview(bytes(_CHUNK_BYTES))


class Room(Protocol):
    """Decides whether there is room (`queue.TraceQueue`)."""

    def claim(self, size_bytes: int, more_bytes: int, *, check_disk: bool) -> None:
        """Reserve space for a trace that grows; raises `IngestError` where there is none."""
        ...

    def unclaim(self, size_bytes: int) -> None:
        """Release what was claimed."""
        ...


class Incoming:
    """The bytes of a trace as they come; ended by `close`, once they are stored, or `abort`.

    Attributes:
        path: The file that they are written to.
        size_bytes: How many there are.
    """

    def __init__(self, room: Room, path: Path, fd: int) -> None:
        self._room = room
        self.path = path
        self._fd = fd
        self._hash = hashlib.sha256()
        self.size_bytes = 0
        self._checked_at = -_CHECK_EVERY_BYTES

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Drop the bytes, unless they are stored."""
        self.abort()

    @property
    def trace_id(self) -> str:
        """The id of a trace with these bytes."""
        return self._hash.hexdigest()[:ID_DIGITS]

    def write(self, data: bytes) -> None:
        """Append the next bytes.

        Raises:
            IngestError: It gets too large, or there is no room.
        """
        is_due = self.size_bytes - self._checked_at >= _CHECK_EVERY_BYTES
        self._room.claim(self.size_bytes, len(data), check_disk=is_due)
        self._checked_at = self.size_bytes if is_due else self._checked_at
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
        """Append all bytes of a file; False if it was stopped before the end.

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
        """Close the file, which was stored under another name."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            self._room.unclaim(self.size_bytes)

    def abort(self) -> None:
        """Remove the file."""
        if self._fd >= 0:
            self.close()
            self.path.unlink(missing_ok=True)


def no_room(error: OSError) -> IngestError:
    """The error for a trace that can't be written."""
    return IngestError(f"there is no room: {error.strerror or error}", reason=IngestReason.NO_ROOM)


# Names that others chose, made printable and safe as file names.

_MOST_CHARACTERS: Final = 255
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]+")
_MOST_KEPT: Final = 100
_BEING_WRITTEN: Final = (".part", ".tmp")


def shown_name(name: str) -> str:
    """The name in printable characters on one line; others become "�"."""
    text = os.fsencode(name).decode("utf-8", "replace")
    return "".join(c if c.isprintable() else "�" for c in text)[-_MOST_CHARACTERS:]


def sent_name(name: str) -> str:
    """The last part of a name that came over the network, as `shown_name`."""
    text = name.encode("utf-8", "replace").decode()
    return shown_name(Path(text.replace("\0", "�")).name) or "trace"


def safe_name(name: str) -> str:
    """The name reduced to safe characters of a file name; the end of a long one."""
    return _UNSAFE.sub("_", name)[-_MOST_KEPT:].lstrip(".-") or "trace"


def is_being_written(name: str) -> bool:
    """Whether the name marks an incomplete or hidden file."""
    return name.startswith(".") or name.endswith(_BEING_WRITTEN)
