"""Admission of complete traces: each is stored once, on disk and in the database, then analysed.

`inbox` finds the traces that jobs drop; `uploads` takes those that clients send or name.
"""

import hashlib
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from msgspec.structs import replace

from chopperd.clock import Clock, RepeatLimiter
from chopperd.errors import IngestError, IngestReason
from chopperd.ingest.analyses import Analyses
from chopperd.ingest.incoming import ID_DIGITS, Incoming
from chopperd.ingest.queue import QueuedTrace, TraceQueue
from chopperd.model.captures import TraceEntry, TraceState
from chopperd.store.captures.capture_store import CaptureStore

logger = logging.getLogger(__name__)

#: Traces are analysed here, stored for later ("spool"), or not taken.
Mode = Literal["here", "off", "spool"]

_WAITING: Final = frozenset({TraceState.QUEUED, TraceState.SPOOLED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Sender:
    """Name, job, owner, time and device map that come with a trace's bytes."""

    name: str
    job: str | None  # the job that it belongs to; None: the one that the trace itself names
    owner_uid: int | None  # its owner; None: unknown
    written_unix_ns: int  # it was written no later than this
    #: Which GPU each of its devices is, by the sender; None: not given.
    device_map: str | None = None


class Admission:
    """Stores traces and queues them for analysis; `admit` is for any thread.

    `wake` is called when there is one more trace.
    """

    def __init__(
        self,
        queue: TraceQueue,
        store: CaptureStore,
        analyses: Analyses,
        *,
        mode: Mode,
        wake: Callable[[], None],
        clock: Clock,
    ) -> None:
        self._queue = queue
        self._store = store
        self._analyses = analyses
        self._is_here = mode == "here"
        self._waiting_state = TraceState.QUEUED if mode == "here" else TraceState.SPOOLED
        self._wake = wake
        self._clock = clock
        self._lock = threading.Lock()

    def admit(self, incoming: Incoming, sender: Sender) -> tuple[TraceEntry, bool]:
        """Store and queue a trace, unless its bytes are known; return its entry and if it is new.

        An analysed trace that comes again with a device map is analysed again.

        Raises:
            IngestError: There is no room, or the same trace still waits for its first analysis.
        """
        with self._lock:
            known, queued = self._store.known(incoming.trace_id), self._queue.get(incoming.trace_id)
            known = queued.entry if known is None and queued is not None else known
            if known is not None and not self._is_again(known, sender):
                self._analyses.tally.add("duplicate")
                return known, False
            entry = TraceEntry(
                id=incoming.trace_id,
                name=sender.name,
                job=sender.job,
                owner_uid=sender.owner_uid if known is None else known.owner_uid,
                state=self._waiting_state,
                reason=None,
                stored_bytes=incoming.size_bytes,
                received_unix_ns=self._clock.unix_ns(),
                device_map=sender.device_map,
            )
            fresh = QueuedTrace(entry=entry, written_unix_ns=sender.written_unix_ns)
            self._queue.put(incoming, fresh)
            self._store.put_trace(entry)
        if self._is_here:
            self._analyses.add([entry.id])
        else:
            self._analyses.tally.add("spooled")
        self._wake()
        return entry, True

    def note_refused(self, sender: Sender, size_bytes: int, reason: str) -> None:
        """Record as rejected a trace that was not copied."""
        now_ns = self._clock.unix_ns()
        identity = f"{sender.job}/{sender.name}/{sender.written_unix_ns}/{size_bytes}"
        self._store.put_trace(
            TraceEntry(
                id=hashlib.sha256(identity.encode()).hexdigest()[:ID_DIGITS],
                name=sender.name,
                job=sender.job,
                owner_uid=sender.owner_uid,
                state=TraceState.REJECTED,
                reason=reason,
                stored_bytes=size_bytes,
                received_unix_ns=now_ns,
                finished_unix_ns=now_ns,
            )
        )
        self._analyses.tally.add("rejected")

    def recover(self) -> None:
        """Queue the traces of an earlier run, and record as failed those whose file is gone."""
        waiting = {one.entry.id: None for one in self._queue.all() if self._is_to_do(one)}
        for entry in self._store.waiting():
            if entry.id not in waiting:
                lost = replace(entry, state=TraceState.FAILED, reason="its file is gone")
                self._store.put_trace(replace(lost, finished_unix_ns=self._clock.unix_ns()))
                self._analyses.tally.add("failed")
        if self._is_here:
            self._analyses.add(waiting)

    def _is_again(self, known: TraceEntry, sender: Sender) -> bool:
        """Whether a known trace is sent again by its owner to be analysed with a device map."""
        is_owner = sender.owner_uid is None or sender.owner_uid == known.owner_uid
        if sender.device_map is None or not is_owner or not self._is_here:
            return False
        queued = self._queue.get(known.id)
        states = {known.state, known.state if queued is None else queued.entry.state}
        if states & _WAITING:
            text = "the same trace waits for its analysis: hand it in again after that"
            raise IngestError(text, reason=IngestReason.BUSY)
        return True

    def _is_to_do(self, one: QueuedTrace) -> bool:
        """Whether a trace found on disk waits for analysis; makes disk and database agree."""
        if one.entry.state is TraceState.ANALYSED:
            return False
        known = self._store.known(one.entry.id)
        if known is not None and known.state not in _WAITING:
            self._queue.discard(one.entry.id)
            return False
        if known is None or known.state is not self._waiting_state:
            self._store.put_trace(replace(one.entry, state=self._waiting_state))
        return True


class Problem:
    """Stores and logs why a part of the agent does not work now, at most once a minute.

    `text` is None where the part works, and for any thread; the log also has the consequence.
    """

    def __init__(self, consequence: str, clock: Clock) -> None:
        self._consequence = consequence
        self._logging = RepeatLimiter(clock)
        self.text: str | None = None

    def note(self, text: str, error: Exception | None = None) -> None:
        """Store why the part does not work, and log it if due, with the traceback of `error`."""
        self.text = text
        if self._logging.is_due():
            logger.warning("%s: %s", self._consequence, text, exc_info=error)

    def clear(self) -> None:
        """Clear the text: the part works again."""
        self.text = None
