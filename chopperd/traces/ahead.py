"""Reads a file in a thread of its own while its caller does what does not need it yet.

When the caller asks for it, it hashes the file until it is read.
"""

from concurrent.futures import Future
from pathlib import Path
from threading import Thread
from typing import Protocol

from chopperd.model.trace import Trace
from chopperd.traces.file_hash import FileHash
from chopperd.traces.reader import read_trace
from chopperd.traces.source import Progress, ReadLimits


class ReadsTrace(Protocol):
    """`read_trace`, or what stands for it."""

    def __call__(
        self,
        path: Path,
        *,
        limits: ReadLimits,
        progress: Progress | None,
        name: str | None,
        threads: int,
    ) -> Trace:
        """The trace in `path`."""


class ReadAhead:
    """Reads one file from now on, and others when they are asked for.

    If nobody asks for it, its thread does not keep the process from ending.

    Args:
        path: The file.
        limits: What to refuse.
        threads: How many threads may read it.
    """

    def __init__(self, path: Path, *, limits: ReadLimits, threads: int) -> None:
        self._path = path
        self._limits = limits
        self._threads = threads
        self._hash = FileHash(path)
        self._progress: Progress | None = None
        self._trace: Future[Trace] | None = Future()
        Thread(target=self._read, args=(self._trace,), name="read-ahead", daemon=True).start()

    def __call__(
        self,
        path: Path,
        *,
        limits: ReadLimits,
        progress: Progress | None,
        name: str | None,
        threads: int,
    ) -> Trace:
        """The trace in `path`; of the file that is read ahead, once.

        Raises:
            TraceFormatError: As `read_trace`.
        """
        if self._trace is None or (path, limits, name) != (self._path, self._limits, None):
            return read_trace(path, limits=limits, progress=progress, name=name, threads=threads)
        trace, self._trace = self._trace, None
        self._progress = progress
        self._hash.work()
        return trace.result()

    def _read(self, trace: "Future[Trace]") -> None:
        try:
            trace.set_result(
                read_trace(
                    self._path,
                    limits=self._limits,
                    progress=self._report,
                    threads=self._threads,
                    hashed=self._hash,
                )
            )
        except BaseException as error:  # noqa: BLE001 - raised where the trace is asked for
            trace.set_exception(error)

    def _report(self, done: int, total: int | None) -> None:
        if self._progress is not None:
            self._progress(done, total)
