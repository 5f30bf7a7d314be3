"""The taking in of traces: its threads, its pauses, and how it stands.

What is dropped comes by `inbox_rounds`, what is handed in by `handed_in`; both keep it by `intake`,
and `analyses` does the work. One thread copies, which may take long for a large file; another
collects results and hands out work.
"""

import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from chopperd.clock import Clock
from chopperd.config.sections import Config
from chopperd.errors import IngestError, IngestReason
from chopperd.ingest.admission import Intake, Mode, Trouble
from chopperd.ingest.analyses import Analyses, AnalysisSettings
from chopperd.ingest.inbox import Inbox, InboxRounds
from chopperd.ingest.queue import Spool, SpoolLimits
from chopperd.ingest.trace_store import TraceStore
from chopperd.ingest.uploads import HandedIn, TraceUpload
from chopperd.ingest.worker_process import AnalysisWorker
from chopperd.model.captures import TraceEntry, TraceState
from chopperd.model.live import AnalysisLive
from chopperd.pipeline.configured import configured_options

_TURN_S: Final = 0.25
_END_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestPolicy:
    """What is taken in.

    Attributes:
        mode: Whether traces are analysed ("here"), kept for later ("spool"), or left ("off").
        roots: Where `take_file` may take files.
    """

    mode: Mode
    roots: tuple[Path, ...]


class IngestService:
    """Takes in traces and has them analysed (`model.services.Ingest`).

    Args:
        inbox: Where jobs drop traces.
        spool: Where they are kept meanwhile.
        analyses: Works on them.
        store: Where what is known of them is kept.
        policy: What is taken in.
        clock: Tells the time.
        note_fault: Told of each fault that a thread outlived, to count it.
    """

    def __init__(
        self,
        *,
        inbox: Inbox,
        spool: Spool,
        analyses: Analyses,
        store: TraceStore,
        policy: IngestPolicy,
        clock: Clock,
        note_fault: Callable[[], None] = lambda: None,
    ) -> None:
        self._inbox = inbox
        self._spool = spool
        self._analyses = analyses
        self._mode = policy.mode
        self._note_fault = note_fault
        self._taking_wake = threading.Event()
        self._analysis_wake = threading.Event()
        self._stopped = threading.Event()
        self._paused = threading.Event()
        self._threads: list[threading.Thread] = []
        self._is_open = False
        self._trouble = Trouble("traces are not taken in", clock)
        self._intake = Intake(
            spool, store, analyses, mode=policy.mode, wake=self._analysis_wake.set, clock=clock
        )
        self._rounds = InboxRounds(
            inbox,
            spool,
            self._intake,
            tally=analyses.tally,
            trouble=self._trouble,
            is_stopped=self._stopped.is_set,
            clock=clock,
        )
        self._handed_in = HandedIn(
            spool,
            self._intake,
            roots=policy.roots,
            refuse=self._refuse_unless_open,
            is_stopped=self._stopped.is_set,
            clock=clock,
        )

    def start(self) -> None:
        """Begin to take in traces."""
        for name, run in (
            ("chopperd-ingest", self._run_taking),
            ("chopperd-analyses", self._run_analyses),
        ):
            thread = threading.Thread(target=run, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """End at once; what is under work is begun anew at the next start."""
        self._stopped.set()
        self._wake_all()
        self._analyses.interrupt()
        for thread in self._threads:
            thread.join(_END_S)

    @property
    def is_alive(self) -> bool:
        """Whether both threads run."""
        return bool(self._threads) and all(thread.is_alive() for thread in self._threads)

    @property
    def is_ready(self) -> bool:
        """Whether traces are taken in: its folders are there."""
        return self._is_open

    def pause(self) -> None:
        """Stop taking from the inbox and analysing, at once; uploads are taken and wait."""
        self._paused.set()
        self._analyses.interrupt()

    def resume(self) -> None:
        """Go on."""
        self._paused.clear()
        self._wake_all()

    def live(self) -> AnalysisLive:
        """How it stands; never waits."""
        kept = self._spool.all()
        working_on = self._analyses.working_on
        waiting_count = sum(
            one.entry.state is not TraceState.ANALYSED and one.entry.id != working_on
            for one in kept
        )
        outcomes = dict(self._analyses.tally.all())
        outcomes["rejected"] = outcomes.get("rejected", 0) + self._inbox.odd_count
        return AnalysisLive(
            mode=self._mode,
            waiting=waiting_count,
            working_on=working_on,
            worker_pid=self._analyses.worker_pid,
            outcomes=outcomes,
            worker_losses=self._analyses.worker_losses,
            spool_bytes=self._spool.bytes,
            trouble=self._trouble.text or self._analyses.trouble,
        )

    def open_upload(
        self,
        *,
        name: str,
        job: str | None,
        owner_uid: int | None,
        expected_bytes: int | None,
        device_map: str | None = None,
    ) -> TraceUpload:
        """Begin to take a trace.

        Raises:
            IngestError: Traces are not taken in now, or it is too large.
        """
        return self._handed_in.open_upload(
            name=name,
            job=job,
            owner_uid=owner_uid,
            expected_bytes=expected_bytes,
            device_map=device_map,
        )

    def take_file(
        self,
        path: str,
        *,
        job: str | None,
        owner_uid: int | None,
        device_map: str | None = None,
    ) -> tuple[TraceEntry, bool]:
        """Take a copy of a file under `ingest.roots`; the trace, and whether it is new.

        Args:
            path: The file.
            job: The job that it is of; None takes what it says itself.
            owner_uid: Who asks, and must be able to read it; None: who may read all.
            device_map: Which GPU each of its devices is; None leaves that to be found out.

        Raises:
            IngestError: It is not under a root, not a plain file, or not to be read by its owner.
        """
        return self._handed_in.take_file(path, job=job, owner_uid=owner_uid, device_map=device_map)

    def _refuse_unless_open(self) -> None:
        if self._mode == "off":
            text = "traces are not taken in here: set analysis.mode to here or spool"
            raise IngestError(text, reason=IngestReason.OFF)
        if not self._is_open:
            text = f"traces can't be taken in: {self._trouble.text or 'the agent has just started'}"
            raise IngestError(text, reason=IngestReason.NO_ROOM)

    def _wake_all(self) -> None:
        self._taking_wake.set()
        self._analysis_wake.set()

    def _run_taking(self) -> None:
        self._repeat(self._take, self._taking_wake)

    def _run_analyses(self) -> None:
        try:
            self._repeat(self._analyse, self._analysis_wake)
        finally:
            self._analyses.close()

    def _repeat(self, turn: Callable[[], bool], wake: threading.Event) -> None:
        """Take turns until stopped; whatever goes wrong with one, there is a next.

        Args:
            turn: Returns whether there is more to do at once.
            wake: Ends the wait for the next turn.
        """
        while not self._stopped.is_set():
            has_more = False
            try:
                has_more = turn()
            except OSError as error:
                self._trouble.note(f"{error.filename}: {error.strerror}")
            except Exception as error:  # noqa: BLE001 one bad turn must not end the thread
                self._note_fault()
                self._trouble.note(f"{type(error).__name__}: {error}", error)
            if not has_more:
                wake.wait(_TURN_S)
                wake.clear()

    def _take(self) -> bool:
        if self._mode == "off":
            return False
        if not self._is_open:
            self._open()
        if not self._is_halted():
            self._rounds.go(self._is_halted)
        return self._rounds.has_more and not self._is_halted()

    def _analyse(self) -> bool:
        if self._mode != "here":
            return False
        self._analyses.turn(_TURN_S, paused=self._is_halted())
        return self._analyses.busy

    def _is_halted(self) -> bool:
        return self._paused.is_set() or self._stopped.is_set()

    def _open(self) -> None:
        """Make the folders, and take up what an earlier run left."""
        self._spool.open()
        self._inbox.open()
        self._trouble.clear()
        self._is_open = True
        self._intake.take_up()


# The taking in of traces put together from what the configuration says.

#: Of one trace: as JSON each takes 1-2 KiB, and a worker's reply may have 16 MiB.
_MOST_STEP_ROWS: Final = 8192


def new_ingest(
    config: Config,
    state: Path,
    store: TraceStore,
    clock: Clock,
    *,
    command: Sequence[str] | None = None,
    note_fault: Callable[[], None] = lambda: None,
) -> IngestService:
    """What takes in traces, not started yet; nothing on disk is touched before it is.

    Args:
        config: All settings.
        state: The state folder: `inbox`, `traces`, `rejected` and `recorder` are in it.
        store: Where results go.
        clock: Tells the time.
        command: Starts the analysis worker; None for this program's own.
        note_fault: Told of each fault that its thread outlived.
    """
    spool = Spool(state, _limits(config))
    settings = AnalysisSettings(
        recorder=state / "recorder",
        options=replace(configured_options(config, in_agent=True), most_rows=_MOST_STEP_ROWS),
        timeout_s=config.analysis.timeout_s,
        keep_traces=config.analysis.keep_traces,
    )
    worker = AnalysisWorker(
        command or worker_command(config.analysis.memory_max_bytes),
        idle_s=config.analysis.idle_s,
        clock=clock,
    )
    roots = tuple(Path(root) for root in config.ingest.roots)
    return IngestService(
        inbox=Inbox(state / "inbox", config.ingest.settle_s, clock),
        spool=spool,
        analyses=Analyses(spool, store, worker, settings, clock),
        store=store,
        policy=IngestPolicy(mode=config.analysis.mode, roots=roots),
        clock=clock,
        note_fault=note_fault,
    )


def worker_command(memory_max_bytes: int) -> list[str]:
    """What starts the analysis worker."""
    # -P: no module in the working directory may shadow one of ours.
    start = [sys.executable, "-P", "-m", "chopperd", "_analysis"]
    return [*start, "--memory-max-bytes", str(memory_max_bytes)]


def _limits(config: Config) -> SpoolLimits:
    return SpoolLimits(
        file_bytes=config.ingest.max_stored_bytes,
        all_bytes=config.analysis.spool_max_bytes,
        failed_count=config.ingest.keep_failed,
        min_free_ratio=config.store.min_free_ratio,
    )
