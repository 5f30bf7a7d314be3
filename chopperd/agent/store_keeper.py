"""The thread that keeps the store within its bounds, and tries a disk that refused again."""

import logging
import threading
from typing import Final

from chopperd.store.capture_store import CaptureStore

logger = logging.getLogger(__name__)

_EVERY_S: Final = 60.0


class StoreKeeper:
    """Looks after a store once a minute.

    Args:
        store: From now on this object's own to close.
    """

    def __init__(self, store: CaptureStore) -> None:
        self.store = store
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="chopperd-store", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End, and close the store."""
        self._stop.set()
        self._thread.join()
        self.store.close()

    def _run(self) -> None:
        while not self._stop.wait(_EVERY_S):
            try:
                self.store.prune()
            except Exception:  # a store that can't be pruned now is still to be used
                logger.exception("the store could not be kept within its bounds")
