"""Traces that are sent to the agent: bytes as they come over a connection."""

from collections.abc import Callable

from chopperd.ingest.incoming import Incoming
from chopperd.model.captures import TraceEntry

Filing = Callable[[Incoming], tuple[TraceEntry, bool]]


class TraceUpload:
    """A trace on its way in (`model.services.Upload`); for one thread at a time.

    Args:
        incoming: Takes the bytes.
        filing: Takes in what has come; aborts it where that fails.
        ended: Called once when it is over, however it ends.
    """

    def __init__(self, incoming: Incoming, filing: Filing, ended: Callable[[], None]) -> None:
        self._incoming = incoming
        self._filing = filing
        self._ended: Callable[[], None] | None = ended

    def write(self, data: bytes) -> None:
        """Take the next bytes.

        Raises:
            IngestError: It grows too large, or there is no room; `abort` it.
        """
        self._incoming.write(data)

    def finish(self) -> tuple[TraceEntry, bool]:
        """The trace as it was taken in, and whether it is new.

        Raises:
            IngestError: It can't be kept.
        """
        try:
            return self._filing(self._incoming)
        finally:
            self.abort()

    def abort(self) -> None:
        """Forget what came so far; nothing more once it is taken in."""
        self._incoming.abort()
        ended, self._ended = self._ended, None
        if ended is not None:
            ended()
