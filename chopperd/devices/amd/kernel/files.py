"""Reading the kernel's small files: numbers as text, and the block of metrics into one buffer."""

import errno
import os
from ctypes import Array, c_char, create_string_buffer
from pathlib import Path
from typing import Final

from chopperd.devices.amd.block import MetricsLayout, TornBlock
from chopperd.devices.amd.kernel.layouts import layout_of
from chopperd.devices.read_plan import Buffer, CallShape, PlannedCall

#: A file of sysfs holds no more than a page; one of a number far less.
PAGE_BYTES: Final = 4096
NUMBER_BYTES: Final = 31


class ShortReadError(OSError, TornBlock):
    """A file gave another number of bytes than its header says: a block that is torn."""


class NumberFile:
    """A file that holds one whole number, such as hwmon's, open from the first read on.

    Args:
        path: The file.
    """

    _fd = -1

    def __init__(self, path: Path) -> None:
        self.path = path
        self._buffer: Array[c_char] = create_string_buffer(NUMBER_BYTES + 1)

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    def read(self) -> int:
        """The number.

        Raises:
            OSError: It can't be read, as the kernel says why, or holds something else.
        """
        text = os.pread(self._opened(), NUMBER_BYTES, 0)
        try:
            return int(text)
        except ValueError:
            raise OSError(errno.EIO, "it holds no number", self.path.name) from None

    def planned_call(self) -> PlannedCall:
        """The same without Python, once it was read."""
        return PlannedCall(
            operation=self.path.name,
            address=0,
            shape=CallShape.TEXT,
            handle=self._opened(),
            buffer=self._buffer,
            argument=NUMBER_BYTES,
        )

    def _opened(self) -> int:
        if self._fd < 0:
            self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        return self._fd


class BlockFile:
    """A file that gives a block of binary data at each read, in a buffer that is used again.

    It is held open: a device that goes away and comes back has another file by the same name.

    Args:
        path: The file.

    Attributes:
        buffer: Holds the block after `fetch`.
        fd: The open file.
        size_bytes: How long the block is.

    Raises:
        OSError: It can't be read.
    """

    fd = -1

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            first = os.pread(self.fd, PAGE_BYTES, 0)
        except OSError:
            os.close(self.fd)
            raise
        self.size_bytes = len(first)
        self.buffer: Array[c_char] = create_string_buffer(first, max(len(first), 1))

    def fetch(self) -> None:
        """Read the block anew.

        Raises:
            OSError: It can't be read.
            ShortReadError: It is of another length than before.
        """
        count = os.preadv(self.fd, [self.buffer], 0)
        if count != self.size_bytes:
            raise ShortReadError(f"{self.path.name}: {count} bytes, not {self.size_bytes}")

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file; a second call does nothing."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def text_in(path: Path) -> str | None:
    """What a file says, without spaces around; None where it can't be read or is empty."""
    try:
        return path.read_text(errors="replace").strip() or None
    except OSError:
        return None


def number_in(path: Path, base: int = 10) -> int | None:
    """The number in a file; None where it can't be read or holds none."""
    try:
        return int(text_in(path) or "", base)
    except ValueError:
        return None


# A GPU's block of metrics from the kernel's file.

_OPERATION: Final = "gpu_metrics"


class FileSource:
    """The block as the file `gpu_metrics` gives it.

    Args:
        path: The file.

    Raises:
        OSError: It can't be read.
        UnknownMetricsError: It is of no version that is known.
    """

    operation = _OPERATION

    def __init__(self, path: Path) -> None:
        self._file = BlockFile(path)
        try:
            self.layout = layout_of(bytes(self._file.buffer)[: self._file.size_bytes])
        except BaseException:
            self._file.close()
            raise
        self.buffer: Buffer = self._file.buffer

    def fetch(self) -> None:
        """Read it anew.

        Raises:
            OSError: It can't be read, or is of another length.
        """
        self._file.fetch()

    def planned_call(self) -> PlannedCall | None:
        """The same without Python."""
        return PlannedCall(
            operation=_OPERATION,
            address=0,
            shape=CallShape.FILE,
            handle=self._file.fd,
            buffer=self.buffer,
            argument=self._file.size_bytes,
        )

    def close(self) -> None:
        """Let go of the file; a plan that reads it must not be carried out any more."""
        self._file.close()


class NoMetricsSource:
    """The block of a GPU that has none: nothing is in it.

    Args:
        reason: Why it has none.
    """

    operation = _OPERATION
    layout = MetricsLayout(version="none", size_bytes=4, places={})

    def __init__(self, reason: str) -> None:
        self.reason = reason
        self.buffer: Buffer = create_string_buffer(4)

    def fetch(self) -> None:
        """Nothing is brought."""

    def planned_call(self) -> PlannedCall | None:
        """Nothing can be."""
        return None

    def close(self) -> None:
        """Nothing is held."""
