"""The traces that wait for the worker, one under work at a time, and what becomes of each."""

import logging
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from chopperd.clock import Clock
from chopperd.ingest.queue import Spool
from chopperd.ingest.trace_store import Tally, TraceStore
from chopperd.ingest.worker_process import AnalysisWorker, Loss, Lost
from chopperd.model.captures import AnalysedTrace, Filed, TraceEntry, TraceState
from chopperd.model.run import device_map_of
from chopperd.pipeline.frames import Analyse, Analysed, Compose, Composed, Failed, FrameError, Reply
from chopperd.pipeline.reports import Origin, ReportOptions
from chopperd.units import NS_PER_S

logger = logging.getLogger(__name__)

#: A trace over which the worker died so often is not tried again.
_MOST_DEATHS: Final = 2
#: Nor one that was begun so often and never came to an end, as what ended was the agent itself.
_MOST_STARTS: Final = 6
#: The samples of a trace's last moments are recorded so long after its end.
_RECORDED_AFTER_NS: Final = 2 * NS_PER_S
#: After so many traces, or so long, a document is made also if more traces wait.
_MOST_UNCOMPOSED: Final = 16
_LONGEST_UNCOMPOSED_NS: Final = 10 * NS_PER_S
#: A worker that does not start is tried again after so long.
_PAUSE_NS: Final = 5 * NS_PER_S


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

    filed: Filed
    traces: dict[str, tuple[TraceEntry, AnalysedTrace]]
    since_mono_ns: int
    deaths: int = 0

    @property
    def id(self) -> int:
        """Of the capture."""
        return self.filed.entry.id


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
        self._served: dict[int | None, int] = {}
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
        self._take_filed()
        if paused and self._worker.busy:
            self._worker.interrupt()
        outcome = self._worker.poll(wait_s)
        if outcome is not None:
            self._trouble = None
            self._end_work(outcome)
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
        """Begin a document, if traces wait for that and no others or enough of them; or a trace."""
        trace_id = self._next_ready()
        if self._due and (trace_id is None or self._is_document_overdue()):
            self._begin_composing(self._due.pop(next(iter(self._due))))
        elif trace_id is not None:
            self._queue.remove(trace_id)
            self._begin_analysis(trace_id)

    def _is_document_overdue(self) -> bool:
        traces_count = sum(len(capture.traces) for capture in self._due.values())
        first_mono_ns = min(capture.since_mono_ns for capture in self._due.values())
        return (
            traces_count >= _MOST_UNCOMPOSED
            or self._clock.mono_ns() - first_mono_ns >= _LONGEST_UNCOMPOSED_NS
        )

    def _next_ready(self) -> str | None:
        """The next trace whose samples are all recorded; None if there is none.

        Each owner has one in turn, so that a thousand traces of one user delay another's by one.
        """
        now_ns = self._clock.unix_ns()
        first_by_owner: dict[int | None, str] = {}
        for trace_id in tuple(self._queue):
            spooled = self._spool.get(trace_id)
            age_ns = _RECORDED_AFTER_NS if spooled is None else now_ns - spooled.written_unix_ns
            owner = None if spooled is None else spooled.entry.owner_uid
            if owner in first_by_owner:
                continue
            if not 0 <= age_ns < _RECORDED_AFTER_NS:  # one of the future tells of a clock set back
                first_by_owner[owner] = trace_id
        if not first_by_owner:
            return None
        owner = min(first_by_owner, key=lambda each: self._served.get(each, 0))
        self._served = {each: self._served.get(each, 0) for each in first_by_owner}
        self._served[owner] = max(self._served.values()) + 1
        return first_by_owner[owner]

    def _begin_analysis(self, trace_id: str) -> None:
        spooled = self._spool.get(trace_id)
        if spooled is None:
            return
        if self._spool.note_start(trace_id) > _MOST_STARTS:
            reason = f"its analysis was begun {_MOST_STARTS} times and never came to an end"
            self._give_up(spooled.entry, TraceState.KILLED, reason)
            return
        recorder = self._settings.recorder
        request = Analyse(
            id=trace_id,
            path=str(self._spool.path(trace_id)),
            origin=Origin(name=spooled.entry.name, job=spooled.entry.job),
            recorder=None if recorder is None else str(recorder),
            options=_options_of(spooled.entry, self._settings.options),
        )
        self._worker.ask(request, self._settings.timeout_s)
        self._work = trace_id

    def _begin_composing(self, capture: _Capture) -> None:
        filed = capture.filed
        request = Compose(reports=filed.reports, run=filed.entry.run, note=filed.entry.note)
        try:
            self._worker.ask(request, self._settings.timeout_s)
        except FrameError as error:
            self._give_up_capture(capture, str(error))
        else:
            self._work = capture

    def _end_work(self, outcome: Reply | Lost) -> None:
        """Do with an outcome what is to be done; where that fails, the work is done again later."""
        work, self._work = self._work, None
        try:
            if isinstance(work, str):
                self._end_analysis(work, outcome)
            elif work is not None:
                self._end_composing(work, outcome)
        except BaseException:
            self._not_before_ns = self._clock.mono_ns() + _PAUSE_NS
            if isinstance(work, str):
                self._queue.append(work)
            elif work is not None:
                self._due.setdefault(work.id, work)
            raise

    def _end_analysis(self, trace_id: str, outcome: Reply | Lost) -> None:
        spooled = self._spool.get(trace_id)
        if spooled is None:
            return
        match outcome:
            case Analysed():
                self._file(spooled.entry, outcome.trace)
            case Failed():
                state = TraceState.REJECTED if outcome.rejected else TraceState.FAILED
                self._give_up(spooled.entry, state, outcome.message)
            case Lost():
                self._note_lost_analysis(spooled.entry, outcome)

    def _note_lost_analysis(self, entry: TraceEntry, lost: Lost) -> None:
        if self._is_no_fault_of_the_work(lost):
            self._spool.forgive_start(entry.id)
            self._queue.appendleft(entry.id)
            return
        self._deaths[entry.id] += 1
        if lost.how is Loss.TOO_SLOW:
            self._give_up(entry, TraceState.FAILED, lost.reason)
        elif self._deaths[entry.id] >= _MOST_DEATHS:
            self._give_up(entry, TraceState.KILLED, lost.reason)
        else:
            logger.warning(
                "trace %s (%s): %s; it is tried again", entry.id, entry.name, lost.reason
            )
            self._queue.append(entry.id)

    def _is_no_fault_of_the_work(self, lost: Lost) -> bool:
        """Whether work was lost by what it can't help; waits or counts accordingly."""
        if lost.how is Loss.INTERRUPTED:
            return True
        if lost.how is Loss.NOT_STARTED:
            self._trouble = lost.reason
            self._not_before_ns = self._clock.mono_ns() + _PAUSE_NS
            logger.warning("%s; it is tried again in %d s", lost.reason, _PAUSE_NS // NS_PER_S)
            return True
        self._losses += 1
        return False

    def _file(self, entry: TraceEntry, trace: AnalysedTrace) -> None:
        """Put a report into its capture."""
        self._make_due({entry.id: (entry, trace)}, self._store.file_analysed(trace))

    def _take_filed(self) -> None:
        """Make documents due of captures whose traces had to wait for the store's disk."""
        traces, changed = self._store.take_filed()
        found = [(spooled.entry, each) for each in traces if (spooled := self._spool.get(each.id))]
        self._make_due({entry.id: (entry, trace) for entry, trace in found}, changed)

    def _make_due(
        self, traces: dict[str, tuple[TraceEntry, AnalysedTrace]], changed: Sequence[Filed]
    ) -> None:
        """Let captures wait for their documents; traces that wait may change their capture."""
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
                for entry, trace in capture.traces.values():
                    self._finish(entry, trace)
            case Failed():
                self._give_up_capture(capture, outcome.message)
            case Lost():
                self._note_lost_composing(capture, outcome)

    def _note_lost_composing(self, capture: _Capture, lost: Lost) -> None:
        capture.deaths += not self._is_no_fault_of_the_work(lost)
        if lost.how is Loss.TOO_SLOW or capture.deaths >= _MOST_DEATHS:
            self._give_up_capture(capture, lost.reason)
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
            self._spool.retain(done)
        else:
            self._spool.discard(done.id)
        self._end(done, "analysed")

    def _give_up(self, entry: TraceEntry, state: TraceState, reason: str) -> None:
        done = replace(entry, state=state, reason=reason, finished_unix_ns=self._clock.unix_ns())
        self._store.put_trace(done)
        self._spool.reject(done.id, done.name, reason)
        self._end(done, state.value)

    def _end(self, done: TraceEntry, outcome: str) -> None:
        self._deaths.pop(done.id, None)
        self.tally.add(outcome)
        logger.info(
            "trace %s %s: %s, %d bytes, job %s, rank %s%s",
            done.id,
            outcome,
            done.name,
            done.stored_bytes,
            done.job,
            done.rank,
            f": {done.reason}" if done.reason else "",
        )


def _options_of(entry: TraceEntry, options: ReportOptions) -> ReportOptions:
    """How to make the report of a trace: as configured, with the device map that came with it."""
    if entry.device_map is None:
        return options
    device_map = device_map_of(entry.device_map, "device_map")
    return replace(options, join=replace(options.join, device_map=device_map))
