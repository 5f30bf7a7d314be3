"""Waiting in tests for what another thread or process does."""

import time
from collections.abc import Callable
from typing import TypeVar

_EVERY_S = 0.01
Measured = TypeVar("Measured")


def wait_for(condition: Callable[[], object], what: str = "it", within_s: float = 30.0) -> float:
    """Return as soon as the condition holds, and how long that took, in s; fail after a time."""
    start = time.monotonic()
    while not condition():
        waited_s = time.monotonic() - start
        assert waited_s < within_s, f"waited {within_s:g} s in vain: {what}"
        time.sleep(_EVERY_S)
    return time.monotonic() - start


def settled(
    measure: Callable[[], Measured], quiet_s: float = 1.5, within_s: float = 30.0
) -> Measured:
    """What a measure gives once it has given the same for a while; fail where it never does.

    For what is compared with later: what the step before has left (a connection that is still
    being closed, a thread that ends) must not be in it.
    """
    start = since = time.monotonic()
    found = measure()
    while time.monotonic() - since < quiet_s:
        time.sleep(_EVERY_S)
        if (now := measure()) != found:
            found, since = now, time.monotonic()
        assert since - start < within_s, f"has not settled within {within_s:g} s: {found}"
    return found
