"""Taking in traces: from the inbox, by upload, by name; a thread of its own sees to them."""

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from chopperd.agent.analyses import Analyses
from chopperd.agent.trace_store import TraceStore
from chopperd.clock import Clock, RepeatLimiter
from chopperd.errors import IngestError, IngestReason
from chopperd.live.file_names import sent_name, shown_name
from chopperd.live.inbox import Arrival, ChangedError, Inbox
from chopperd.live.incoming import Incoming
from chopperd.live.named_files import opened_under
from chopperd.live.spool import Spool, Spooled
from chopperd.live.uploads import TraceUpload
from chopperd.model.captures import TraceEntry, TraceState
from chopperd.model.live import AnalysisLive
from chopperd.units import NS_PER_MS, NS_PER_S

logger = logging.getLogger(__name__)

Mode = Literal["here", "off", "spool"]

_SCAN_EVERY_NS: Final = 500 * NS_PER_MS
#: A look at a crowded inbox takes longer; it may take this share of the time.
_SCAN_SHARE: Final = 20
_TURN_S: Final = 0.25
_TAKE_NS: Final = 250 * NS_PER_MS
_RETRY_NS: Final = 5 * NS_PER_S
_MOST_UPLOADS: Final = 8
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
    ) -> None:
        self._inbox = inbox
        self._spool = spool
        self._analyses = analyses
        self._store = store
        self._policy = policy
        self._clock = clock
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopped = threading.Event()
        self._paused = threading.Event()
        self._thread: threading.Thread | None = None
        self._arrivals: deque[Arrival] = deque()
        self._scan_ns = 0
        self._is_open = False
        self._uploads_count = 0
        self._trouble: str | None = None
        self._logging = RepeatLimiter(clock)

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
            mode=self._policy.mode,
            waiting=waiting_count,
            working_on=working_on,
            worker_pid=self._analyses.worker_pid,
            outcomes=outcomes,
            worker_losses=self._analyses.worker_losses,
            spool_bytes=self._spool.bytes,
            trouble=self._trouble or self._analyses.trouble,
        )

    def open_upload(
        self, *, name: str, job: str | None, owner_uid: int | None, expected_bytes: int | None
    ) -> TraceUpload:
        """Begin to take a trace.

        Raises:
            IngestError: Traces are not taken in now, or it is too large.
        """
        shown, begun_unix_ns = sent_name(name), self._clock.unix_ns()

        def file(incoming: Incoming) -> tuple[TraceEntry, bool]:
            return self._take_in(incoming, shown, _job(job), owner_uid, begun_unix_ns)

        self._enter()
        try:
            incoming = self._spool.begin(expected_bytes)
        except BaseException:
            self._leave()
            raise
        return TraceUpload(incoming, file, self._leave)

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
        begun_unix_ns = self._clock.unix_ns()
        with (
            self._entered(),
            opened_under(path, self._policy.roots, owner_uid) as fd,
            self._spool.begin() as incoming,
        ):
            if not _copied(incoming, fd, self._stopped.is_set):
                raise IngestError("the agent ends", reason=IngestReason.BUSY)
            return self._take_in(incoming, sent_name(path), _job(job), owner_uid, begun_unix_ns)

    def _run(self) -> None:
        """The thread: whatever goes wrong with one turn, there is a next."""
        try:
            while not self._stopped.is_set():
                try:
                    self._turn()
                except OSError as error:
                    self._note_trouble(f"{error.filename}: {error.strerror}")
                    self._wait()
                except Exception as error:  # noqa: BLE001 one bad turn must not end the thread
                    self._note_trouble(f"{type(error).__name__}: {error}", error)
                    self._wait()
        finally:
            self._analyses.close()

    def _turn(self) -> None:
        paused = self._paused.is_set() or self._stopped.is_set()
        if self._policy.mode != "off" and not self._is_open:
            self._open()
        if self._policy.mode != "off" and not paused:
            self._look_into_inbox()
        if self._policy.mode == "here":
            wait_s = 0.0 if self._arrivals else _TURN_S
            self._analyses.turn(wait_s, paused=paused)
        if not self._analyses.busy and not self._arrivals:
            self._wait()

    def _wait(self) -> None:
        self._wake.wait(_TURN_S)
        self._wake.clear()

    def _open(self) -> None:
        """Make the folders, and take up what an earlier run left."""
        self._spool.open()
        self._inbox.open()
        self._is_open, self._trouble = True, None
        waiting = [one.entry.id for one in self._spool.all() if self._is_to_do(one)]
        self._lose_absent(set(waiting))
        if self._policy.mode == "here":
            self._analyses.add(waiting)

    def _is_to_do(self, one: Spooled) -> bool:
        """Whether a trace that was found in the spool waits; puts spool and store in accord."""
        if one.entry.state is TraceState.ANALYSED:
            return False
        known = self._store.known(one.entry.id)
        if known is None or known.state in {TraceState.QUEUED, TraceState.SPOOLED}:
            if known is None or known.state is not self._waiting_state:
                self._store.put_trace(replace(one.entry, state=self._waiting_state))
            return True
        self._spool.discard(one.entry.id)
        return False

    def _lose_absent(self, present: set[str]) -> None:
        """Say of traces that should wait and are not there that they are lost."""
        for entry in self._store.waiting():
            if entry.id not in present:
                reason, now_ns = "its file is gone", self._clock.unix_ns()
                lost = replace(
                    entry, state=TraceState.FAILED, reason=reason, finished_unix_ns=now_ns
                )
                self._store.put_trace(lost)
                self._analyses.tally.add("failed")

    @property
    def _waiting_state(self) -> TraceState:
        return TraceState.QUEUED if self._policy.mode == "here" else TraceState.SPOOLED

    def _look_into_inbox(self) -> None:
        """Take files that stand still, for a moment; the rest has its turn in the next one."""
        begin_ns = self._clock.mono_ns()
        if not self._arrivals and begin_ns >= self._scan_ns:
            self._spool.make_folders()  # somebody may have removed them
            self._inbox.open()
            self._arrivals.extend(self._inbox.scan())
            end_ns = self._clock.mono_ns()
            self._scan_ns = end_ns + max(_SCAN_EVERY_NS, _SCAN_SHARE * (end_ns - begin_ns))
        while self._arrivals and self._clock.mono_ns() - begin_ns < _TAKE_NS:
            if self._stopped.is_set() or self._paused.is_set():
                return
            self._take_arrival(self._arrivals.popleft())

    def _take_arrival(self, arrival: Arrival) -> None:
        try:
            with suppress(ChangedError):
                self._copy_arrival(arrival)
        except IngestError as error:
            if error.reason is IngestReason.TOO_LARGE:
                self._refuse(arrival, f"{arrival.name} {error}")
                return
            self._note_trouble(str(error))
            self._arrivals.clear()
            self._scan_ns = self._clock.mono_ns() + _RETRY_NS
        except OSError as error:
            self._inbox.note_odd(arrival, f"can't be read: {error.strerror}")

    def _copy_arrival(self, arrival: Arrival) -> None:
        now_ns = self._clock.unix_ns()
        written_ns = min(arrival.written_unix_ns, now_ns)
        with self._spool.begin(arrival.stored_bytes) as incoming:
            with self._inbox.opened(arrival) as fd:
                if not incoming.copy(fd, self._stopped.is_set):
                    return
            self._take_in(incoming, arrival.name, arrival.job, arrival.owner_uid, written_ns)
        self._trouble = None
        self._inbox.remove(arrival)

    def _refuse(self, arrival: Arrival, reason: str) -> None:
        """Take away a file that is too large to be taken or kept, and say why."""
        logger.warning("%s: it is removed from the inbox", reason)
        self._spool.explain(arrival.name, reason)
        self._inbox.remove(arrival)
        self._analyses.tally.add("rejected")

    def _take_in(
        self,
        incoming: Incoming,
        name: str,
        job: str | None,
        owner_uid: int | None,
        written_unix_ns: int,
    ) -> tuple[TraceEntry, bool]:
        """Keep a trace that is there in whole, unless its bytes are known; and have it analysed.

        Raises:
            IngestError: There is no room.
        """
        with self._lock:
            known = self._known(incoming.trace_id)
            if known is not None:
                self._analyses.tally.add("duplicate")
                return known, False
            entry = TraceEntry(
                id=incoming.trace_id,
                name=name,
                job=job,
                owner_uid=owner_uid,
                state=self._waiting_state,
                reason=None,
                stored_bytes=incoming.size_bytes,
                received_unix_ns=self._clock.unix_ns(),
            )
            self._spool.keep(incoming, Spooled(entry=entry, written_unix_ns=written_unix_ns))
            self._store.put_trace(entry)
        if self._policy.mode == "here":
            self._analyses.add([entry.id])
        else:
            self._analyses.tally.add("spooled")
        self._wake.set()
        return entry, True

    def _known(self, trace_id: str) -> TraceEntry | None:
        """The trace of these bytes; None if there is none."""
        known = self._store.known(trace_id)
        spooled = self._spool.get(trace_id)
        return spooled.entry if known is None and spooled is not None else known

    def _note_trouble(self, trouble: str, error: Exception | None = None) -> None:
        """Say why traces are not taken in, in the log now and then."""
        self._trouble = trouble
        if self._logging.is_due():
            logger.warning("traces are not taken in: %s", trouble, exc_info=error)

    @contextmanager
    def _entered(self) -> Iterator[None]:
        self._enter()
        try:
            yield
        finally:
            self._leave()

    def _enter(self) -> None:
        """Let one more trace be on its way.

        Raises:
            IngestError: There are enough, or none are wanted.
        """
        if self._policy.mode == "off":
            text = "traces are not taken in here (analysis.mode = off)"
            raise IngestError(text, reason=IngestReason.OFF)
        if not self._is_open:
            text = f"traces can't be taken in: {self._trouble or 'the agent has just started'}"
            raise IngestError(text, reason=IngestReason.NO_ROOM)
        with self._lock:
            if self._uploads_count >= _MOST_UPLOADS:
                text = f"{_MOST_UPLOADS} traces are on their way already: try again"
                raise IngestError(text, reason=IngestReason.BUSY)
            self._uploads_count += 1

    def _leave(self) -> None:
        with self._lock:
            self._uploads_count -= 1


def _job(job: str | None) -> str | None:
    return shown_name(job) if job else None


def _copied(incoming: Incoming, fd: int, stopped: Callable[[], bool]) -> bool:
    try:
        return incoming.copy(fd, stopped)
    except OSError as error:
        text = f"it can't be read: {error.strerror}"
        raise IngestError(text, reason=IngestReason.NOT_FOUND) from error
