"""Scanners that work side by side, one a thread."""

from concurrent.futures import Future, ThreadPoolExecutor
from threading import local

from chopperd.traces.native.library import ScannerLibrary
from chopperd.traces.native.scanner import Scanner
from chopperd.traces.scanned import Scanned


class ScannerThreads:
    """Threads that scan what they are given.

    Args:
        library: The library.
        count: How many threads.
    """

    def __init__(self, library: ScannerLibrary, count: int) -> None:
        self._library = library
        self._own = local()
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="scan")

    def later(self, text: bytes, limit: int) -> "Future[Scanned]":
        """Start a scan that is not the file's last."""
        return self._threads.submit(self._scan, text, limit)

    def close(self) -> None:
        """End the threads; what has not begun is not done."""
        self._threads.shutdown(cancel_futures=True)

    def _scan(self, text: bytes, limit: int) -> Scanned:
        scanner: Scanner | None = getattr(self._own, "scanner", None)
        if scanner is None:
            scanner = self._own.scanner = Scanner(self._library)
        return scanner.scan(text, limit, final=False)
