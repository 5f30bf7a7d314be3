"""The thread that keeps the store within its bounds, and tries a disk that refused again.

It also writes drops of the busy clock: they are rare, and the main loop never waits for a disk.
"""

import logging
import threading
from collections.abc import Callable
from typing import Final

from chopperd.clock import Clock
from chopperd.live.drops import DropQueue
from chopperd.store.captures.capture_store import CaptureStore
from chopperd.units import NS_PER_S

logger = logging.getLogger(__name__)

_EVERY_S: Final = 2.0
_PRUNED_NS: Final = 60 * NS_PER_S


class StoreKeeper:
    """Prunes a store once a minute, and puts into it the drops that wait.

    Args:
        store: From now on this object's own to close.
        drops: What waits to be kept.
        clock: Tells the time.
        note_fault: Told of each fault that the thread outlived, to count it.
    """

    def __init__(
        self,
        store: CaptureStore,
        drops: DropQueue,
        clock: Clock,
        note_fault: Callable[[], None] = lambda: None,
    ) -> None:
        self.store = store
        self._note_fault = note_fault
        self._drops = drops
        self._clock = clock
        self._pruned_ns = clock.mono_ns()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="chopperd-store", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End, with the last drops kept, and close the store."""
        self._stop.set()
        self._thread.join()
        self._keep_drops()
        self.store.close()

    def _run(self) -> None:
        while not self._stop.wait(_EVERY_S):
            self._keep_drops()
            if self._clock.mono_ns() - self._pruned_ns >= _PRUNED_NS:
                self._pruned_ns = self._clock.mono_ns()
                self._prune()

    def _keep_drops(self) -> None:
        drops = self._drops.take()
        if not drops:
            return
        try:
            self.store.put_drops(drops)
        except Exception:  # the store must be closed, and bounded, all the same
            self._note_fault()
            logger.exception("%d clock drops could not be kept", len(drops))

    def _prune(self) -> None:
        try:
            self.store.prune()
        except Exception:  # a store that can't be pruned now is still to be used
            self._note_fault()
            logger.exception("the store could not be kept within its bounds")
