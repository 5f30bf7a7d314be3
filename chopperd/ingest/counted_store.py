"""The store as the taking in of traces uses it; what goes in is counted for the metrics."""

from chopperd.live.traced import TracedLedger
from chopperd.model.report import ReportDocument
from chopperd.store.captures.capture_store import CaptureStore


class CountedStore:
    """A store (`trace_store.TraceStore`) whose documents are summed up by GPU.

    Args:
        store: Keeps everything.
        ledger: Sums.
    """

    def __init__(self, store: CaptureStore, ledger: TracedLedger) -> None:
        self._store = store
        self._ledger = ledger
        self.known = store.known
        self.waiting = store.waiting
        self.put_trace = store.put_trace
        self.file_analysed = store.file_analysed
        self.take_filed = store.take_filed

    def put_document(self, capture_id: int, document: ReportDocument) -> None:
        """Keep a capture's document and count what it found."""
        self._store.put_document(capture_id, document)
        self._ledger.add(document)
