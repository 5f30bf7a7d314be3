"""Traces that jobs drop: the inbox is looked into again and again, and what stands still is taken.

One thread does it.
"""

import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from chopperd.clock import Clock
from chopperd.errors import IngestError, IngestReason
from chopperd.ingest.inbox import Arrival, ChangedError, Inbox
from chopperd.ingest.intake import Intake, Sender
from chopperd.ingest.queue import Spool
from chopperd.ingest.trace_store import Tally
from chopperd.ingest.trouble import Trouble
from chopperd.units import NS_PER_MS, NS_PER_S

logger = logging.getLogger(__name__)

_SCAN_EVERY_NS: Final = 500 * NS_PER_MS
#: A look at a crowded inbox takes longer; it may take this share of the time.
_SCAN_SHARE: Final = 20
_TAKE_NS: Final = 250 * NS_PER_MS
_RETRY_NS: Final = 5 * NS_PER_S


class InboxRounds:
    """Takes what jobs drop, a moment's worth at a time.

    Args:
        inbox: Where they drop it.
        spool: Where it is copied to, and where it is said what was refused.
        intake: Keeps it.
        tally: Counts what was refused.
        trouble: Told why nothing can be taken.
        is_stopped: Whether the agent ends: what is being copied is left where it is.
        clock: Tells the time.
    """

    def __init__(
        self,
        inbox: Inbox,
        spool: Spool,
        intake: Intake,
        *,
        tally: Tally,
        trouble: Trouble,
        is_stopped: Callable[[], bool],
        clock: Clock,
    ) -> None:
        self._inbox = inbox
        self._spool = spool
        self._intake = intake
        self._tally = tally
        self._trouble = trouble
        self._is_stopped = is_stopped
        self._clock = clock
        self._arrivals: deque[Arrival] = deque()
        self._scan_ns = 0

    @property
    def has_more(self) -> bool:
        """Whether there is more to take at once."""
        return bool(self._arrivals)

    def go(self, is_halted: Callable[[], bool]) -> None:
        """Take files that stand still, for a moment; the rest has its turn in the next round.

        Args:
            is_halted: Whether no further file is to be taken.
        """
        begin_ns = self._clock.mono_ns()
        if not self._arrivals and begin_ns >= self._scan_ns:
            self._spool.make_folders()  # somebody may have removed them
            self._inbox.open()
            self._arrivals.extend(self._inbox.scan())
            end_ns = self._clock.mono_ns()
            self._scan_ns = end_ns + max(_SCAN_EVERY_NS, _SCAN_SHARE * (end_ns - begin_ns))
        while self._arrivals and self._clock.mono_ns() - begin_ns < _TAKE_NS:
            if is_halted():
                return
            self._take(self._arrivals.popleft())

    def _take(self, arrival: Arrival) -> None:
        try:
            with suppress(ChangedError):
                self._copy(arrival)
        except IngestError as error:
            if error.reason is IngestReason.TOO_LARGE:
                self._refuse(arrival, f"{arrival.name} {error}")
                return
            self._trouble.note(str(error))
            self._arrivals.clear()
            self._scan_ns = self._clock.mono_ns() + _RETRY_NS
        except OSError as error:
            self._inbox.note_odd(arrival, f"can't be read: {error.strerror}")

    def _copy(self, arrival: Arrival) -> None:
        sender = _sender(arrival, self._clock)
        with self._spool.begin(arrival.stored_bytes) as incoming:
            with self._inbox.opened(arrival) as fd:
                if not incoming.copy(fd, self._is_stopped):
                    return
            self._intake.take(incoming, sender)
        self._trouble.clear()
        self._inbox.remove(arrival)

    def _refuse(self, arrival: Arrival, reason: str) -> None:
        """Leave a file that is too large to be taken or kept where it is, and say why.

        It may be the only one; with other limits it is taken at the next start.
        """
        logger.warning("%s: it stays in the inbox", reason)
        self._spool.explain(arrival.name, reason)
        self._intake.note_refused(_sender(arrival, self._clock), arrival.stored_bytes, reason)
        self._inbox.pass_over(arrival)
        self._tally.add("rejected")


def _sender(arrival: Arrival, clock: Clock) -> Sender:
    return Sender(
        name=arrival.name,
        job=arrival.job,
        owner_uid=arrival.owner_uid,
        written_unix_ns=min(arrival.written_unix_ns, clock.unix_ns()),
    )
