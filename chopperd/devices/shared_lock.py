"""A lock that Python and C can both take: for drivers that one thread may call at a time."""

import ctypes
from functools import cache
from typing import Final

#: Room for a `pthread_mutex_t` of any C library; all zeros is an unlocked one on Linux.
_BYTES: Final = 64


class SharedLock:
    """A mutex of the C library's, in memory of its own.

    A driver call that never returns leaves it taken: whoever takes it then waits as long.
    """

    def __init__(self) -> None:
        self._memory = ctypes.create_string_buffer(_BYTES)
        # Made once: it is taken for each driver call.
        self._mutex = ctypes.c_void_p(self.address)
        self._lock, self._unlock = _library().pthread_mutex_lock, _library().pthread_mutex_unlock

    @property
    def address(self) -> int:
        """Of the `pthread_mutex_t`."""
        return ctypes.addressof(self._memory)

    def __enter__(self) -> None:
        """Take it, with the GIL released meanwhile."""
        self._lock(self._mutex)

    def __exit__(self, *_error: object) -> None:
        """Let go of it."""
        self._unlock(self._mutex)


@cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL(None)
