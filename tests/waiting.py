"""Waiting in tests for what another thread or process does."""

import time
from collections.abc import Callable

_EVERY_S = 0.01


def wait_for(condition: Callable[[], object], what: str = "it", within_s: float = 30.0) -> float:
    """Return as soon as the condition holds, and how long that took, in s; fail after a time."""
    start = time.monotonic()
    while not condition():
        waited_s = time.monotonic() - start
        assert waited_s < within_s, f"waited {within_s:g} s in vain: {what}"
        time.sleep(_EVERY_S)
    return time.monotonic() - start
