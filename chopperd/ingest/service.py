"""The ingest service: its two threads, its pauses and its state.

One thread copies traces from the inbox, which may take long for a large file; the other collects
results of the analysis worker and gives it work. Uploads come on the API's threads.
"""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from chopperd.clock import Clock
from chopperd.config.paths import own_command
from chopperd.config.sections import Config
from chopperd.errors import IngestError, IngestReason
from chopperd.ingest.admission import Admission, Mode, Problem, Uploads
from chopperd.ingest.analyses import Analyses, AnalysisSettings
from chopperd.ingest.inbox import Inbox, InboxPoller
from chopperd.ingest.queue import QueueLimits, TraceQueue
from chopperd.ingest.worker_process import AnalysisWorker
from chopperd.model.captures import TraceState
from chopperd.model.live import AnalysisLive
from chopperd.model.report import ReportDocument
from chopperd.pipeline.reports import configured_options
from chopperd.store.captures.capture_store import CaptureStore

_TURN_S: Final = 0.25
_END_S: Final = 1.0


#: Step rows of one trace: as JSON each takes 1-2 KiB, and a worker's reply may have 16 MiB.
_MOST_STEP_ROWS: Final = 8192


class IngestService:
    """Takes traces in and has them analysed.

    `uploads` takes traces that clients send or name (`model.services.Ingest`); `is_ready` once
    the folders exist. `note_fault` is called at each exception that a thread survived.
    """

    def __init__(
        self,
        *,
        inbox: Inbox,
        queue: TraceQueue,
        analyses: Analyses,
        store: CaptureStore,
        mode: Mode,
        roots: tuple[Path, ...],
        clock: Clock,
        note_fault: Callable[[], None] = lambda: None,
    ) -> None:
        self._inbox = inbox
        self._queue = queue
        self._analyses = analyses
        self._mode = mode
        self._note_fault = note_fault
        self._inbox_wake = threading.Event()
        self._analysis_wake = threading.Event()
        self._stopped = threading.Event()
        self._paused = threading.Event()
        self._threads: list[threading.Thread] = []
        self.is_ready = False
        self._problem = Problem("traces are not taken in", clock)
        self._admission = Admission(
            queue, store, analyses, mode=mode, wake=self._analysis_wake.set, clock=clock
        )
        self._poller = InboxPoller(
            inbox,
            queue,
            self._admission,
            problem=self._problem,
            is_stopped=self._stopped.is_set,
            clock=clock,
        )
        self.uploads = Uploads(
            queue,
            self._admission,
            roots=roots,
            refuse=self._refuse_unless_ready,
            is_stopped=self._stopped.is_set,
            clock=clock,
        )

    def start(self) -> None:
        """Start the threads that take in and analyse traces."""
        for name, run in (("ingest", self._run_inbox), ("analyses", self._run_analyses)):
            thread = threading.Thread(target=run, name=f"chopperd-{name}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """Stop at once, and end the threads; work in progress is done again at the next start."""
        self._stopped.set()
        self.resume()  # ends the waits for the next turns
        self._analyses.worker.interrupt()
        for thread in self._threads:
            thread.join(_END_S)

    @property
    def is_alive(self) -> bool:
        """Whether both threads run."""
        return bool(self._threads) and all(thread.is_alive() for thread in self._threads)

    def pause(self) -> None:
        """Stop reading the inbox and analysing, at once; uploads are still stored."""
        self._paused.set()
        self._analyses.worker.interrupt()

    def resume(self) -> None:
        """End a pause."""
        self._paused.clear()
        self._inbox_wake.set()
        self._analysis_wake.set()

    def live(self) -> AnalysisLive:
        """Return the service's state; never waits for the disk."""
        working_on = self._analyses.working_on
        unfinished = [e for e in self._queue.all() if e.entry.state is not TraceState.ANALYSED]
        outcomes = dict(self._analyses.tally.all())
        outcomes["rejected"] = outcomes.get("rejected", 0) + self._inbox.odd_count
        return AnalysisLive(
            mode=self._mode,
            waiting=sum(one.entry.id != working_on for one in unfinished),
            working_on=working_on,
            worker_pid=self._analyses.worker.pid,
            outcomes=outcomes,
            worker_losses=self._analyses.worker_losses,
            spool_bytes=self._queue.bytes,
            trouble=self._problem.text or self._analyses.problem,
        )

    def _refuse_unless_ready(self) -> None:
        if self._mode == "off":
            text = "traces are not taken in here: set analysis.mode to here or spool"
            raise IngestError(text, reason=IngestReason.OFF)
        if not self.is_ready:
            text = f"traces can't be taken in: {self._problem.text or 'the agent has just started'}"
            raise IngestError(text, reason=IngestReason.NO_ROOM)

    def _run_inbox(self) -> None:
        if self._mode != "off":
            self._repeat(self._poll_inbox, self._inbox_wake)
        self._stopped.wait()

    def _run_analyses(self) -> None:
        def turn() -> bool:
            self._analyses.turn(_TURN_S, paused=self._is_halted())
            return self._analyses.worker.busy

        try:
            if self._mode == "here":
                self._repeat(turn, self._analysis_wake)
            self._stopped.wait()
        finally:
            self._analyses.close()

    def _repeat(self, turn: Callable[[], bool], wake: threading.Event) -> None:
        """Take turns until stopped; an exception ends only its turn.

        A turn returns whether there is more to do at once; else `wake` ends the wait for
        the next.
        """
        while not self._stopped.is_set():
            has_more = False
            try:
                has_more = turn()
            except OSError as error:
                self._problem.note(f"{error.filename}: {error.strerror}")
            except Exception as error:  # noqa: BLE001 one bad turn must not end the thread
                self._note_fault()
                self._problem.note(f"{type(error).__name__}: {error}", error)
            if not has_more:
                wake.wait(_TURN_S)
                wake.clear()

    def _poll_inbox(self) -> bool:
        if not self.is_ready:
            self._queue.open()
            self._inbox.open()
            self._problem.clear()
            self.is_ready = True
            self._admission.recover()
        return not self._is_halted() and self._poller.poll(self._is_halted)

    def _is_halted(self) -> bool:
        return self._paused.is_set() or self._stopped.is_set()


def new_ingest(
    config: Config,
    state: Path,
    store: CaptureStore,
    clock: Clock,
    *,
    count_document: Callable[[ReportDocument], None] = lambda _document: None,
    command: Sequence[str] | None = None,
    note_fault: Callable[[], None] = lambda: None,
) -> IngestService:
    """Make the ingest service by the configuration, not started: nothing on disk changes yet.

    `command` starts the analysis worker; None: this program's own.
    """
    limits = QueueLimits(
        file_bytes=config.ingest.max_stored_bytes,
        all_bytes=config.analysis.spool_max_bytes,
        failed_count=config.ingest.keep_failed,
        min_free_ratio=config.store.min_free_ratio,
    )
    settings = AnalysisSettings(
        recorder=state / "recorder",
        options=replace(configured_options(config, in_agent=True), most_rows=_MOST_STEP_ROWS),
        timeout_s=config.analysis.timeout_s,
        keep_traces=config.analysis.keep_traces,
    )
    command = command or worker_command(config.analysis.memory_max_bytes)
    worker = AnalysisWorker(command, idle_s=config.analysis.idle_s, clock=clock)
    queue = TraceQueue(state, limits)
    return IngestService(
        inbox=Inbox(state / "inbox", config.ingest.settle_s, clock),
        queue=queue,
        analyses=Analyses(queue, store, worker, settings, clock, count_document),
        store=store,
        mode=config.analysis.mode,
        roots=tuple(Path(root) for root in config.ingest.roots),
        clock=clock,
        note_fault=note_fault,
    )


def worker_command(memory_max_bytes: int) -> list[str]:
    """Return the command line that starts the analysis worker."""
    return own_command("_analysis", "--memory-max-bytes", str(memory_max_bytes))
