"""Small sound traces of every layout and of all years, of which the mutated ones are made."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from json import JSONDecoder
from random import Random
from typing import Final

import msgspec

from tests.fuzz.scenes import SCENES
from tests.layouts import Event, encode

Layout = Callable[[Sequence[object], Mapping[str, object]], bytes]

_EACH_LAYOUT: Final = 60
"""Seeds of a layout: enough that every scene stands first, last and alone."""
_STARTS_US: Final = (
    *(Decimal("1000.250"), Decimal(5000), Decimal("1790857026000000.125"), Decimal(0)),
    *(Decimal("6871946673000.999"), Decimal(1_622_000_000_000_000)),
)
"""Behind a base; as whole numbers; since 1970 in all digits; from 0; 80 days behind a base; as of
2021."""
_KEYS: Final[dict[str, object]] = {
    "schemaVersion": 1,
    "deviceProperties": [{"id": 0, "name": "NVIDIA H100"}],
    "distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 8},
    "baseTimeNanoseconds": 1_790_857_026_000_000_000,
}
_OPENING: Final = re.compile(rb'"traceEvents"\s*:\s*\[|\A\s*\[')
_GAP: Final = re.compile(r"[\s,]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Seed:
    """A sound trace, in parts and as text.

    Attributes:
        name: What it shows.
        events: Its events.
        keys: Its other keys.
        layout: Puts both together.
        text: The whole document.
        ends: Where each of its events ends in the text; first, where the array opens.
    """

    name: str
    events: tuple[Event, ...]
    keys: Mapping[str, object]
    layout: Layout
    text: bytes
    ends: tuple[int, ...]


def seeds() -> tuple[Seed, ...]:
    """All seeds, of 0.3 to 5 KiB: one or two scenes each, sometimes only some events of them."""
    return tuple(_all(Random(20261128)))


def _all(random: Random) -> Iterator[Seed]:
    for layout in (native, keys_last, compact, windows, pretty, bare_array):
        for number in range(_EACH_LAYOUT):
            first = SCENES[number % len(SCENES)]
            scenes = (first, random.choice(SCENES))[: random.choice((1, 2))]
            start_us = _STARTS_US[number % len(_STARTS_US)]
            events = tuple(
                event for n, scene in enumerate(scenes) for event in scene(start_us + 300 * n)
            )
            if number % 3 == 0:
                events = events[: random.randint(1, len(events))]
            names = "+".join(scene.__name__ for scene in scenes)
            yield seed_of(f"{layout.__name__} {names} {number}", events, layout)


def seed_of(name: str, events: Sequence[Event], layout: Layout) -> Seed:
    """A seed of some events, with the keys that all have."""
    text = layout(events, _KEYS)
    return Seed(
        name=name,
        events=tuple(events),
        keys=_KEYS,
        layout=layout,
        text=text,
        ends=tuple(event_ends(text)),
    )


def event_ends(text: bytes) -> list[int]:
    """Where each element of a sound document's event array ends, in its bytes; first, it opens."""
    opening = _OPENING.search(text)
    assert opening is not None
    ends, decoder = [opening.end()], JSONDecoder()
    whole = text.decode()
    at = len(text[: opening.end()].decode())
    while True:
        gap = _GAP.match(whole, at)
        at = gap.end() if gap else at
        if whole[at : at + 1] == "]":
            return ends
        _, at = decoder.raw_decode(whole, at)
        ends.append(len(whole[:at].encode()))


def native(events: Sequence[object], keys: Mapping[str, object]) -> bytes:
    """As torch writes it: a key a line; elements that are no objects in a line of their own."""
    head = b"".join(b"\n  %s: %s," % (encode(key), encode(value)) for key, value in keys.items())
    body = b",".join(
        b"\n  {\n    " + _lines(event) + b"\n  }" if isinstance(event, dict) else encode(event)
        for event in events
    )
    return b"{" + head + b'\n  "traceEvents": [' + body + b'\n  ],\n  "traceName": "t"\n}'


def _lines(event: Event) -> bytes:
    return b",\n    ".join(b"%s: %s" % (encode(key), encode(event[key])) for key in event)


def keys_last(events: Sequence[object], keys: Mapping[str, object]) -> bytes:
    """As of 2024: two keys a line, the keys after the events."""
    text = encode({"schemaVersion": 1, "traceEvents": list(events), **keys})
    return text.replace(b',"ph"', b',\n    "ph"')


def compact(events: Sequence[object], keys: Mapping[str, object]) -> bytes:
    """As tools write it that care for size."""
    return encode({**keys, "traceEvents": list(events)})


def windows(events: Sequence[object], keys: Mapping[str, object]) -> bytes:
    """A line an event, with tabs, carriage returns and a byte order mark."""
    head, events_text = compact([], keys), bare_array(events, keys)
    lines = events_text[1:-1].replace(b'},{"ph"', b'} ,\t\r\n{"ph"')
    return b"\xef\xbb\xbf" + head.removesuffix(b"]}") + b"\r\n" + lines + b"\r\n]}"


def pretty(events: Sequence[object], keys: Mapping[str, object]) -> bytes:
    """As tools write it that care for people, lists of objects after the events."""
    text = encode({"traceEvents": list(events), "after": [{"name": "x"}, {"name": "y"}], **keys})
    return msgspec.json.format(text, indent=2)


def bare_array(events: Sequence[object], keys: Mapping[str, object]) -> bytes:
    """The other form of Chrome's format: nothing but the events."""
    del keys
    return encode(list(events))
