"""Ways in which tools lay out one and the same trace document, and events that are hard to cut."""

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Final, TypeAlias

import msgspec
from hypothesis import strategies as st

Event: TypeAlias = dict[str, object]
Layout: TypeAlias = Callable[[Sequence[Event], Mapping[str, object]], bytes]

_ENCODER: Final = msgspec.json.Encoder(decimal_format="number")


def encode(value: object) -> bytes:
    """JSON with all digits of decimals."""
    return _ENCODER.encode(value)


def native(events: Sequence[Event], keys: Mapping[str, object]) -> bytes:
    """As torch writes it: one key a line, the events between the keys."""
    head = b"".join(b"\n    %s: %s," % (encode(key), encode(value)) for key, value in keys.items())
    bodies = [
        b",\n    ".join(b"%s: %s" % (encode(key), encode(value)) for key, value in event.items())
        for event in events
    ]
    body = b",".join(b"\n  {\n    " + text + b"\n  }" for text in bodies)
    return b" {" + head + b'\n    "traceEvents": [\n    ' + body + b'\n  ],"traceName": "t" }'


def keys_last(events: Sequence[Event], keys: Mapping[str, object]) -> bytes:
    """As of 2024: two keys a line, the keys after the events."""
    text = encode({"schemaVersion": 1, "traceEvents": list(events), **keys})
    return text.replace(b',"ph"', b',\n    "ph"')


def compact(events: Sequence[Event], keys: Mapping[str, object]) -> bytes:
    """As tools write it that care for size."""
    return encode({**keys, "traceEvents": list(events)})


def pretty(events: Sequence[Event], keys: Mapping[str, object]) -> bytes:
    """As tools write it that care for people, sorted keys, lists of objects after the events."""
    text = encode({"traceEvents": list(events), "after": [{"name": "x"}, {"name": "y"}], **keys})
    return msgspec.json.format(text, indent=4)


def bare_array(events: Sequence[Event], keys: Mapping[str, object]) -> bytes:
    """The other form of Chrome's format: nothing but the events."""
    del keys
    return encode(list(events))


LAYOUTS: Final[tuple[Layout, ...]] = (native, keys_last, compact, pretty, bare_array)

_NAMES: Final = st.one_of(
    st.sampled_from(
        [
            '},{"ph":"X"',
            '"},\n  {\n    "ph": "X"',
            "}],",
            ']}"traceEvents": [',
            'quote " and \\ backslash',
            "é\u2028\U0001f600",
            "aten::mm",
        ]
    ),
    st.text(max_size=12),
)
_NESTED: Final[st.SearchStrategy[object]] = st.sampled_from(
    [7, None, [], [[]], {}, [{"ph": "X"}, {"ph": "X", "name": "n"}], [{"name": "},{"}, [1]], "}]"]
)
_TIMES: Final = st.one_of(
    st.integers(0, 10**9).map(lambda ns: Decimal(ns) / 1000),
    st.integers(4 * 10**15, 5 * 10**15).map(lambda ns: Decimal(ns) / 1000),
    st.integers(0, 10**9),
)


def complete_event(
    category: str, name: str, start_us: object, duration_us: object, **args: object
) -> Event:
    """A complete event on device 0, stream 7, which is also process 0, thread 7."""
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": 0,
        "tid": 7,
        "ts": start_us,
        "dur": duration_us,
        "args": args,
    }


def hard_events() -> st.SearchStrategy[list[Event]]:
    """Events whose strings and nested values look like the border of two events."""
    fields = st.fixed_dictionaries(
        {
            "ph": st.sampled_from(["X", "X", "X", "s", "f", "i", "M"]),
            "cat": st.sampled_from(["kernel", "cpu_op", "cuda_runtime", "ac2g"]),
            "name": _NAMES,
            "pid": st.sampled_from([0, 1, "Spans"]),
            "tid": st.sampled_from([7, "stream 7", ""]),
            "ts": _TIMES,
            "dur": _TIMES,
            "args": st.fixed_dictionaries({"correlation": st.integers(0, 9), "x": _NESTED}),
        }
    )
    shuffled = fields.flatmap(lambda event: st.permutations(list(event.items()))).map(dict)
    return st.lists(st.one_of(fields, shuffled), max_size=12)
