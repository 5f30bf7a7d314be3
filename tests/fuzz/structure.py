"""Seeded changes to the events of a trace: what other tools, versions and faults make of them."""

from collections.abc import Callable
from decimal import Decimal
from random import Random
from typing import Final, TypeAlias

from tests.fuzz.fragments import CATEGORIES, ELEMENTS, NAMES, PHASES, VALUES
from tests.layouts import Event

Events: TypeAlias = list[object]
Change: TypeAlias = Callable[[Events, int, Random], int]
"""Changes events at a place, and gives the first that is no longer as it was."""

_ARGS: Final = (
    *("device", "stream", "correlation", "External id", "external id", "bytes", "size"),
    *("Sequence number", "Fwd thread id", "hsa_queue", "Collective name", "Group size", "dtype"),
    *("In msg nelems", "Process Group Name", "Process Group Ranks", "Input Dims", "Input type"),
    *("Concrete Inputs", "Process Group Description", "Out msg nelems", "Device Type"),
    *("Device Id", "Bytes", "Addr", "Total Allocated", "Total Reserved"),
)
_IDS: Final = ("correlation", "External id", "stream", "device", "Sequence number")
_TIMES: Final = ("ts", "dur")


def drop_key(events: Events, at: int, random: Random) -> int:
    """An event without one of its keys, or one of its arguments."""
    event = _copied(events, at)
    args = _args_of(event)
    if args and random.random() < 0.5:
        del args[random.choice(list(args))]
    elif event:
        del event[random.choice(list(event))]
    return at


def change_value(events: Events, at: int, random: Random) -> int:
    """Another value of any type."""
    event = _copied(events, at)
    args = _args_of(event)
    if args and random.random() < 0.5:
        args[random.choice(list(args))] = random.choice(VALUES)
    elif event:
        event[random.choice(list(event))] = random.choice(VALUES)
    return at


def add_argument(events: Events, at: int, random: Random) -> int:
    """An argument that means something elsewhere."""
    event = _copied(events, at)
    if event:
        event.setdefault("args", {})
        _args_of(event)[random.choice(_ARGS)] = random.choice(VALUES)
    return at


def change_kind(events: Events, at: int, random: Random) -> int:
    """Another phase, category or name."""
    event = _copied(events, at)
    if event:
        key, values = random.choice((("ph", PHASES), ("cat", CATEGORIES), ("name", NAMES)))
        event[key] = random.choice(values)
    return at


def swap(events: Events, at: int, random: Random) -> int:
    """Two events in each other's place."""
    other = random.randrange(len(events)) if events else 0
    if events:
        events[at], events[other] = events[other], events[at]
    return min(at, other)


def swap_fields(events: Events, at: int, random: Random) -> int:
    """Two events with each other's value of a key."""
    other = random.randrange(len(events)) if events else 0
    one, two = _copied(events, at), _copied(events, other)
    if other != at and (shared := [key for key in one if key in two]):
        key = random.choice(shared)
        one[key], two[key] = two[key], one[key]
    return min(at, other)


def repeat_event(events: Events, at: int, random: Random) -> int:
    """The same event again, once or often."""
    events[at:at] = events[at : at + 1] * random.choice((1, 1, 3, 40))
    return at + 1


def repeat_nearly(events: Events, at: int, random: Random) -> int:
    """The same event again, but for one of its values."""
    events[at:at] = events[at : at + 1]
    change_value(events, at + 1, random)
    return at + 1


def foreign_element(events: Events, at: int, random: Random) -> int:
    """An element that is no event, anywhere between two."""
    events.insert(at, random.choice(ELEMENTS))
    return at


def drop_event(events: Events, at: int, random: Random) -> int:
    """One event less."""
    del random
    del events[at : at + 1]
    return at


def move_time(events: Events, at: int, random: Random) -> int:
    """A start or a length that is off by a power of two, either way."""
    event = _copied(events, at)
    key = random.choice(_TIMES)
    if isinstance(value := event.get(key), int | Decimal):
        by = Decimal(2) ** random.randrange(-11, 64)
        event[key] = Decimal(value) + random.choice((by, -by))
    return at


def no_time(events: Events, at: int, random: Random) -> int:
    """A start, a length, or both, that were never written or are negative."""
    event = _copied(events, at)
    for key in random.choice((("ts",), ("dur",), _TIMES)):
        if key in event:
            event[key] = random.choice((0, 0, -1, Decimal("-0.001"), None))
    return at


def change_id(events: Events, at: int, random: Random) -> int:
    """An id that is another event's, or none."""
    event = _copied(events, at)
    ids = [key for key in _IDS if key in _args_of(event)]
    if ids:
        others = [_args_of(other).get(key) for other in events for key in _IDS]
        known = [other for other in others if other is not None]
        _args_of(event)[random.choice(ids)] = random.choice((*known, 0, -1, 1, 2**31, 2**63 - 1))
    elif "id" in event:
        event["id"] = random.choice((0, -1, 5, 11, "5", "0x5", None, 2**63))
    return at


def change_place(events: Events, at: int, random: Random) -> int:
    """Another process or thread, or none."""
    event = _copied(events, at)
    if event:
        places = (0, 1, 7, -1, "0", "stream 7", "Spans", "", 4242, 7.0, 2**31, 2**63, True, None)
        event[random.choice(("pid", "tid"))] = random.choice(places)
    return at


def nest(events: Events, at: int, random: Random) -> int:
    """An event, or what it says, a level deeper."""
    event = _copied(events, at)
    if not event:
        return at
    choice = random.randrange(4)
    if choice == 0:
        events[at] = [event]
    elif choice == 1:
        events[at] = {"event": event}
    elif choice == 2:
        within = [dict(other) for other in events[:2] if isinstance(other, dict)]
        event["args"] = {"args": event.get("args"), "events": within}
    else:
        key = random.choice(list(event))
        event[key] = random.choice(([event[key]], {"value": event[key]}))
    return at


def reorder_keys(events: Events, at: int, random: Random) -> int:
    """The same event, its keys in another order."""
    event = _copied(events, at)
    keys = list(event)
    random.shuffle(keys)
    if event:
        events[at] = {key: event[key] for key in keys}
    return at


def rename_key(events: Events, at: int, random: Random) -> int:
    """A key that differs by a letter."""
    event = _copied(events, at)
    inside = _args_of(event) if random.random() < 0.5 else event
    if inside:
        key = random.choice(list(inside))
        value = inside.pop(key)
        inside[random.choice((key.upper(), key + " ", key[:-1], key + "s"))] = value
    return at


CHANGES: Final[dict[str, tuple[int, Change]]] = {
    "drop a key": (2, drop_key),
    "change a value": (4, change_value),
    "add an argument": (2, add_argument),
    "change a kind": (2, change_kind),
    "swap two events": (1, swap),
    "swap two fields": (2, swap_fields),
    "repeat an event": (1, repeat_event),
    "repeat an event nearly": (1, repeat_nearly),
    "put in a foreign element": (2, foreign_element),
    "drop an event": (1, drop_event),
    "move a time": (3, move_time),
    "no time": (2, no_time),
    "change an id": (2, change_id),
    "change a place": (1, change_place),
    "nest": (1, nest),
    "reorder keys": (1, reorder_keys),
    "rename a key": (1, rename_key),
}
"""How often each is made, beside the others."""


def _copied(events: Events, at: int) -> Event:
    """The event at a place, as a copy that may be changed; an empty one where there is none."""
    event = events[at] if events else None
    if not isinstance(event, dict):
        return {}
    events[at] = copy = dict(event)
    if isinstance(copy.get("args"), dict):
        copy["args"] = dict(copy["args"])
    return copy


def _args_of(event: object) -> Event:
    args = event.get("args") if isinstance(event, dict) else None
    return args if isinstance(args, dict) else {}
