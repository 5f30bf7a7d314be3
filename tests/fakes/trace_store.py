"""A store in memory for what takes in traces: one capture a job and run."""

import threading
from dataclasses import replace

from chopperd.model.captures import AnalysedTrace, CaptureEntry, TraceEntry, TraceState
from chopperd.model.report import ReportDocument

_WAITING = {TraceState.QUEUED, TraceState.SPOOLED}


class TraceStoreInMemory:
    """What an `IngestService` needs of a store; everything may be looked at."""

    def __init__(self) -> None:
        self.entries: dict[str, TraceEntry] = {}
        self.captures: dict[int, CaptureEntry] = {}
        self.documents: dict[int, ReportDocument] = {}
        self._reports: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def known(self, trace_id: str) -> TraceEntry | None:
        return self.entries.get(trace_id)

    def waiting(self) -> tuple[TraceEntry, ...]:
        return tuple(one for one in self.entries.values() if one.state in _WAITING)

    def put_trace(self, entry: TraceEntry) -> None:
        with self._lock:
            self.entries[entry.id] = entry

    def file_analysed(self, trace: AnalysedTrace) -> tuple[CaptureEntry, tuple[bytes, ...]]:
        self._reports[trace.id] = trace.report
        found = (c for c in self.captures.values() if (c.job, c.run) == (trace.job, trace.run))
        capture = next(found, None) or CaptureEntry(
            id=len(self.captures) + 1,
            job=trace.job,
            run=trace.run,
            begin_unix_ns=trace.begin_unix_ns,
            end_unix_ns=trace.end_unix_ns,
            trace_ids=(),
        )
        trace_ids = tuple(dict.fromkeys((*capture.trace_ids, trace.id)))
        capture = replace(capture, trace_ids=trace_ids)
        self.captures[capture.id] = capture
        return capture, tuple(self._reports[each] for each in trace_ids)

    def put_document(self, capture_id: int, document: ReportDocument) -> None:
        self.documents[capture_id] = document
