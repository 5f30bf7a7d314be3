"""One lock for Python and C, through the C library's own calls."""

import ctypes
import threading

import pytest

from chopperd.devices.read_plan import SharedLock

_BUSY = 16
LIBRARY = ctypes.CDLL(None)


def tried(lock: SharedLock) -> int:
    """What C gets that tries to take it; lets go of it again."""
    code: int = LIBRARY.pthread_mutex_trylock(ctypes.c_void_p(lock.address))
    if code == 0:
        LIBRARY.pthread_mutex_unlock(ctypes.c_void_p(lock.address))
    return code


def test_what_python_holds_c_does_not_get() -> None:
    lock = SharedLock()
    assert tried(lock) == 0
    with lock:
        assert tried(lock) == _BUSY
    assert tried(lock) == 0


def test_an_error_lets_go_of_it() -> None:
    lock = SharedLock()
    with pytest.raises(ZeroDivisionError), lock:
        1 / 0  # noqa: B018 - for its error
    assert tried(lock) == 0


def test_who_waits_for_it_lets_other_threads_run() -> None:
    lock, got = SharedLock(), threading.Event()

    def take() -> None:
        with lock:
            got.set()

    with lock:
        thread = threading.Thread(target=take, name="chopperd-test-lock")
        thread.start()
        assert not got.wait(0.05)  # this thread runs, and the other does not have it
    thread.join(20)
    assert got.is_set()
