"""Scanners that work side by side, one a thread."""

from concurrent.futures import Future, ThreadPoolExecutor
from threading import local

from chopperd.traces.native.library import ScannerLibrary
from chopperd.traces.native.scanner import Scanner
from chopperd.traces.scanned import Scanned, Stop
from chopperd.traces.text_buffer import TextBuffer


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
        self._times_forgotten = 0

    def later(self, text: TextBuffer, limit: int) -> "Future[tuple[Stop, Scanned]]":
        """Start a scan that is not the file's last."""
        return self._threads.submit(self._scan, text, limit)

    def forget(self) -> None:
        """Number texts from 0 again in all scans that have not begun."""
        self._times_forgotten += 1

    def close(self) -> None:
        """End the threads; what has not begun is not done."""
        self._threads.shutdown(cancel_futures=True)

    def _scan(self, text: TextBuffer, limit: int) -> tuple[Stop, Scanned]:
        scanner = self._scanner()
        return scanner.scan(text, limit, final=False), scanner.take()

    def _scanner(self) -> Scanner:
        """This thread's own."""
        own, now = self._own, self._times_forgotten
        if not hasattr(own, "scanner"):
            own.scanner, own.times_forgotten = Scanner(self._library), now
        scanner: Scanner = own.scanner
        if own.times_forgotten != now:
            scanner.forget()
            own.times_forgotten = now
        return scanner
