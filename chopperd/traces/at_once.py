"""Does two pieces of work in two threads: numpy lets other threads run while it works on much."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from chopperd.model.pairs import DoesBoth, FirstT, SecondT, in_turn


def doing_both(threads: int) -> DoesBoth:
    """How to do two pieces of work with so many threads."""
    return in_turn if threads < 2 else at_once


def at_once(first: Callable[[], FirstT], second: Callable[[], SecondT]) -> tuple[FirstT, SecondT]:
    """What each gives, the second worked out in a thread of its own."""
    with ThreadPoolExecutor(1, thread_name_prefix="chopperd-both") as other:
        later = other.submit(second)
        return first(), later.result()
