"""Seeded changes to a trace, of its bytes and of its structure: a pure function of the numbers."""

import gzip
import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from json import JSONDecoder
from random import Random
from typing import Final

from tests.fuzz.seeds import Seed
from tests.layouts import Event

_NUMBER: Final = re.compile(rb"-?\d+(?:\.\d+)?")
_STRING: Final = re.compile(rb'"[^"\\]*"')
_OPENING: Final = re.compile(rb'"traceEvents"\s*:\s*\[|\A\s*\[')

_FRAGMENTS: Final = (
    *(b'"', b"\\", b'\\"', b"\\u00", b"\\ud83d", b"\\ude00", b"\\x", b"'", b"`"),
    *(b"\0", b"\x01", b"\x1f", b"\x7f", b"\t", b"\n", b"\r\n", b" " * 50),
    *(b"\xff", b"\xc3", b"\xe2\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xef\xbb\xbf"),
    *(b"{", b"}", b"[", b"]", b",", b":", b",,", b"{}", b"[]", b"}}", b"]]", b"]}", b"},", b"},{"),
    *(b'},{"ph":"X"', b'"},\n  {\n    "ph": "X", "cat": "kernel"', b'}],"x":[', b'"traceEvents":['),
    *(b"NaN", b"-Infinity", b"null", b"true", b"nul", b"-", b"+1", b"01", b".5", b"5.", b"1e5"),
    *(b"1e999", b"-1e999", b"1e-999", b"9" * 19, b"9" * 40, b"9" * 400, b"0x7", b"1E+2", b"-0"),
    *(b"/* x */", b"// x\n", b"#", b"[" * 40, b"[" * 3000, b'{"a":' * 40, b'{"a":' * 3000),
    *(b'"args":{"device":0},', b'"ph":"X",', b'"name":"x",', b'"ts":5,', b'"a' * 100, b"a" * 3000),
)
_NUMBERS: Final = (
    *(b"0", b"-1", b"-0.0", b"1e3", b"1E-3", b"1e400", b"9223372036854775807"),
    *(b"9223372036854775808", b"-9223372036854775809", b"18446744073709551616", b"1099511627776"),
    *(b"0.0000000000000000000000001", b"1.5e15", b"4000000000000001", b"25300000000000000001"),
    *(
        b"NaN",
        b"Infinity",
        b"null",
        b'"7"',
        b"[7]",
        b"{}",
        b"true",
        b"7.5",
        b"1" * 300,
        b"1790857026000000.1234",
    ),
)
_VALUES: Final[tuple[object, ...]] = (
    *(None, True, 0, -1, 7.5, 2**31, 2**40, 2**62, 2**63, 2**64, 10**19, 1e300, 4e15, -4e15),
    *("", "7", "0x7", "stream 7", "x" * 1000, "\0\x01\x1f", 'a"b\\c', "\ud7ff\U0001f600"),
    *([], {}, [[]], [None], [{"ph": "X", "cat": "kernel"}], {"ph": "X"}, [["},{"]], [[[[[[]]]]]]),
)
_ELEMENTS: Final[tuple[object, ...]] = (
    None,
    7,
    "x",
    True,
    [],
    {},
    [[]],
    {"ph": 7},
    {"cat": "kernel"},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutated:
    """A mutated trace.

    Attributes:
        data: The file.
        seed: What it was made of.
        sound: How many events of the seed, from the first, are as they were.
        broken_stream: Whether its compressed stream is damaged itself: how much of the text before
            the damage can be had then depends on how it is read.
    """

    data: bytes
    seed: Seed
    sound: int
    broken_stream: bool = False


class Mutator:
    """Mutates a set of seeds.

    Args:
        seeds: The seeds.
    """

    def __init__(self, seeds: Sequence[Seed]) -> None:
        self._seeds = seeds
        self._texts = [seed.text for seed in seeds]
        self._ends = [event_ends(text) for text in self._texts]

    def mutated(self, number: int, run: int) -> Mutated:
        """The mutated trace of a number; of equal numbers it is equal.

        Args:
            number: Of the input.
            run: Of the run, which changes all inputs.
        """
        random = Random(number * 1_000_003 + run)
        which = random.randrange(len(self._seeds))
        seed = self._seeds[which]
        if random.random() < 0.3:
            found = _structure(seed, random)
        else:
            found = _bytes(seed, self._texts[which], self._ends[which], random)
        return _packed(found, random) if random.random() < 0.05 else found


def event_ends(text: bytes) -> list[int]:
    """Where each element of a sound document's event array ends, in its bytes; first, it opens."""
    opening = _OPENING.search(text)
    assert opening is not None
    ends, decoder = [opening.end()], JSONDecoder()
    whole = text.decode()
    at = len(text[: opening.end()].decode())
    separators = re.compile(r"[\s,]*")
    while True:
        gap = separators.match(whole, at)
        at = gap.end() if gap else at
        if whole[at : at + 1] == "]":
            return ends
        _, at = decoder.raw_decode(whole, at)
        ends.append(len(whole[:at].encode()))


def _bytes(seed: Seed, text: bytes, ends: Sequence[int], random: Random) -> Mutated:
    data, first = text, len(text)
    for _ in range(random.choice((1, 1, 1, 2, 3, 6))):
        at = random.randrange(len(data)) if data else 0
        data, at = random.choice(_BYTE_CHANGES)(data, at, random)
        first = min(first, at)
    sound = sum(end <= first for end in ends) - 1
    return Mutated(data=data, seed=seed, sound=max(sound, 0))


def _insert(data: bytes, at: int, random: Random) -> tuple[bytes, int]:
    return data[:at] + random.choice(_FRAGMENTS) + data[at:], at


def _overwrite(data: bytes, at: int, random: Random) -> tuple[bytes, int]:
    fragment = random.choice(_FRAGMENTS)
    return data[:at] + fragment + data[at + len(fragment) :], at


def _flip(data: bytes, at: int, random: Random) -> tuple[bytes, int]:
    if not data:
        return data, at
    return data[:at] + bytes([data[at] ^ (1 << random.randrange(8))]) + data[at + 1 :], at


def _delete(data: bytes, at: int, random: Random) -> tuple[bytes, int]:
    return data[:at] + data[at + random.choice((1, 1, 2, 8, 60, 400)) :], at


def _repeat(data: bytes, at: int, random: Random) -> tuple[bytes, int]:
    length = random.choice((1, 2, 8, 60, 400))
    part = data[at : at + length]
    return data[: at + length] + part * random.choice((1, 1, 5)) + data[at + length :], at


def _move(data: bytes, at: int, random: Random) -> tuple[bytes, int]:
    length = random.choice((1, 8, 60, 400))
    part, rest = data[at : at + length], data[:at] + data[at + length :]
    to = random.randrange(len(rest) + 1)
    return rest[:to] + part + rest[to:], min(at, to)


def _cut(data: bytes, at: int, random: Random) -> tuple[bytes, int]:
    del random
    return data[:at], at


def _other_number(data: bytes, at: int, random: Random) -> tuple[bytes, int]:
    found = _NUMBER.search(data, at)
    if found is None:
        return data, at
    return data[: found.start()] + random.choice(_NUMBERS) + data[found.end() :], found.start()


def _other_string(data: bytes, at: int, random: Random) -> tuple[bytes, int]:
    """Another text between two quotes, or nothing between them, or none of the quotes."""
    found = _STRING.search(data, at)
    if found is None:
        return data, at
    text = random.choice((b'""', b'"' + random.choice(_FRAGMENTS) + b'"', b"x", b'"\xff\0"'))
    return data[: found.start()] + text + data[found.end() :], found.start()


_BYTE_CHANGES: Final[tuple[Callable[[bytes, int, Random], tuple[bytes, int]], ...]] = (
    *(_insert, _insert, _insert, _overwrite, _flip, _delete, _repeat, _move, _cut),
    *(_other_number, _other_number, _other_string, _other_string),
)


def _structure(seed: Seed, random: Random) -> Mutated:
    events: list[object] = list(seed.events)
    first = len(events)
    for _ in range(random.choice((1, 1, 2, 4))):
        at = random.randrange(len(events)) if events else 0
        first = min(first, random.choice(_EVENT_CHANGES)(events, at, random))
    return Mutated(data=seed.layout(events, seed.keys), seed=seed, sound=first)


def _drop_key(events: list[object], at: int, random: Random) -> int:
    event = _copied(events, at)
    if event:
        del event[random.choice(list(event))]
    return at


def _change_value(events: list[object], at: int, random: Random) -> int:
    event = _copied(events, at)
    args = event.get("args")
    if isinstance(args, dict) and args and random.random() < 0.5:
        event["args"] = {**args, random.choice(list(args)): random.choice(_VALUES)}
    elif event:
        event[random.choice(list(event))] = random.choice(_VALUES)
    return at


def _swap(events: list[object], at: int, random: Random) -> int:
    other = random.randrange(len(events)) if events else 0
    if events:
        events[at], events[other] = events[other], events[at]
    return min(at, other)


def _repeat_event(events: list[object], at: int, random: Random) -> int:
    events[at:at] = events[at : at + 1] * random.choice((1, 1, 3))
    return at


def _foreign_element(events: list[object], at: int, random: Random) -> int:
    events.insert(at, random.choice(_ELEMENTS))
    return at


def _drop_event(events: list[object], at: int, random: Random) -> int:
    del random
    del events[at : at + 1]
    return at


_EVENT_CHANGES: Final[tuple[Callable[[list[object], int, Random], int], ...]] = (
    *(_drop_key, _change_value, _change_value, _change_value, _swap, _repeat_event),
    *(_foreign_element, _drop_event),
)


def _copied(events: list[object], at: int) -> Event:
    """The event at a place, as a copy that may be changed; an empty one where there is none."""
    event = events[at] if events else None
    if not isinstance(event, dict):
        return {}
    events[at] = copy = dict(event)
    return copy


def _packed(found: Mutated, random: Random) -> Mutated:
    """The same compressed, whole, cut, or damaged itself."""
    packed = gzip.compress(found.data, compresslevel=1, mtime=0)
    at = random.randrange(len(packed))
    choice = random.randrange(4)
    if choice == 0:
        return Mutated(data=packed, seed=found.seed, sound=found.sound)
    if choice == 1:
        packed += gzip.compress(b"" if at % 2 else found.data, compresslevel=1, mtime=0)[: at + 9]
    elif choice == 2:
        packed = packed[:at]
    else:
        packed = packed[:at] + zlib.compress(packed[at:])[at % 3 :]
    return Mutated(data=packed, seed=found.seed, sound=0, broken_stream=choice == 3)
