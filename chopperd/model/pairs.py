"""Doing two pieces of work that need nothing of one another: here how, not with what."""

from collections.abc import Callable
from typing import Protocol, TypeVar

FirstT = TypeVar("FirstT")
SecondT = TypeVar("SecondT")


class DoesBoth(Protocol):
    """Does two pieces of work, in any order or at the same time."""

    def __call__(
        self, first: Callable[[], FirstT], second: Callable[[], SecondT]
    ) -> tuple[FirstT, SecondT]:
        """What each gives; raises what either raises."""


def in_turn(first: Callable[[], FirstT], second: Callable[[], SecondT]) -> tuple[FirstT, SecondT]:
    """What each gives, one after the other."""
    return first(), second()
