"""The traces that wait for the worker, one under work at a time, and what becomes of each."""

import logging
import threading
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Protocol

from chopperd.clock import Clock
from chopperd.live.spool import Spool, Spooled
from chopperd.model.captures import AnalysedTrace, CaptureEntry, TraceEntry, TraceState
from chopperd.model.report import ReportDocument
from chopperd.pipeline.frames import Analyse, Analysed, Compose, Composed, Failed, Reply
from chopperd.pipeline.reports import Origin, ReportOptions
from chopperd.pipeline.worker_process import AnalysisWorker, Loss, Lost
from chopperd.units import NS_PER_S

logger = logging.getLogger(__name__)

#: A trace over which the worker died so often is not tried again.
_MOST_DEATHS: Final = 2
#: Nor one that was begun so often and never came to an end, as what ended was the agent itself.
_MOST_STARTS: Final = 6
#: The samples of a trace's last moments are recorded so long after its end.
_RECORDED_AFTER_NS: Final = 2 * NS_PER_S
#: After so many traces a document is made, also if more wait.
_MOST_UNCOMPOSED: Final = 16
#: A worker that does not start is tried again after so long.
_PAUSE_NS: Final = 5 * NS_PER_S


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

    def file_analysed(self, trace: AnalysedTrace) -> tuple[CaptureEntry, tuple[bytes, ...]]:
        """Put a trace into its capture; the capture and the reports of all its traces."""
        ...

    def put_document(self, capture_id: int, document: ReportDocument) -> None:
        """Keep a capture's document."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalysisSettings:
    """How traces are analysed.

    Attributes:
        recorder: Folder of the flight recorder; None if there is none.
        options: How reports are made.
        timeout_s: Longest time for one trace.
        keep_traces: Whether traces stay in the spool afterwards.
    """

    recorder: Path | None
    options: ReportOptions
    timeout_s: float
    keep_traces: bool


@dataclass(slots=True, kw_only=True)
class _Capture:
    """A capture whose document is due, and its newly analysed traces, which wait for that."""

    id: int
    reports: tuple[bytes, ...]
    traces: dict[str, tuple[TraceEntry, AnalysedTrace]]
    deaths: int = 0


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


class Analyses:
    """The queue and its worker; `add` and properties for any thread, the rest for one.

    A trace stays in the spool, and queued in the store, until its capture's document is kept:
    whatever ends the agent before, it is analysed again.

    Args:
        spool: Where the traces are.
        store: Where results go.
        worker: Makes them.
        settings: How.
        clock: Tells the time.
    """

    def __init__(
        self,
        spool: Spool,
        store: TraceStore,
        worker: AnalysisWorker,
        settings: AnalysisSettings,
        clock: Clock,
    ) -> None:
        self._spool = spool
        self._store = store
        self._worker = worker
        self._settings = settings
        self._clock = clock
        self._queue: deque[str] = deque()
        self._work: str | _Capture | None = None
        self._due: dict[int, _Capture] = {}
        self._deaths: Counter[str] = Counter()
        self._not_before_ns = 0
        self.tally = Tally()
        self._losses = 0
        self._trouble: str | None = None

    @property
    def working_on(self) -> str | None:
        """Id of the trace under work."""
        work = self._work
        return work if isinstance(work, str) else None

    @property
    def worker_pid(self) -> int | None:
        """The worker process; None where there is none."""
        return self._worker.pid

    @property
    def worker_losses(self) -> int:
        """Workers that died over their work or took too long."""
        return self._losses

    @property
    def trouble(self) -> str | None:
        """Why nothing can be analysed now, for people; None if it can."""
        return self._trouble

    @property
    def busy(self) -> bool:
        """Whether the worker has something to do."""
        return self._worker.busy

    def add(self, trace_ids: Iterable[str]) -> None:
        """Let traces of the spool wait their turn."""
        self._queue.extend(trace_ids)

    def turn(self, wait_s: float, *, paused: bool) -> None:
        """Take what the worker is done with, and give it more.

        Args:
            wait_s: How long to wait for it.
            paused: Whether to give it nothing.
        """
        if paused and self._worker.busy:
            self._worker.interrupt()
        outcome = self._worker.poll(wait_s)
        if outcome is not None:
            self._trouble = None
            work, self._work = self._work, None
            if isinstance(work, str):
                self._end_analysis(work, outcome)
            elif work is not None:
                self._end_composing(work, outcome)
        if not self._worker.busy and not paused and self._clock.mono_ns() >= self._not_before_ns:
            self._begin_next()

    def interrupt(self) -> None:
        """Have the worker stop at once; for any thread."""
        self._worker.interrupt()

    def close(self) -> None:
        """End the worker; what it was doing is done when the agent runs again."""
        if isinstance(self._work, str):
            self._spool.forgive_start(self._work)
        self._work = None
        self._worker.close()

    def _begin_next(self) -> None:
        """Begin a document if traces wait for that and no others, or enough of them; else a trace."""
        trace_id = self._next_ready()
        uncomposed_count = sum(len(capture.traces) for capture in self._due.values())
        if uncomposed_count and (trace_id is None or uncomposed_count >= _MOST_UNCOMPOSED):
            self._work = self._due.pop(next(iter(self._due)))
            self._worker.ask(Compose(reports=self._work.reports), self._settings.timeout_s)
        elif trace_id is not None:
            self._queue.remove(trace_id)
            self._begin_analysis(trace_id)

    def _next_ready(self) -> str | None:
        """The first trace whose samples are all recorded; forgets those that are gone."""
        now_ns = self._clock.unix_ns()
        for trace_id in tuple(self._queue):
            spooled = self._spool.get(trace_id)
            if spooled is None:
                self._queue.remove(trace_id)
            elif min(spooled.written_unix_ns, spooled.entry.received_unix_ns) <= (
                now_ns - _RECORDED_AFTER_NS
            ):
                return trace_id
        return None
