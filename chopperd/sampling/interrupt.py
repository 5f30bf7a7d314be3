"""A word in memory by which waits are cut short, also those that Python does not see."""

import threading
from array import array


class Interrupt:
    """Counts what came up; whoever waits looks up within a nap when the count has changed.

    Attributes:
        address: Where the count is (int64), for code that is not Python.
    """

    def __init__(self) -> None:
        self._word = array("q", [0])
        self._lock = threading.Lock()
        self.address = self._word.buffer_info()[0]

    @property
    def count(self) -> int:
        """How often something came up."""
        return self._word[0]

    def raise_(self) -> None:
        """Let all that wait look up: for a stop, or an order."""
        with self._lock:
            self._word[0] += 1
