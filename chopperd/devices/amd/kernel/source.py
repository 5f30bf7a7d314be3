"""A GPU's block of metrics from the kernel's file."""

from ctypes import create_string_buffer
from pathlib import Path
from typing import Final

from chopperd.devices.amd.kernel.files import BlockFile
from chopperd.devices.amd.kernel.layouts import layout_of
from chopperd.devices.amd.layout import MetricsLayout
from chopperd.devices.read_plan import Buffer, CallShape, PlannedCall

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
