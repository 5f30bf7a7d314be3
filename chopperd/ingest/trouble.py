"""Why a part of the agent does not work now."""

import logging

from chopperd.clock import Clock, RepeatLimiter

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
