"""A trace on its way into the spool: written, hashed and measured as it comes."""

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
#: How much may be written between two looks at how much of the disk is free.
_LOOK_EVERY_BYTES: Final = 16 << 20
_CHUNK_BYTES: Final = 1 << 20
_ZEROS: Final = memoryview(bytes(_CHUNK_BYTES))


class Room(Protocol):
    """Who decides whether there is room."""

    def claim(self, size_bytes: int, more_bytes: int, *, look: bool) -> None:
        """Let a trace grow.

        Raises:
            IngestError: It gets too large, or there is no room.
        """
        ...

    def unclaim(self, size_bytes: int) -> None:
        """Take back what was claimed."""
        ...


class Incoming:
    """Bytes as they come; ended by `close`, once they are kept, or `abort`.

    Args:
        room: Decides whether there is room.
        path: Where they are written.
        fd: The same, open for writing.
    """

    def __init__(self, room: Room, path: Path, fd: int) -> None:
        self._room = room
        self._path = path
        self._fd = fd
        self._hash = hashlib.sha256()
        self._size_bytes = 0
        self._looked_at = -_LOOK_EVERY_BYTES

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Forget what came, unless it is kept."""
        self.abort()

    @property
    def path(self) -> Path:
        """Where they are."""
        return self._path

    @property
    def size_bytes(self) -> int:
        """How many there are."""
        return self._size_bytes

    @property
    def trace_id(self) -> str:
        """The id of a trace of just these bytes."""
        return self._hash.hexdigest()[:ID_DIGITS]

    def write(self, data: bytes) -> None:
        """Take the next bytes.

        Raises:
            IngestError: It gets too large, or there is no room.
        """
        look = self._size_bytes - self._looked_at >= _LOOK_EVERY_BYTES
        self._room.claim(self._size_bytes, len(data), look=look)
        self._looked_at = self._size_bytes if look else self._looked_at
        self._size_bytes += len(data)
        self._hash.update(data)
        try:
            self._put(memoryview(data))
        except OSError as error:
            raise no_room(error) from error

    def _put(self, data: memoryview) -> None:
        """Append to the file; a run of zeros becomes a hole, as in the sparse file it came from."""
        if len(data) <= len(_ZEROS) and data == _ZEROS[: len(data)]:
            os.ftruncate(self._fd, self._size_bytes)
            os.lseek(self._fd, 0, os.SEEK_END)
            return
        while data:
            data = data[os.write(self._fd, data) :]

    def copy(self, fd: int, stopped: Callable[[], bool]) -> bool:
        """Take all bytes of a file; False if it was stopped on the way.

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
        """Let go of what is kept elsewhere now."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            self._room.unclaim(self._size_bytes)

    def abort(self) -> None:
        """Forget what came."""
        if self._fd >= 0:
            self.close()
            self._path.unlink(missing_ok=True)


def no_room(error: OSError) -> IngestError:
    """What it means that something can't be written."""
    return IngestError(f"there is no room: {error.strerror or error}", reason=IngestReason.NO_ROOM)


# Names of files that others chose: made fit to be shown, and to be file names of ours.

_MOST_CHARACTERS: Final = 255
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]+")
_MOST_KEPT: Final = 100
_BEING_WRITTEN: Final = (".part", ".tmp")


def shown_name(name: str) -> str:
    """The name in printable characters on one line; what is none becomes "�"."""
    text = os.fsencode(name).decode("utf-8", "replace")
    return "".join(c if c.isprintable() else "�" for c in text)[-_MOST_CHARACTERS:]


def sent_name(name: str) -> str:
    """The last part of a name that came over the network, as `shown_name`."""
    text = name.encode("utf-8", "replace").decode()
    return shown_name(Path(text.replace("\0", "�")).name) or "trace"


def safe_name(name: str) -> str:
    """What of the name can be part of a file name without surprise: its end, if it is long."""
    return _UNSAFE.sub("_", name)[-_MOST_KEPT:].lstrip(".-") or "trace"


def is_being_written(name: str) -> bool:
    """Whether the name says that the file is not done, or not meant to be seen."""
    return name.startswith(".") or name.endswith(_BEING_WRITTEN)
