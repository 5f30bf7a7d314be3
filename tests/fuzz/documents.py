"""Seeded changes to what is around the events: heads, tails, further documents, compression."""

import gzip
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final, TypeAlias

from tests.fuzz.fragments import FRAGMENTS, PIECES
from tests.fuzz.seeds import Seed, bare_array, compact

_MARK: Final = b"\xef\xbb\xbf"
_BASES: Final[tuple[object, ...]] = (0, -1, 7.5, "1790857026000000000", None, 2**63, 10**19, True)


@dataclass(frozen=True, slots=True)
class Wrapped:
    """A document, and whether all of its events are still to be read."""

    data: bytes
    sound: bool = True


Wrapping: TypeAlias = Callable[[bytes, Seed, Random], Wrapped]


def head_keys(text: bytes, seed: Seed, random: Random) -> Wrapped:
    """Other keys before the events: other types, lists of events, very long ones."""
    del text
    keys: dict[str, object] = {**seed.keys, "baseTimeNanoseconds": random.choice(_BASES)}
    keys |= random.choice(_HEADS)
    return Wrapped(seed.layout(seed.events, keys))


_HEADS: Final[tuple[dict[str, object], ...]] = (
    {"distributedInfo": {"rank": "3", "world_size": 8.0}},
    {"distributedInfo": [], "deviceProperties": {"id": 0}},
    {"deviceProperties": [{"id": "0", "name": ""}, 7, {"id": 0, "numSms": 132}]},
    {"inner": {"traceEvents": [1, 2]}},
    {"inner": [{"traceEvents": []}] * 7},
    {"text": '"traceEvents": ['},
    {"long": "x" * 5000},
    {"hip_runtime_version": 6, "chopperd_run": 7, "trace_id": ""},
)


def before(text: bytes, seed: Seed, random: Random) -> Wrapped:
    """Something before the document."""
    del seed
    if text.startswith(_MARK):
        return Wrapped(text[len(_MARK) :])
    return Wrapped(random.choice((_MARK, b" \r\n\t", b"\n" * 500, _MARK + b"\n")) + text)


def nothing_readable(text: bytes, seed: Seed, random: Random) -> Wrapped:
    """Another encoding, another format, or junk first."""
    del seed
    junk = (b"", b"\0\0", b"PK\x03\x04", b"<html>", b")]}'\n", b"x", b'"', b"7,", b"\x1f\x8b")
    choice = random.randrange(len(junk))
    if choice == 0:
        return Wrapped(text.decode().encode("utf-16"), sound=False)
    return Wrapped(junk[choice] + text, sound=False)


def carriage_returns(text: bytes, seed: Seed, random: Random) -> Wrapped:
    """Lines that end as on Windows, or as long ago; more of them."""
    del seed
    feed = random.choice((b"\r\n", b"\r", b"\n\n\n", b"\r\n \t"))
    return Wrapped(text.replace(b"\n", feed).replace(b', "', b"," + feed + b' "'))


def after(text: bytes, seed: Seed, random: Random) -> Wrapped:
    """Something behind the document: padding, junk, another document, another list."""
    other = random.choice((text, compact(seed.events, {}), bare_array(seed.events[:1], {})))
    junk = random.choice((b"\0" * 40, b"\n\n", b"]", b"}", b"]}", b",", *FRAGMENTS[:12], other))
    return Wrapped(text + random.choice((b"", b"\n", b",")) + junk)


def two_lists(text: bytes, seed: Seed, random: Random) -> Wrapped:
    """A second list of events in the document; or a list that is empty, before that."""
    del text
    again = compact(seed.events[: random.randint(0, 3)], {})[1:]
    whole = compact(seed.events, dict(seed.keys)).removesuffix(b"}")
    first_empty = b'{"traceEvents":[],' + whole[1:] + b"}"
    return random.choice((Wrapped(whole + b"," + again), Wrapped(first_empty, sound=False)))


def tail_keys(text: bytes, seed: Seed, random: Random) -> Wrapped:
    """What follows the events, broken or cut."""
    del text
    tail = random.choice(
        (
            *(
                b'],"traceName":NaN}',
                b'],"traceName":}',
                b'],"baseTimeNanoseconds":5,"x":[}',
                b"],",
            ),
            *(b'],"baseTimeNanoseconds":1790857026000000000\n', b"]}}", b"]]}", b"]", b"", b"} ]}"),
            *(b'],"a":[{"ph":"X"},{"ph":"X"}]}', b'],"a":"\xff\\ud83d"}', b"]\0}", b'],"a":1}{'),
        )
    )
    return Wrapped(compact(seed.events, {}).removesuffix(b"]}") + tail)


def late_head(text: bytes, seed: Seed, random: Random) -> Wrapped:
    """Damage before the events."""
    del seed
    at = random.randrange(max(text.find(b'"traceEvents"'), 1))
    return Wrapped(text[:at] + random.choice(FRAGMENTS) + text[at:], sound=False)


def only_pieces(text: bytes, seed: Seed, random: Random) -> Wrapped:
    """An array of a few pieces of events in any order."""
    del text, seed
    pieces = random.choices(PIECES, k=random.randint(1, 12))
    between, end = random.choice((b"", b",")), random.choice((b"", b"]", b"]}", b'],"a":1}'))
    return Wrapped(b'{"traceEvents":[' + between.join(pieces) + end, sound=False)


WRAPPINGS: Final[dict[str, tuple[int, Wrapping]]] = {
    "other keys first": (1, head_keys),
    "something before": (1, before),
    "nothing readable": (1, nothing_readable),
    "carriage returns": (1, carriage_returns),
    "something behind": (1, after),
    "two lists": (1, two_lists),
    "other keys last": (1, tail_keys),
    "damaged head": (1, late_head),
    "only pieces": (4, only_pieces),
}
"""How often each is made, beside the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """A compressed file.

    Attributes:
        data: The file.
        kind: What was done to the stream.
        whole: Whether all of the text can be had of it.
        broken: Whether the stream is damaged within.
    """

    data: bytes
    kind: str
    whole: bool = False
    broken: bool = False


def packed(text: bytes, random: Random) -> Packed:
    """A text compressed: whole, cut, in several members, damaged itself."""
    stream = gzip.compress(text, compresslevel=1, mtime=0)
    at = random.randrange(len(stream))
    choice = random.randrange(6)
    if choice == 0:
        return Packed(data=stream, kind="gzip", whole=True)
    if choice == 1:
        data = stream + gzip.compress(b"" if at % 2 else text, compresslevel=1, mtime=0)[: at + 9]
        return Packed(data=data, kind="gzip, another member")
    if choice == 2:
        return Packed(data=stream[:at], kind="gzip, cut")
    if choice == 3:
        to = random.randrange(len(text) + 1)
        parts = (gzip.compress(part, compresslevel=1, mtime=0) for part in (text[:to], text[to:]))
        return Packed(data=b"\0\0".join(parts), kind="gzip in members", whole=True)
    if choice == 4:
        data = stream[:at] + bytes([stream[at] ^ 1 << random.randrange(8)]) + stream[at + 1 :]
        return Packed(data=data, kind="gzip, a bit flipped", broken=True)
    data = stream[:at] + zlib.compress(stream[at:])[at % 3 :]
    return Packed(data=data, kind="gzip, damaged", broken=True)
