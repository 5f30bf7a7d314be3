"""Seeded changes to a trace, of its bytes, events and document: a pure function of the numbers."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final, TypeAlias, TypeVar

from tests.fuzz.documents import WRAPPINGS, packed
from tests.fuzz.fragments import FRAGMENTS, NUMBERS, STAND_INS
from tests.fuzz.seeds import Seed
from tests.fuzz.structure import CHANGES

_NUMBER: Final = re.compile(rb"-?\d+(?:\.\d+)?")
_STRING: Final = re.compile(rb'"[^"\\]*"')
_ENDING_QUOTE: Final = re.compile(rb'[^\\]"')

ChangeT = TypeVar("ChangeT")
ByteChange: TypeAlias = Callable[[bytes, int, Random], tuple[bytes, int]]
"""Changes bytes at a place, or behind it, and gives the first that is no longer as it was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutated:
    """A mutated trace.

    Attributes:
        data: The file.
        seed: What it was made of.
        kinds: What was done to it.
        sound: How many events of the seed, from the first, are as they were.
        packed: Whether it is compressed.
        broken_stream: Whether its compressed stream is damaged itself: how much of the text before
            the damage can be had then depends on how it is read.
        changed_at: Offset of a change, about where reading is hard.
    """

    data: bytes
    seed: Seed
    kinds: tuple[str, ...]
    sound: int
    packed: bool = False
    broken_stream: bool = False
    changed_at: int = 0


class Mutator:
    """Mutates a set of seeds.

    Args:
        seeds: The seeds.
    """

    def __init__(self, seeds: Sequence[Seed]) -> None:
        self._seeds = seeds
        self._byte_changes = _weighted(BYTE_CHANGES)
        self._event_changes = _weighted(CHANGES)
        self._wrappings = _weighted(WRAPPINGS)

    def mutated(self, number: int, run: int) -> Mutated:
        """The mutated trace of a number; of equal numbers it is equal.

        Args:
            number: Of the input.
            run: Of the run, which changes all inputs.
        """
        random = Random(number * 1_000_003 + run)
        seed = random.choice(self._seeds)
        way = random.random()
        if way < 0.40:
            found = self._structure(seed, random)
        elif way < 0.49:
            found = self._document(seed, random)
        else:
            found = self._bytes(seed, seed.text, len(seed.events), random)
        if way < 0.1:  # both: what is odd already is damaged too
            found = self._bytes(seed, found.data, found.sound, random, found.kinds)
        return _packed(found, random) if random.random() < 0.05 else found

    def _structure(self, seed: Seed, random: Random) -> Mutated:
        events: list[object] = list(seed.events)
        first, kinds = len(events), []
        for _ in range(random.choice((1, 1, 2, 4))):
            kind, change = random.choice(self._event_changes)
            at = random.randrange(len(events)) if events else 0
            first = min(first, change(events, at, random))
            kinds.append(kind)
        data = seed.layout(events, seed.keys)
        at = seed.ends[min(first, len(seed.events))]
        return Mutated(data=data, seed=seed, kinds=tuple(kinds), sound=first, changed_at=at)

    def _document(self, seed: Seed, random: Random) -> Mutated:
        kind, change = random.choice(self._wrappings)
        wrapped = change(seed.text, seed, random)
        return Mutated(
            data=wrapped.data,
            seed=seed,
            kinds=(kind,),
            sound=len(seed.events) if wrapped.sound else 0,
            changed_at=random.randrange(len(wrapped.data) + 1),
        )

    def _bytes(
        self, seed: Seed, data: bytes, sound: int, random: Random, kinds: tuple[str, ...] = ()
    ) -> Mutated:
        first = len(data)
        for _ in range(random.choice((1, 1, 1, 2, 3, 6))):
            at = random.randrange(len(data)) if data else 0
            kind, change = random.choice(self._byte_changes)
            data, at = change(data, at, random)
            kinds, first = (*kinds, kind), min(first, at)
        whole = sum(end <= first for end in seed.ends) - 1
        return Mutated(
            data=data, seed=seed, kinds=kinds, sound=max(min(sound, whole), 0), changed_at=first
        )


def _packed(found: Mutated, random: Random) -> Mutated:
    stream = packed(found.data, random)
    return Mutated(
        data=stream.data,
        seed=found.seed,
        kinds=(*found.kinds, stream.kind),
        sound=found.sound if stream.whole else 0,
        packed=True,
        broken_stream=stream.broken,
    )


def insert(data: bytes, at: int, random: Random) -> tuple[bytes, int]:
    """A fragment more."""
    return data[:at] + random.choice(FRAGMENTS) + data[at:], at


def overwrite(data: bytes, at: int, random: Random) -> tuple[bytes, int]:
    """A fragment in the place of others."""
    fragment = random.choice(FRAGMENTS)
    return data[:at] + fragment + data[at + len(fragment) :], at


def flip(data: bytes, at: int, random: Random) -> tuple[bytes, int]:
    """Another bit."""
    if not data:
        return data, at
    return data[:at] + bytes([data[at] ^ (1 << random.randrange(8))]) + data[at + 1 :], at


def delete(data: bytes, at: int, random: Random) -> tuple[bytes, int]:
    """A hole."""
    return data[:at] + data[at + random.choice((1, 1, 2, 8, 60, 400)) :], at


def repeat(data: bytes, at: int, random: Random) -> tuple[bytes, int]:
    """A stretch twice or more."""
    length = random.choice((1, 2, 8, 60, 400))
    part = data[at : at + length]
    return data[: at + length] + part * random.choice((1, 1, 5)) + data[at + length :], at


def move(data: bytes, at: int, random: Random) -> tuple[bytes, int]:
    """A stretch elsewhere."""
    length = random.choice((1, 8, 60, 400))
    part, rest = data[at : at + length], data[:at] + data[at + length :]
    to = random.randrange(len(rest) + 1)
    return rest[:to] + part + rest[to:], min(at, to)


def cut(data: bytes, at: int, random: Random) -> tuple[bytes, int]:
    """No more from here on."""
    del random
    return data[:at], at


def other_number(data: bytes, at: int, random: Random) -> tuple[bytes, int]:
    """Another number, or what stands in the place of one."""
    found = _NUMBER.search(data, at)
    if found is None:
        return data, at
    number = random.choice(NUMBERS if random.random() < 0.6 else STAND_INS)
    return data[: found.start()] + number + data[found.end() :], found.start()


def other_string(data: bytes, at: int, random: Random) -> tuple[bytes, int]:
    """Another text between two quotes, or nothing between them, or none of the quotes."""
    found = _STRING.search(data, at)
    if found is None:
        return data, at
    text = random.choice((b'""', b'"' + random.choice(FRAGMENTS) + b'"', b"x", b'"\xff\0"'))
    return data[: found.start()] + text + data[found.end() :], found.start()


def quote_in_text(data: bytes, at: int, random: Random) -> tuple[bytes, int]:
    """Quotes in a text that no backslash is before, as in names of Python stacks."""
    found = _STRING.search(data, at)
    if found is None:
        return data, at
    to = random.randint(found.start() + 1, found.end() - 1)
    return data[:to] + random.choice((b'"', b'"x"', b'", "', b'":"', b'":NaN,"')) + data[to:], to


def escape(data: bytes, at: int, random: Random) -> tuple[bytes, int]:
    """A letter of a text or of a key, written as an escape."""
    found = _STRING.search(data, at)
    if found is None or found.end() - found.start() < 3:
        return data, at
    to = random.randint(found.start() + 1, found.end() - 2)
    letter = data[to : to + 1]
    if letter >= b"\x80":
        return data, to
    written = random.choice((b"\\u%04x" % letter[0], b"\\u%04X" % letter[0], b"\\" + letter))
    return data[:to] + written + data[to + 1 :], to


def no_closing_quote(data: bytes, at: int, random: Random) -> tuple[bytes, int]:
    """A quote less."""
    del random
    found = _ENDING_QUOTE.search(data, at)
    if found is None:
        return data, at
    return data[: found.end() - 1] + data[found.end() :], found.end() - 1


BYTE_CHANGES: Final[dict[str, tuple[int, ByteChange]]] = {
    "insert": (4, insert),
    "overwrite": (1, overwrite),
    "flip a bit": (2, flip),
    "delete": (2, delete),
    "repeat": (1, repeat),
    "move": (1, move),
    "cut": (1, cut),
    "other number": (4, other_number),
    "other string": (2, other_string),
    "quote in a text": (2, quote_in_text),
    "escape": (1, escape),
    "no closing quote": (1, no_closing_quote),
}
"""How often each is made, beside the others."""


def _weighted(changes: dict[str, tuple[int, ChangeT]]) -> list[tuple[str, ChangeT]]:
    return [(kind, change) for kind, (weight, change) in changes.items() for _ in range(weight)]
