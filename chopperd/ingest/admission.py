"""A trace that is there in whole: it is kept once, in spool and store alike, and then analysed.

How it came is the business of `inbox_rounds` and `handed_in`.
"""

import hashlib
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Literal

from chopperd.clock import Clock, RepeatLimiter
from chopperd.errors import IngestError, IngestReason
from chopperd.ingest.analyses import Analyses
from chopperd.ingest.incoming import ID_DIGITS, Incoming
from chopperd.ingest.queue import Spool, Spooled
from chopperd.ingest.trace_store import TraceStore
from chopperd.model.captures import TraceEntry, TraceState

Mode = Literal["here", "off", "spool"]

_WAITING: Final = frozenset({TraceState.QUEUED, TraceState.SPOOLED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Sender:
    """What is known of a trace besides its bytes.

    Attributes:
        name: What it is called.
        job: The job that it is of; None takes what it says itself.
        owner_uid: Whose it is; None: nobody knows.
        written_unix_ns: No later than this it was written.
        device_map: Which GPU each of its devices is, as who sent it says; None: not said.
    """

    name: str
    job: str | None
    owner_uid: int | None
    written_unix_ns: int
    device_map: str | None = None


class Intake:
    """Keeps traces and has them analysed; `take` is for any thread.

    Args:
        spool: Where they are kept meanwhile.
        store: Where what is known of them is kept.
        analyses: Works on them.
        mode: Whether they are analysed ("here") or kept for later ("spool").
        wake: Called when there is one more.
        clock: Tells the time.
    """

    def __init__(
        self,
        spool: Spool,
        store: TraceStore,
        analyses: Analyses,
        *,
        mode: Mode,
        wake: Callable[[], None],
        clock: Clock,
    ) -> None:
        self._spool = spool
        self._store = store
        self._analyses = analyses
        self._mode = mode
        self._wake = wake
        self._clock = clock
        self._lock = threading.Lock()

    def take(self, incoming: Incoming, sender: Sender) -> tuple[TraceEntry, bool]:
        """Keep a trace, unless its bytes are known; what is kept, and whether it is new.

        With a device map, one that was analysed is analysed again.

        Raises:
            IngestError: There is no room, or it is to be analysed again before it was.
        """
        with self._lock:
            known = self._known(incoming.trace_id)
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
            kept = Spooled(entry=entry, written_unix_ns=sender.written_unix_ns)
            self._spool.keep(incoming, kept)
            self._store.put_trace(entry)
        if self._mode == "here":
            self._analyses.add([entry.id])
        else:
            self._analyses.tally.add("spooled")
        self._wake()
        return entry, True

    def note_refused(self, sender: Sender, size_bytes: int, reason: str) -> None:
        """Record a trace that was left where it is, without its bytes, as rejected."""
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

    def take_up(self) -> None:
        """Have what an earlier run left in the spool analysed, and say what it has lost."""
        waiting = [one.entry.id for one in self._spool.all() if self._is_to_do(one)]
        self._lose_absent(set(waiting))
        if self._mode == "here":
            self._analyses.add(waiting)

    @property
    def _waiting_state(self) -> TraceState:
        return TraceState.QUEUED if self._mode == "here" else TraceState.SPOOLED

    def _known(self, trace_id: str) -> TraceEntry | None:
        """The trace of these bytes; None if there is none."""
        known = self._store.known(trace_id)
        spooled = self._spool.get(trace_id)
        return spooled.entry if known is None and spooled is not None else known

    def _is_again(self, known: TraceEntry, sender: Sender) -> bool:
        """Whether its owner hands in a known trace to be analysed with a device map.

        Raises:
            IngestError: It was not analysed yet.
        """
        is_owner = sender.owner_uid is None or sender.owner_uid == known.owner_uid
        if sender.device_map is None or not is_owner or self._mode != "here":
            return False
        spooled = self._spool.get(known.id)
        states = {known.state, known.state if spooled is None else spooled.entry.state}
        if states & _WAITING:
            text = "the same trace waits for its analysis: hand it in again after that"
            raise IngestError(text, reason=IngestReason.BUSY)
        return True

    def _is_to_do(self, one: Spooled) -> bool:
        """Whether a trace that was found in the spool waits; puts spool and store in accord."""
        if one.entry.state is TraceState.ANALYSED:
            return False
        known = self._store.known(one.entry.id)
        if known is None or known.state in _WAITING:
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


# Why a part of the agent does not work now.

logger = logging.getLogger(__name__)


class Trouble:
    """What keeps a part from working, until it works again; in the log now and then.

    Args:
        consequence: What does not happen meanwhile, for the log.
        clock: Tells the time.
    """

    def __init__(self, consequence: str, clock: Clock) -> None:
        self._consequence = consequence
        self._logging = RepeatLimiter(clock)
        self._text: str | None = None

    @property
    def text(self) -> str | None:
        """For people; None where there is none. For any thread."""
        return self._text

    def note(self, text: str, error: Exception | None = None) -> None:
        """Say what is wrong; with an error, the log shows where it came from."""
        self._text = text
        if self._logging.is_due():
            logger.warning("%s: %s", self._consequence, text, exc_info=error)

    def clear(self) -> None:
        """Say that it works."""
        self._text = None
