"""Events put into documents; what must come out is worked out with Python's own json."""

import json
from collections.abc import Sequence
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chopperd.traces.native.scanner import scanner_library
from chopperd.traces.read.annotate import Annotator
from tests.layouts import (
    LAYOUTS,
    Event,
    Layout,
    bare_array,
    compact,
    complete_event,
    encode,
    hard_events,
    native,
)

KEYS = {"schemaVersion": 1, "baseTimeNanoseconds": 1_790_857_026_000_000_000}
COUNTERS: list[Event] = [
    {"ph": "C", "name": "n", "pid": 0, "ts": k, "args": {"x": k}} for k in (1, 2)
]
PUT_IN = [encode(counter) for counter in COUNTERS]
#: What stands in a document for the counters: two lines.
TEXT = b"\n" + PUT_IN[0] + b",\n" + PUT_IN[1]


def annotated(
    document: bytes, *, piece: int = 1 << 20, cut: bool = False, put_in: Sequence[bytes] = PUT_IN
) -> tuple[bytes, Annotator]:
    annotator = Annotator(iter(put_in), closes=scanner_library() if cut else None)
    pieces = (document[at : at + piece] for at in range(0, len(document), piece))
    out = [part for each in pieces for part in annotator.feed(each)]
    return b"".join((*out, *annotator.finish())), annotator


def parsed(document: bytes) -> tuple[list[Event], dict[str, object]]:
    """The events, and the keys beside them."""
    whole = json.loads(document, parse_float=Decimal)
    if isinstance(whole, list):
        return whole, {}
    return whole.pop("traceEvents"), whole


@given(events=hard_events(), layout=st.sampled_from(LAYOUTS), piece=st.integers(16, 2048))
@settings(max_examples=50, deadline=None)
def test_all_events_and_keys_come_back_with_the_counters_before_them(
    events: list[Event], layout: Layout, piece: int
) -> None:
    document = layout(events, KEYS)
    out, _ = annotated(document, piece=piece)
    own, keys = parsed(document)
    assert parsed(out) == ([*parsed(encode(COUNTERS))[0], *own], keys)


@given(events=hard_events(), layout=st.sampled_from(LAYOUTS), piece=st.integers(16, 2048))
@settings(max_examples=50, deadline=None)
def test_without_what_was_put_in_the_bytes_are_the_same(
    events: list[Event], layout: Layout, piece: int
) -> None:
    document = layout(events, KEYS)
    out, _ = annotated(document, piece=piece)
    put_in = TEXT + b"," if events else TEXT
    assert out.count(put_in) == 1
    assert out.replace(put_in, b"") == document


@given(events=hard_events(), data=st.data(), piece=st.integers(16, 2048))
@settings(max_examples=50, deadline=None)
def test_a_cut_document_is_closed_after_its_last_whole_event(
    events: list[Event], data: st.DataObject, piece: int
) -> None:
    texts = [encode(event) for event in events]
    head, tail = b'{"schemaVersion": 1, "traceEvents": [', b'], "traceName": "a, b", "x": {"y": 2}}'
    ends = [len(head) + len(b",".join(texts[: k + 1])) for k in range(len(texts))]
    document = head + b",".join(texts) + tail
    cut = data.draw(st.integers(len(head), len(document)))
    out, _ = annotated(document[:cut], piece=piece, cut=True)
    whole = sum(end <= cut for end in ends)
    found, keys = parsed(out)
    assert found == parsed(encode([*COUNTERS, *events[:whole]]))[0]
    assert keys.items() <= {"schemaVersion": 1, "traceName": "a, b", "x": {"y": 2}}.items()
    if cut == len(document):
        assert set(keys) == {"schemaVersion", "traceName", "x"}


@pytest.mark.parametrize("layout", [compact, bare_array])
def test_what_is_left_out_of_a_cut_document_is_counted(layout: Layout) -> None:
    events = [complete_event("kernel", f"k{k}", k, 1) for k in range(3)]
    document = layout(events, {})
    cut = document.index(b'"k2"') + 2
    out, annotator = annotated(document[:cut], cut=True)
    assert parsed(out)[0] == [*COUNTERS, *events[:2]]
    start = document.index(b'{"ph":"X","cat":"kernel","name":"k2"')
    assert annotator.dropped_bytes == cut - start


def test_of_a_cut_document_nothing_is_left_out_that_is_whole() -> None:
    document = compact([complete_event("kernel", "k", 1, 1)], {})
    out, annotator = annotated(document.removesuffix(b"]}"), cut=True)
    assert (
        out
        == document[: document.index(b"[") + 1]
        + TEXT
        + b","
        + encode(complete_event("kernel", "k", 1, 1))
        + b"\n]}"
    )
    assert annotator.dropped_bytes == 0


def test_a_damaged_event_before_a_cut_stays_as_it_is() -> None:
    sound = [encode(complete_event("kernel", f"k{k}", k, 1)) for k in range(3)]
    damaged = sound[1].replace(b"k1", b'k"1')
    text = b",".join((sound[0], damaged, sound[2]))
    out, _ = annotated(b'{"traceEvents": [' + text + b',{"ph":"X","na', cut=True)
    assert out.endswith(text + b"\n]}")


def test_a_cut_document_of_many_pieces_is_never_held_whole() -> None:
    events = [complete_event("kernel", f"k{k}", k, 1, note="x" * 1000) for k in range(4_000)]
    document = native(events, KEYS)
    annotator = Annotator(iter(PUT_IN), closes=scanner_library())
    written = 0
    for at in range(0, len(document), 1 << 16):
        written += sum(map(len, annotator.feed(document[at : at + (1 << 16)])))
        assert at - written < 3 << 20
    out, _ = annotated(document[:-40], cut=True, piece=1 << 16)
    assert parsed(out)[0] == [*COUNTERS, *events[:-1]]


def test_with_nothing_to_put_in_the_document_stays_as_it_is() -> None:
    document = compact([complete_event("kernel", "k", 1, 1)], KEYS)
    assert annotated(document, put_in=())[0] == document


def test_a_document_without_an_event_array_is_not_opened() -> None:
    out, annotator = annotated(b'{"x": 1}')
    assert not annotator.opened
    assert out == b'{"x": 1}'
