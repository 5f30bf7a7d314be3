"""Cuts the stream of bytes into the document's keys and its event array, and decodes the array.

No brackets are counted and no layout is assumed. A block that starts between two elements and
decodes as a JSON array ends between two elements; so a cut is *guessed* at something that looks
like the border of two events, and taken only if the block before it decodes.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from chopperd.traces.decode import (
    ExactEvent,
    Fault,
    QuickEvent,
    Refusal,
    exact_events,
    quick_events,
)
from chopperd.traces.document import Texts, document_texts, is_cut_short
from chopperd.traces.salvage import EVENT_BORDER, salvage
from chopperd.traces.text import may_lack_value, offset_without_nulls, valid_text, with_nulls
from chopperd.traces.text_buffer import Buffer

_EVENTS: Final = b'"traceEvents"'
_EVENTS_KEY: Final = re.compile(rb'"traceEvents"\s*:\s*(?=\[)')
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_FAR_MORE: Final = 8
_CUTS_TRIED: Final = 4
_OPENINGS_TRIED: Final = 8
_DAMAGE_PASSED: Final = 8
"""Damaged events in a block that are passed singly; with more, all the rest is read singly."""
_FIRST_SEARCH_BYTES: Final = 16 * 1024
_LONG_BYTES: Final = 1 << 20
"""How much of heads is passed over before the next place where the array may open is taken."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Some events, in file order.

    Attributes:
        events: Whole events.
        exact: Whether their times are decimals (`ExactEvent`) or numbers (`QuickEvent`).
    """

    events: Sequence[QuickEvent] | Sequence[ExactEvent]
    exact: bool


@dataclass(frozen=True, slots=True)
class Opening:
    """Where the event array opens.

    Attributes:
        head: The document up to the array; empty if the document is the array.
        position: Offset of the array's first byte after its bracket.
        texts: The keys of the head; a refusal where it is damaged.
    """

    head: bytes
    position: int
    texts: Texts | Refusal


def find_opening(data: bytes) -> Opening | None:
    """The opening of the event array in the first bytes of a document; None if not yet there.

    A `traceEvents` inside another object is passed over: with the array closed right there, the
    document would not be whole. In a damaged head the first one is taken, and after a few that are
    passed over the next.
    """
    start = len(data) - len(without_mark(data).lstrip())
    if data[start : start + 1] == b"[":
        return Opening(b"", start + 1, {})
    passed_bytes = 0
    for number, key in enumerate(_keys_of_events(data, start)):
        head = data[start : key.end()]
        if number == _OPENINGS_TRIED or passed_bytes > _LONG_BYTES:
            return Opening(head, key.end() + 1, Refusal(Fault.INCOMPLETE))
        texts = document_texts(head + b"[]}")
        if not is_cut_short(texts):
            return Opening(head, key.end() + 1, texts)
        passed_bytes += len(head)
    return None


def _keys_of_events(data: bytes, start: int) -> Iterator[re.Match[bytes]]:
    """What looks like the key of the event array, and its colon."""
    while (start := data.find(_EVENTS, start)) >= 0:
        if key := _EVENTS_KEY.match(data, start):
            yield key
        start += len(_EVENTS)


def without_mark(data: bytes) -> bytes:
    """The text without the byte order mark that some editors put first."""
    return data.removeprefix(_BYTE_ORDER_MARK)


def is_cut_mark(data: bytes) -> bool:
    """Whether a text is no more than the beginning of a byte order mark."""
    return len(data) < len(_BYTE_ORDER_MARK) and _BYTE_ORDER_MARK.startswith(data)


class EventArray:
    """The elements of `traceEvents`, decoded as their bytes arrive.

    Attributes:
        damaged, damaged_args, undecodable: Elements damaged or lost, as in `Damage`.
        tail: What follows the array; None until its end is seen.
        truncated: Whether the data ended inside an element.
    """

    def __init__(self) -> None:
        self.damaged = 0
        self.damaged_args = 0
        self.undecodable = 0
        self.tail: bytes | None = None
        self.truncated = False
        self._pending = b""
        self._wanted_bytes = 0
        self._exact = False

    @property
    def pending_bytes(self) -> int:
        """How much waits for its end: part of an element, or the tail."""
        return len(self._pending) + len(self.tail or b"")

    def feed(self, data: Buffer) -> Iterator[Batch]:
        """The events that `data` completes."""
        data = bytes(data)
        if self.tail is not None:
            self.tail += data
        elif len(self._pending) + len(data) < self._wanted_bytes:
            self._pending += data
        elif (batch := self._at_once(data)) is not None:
            yield batch
        else:
            self._pending += data
            whole_bytes = len(self._pending)
            yield from self._read(final=False)
            # Text without an end in sight is looked at again when there is far more of it.
            passed = len(self._pending) < whole_bytes
            self._wanted_bytes = 0 if passed else _FAR_MORE * whole_bytes

    def finish(self) -> Iterator[Batch]:
        """The events of what is left when the data have ended."""
        if self.tail is None:
            yield from self._read(final=True)
        self.truncated = self.tail is None and self._pending != b""

    def _at_once(self, data: bytes) -> Batch | None:
        """The events up to the last border in `data`; None if anything stands in the way.

        The common case: what is pending and what has come are copied once, not twice.
        """
        cut = next(_cuts(data), None)
        if cut is None:
            return None
        block = memoryview(data)[: cut.end]
        outcome = self._decode(b"".join((b"[", self._pending, block, b"]")))
        if isinstance(outcome, Refusal):
            return None
        self._pending = data[cut.start :]
        return outcome

    def _read(self, *, final: bool) -> list[Batch]:
        """All pending events that are whole; those that may go on stay pending if not `final`."""
        attempt = self._rest if final else self._block
        outcome = attempt()
        if isinstance(outcome, Refusal) and self._repair(final=final):
            outcome = attempt()
        batches: list[Batch] = []
        for _ in range(_DAMAGE_PASSED):
            if not isinstance(outcome, Refusal) or outcome.fault is not Fault.MALFORMED:
                break
            left_bytes = len(self._pending)
            batches += self._pass_damage(outcome, final=final)
            if len(self._pending) == left_bytes:
                return batches
            outcome = attempt() if self.tail is None else None
        if isinstance(outcome, Refusal):
            outcome = self._salvage(final=final)
        return [*batches, outcome] if outcome else batches

    def _pass_damage(self, damage: Refusal, *, final: bool) -> Iterator[Batch]:
        """The events before a damaged one, and those read in passing it.

        Before the place of the damage, a block is decoded as usual; one by one is ten times slower.
        """
        before = next(_cuts(self._pending[: damage.offset or 0]), None)
        if before is not None:
            outcome = self._decode(b"".join((b"[", self._pending[: before.end], b"]")))
            if isinstance(outcome, Batch):
                self._pending = self._pending[before.start :]
                yield outcome
        yield self._salvage(final=final, damage_limit=1)

    def _block(self) -> Batch | Refusal | None:
        """The pending events up to the last border; None if no border is in sight."""
        outcome: Batch | Refusal | None = None
        for cut in islice(_cuts(self._pending), _CUTS_TRIED):
            block = memoryview(self._pending)[: cut.end]
            outcome = self._decode(b"".join((b"[", block, b"]")))
            if isinstance(outcome, Batch):
                self._pending = self._pending[cut.start :]
                return outcome
            if outcome.fault is Fault.TRAILING:
                return self._close(outcome)
            if outcome.fault is not Fault.INCOMPLETE:
                return outcome
        return outcome

    def _rest(self) -> Batch | Refusal:
        """All pending events, where the array's end is among them."""
        outcome = self._decode(b"[" + self._pending)
        if isinstance(outcome, Batch):
            self.tail, self._pending = b"", b""
        elif outcome.fault is Fault.TRAILING:
            return self._close(outcome)
        return outcome

    def _decode(self, array: bytes) -> Batch | Refusal:
        """The events of an array, in which NaN and infinities may stand for numbers."""
        outcome = self._typed(array)
        if not isinstance(outcome, Refusal) or not may_lack_value(array, outcome.offset):
            return outcome
        outcome = self._typed(with_nulls(array))
        if isinstance(outcome, Refusal) and outcome.offset is not None:
            return Refusal(outcome.fault, offset_without_nulls(array, outcome.offset))
        return outcome

    def _typed(self, array: bytes) -> Batch | Refusal:
        """The events of an array, in the cheaper form of times as long as it holds them."""
        if not self._exact:
            quick = quick_events(array)
            if not isinstance(quick, Refusal):
                return Batch(quick, exact=False)
            if quick.fault is not Fault.INVALID:
                return quick
        exact = exact_events(array)
        if isinstance(exact, Refusal):
            return exact
        self._exact = True
        return Batch(exact, exact=True)

    def _repair(self, *, final: bool) -> bool:
        """Repair the pending text; tells whether that changed it."""
        text = valid_text(self._pending, final=final)
        changed, self._pending = text != self._pending, text
        return changed

    def _close(self, trailing: Refusal) -> Batch | Refusal:
        """The last events; the tail begins where the parser of `[` + pending found more."""
        end = (trailing.offset or 0) - 1
        outcome = self._decode(b"[" + self._pending[:end])
        if isinstance(outcome, Batch):
            self.tail, self._pending = self._pending[end:], b""
        return outcome

    def _salvage(self, *, final: bool, damage_limit: int | None = None) -> Batch:
        found = salvage(self._pending, final=final, damage_limit=damage_limit)
        self.damaged += found.damaged
        self.damaged_args += found.damaged_args
        self.undecodable += found.undecodable
        if found.ended:
            self.tail, self._pending = found.rest, b""
        else:
            self._pending = found.rest
        return Batch(found.events, exact=True)


@dataclass(frozen=True, slots=True)
class _Cut:
    """A guess where an element ends and the next one starts."""

    end: int
    start: int


def _cuts(data: bytes) -> Iterator[_Cut]:
    """What looks like the border of two events, last first.

    The search goes backwards in growing windows: the last border is usually in the last one.
    """
    stop, window = len(data), _FIRST_SEARCH_BYTES
    while stop > 0:
        begin = max(stop - window, 0)
        borders = list(EVENT_BORDER.finditer(data, begin))
        within = [b for b in borders if b.start() < stop]
        for border in reversed(within):
            yield _Cut(border.start() + 1, border.end())
        stop, window = begin, window * 8
