from collections.abc import Iterator, Sequence
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from chopperd.traces.blocks import EventArray, find_opening
from chopperd.traces.decode import Complete
from tests.layouts import (
    LAYOUTS,
    Event,
    Layout,
    compact,
    complete_event,
    encode,
    hard_events,
    native,
)

KEYS = {"schemaVersion": 1, "distributedInfo": {"rank": 3}}


def pieces(data: bytes, size: int) -> Iterator[bytes]:
    return (data[at : at + size] for at in range(0, len(data), size))


def read(data: bytes, piece_bytes: int = 1 << 20) -> tuple[list[object], EventArray]:
    """All events of a document, and the array that gave them."""
    opening = find_opening(data)
    assert opening is not None
    array = EventArray()
    events: list[object] = []
    for piece in pieces(data[opening.position :], piece_bytes):
        events.extend(event for batch in array.feed(piece) for event in batch.events)
    events.extend(event for batch in array.finish() for event in batch.events)
    return events, array


def as_read(events: Sequence[Event]) -> list[tuple[object, ...]]:
    """What the decoder should make of these events, by their own fields."""
    return [
        (e["cat"], e["name"], e["pid"], e["tid"], us(e["ts"]), us(e["dur"]))
        if e["ph"] == "X"
        else (e["cat"],)
        for e in events
    ]


def summary(events: Sequence[object]) -> list[tuple[object, ...]]:
    return [
        (e.cat, e.name, e.pid, e.tid, us(e.ts), us(e.dur)) if isinstance(e, Complete) else (e.cat,)  # type: ignore[attr-defined]
        for e in events
    ]


def us(value: object) -> Decimal:
    """A time to the ns; floats of the quick decoder are off by less."""
    text = bytes(value).decode() if isinstance(value, Raw) else str(value)
    return round(Decimal(text), 3)


@settings(max_examples=25, deadline=None)
@given(hard_events(), st.sampled_from(LAYOUTS), st.integers(40, 1000))
def test_every_event_is_read_once_however_laid_out_and_cut(
    events: list[Event], layout: Layout, piece_bytes: int
) -> None:
    found, array = read(layout(events, KEYS), piece_bytes)
    assert summary(found) == as_read(events)
    assert (array.damaged, array.undecodable, array.truncated) == (0, 0, False)
    assert array.tail is not None


@settings(max_examples=25, deadline=None)
@given(hard_events(), st.sampled_from([native, compact]), st.integers(40, 1000), st.data())
def test_a_document_cut_anywhere_gives_the_whole_events_before_the_cut(
    events: list[Event], layout: Layout, piece_bytes: int, data: st.DataObject
) -> None:
    text = layout(events, KEYS)
    opening = find_opening(text)
    assert opening is not None
    cut = data.draw(st.integers(opening.position, len(text)))
    found, array = read(text[:cut], piece_bytes)
    assert summary(found) == as_read(events)[: len(found)]
    assert array.damaged == array.undecodable == 0
    assert len(found) == whole_events(text[opening.position : cut], events)


def whole_events(array_text: bytes, events: Sequence[Event]) -> int:
    """How many events end within a text, found by walking over each event's own text."""
    plain = b"".join(array_text.split())
    count, at = 0, 0
    for event in events:
        text = b"".join(encode(event).split())
        if plain[at : at + len(text)] != text:
            break
        count, at = count + 1, at + len(text) + 1
    return count


def test_the_opening_is_found_only_at_the_top_of_the_document() -> None:
    data = b'{"a": {"traceEvents": [1]}, "b": "\\"traceEvents\\": [", "traceEvents": [2]}'
    opening = find_opening(data)
    assert opening is not None
    assert data[opening.position :] == b"2]}"


def test_a_byte_order_mark_and_a_bare_array_are_accepted() -> None:
    opening = find_opening(b"\xef\xbb\xbf \n[{")
    assert opening is not None
    assert (opening.head, opening.position) == (b"", 6)


def test_no_opening_is_seen_before_it_is_there() -> None:
    assert find_opening(b"") is None
    assert find_opening(b'{"traceEvents": ') is None
    assert find_opening(b'{"traceEvents": {}}') is None


def test_damage_in_one_block_leaves_the_others_to_the_quick_decoder() -> None:
    events = [complete_event("kernel", f"k{n}", n, 1) for n in range(200)]
    text = native(events, KEYS).replace(b'"k50"', b'"k"50"')
    opening = find_opening(text)
    assert opening is not None
    array = EventArray()
    batches = [b for piece in pieces(text[opening.position :], 2000) for b in array.feed(piece)]
    batches += array.finish()
    assert sum(len(batch.events) for batch in batches) == 199
    assert array.damaged == 1
    assert sum(len(batch.events) for batch in batches if batch.exact) <= 20


@pytest.mark.parametrize("damaged", [1, 7, 8, 9, 100])
def test_any_number_of_damaged_events_in_a_block_is_counted(damaged: int) -> None:
    events = [complete_event("kernel", f"k{n}", n, 1) for n in range(100)]
    for layout in (native, compact):
        text = layout(events, KEYS)
        for n in range(damaged):
            text = text.replace(b'"k%d"' % n, b'"k"%d"' % n)
        for piece_bytes in (300, 1 << 20):
            found, array = read(text, piece_bytes)
            assert (len(found), array.damaged) == (100 - damaged, damaged)
            assert (array.tail is None, array.truncated) == (False, False)


def test_times_beyond_float64_switch_the_rest_to_decimals() -> None:
    events = [complete_event("kernel", "k", Decimal("1750000000000121.124"), 1)] * 3
    opening = find_opening(text := compact(events, {}))
    assert opening is not None
    array = EventArray()
    batches = [*array.feed(text[opening.position :]), *array.finish()]
    assert [batch.exact for batch in batches if batch.events] == [True] * len(batches)


@pytest.mark.parametrize("text", [b"[]", b"[", b'{"traceEvents":[]}', b'{"traceEvents":[ \n'])
def test_an_array_may_be_empty(text: bytes) -> None:
    found, array = read(text)
    assert found == []
    assert not array.truncated


def test_bad_bytes_half_surrogates_and_nan_cost_no_event() -> None:
    events = [complete_event("kernel", f"k{n}", n, 1) for n in range(100)]
    text = compact(events, {}).replace(b'"k50"', b'"k\xff"').replace(b'"k70"', rb'"k\ud800"')
    text = text.replace(b'"k80"', b'"k80","occupancy":NaN')
    for piece_bytes in (100, 1000, 1 << 20):
        found, array = read(text, piece_bytes)
        names = [event.name for event in found if isinstance(event, Complete)]
        assert (names[50], names[70], len(names)) == ("k\ufffd", "k\ufffd", 100)
        assert array.damaged == 0


EDITS = st.sampled_from(
    [b'"', b"{", b"}", b"[", b"]", b",", b"\\", b"\xff", b"\0", b"-", b"NaN", b"1e999", b"9" * 5000]
)


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(LAYOUTS),
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 8), EDITS), min_size=1, max_size=3),
    st.integers(16, 1000),
)
def test_no_edit_of_a_document_makes_reading_fail(
    layout: Layout, edits: list[tuple[float, int, bytes]], piece_bytes: int
) -> None:
    events = [complete_event("kernel", "k", n, 1, x=[{"ph": "X"}]) for n in range(5)]
    text = layout(events, KEYS)
    for place, removed, inserted in edits:
        at = int(place * len(text))
        text = text[:at] + inserted + text[at + removed :]
    if find_opening(text) is not None:
        found, array = read(text, piece_bytes)
        assert len(found) + array.damaged + array.undecodable <= len(text) // 2
