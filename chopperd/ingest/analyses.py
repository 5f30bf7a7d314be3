"""Analysis of queued traces by the worker, one at a time, and what becomes of their outcomes."""

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from chopperd.clock import Clock
from chopperd.ingest.queue import TraceQueue
from chopperd.ingest.worker_process import AnalysisWorker, Loss, Lost
from chopperd.model.captures import AnalysedTrace, Filed, TraceEntry, TraceState
from chopperd.model.report import ReportDocument
from chopperd.model.run import device_map_of
from chopperd.pipeline.reports import Origin, ReportOptions
from chopperd.pipeline.worker import Analyse, Analysed, Compose, Composed, Failed, FrameError, Reply
from chopperd.store.captures.capture_store import CaptureStore
from chopperd.units import NS_PER_S

logger = logging.getLogger(__name__)

#: A trace over which the worker died this often is not tried again.
_MOST_DEATHS: Final = 2
#: Nor one whose analysis began this often and never ended, because the agent itself ended.
_MOST_STARTS: Final = 6
#: The flight recorder has the samples of a trace's last moments this long after its end.
_RECORDED_AFTER_NS: Final = 2 * NS_PER_S
#: After this many traces, or this long, a document is made even if more traces wait.
_MOST_UNCOMPOSED: Final = 16
_LONGEST_UNCOMPOSED_NS: Final = 10 * NS_PER_S
#: Pause before a worker that did not start is started again.
_PAUSE_NS: Final = 5 * NS_PER_S


@dataclass(slots=True)
class Tally:
    """Counts traces by outcome since the agent started; for any thread."""

    _lock: threading.Lock = field(default_factory=threading.Lock)
    _counts: Counter[str] = field(default_factory=Counter)

    def add(self, outcome: str) -> None:
        """Count one trace with this outcome."""
        with self._lock:
            self._counts[outcome] += 1

    def all(self) -> Mapping[str, int]:
        """Return the count of each outcome that occurred."""
        with self._lock:
            return dict(self._counts)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalysisSettings:
    """Settings of the analysis of traces."""

    recorder: Path | None  # folder of the flight recorder; None if there is none
    options: ReportOptions  # how reports are made
    timeout_s: float  # longest time for one trace
    keep_traces: bool  # whether traces stay in the queue's folder afterwards


@dataclass(slots=True, kw_only=True)
class _Capture:
    """A capture whose document is due, and its newly analysed traces, which wait for that."""

    filed: Filed
    traces: dict[str, tuple[TraceEntry, AnalysedTrace]]
    since_mono_ns: int
    deaths: int = 0

    @property
    def id(self) -> int:
        return self.filed.entry.id


class Analyses:
    """Analyses queued traces; `add` and the attributes are for any thread, the rest for one.

    A trace stays queued, on disk and in the store, until its capture's document is stored: if
    the agent ends before, the trace is analysed again. `worker_losses` counts workers that died
    over their work or exceeded its time; `problem` is why nothing can be analysed now, for
    people.
    """

    def __init__(
        self,
        queue: TraceQueue,
        store: CaptureStore,
        worker: AnalysisWorker,
        settings: AnalysisSettings,
        clock: Clock,
        count_document: Callable[[ReportDocument], None] = lambda _document: None,
    ) -> None:
        self._queue = queue
        self._store = store
        self.worker = worker
        self._settings = settings
        self._clock = clock
        self._count_document = count_document
        self._pending: deque[str] = deque()
        self._work: str | _Capture | None = None
        self._due: dict[int, _Capture] = {}
        self._deaths: Counter[str] = Counter()
        #: Turns that each owner has had.
        self._served: dict[int | None, int] = {}
        self._not_before_ns = 0
        self.tally = Tally()
        self.worker_losses = 0
        self.problem: str | None = None

    @property
    def working_on(self) -> str | None:
        """Id of the trace being analysed; None if there is none."""
        work = self._work
        return work if isinstance(work, str) else None

    def add(self, trace_ids: Iterable[str]) -> None:
        """Append traces of the queue to those that wait."""
        self._pending.extend(trace_ids)

    def turn(self, wait_s: float, *, paused: bool) -> None:
        """Take the worker's outcome, waiting `wait_s` for it, and give the worker more work.

        While paused the worker gets no work and is killed over what it has.
        """
        self._take_filed()
        if paused and self.worker.busy:
            self.worker.interrupt()
        outcome = self.worker.poll(wait_s)
        if outcome is not None:
            self.problem = None
            self._end_work(outcome)
        if not self.worker.busy and not paused and self._clock.mono_ns() >= self._not_before_ns:
            self._begin_next()

    def close(self) -> None:
        """End the worker; the next run of the agent does its work again."""
        if isinstance(self._work, str):
            self._queue.forgive_start(self._work)
        self._work = None
        self.worker.close()

    def _begin_next(self) -> None:
        """Begin a document, if only documents wait or enough traces wait for one; else a trace."""
        trace_id = self._next_ready()
        if self._due and (trace_id is None or self._is_document_overdue()):
            self._begin_composing(self._due.pop(next(iter(self._due))))
        elif trace_id is not None:
            self._pending.remove(trace_id)
            self._begin_analysis(trace_id)

    def _is_document_overdue(self) -> bool:
        first_mono_ns = min(capture.since_mono_ns for capture in self._due.values())
        return (
            sum(len(capture.traces) for capture in self._due.values()) >= _MOST_UNCOMPOSED
            or self._clock.mono_ns() - first_mono_ns >= _LONGEST_UNCOMPOSED_NS
        )

    def _next_ready(self) -> str | None:
        """Choose the next trace whose samples are all recorded; None if there is none.

        Owners take turns, so that a thousand traces of one user delay another's by one.
        """
        now_ns = self._clock.unix_ns()
        first_by_owner: dict[int | None, str] = {}
        for trace_id in tuple(self._pending):
            queued = self._queue.get(trace_id)
            age_ns = _RECORDED_AFTER_NS if queued is None else now_ns - queued.written_unix_ns
            owner = None if queued is None else queued.entry.owner_uid
            # A trace of the future: the clock was set back.
            if owner not in first_by_owner and not 0 <= age_ns < _RECORDED_AFTER_NS:
                first_by_owner[owner] = trace_id
        if not first_by_owner:
            return None
        owner = min(first_by_owner, key=lambda each: self._served.get(each, 0))
        self._served = {each: self._served.get(each, 0) for each in first_by_owner}
        self._served[owner] = max(self._served.values()) + 1
        return first_by_owner[owner]

    def _begin_analysis(self, trace_id: str) -> None:
        queued = self._queue.get(trace_id)
        if queued is None:
            return
        if self._queue.note_start(trace_id) > _MOST_STARTS:
            reason = f"its analysis was begun {_MOST_STARTS} times and never came to an end"
            self._give_up(queued.entry, TraceState.KILLED, reason)
            return
        recorder, options = self._settings.recorder, self._settings.options
        if queued.entry.device_map is not None:
            device_map = device_map_of(queued.entry.device_map, "device_map")
            options = replace(options, join=replace(options.join, device_map=device_map))
        request = Analyse(
            id=trace_id,
            path=str(self._queue.path(trace_id)),
            origin=Origin(name=queued.entry.name, job=queued.entry.job),
            recorder=None if recorder is None else str(recorder),
            options=options,
        )
        self.worker.ask(request, self._settings.timeout_s)
        self._work = trace_id

    def _begin_composing(self, capture: _Capture) -> None:
        filed = capture.filed
        request = Compose(reports=filed.reports, run=filed.entry.run, note=filed.entry.note)
        try:
            self.worker.ask(request, self._settings.timeout_s)
        except FrameError as error:
            self._give_up_capture(capture, str(error))
        else:
            self._work = capture

    def _end_work(self, outcome: Reply | Lost) -> None:
        """Process an outcome; if that fails, the work is done again later."""
        work, self._work = self._work, None
        try:
            if isinstance(work, str):
                self._end_analysis(work, outcome)
            elif work is not None:
                self._end_composing(work, outcome)
        except BaseException:
            self._not_before_ns = self._clock.mono_ns() + _PAUSE_NS
            if isinstance(work, str):
                self._pending.append(work)
            elif work is not None:
                self._due.setdefault(work.id, work)
            raise

    def _end_analysis(self, trace_id: str, outcome: Reply | Lost) -> None:
        queued = self._queue.get(trace_id)
        if queued is None:
            return
        match outcome:
            case Analysed():
                found = {trace_id: (queued.entry, outcome.trace)}
                self._make_due(found, self._store.file_analysed(outcome.trace))
            case Failed():
                state = TraceState.REJECTED if outcome.rejected else TraceState.FAILED
                self._give_up(queued.entry, state, outcome.message)
            case Lost():
                self._note_lost_analysis(queued.entry, outcome)

    def _note_lost_analysis(self, entry: TraceEntry, lost: Lost) -> None:
        if self._is_no_fault_of_the_work(lost):
            self._queue.forgive_start(entry.id)
            self._pending.appendleft(entry.id)
            return
        self._deaths[entry.id] += 1
        if lost.how is Loss.TOO_SLOW:
            self._give_up(entry, TraceState.FAILED, lost.reason)
        elif self._deaths[entry.id] >= _MOST_DEATHS:
            self._give_up(entry, TraceState.KILLED, lost.reason)
        else:
            text = "trace %s (%s): %s; it is tried again"
            logger.warning(text, entry.id, entry.name, lost.reason)
            self._pending.append(entry.id)

    def _is_no_fault_of_the_work(self, lost: Lost) -> bool:
        """Whether the work was lost through no fault of its own; pauses or counts accordingly."""
        if lost.how is Loss.INTERRUPTED:
            return True
        if lost.how is Loss.NOT_STARTED:
            self.problem = lost.reason
            self._not_before_ns = self._clock.mono_ns() + _PAUSE_NS
            logger.warning("%s; it is tried again in %d s", lost.reason, _PAUSE_NS // NS_PER_S)
            return True
        self.worker_losses += 1
        return False

    def _take_filed(self) -> None:
        """Queue for documents the captures whose traces had to wait for the store's disk."""
        traces, changed = self._store.take_filed()
        found = {each.id: (one.entry, each) for each in traces if (one := self._queue.get(each.id))}
        self._make_due(found, changed)

    def _make_due(
        self, traces: dict[str, tuple[TraceEntry, AnalysedTrace]], changed: Sequence[Filed]
    ) -> None:
        """Queue captures for their documents; traces that wait may change their capture."""
        since_mono_ns = self._clock.mono_ns()
        moved = {each for filed in changed for each in filed.entry.trace_ids}
        for other in tuple(self._due.values()):
            if other.traces.keys() & moved or other.id in {each.entry.id for each in changed}:
                traces = traces | self._due.pop(other.id).traces
                since_mono_ns = min(since_mono_ns, other.since_mono_ns)
        for filed in changed:
            self._due[filed.entry.id] = _Capture(
                filed=filed,
                traces={each: traces[each] for each in filed.entry.trace_ids if each in traces},
                since_mono_ns=since_mono_ns,
            )

    def _end_composing(self, capture: _Capture, outcome: Reply | Lost) -> None:
        match outcome:
            case Composed():
                self._store.put_document(capture.id, outcome.document)
                self._count_document(outcome.document)
                for entry, trace in capture.traces.values():
                    self._finish(entry, trace)
            case Failed():
                self._give_up_capture(capture, outcome.message)
            case Lost():
                capture.deaths += not self._is_no_fault_of_the_work(outcome)
                if outcome.how is Loss.TOO_SLOW or capture.deaths >= _MOST_DEATHS:
                    self._give_up_capture(capture, outcome.reason)
                else:
                    self._due[capture.id] = capture

    def _give_up_capture(self, capture: _Capture, reason: str) -> None:
        for entry, _ in capture.traces.values():
            self._give_up(entry, TraceState.FAILED, f"no report over its capture: {reason}")

    def _finish(self, entry: TraceEntry, trace: AnalysedTrace) -> None:
        done = replace(
            entry,
            state=TraceState.ANALYSED,
            job=trace.job,
            run=trace.identity.run,
            rank=trace.identity.rank,
            finished_unix_ns=self._clock.unix_ns(),
        )
        self._store.put_trace(done)
        if self._settings.keep_traces:
            self._queue.retain(done)
        else:
            self._queue.discard(done.id)
        self._end(done)

    def _give_up(self, entry: TraceEntry, state: TraceState, reason: str) -> None:
        done = replace(entry, state=state, reason=reason, finished_unix_ns=self._clock.unix_ns())
        self._store.put_trace(done)
        self._queue.reject(done.id, done.name, reason)
        self._end(done)

    def _end(self, done: TraceEntry) -> None:
        self._deaths.pop(done.id, None)
        self.tally.add(done.state.value)
        said = f"{done.name}, {done.stored_bytes} bytes, job {done.job}, rank {done.rank}"
        reason = f": {done.reason}" if done.reason else ""
        logger.info("trace %s %s: %s%s", done.id, done.state.value, said, reason)
