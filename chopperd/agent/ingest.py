"""The taking in of traces: its thread, its pauses, and how it stands.

What is dropped comes by `inbox_rounds`, what is handed in by `handed_in`; both keep it by `intake`,
and `analyses` does the work.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from chopperd.agent.analyses import Analyses
from chopperd.agent.handed_in import HandedIn
from chopperd.agent.inbox_rounds import InboxRounds
from chopperd.agent.intake import Intake, Mode
from chopperd.agent.trace_store import TraceStore
from chopperd.agent.trouble import Trouble
from chopperd.clock import Clock
from chopperd.errors import IngestError, IngestReason
from chopperd.live.inbox import Inbox
from chopperd.live.spool import Spool
from chopperd.live.uploads import TraceUpload
from chopperd.model.captures import TraceEntry, TraceState
from chopperd.model.live import AnalysisLive

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
        note_fault: Told of each fault that the thread outlived, to count it.
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
        self._wake = threading.Event()
        self._stopped = threading.Event()
        self._paused = threading.Event()
        self._thread: threading.Thread | None = None
        self._is_open = False
        self._trouble = Trouble("traces are not taken in", clock)
        self._intake = Intake(
            spool, store, analyses, mode=policy.mode, wake=self._wake.set, clock=clock
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
        self._thread = threading.Thread(target=self._run, name="chopperd-ingest", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End at once; what is under work is begun anew at the next start."""
        self._stopped.set()
        self._wake.set()
        self._analyses.interrupt()
        if self._thread is not None:
            self._thread.join(_END_S)

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread is not None and self._thread.is_alive()

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
        self._wake.set()

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
        self, *, name: str, job: str | None, owner_uid: int | None, expected_bytes: int | None
    ) -> TraceUpload:
        """Begin to take a trace.

        Raises:
            IngestError: Traces are not taken in now, or it is too large.
        """
        return self._handed_in.open_upload(
            name=name, job=job, owner_uid=owner_uid, expected_bytes=expected_bytes
        )

    def take_file(
        self, path: str, *, job: str | None, owner_uid: int | None
    ) -> tuple[TraceEntry, bool]:
        """Take a copy of a file under `ingest.roots`; the trace, and whether it is new.

        Args:
            path: The file.
            job: The job that it is of; None takes what it says itself.
            owner_uid: Who asks, and must be able to read it; None: who may read all.

        Raises:
            IngestError: It is not under a root, not a plain file, or not to be read by its owner.
        """
        return self._handed_in.take_file(path, job=job, owner_uid=owner_uid)

    def _refuse_unless_open(self) -> None:
        if self._mode == "off":
            text = "traces are not taken in here (analysis.mode = off)"
            raise IngestError(text, reason=IngestReason.OFF)
        if not self._is_open:
            text = f"traces can't be taken in: {self._trouble.text or 'the agent has just started'}"
            raise IngestError(text, reason=IngestReason.NO_ROOM)

    def _run(self) -> None:
        """The thread: whatever goes wrong with one turn, there is a next."""
        try:
            while not self._stopped.is_set():
                try:
                    self._turn()
                except OSError as error:
                    self._trouble.note(f"{error.filename}: {error.strerror}")
                    self._wait()
                except Exception as error:  # noqa: BLE001 one bad turn must not end the thread
                    self._note_fault()
                    self._trouble.note(f"{type(error).__name__}: {error}", error)
                    self._wait()
        finally:
            self._analyses.close()

    def _turn(self) -> None:
        paused = self._is_halted()
        if self._mode != "off" and not self._is_open:
            self._open()
        if self._mode != "off" and not paused:
            self._rounds.go(self._is_halted)
        if self._mode == "here":
            wait_s = 0.0 if self._rounds.has_more else _TURN_S
            self._analyses.turn(wait_s, paused=paused)
        if not self._analyses.busy and not self._rounds.has_more:
            self._wait()

    def _is_halted(self) -> bool:
        return self._paused.is_set() or self._stopped.is_set()

    def _wait(self) -> None:
        self._wake.wait(_TURN_S)
        self._wake.clear()

    def _open(self) -> None:
        """Make the folders, and take up what an earlier run left."""
        self._spool.open()
        self._inbox.open()
        self._trouble.clear()
        self._is_open = True
        self._intake.take_up()
