"""The event array read by the scanner: as `blocks.EventArray`, without an object per event.

Stretches are scanned side by side where several threads may: a stretch is cut where an event seems
to start, before it is known that one does. Each scan tells where it stopped; if that is not the
cut, what came behind it is scanned again from there.
"""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from chopperd.traces.salvage import EVENT_BORDER, array_end
from chopperd.traces.scanned import Scanned

_LOOK_AHEAD_BYTES: Final = 8 * 1024
"""Behind a cut, so that an event that follows a damaged one is seen whole."""


class Scan(Protocol):
    """`native.scanner.Scanner.scan`, of a scanner that no other thread is using."""

    def __call__(self, text: bytes, limit: int, *, final: bool) -> Scanned:
        """The elements of `text` that start before `limit`."""


Later: TypeAlias = Callable[[bytes, int], "Future[Scanned]"]
"""Starts a scan that is not the file's last in another thread."""


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Text up to `limit`, which is being scanned, and some of what follows it."""

    text: bytes
    limit: int
    scanned: "Future[Scanned]"


class ScannedArray:
    """The elements of `traceEvents`, scanned as their bytes arrive.

    Attributes:
        damaged, undecodable: Elements lost, as in `Damage`.
        tail: What follows the array; None until its end is seen.
        truncated: Whether the data ended inside an element.

    Args:
        scan: Scans in this thread.
        later: Scans in other threads; None to do all in this one.
        side_by_side: How many stretches may be under way.
    """

    def __init__(self, scan: Scan, later: Later | None = None, side_by_side: int = 0) -> None:
        self.damaged = 0
        self.undecodable = 0
        self.tail: bytes | None = None
        self.truncated = False
        self._scan = scan
        self._later = later
        self._side_by_side = side_by_side
        self._under_way: deque[_Stretch] = deque()
        self._pending = b""
        self._wanted_bytes = 0

    @property
    def pending_bytes(self) -> int:
        """How much waits for its end: part of an element, or the tail."""
        return len(self._pending) + len(self.tail or b"")

    def feed(self, data: bytes) -> Iterator[Scanned]:
        """The events that are read by now."""
        if self.tail is not None:
            self.tail += data
            return
        self._pending += data
        if len(self._pending) < self._wanted_bytes:
            return
        cut = _cut(self._pending) if self._later else None
        if self._later and cut is not None:
            scanned = self._later(self._pending, cut)
            self._under_way.append(_Stretch(self._pending, cut, scanned))
            self._pending = self._pending[cut:]
            yield from self._done(at_most=self._side_by_side)
        else:
            yield from self._done(at_most=0)
            yield from self._read(final=False)

    def finish(self) -> Iterator[Scanned]:
        """The events of what is left when the data have ended."""
        yield from self._done(at_most=0)
        if self.tail is None:
            yield from self._read(final=True)
        self.truncated = self.tail is None and self._pending != b""

    def _done(self, *, at_most: int) -> Iterator[Scanned]:
        """What has been scanned, in order, until so many stretches are left under way."""
        while len(self._under_way) > at_most and self.tail is None:
            stretch = self._under_way.popleft()
            found = stretch.scanned.result()
            yield self._counted(found)
            if found.ended or found.consumed != stretch.limit:
                self._go_back(stretch, found)

    def _go_back(self, stretch: _Stretch, found: Scanned) -> None:
        """Take back all that was cut behind the place where a scan stopped."""
        behind = [each.text[: each.limit] for each in self._under_way]
        rest = b"".join((stretch.text[: stretch.limit], *behind, self._pending))
        self._pending = rest[found.consumed :]
        for each in self._under_way:
            each.scanned.cancel()
        self._under_way.clear()
        if found.ended:
            self.tail, self._pending = self._pending, b""

    def _read(self, *, final: bool) -> Iterator[Scanned]:
        """The whole elements of what is pending."""
        if self.tail is not None:
            return
        found = self._scan(self._pending, len(self._pending), final=final)
        yield self._counted(found)
        self._pending = self._pending[found.consumed :]
        # Text without an end in sight is looked at again when there is far more of it.
        self._wanted_bytes = 0 if found.consumed else 4 * len(self._pending)
        if found.ended:
            self.tail, self._pending = self._pending, b""
        elif found.stuck:
            self._pass_last_damage()

    def _pass_last_damage(self) -> None:
        """The array's end behind a damaged element that no event follows, if it can be told."""
        end = array_end(self._pending, 0)
        if end is not None:
            self.damaged += 1
            self.tail, self._pending = self._pending[end + 1 :], b""

    def _counted(self, found: Scanned) -> Scanned:
        self.damaged += found.damaged
        self.undecodable += found.undecodable
        return found


def _cut(text: bytes) -> int | None:
    """Where an event seems to start, with room to look ahead behind it; None where none does."""
    stop = len(text) - _LOOK_AHEAD_BYTES
    window = _LOOK_AHEAD_BYTES
    while stop > 0:
        begin = max(stop - window, 0)
        starts = [border.end() for border in EVENT_BORDER.finditer(text, begin, stop)]
        if starts:
            return starts[-1]
        stop, window = begin, window * 8
    return None
