"""A bounded number of places for requests that hold on to something for long."""

from collections.abc import Iterator
from contextlib import contextmanager

from chopperd.api.problems import retry_later


class Places:
    """So many at a time; used on one event loop only.

    Args:
        limit: How many.
        what: Of what, for people: "streams".
    """

    def __init__(self, limit: int, what: str) -> None:
        self._limit = limit
        self._what = what
        self._taken = 0

    @contextmanager
    def one(self) -> Iterator[None]:
        """One of them, until it is left.

        Raises:
            ProblemError: All are taken.
        """
        if self._taken >= self._limit:
            raise retry_later(f"all {self._limit} {self._what} are taken: try later", after_s=10)
        self._taken += 1
        try:
            yield
        finally:
            self._taken -= 1
