"""The event array by the scanner, and by msgspec what of it is sound."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chopperd.traces.read.document import find_opening
from chopperd.traces.read.event_array import DamagedTextError, DecodedArray, EventArray, event_array
from chopperd.traces.read.rows import TraceRows
from tests.decoders import is_sound, reading
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
GOOD = encode(complete_event("kernel", "good", 1, 2))


def read(
    data: bytes, piece_bytes: int = 1 << 20, *, by_scanner: bool = True
) -> tuple[int, EventArray]:
    """How many events a document has, and the array that gave them."""
    opening = find_opening(data)
    assert opening is not None
    text = data[opening.position :]
    rows = TraceRows()
    array = (event_array if by_scanner else DecodedArray)(rows, piece_bytes)
    for at in range(0, len(text), piece_bytes):
        array.feed(text[at : at + piece_bytes])
    array.finish()
    return rows.counts.total(), array


def read_elements(elements: bytes) -> tuple[int, EventArray]:
    """The same of a bare array, of which the beginning is given without its bracket."""
    return read(b"[" + elements)


@pytest.mark.parametrize("by_scanner", [True, False])
@settings(max_examples=25, deadline=None)
@given(hard_events(), st.sampled_from(LAYOUTS), st.integers(40, 1000))
def test_every_event_is_read_once_however_laid_out_and_cut(
    by_scanner: bool, events: list[Event], layout: Layout, piece_bytes: int
) -> None:
    count, array = read(layout(events, KEYS), piece_bytes, by_scanner=by_scanner)
    assert count == len(events)
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
    count, array = read(text[:cut], piece_bytes)
    assert array.damaged == array.undecodable == 0
    assert count == whole_events(text[opening.position : cut], events)


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


@pytest.mark.parametrize("damaged", [1, 7, 8, 9, 100])
def test_any_number_of_damaged_events_in_a_block_is_counted(damaged: int) -> None:
    events = [complete_event("kernel", f"k{n}", n, 1) for n in range(100)]
    for layout in (native, compact):
        text = layout(events, KEYS)
        for n in range(damaged):
            text = text.replace(b'"k%d"' % n, b'"k"%d"' % n)
        for piece_bytes in (300, 1 << 20):
            count, array = read(text, piece_bytes)
            assert (count, array.damaged) == (100 - damaged, damaged)
            assert (array.tail is None, array.truncated) == (False, False)


@pytest.mark.parametrize("text", [b"[]", b"[", b'{"traceEvents":[]}', b'{"traceEvents":[ \n'])
def test_an_array_may_be_empty(text: bytes) -> None:
    count, array = read(text)
    assert count == 0
    assert not array.truncated


def test_bad_bytes_half_surrogates_and_nan_cost_no_event() -> None:
    events = [complete_event("kernel", f"k{n}", n, 1) for n in range(100)]
    text = compact(events, {}).replace(b'"k50"', b'"k\xff"').replace(b'"k70"', rb'"k\ud800"')
    text = text.replace(b'"k80"', b'"k80","occupancy":NaN')
    for piece_bytes in (100, 1000, 1 << 20):
        found = reading(text, native=True, piece_bytes=piece_bytes)
        assert len(found.tables.records) == 100
        assert "k\ufffd" in found.tables.names
        assert set(found.lost.values()) == {0}


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
        count, array = read(text, piece_bytes)
        assert count + array.damaged + array.undecodable <= len(text) // 2


@pytest.mark.parametrize(
    "bad",
    [
        rb'{"ph": "X", "name": "C:\app\new\model.py(12): run", "ts": 1}',
        b'{"ph": "X", "name": "{"device": "cpu"}(3): init", "ts": 1}',
        b'{"ph": "X", "name": "tab\there", "ts": 1}',
        rb'{"ph": "X", "name": "ends with \", "ts": 1}',
        b'{"ph": "X" "name": "x"}',
        b'{"ph": "X", "args": {"l": [{"name": 1}, {"name": 2}], "bad": "a"b"}, "ts": 1}',
    ],
)
@pytest.mark.parametrize("comma", [b",", b",\n  "])
def test_a_damaged_event_costs_itself_alone(bad: bytes, comma: bytes) -> None:
    text = comma.join([GOOD, bad, GOOD, bad, bad, GOOD, bad]) + b'], "name": [{"name": 1}]}'
    count, array = read_elements(text)
    assert (count, array.damaged, array.undecodable) == (3, 4, 0)
    assert array.tail == b', "name": [{"name": 1}]}'


def test_pieces_of_a_damaged_event_are_not_taken_for_events() -> None:
    bad = b'{"args": {"bad": "a"b", "l": [{"name": 1}, {"name": 2}]}, "ph": "X"}'
    count, array = read_elements(b",".join([GOOD, bad, GOOD, bad]) + b"]}")
    assert (count, array.damaged, array.undecodable) == (2, 2, 0)
    assert array.tail == b"}"


@pytest.mark.parametrize("by_scanner", [True, False])
def test_elements_that_are_no_events_are_counted_and_passed(by_scanner: bool) -> None:
    text = b'[null, 5, [{"ph": "X"}], {"name": "x"},' + GOOD + b"]"
    count, array = read(text, by_scanner=by_scanner)
    assert (count, array.damaged, array.undecodable, array.tail) == (1, 0, 4, b"")


def test_a_file_cut_inside_an_event_has_that_event_neither_read_nor_counted() -> None:
    count, array = read_elements(GOOD + b"," + GOOD[:20])
    assert (count, array.damaged, array.undecodable, array.truncated) == (1, 0, 0, True)


def test_damage_before_a_cut_is_still_counted() -> None:
    bad = b'{"ph": "X", "name": "a"b"}'
    count, array = read_elements(b",".join([GOOD, bad, GOOD[:20]]))
    assert (count, array.damaged, array.truncated) == (1, 1, True)


def test_a_missing_bracket_and_a_trailing_comma_are_no_damage() -> None:
    for ending in (b"", b",", b" ,\n", b"\n"):
        count, array = read_elements(GOOD + ending)
        assert (count, array.damaged, array.tail, array.truncated) == (1, 0, None, False)


@pytest.mark.parametrize(
    "elements",
    [
        GOOD + b",]",
        GOOD,
        GOOD + b"," + GOOD[:20],
        GOOD[:20] + b"]",
        GOOD.replace(b"good", b"go\xffod") + b"]",
        GOOD.replace(b"good", rb"go\ud800od") + b"]",
        GOOD.replace(b"good", b'go"od') + b"]",
        GOOD + b',{"ph":"X","ts":NaN}]',
    ],
)
def test_without_the_scanner_what_is_not_strict_json_is_refused(elements: bytes) -> None:
    assert not is_sound(b"[" + elements)
    for piece_bytes in (50, 1 << 20):
        with pytest.raises(DamagedTextError):
            read(b"[" + elements, piece_bytes, by_scanner=False)
