"""What taking in traces needs of the store, and the count of what became of them."""

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from chopperd.live.traced import TracedLedger
from chopperd.model.captures import AnalysedTrace, Filed, TraceEntry
from chopperd.model.report import ReportDocument
from chopperd.store.captures.capture_store import CaptureStore


class TraceStore(Protocol):
    """Where traces, captures and their documents are kept."""

    def known(self, trace_id: str) -> TraceEntry | None:
        """A trace by its id, whoever owns it."""
        ...

    def waiting(self) -> tuple[TraceEntry, ...]:
        """Queued and spooled traces, oldest first."""
        ...

    def put_trace(self, entry: TraceEntry) -> None:
        """Take down a trace, or a change of its state."""
        ...

    def file_analysed(self, trace: AnalysedTrace) -> tuple[Filed, ...]:
        """Put a trace into its capture; that one, then others that changed by it.

        Empty where the disk refuses: `take_filed` gives them once it is written.
        """
        ...

    def take_filed(self) -> tuple[tuple[AnalysedTrace, ...], tuple[Filed, ...]]:
        """Traces that were filed late, and the captures that they changed; each once."""
        ...

    def put_document(self, capture_id: int, document: ReportDocument) -> None:
        """Keep a capture's document."""
        ...


@dataclass(slots=True)
class Tally:
    """Outcomes since start; for any thread."""

    _lock: threading.Lock = field(default_factory=threading.Lock)
    _counts: Counter[str] = field(default_factory=Counter)

    def add(self, outcome: str) -> None:
        """Count one."""
        with self._lock:
            self._counts[outcome] += 1

    def __getitem__(self, outcome: str) -> int:
        """How many there were."""
        with self._lock:
            return self._counts[outcome]

    def all(self) -> Mapping[str, int]:
        """All that there were."""
        with self._lock:
            return dict(self._counts)


# The store as the taking in of traces uses it; what goes in is counted for the metrics.


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
