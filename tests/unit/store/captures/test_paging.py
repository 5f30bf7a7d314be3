"""Pages of step rows against a list that is filtered and sorted by hand."""

import contextlib
from base64 import urlsafe_b64encode
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chopperd.model.captures import StepQuery
from chopperd.model.report_rows import Row
from chopperd.store.captures.capture_store import CaptureStore
from chopperd.store.captures.queries import cursor_of, key_of
from tests.unit.store.captures.examples import (
    ADMIN,
    ALICE,
    EVERYTHING,
    NOW_UNIX_NS,
    analysed,
    document,
    entry,
    file_one,
    opened,
    shown,
    step_row,
)

JOBS = ("a", "b", None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A row, and what it was stored under."""

    row: Row
    job: str | None
    owner_uid: int


@st.composite
def captures(draw: st.DrawFn) -> list[list[Stored]]:
    """Captures of one trace each, whose rows may lie anywhere, start together or have no time."""
    made = []
    for _ in range(draw(st.integers(1, 4))):
        job, owner_uid = draw(st.sampled_from(JOBS)), draw(st.sampled_from([1000, 1001]))
        starts = st.none() | st.integers(-4, 4).map(float)
        keys = draw(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), starts), max_size=6))
        rows = [
            step_row(step, rank=rank, start_s=start, gpu=f"{rank}") for step, rank, start in keys
        ]
        made.append([Stored(row=row, job=job, owner_uid=owner_uid) for row in rows])
    return made


@st.composite
def step_queries(draw: st.DrawFn) -> StepQuery:
    times = st.none() | st.integers(-4, 4).map(lambda s: NOW_UNIX_NS + s * 10**9)
    return StepQuery(
        job=draw(st.sampled_from(JOBS)),
        rank=draw(st.none() | st.integers(0, 2)),
        gpu=draw(st.sampled_from([None, None, "0", "1"])),
        step=draw(st.none() | st.integers(0, 3)),
        from_unix_ns=draw(times),
        to_unix_ns=draw(times),
    )


def stored(store: CaptureStore, number: int, rows: list[Stored]) -> None:
    """Far apart in time: none joins another."""
    name = f"{number}"
    owner_uid, job = (rows[0].owner_uid, rows[0].job) if rows else (1000, None)
    store.put_trace(entry(name, owner_uid=owner_uid, job=job))
    span_s = (100.0 * number, 100.0 * number + 1)
    capture, _ = file_one(store, analysed(name, span_s, rank=None, job=job))
    store.put_document(capture.id, document([each.row for each in rows]))


def matches(each: Stored, query: StepQuery) -> bool:
    start = each.row.start_unix_ns
    asked = (
        (query.job, each.job),
        (query.rank, each.row.rank),
        (query.gpu, each.row.gpu),
        (query.step, each.row.step),
    )
    return (
        all(wanted is None or wanted == value for wanted, value in asked)
        and (query.from_unix_ns is None or (start is not None and start >= query.from_unix_ns))
        and (query.to_unix_ns is None or (start is not None and start < query.to_unix_ns))
    )


def pages(store: CaptureStore, query: StepQuery, limit: int, *, admin: bool = True) -> list[Row]:
    rows: list[Row] = []
    cursor = None
    while True:
        page = store.steps(query, ADMIN if admin else ALICE, limit=limit, cursor=cursor)
        assert len(page.steps) <= limit
        rows += page.steps
        if page.cursor is None:
            return rows
        assert len(page.steps) == limit
        cursor = page.cursor


def by_word(rows: list[Row]) -> list[tuple[object, ...]]:
    """What a row is, in an order that has nothing to do with the store's."""
    keys = [(row.job, row.rank, row.step, row.gpu, row.start_unix_ns) for row in rows]
    return sorted(keys, key=str)


@settings(max_examples=30, deadline=None)
@given(captures(), step_queries(), st.integers(1, 7), st.booleans())
def test_pages_hold_what_a_filtered_list_holds_newest_first(
    made: list[list[Stored]], query: StepQuery, limit: int, admin: bool
) -> None:
    store = opened()
    for number, rows in enumerate(made):
        stored(store, number, rows)
    found = pages(store, query, limit, admin=admin)
    expected = [
        each
        for rows in made
        for each in rows
        if matches(each, query) and (admin or each.owner_uid == ALICE.uid)
    ]
    keys = [
        (each.job, each.row.rank, each.row.step, each.row.gpu, each.row.start_unix_ns)
        for each in expected
    ]
    assert by_word(found) == sorted(keys, key=str)
    starts = [row.start_unix_ns for row in found if row.start_unix_ns is not None]
    assert starts == sorted(starts, reverse=True)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 2)), min_size=1, max_size=7, unique=True),
    st.integers(1, 4),
    st.data(),
)
def test_rows_that_were_there_come_once_while_others_come_between_the_pages(
    keys: list[tuple[int, int]], limit: int, data: st.DataObject
) -> None:
    """Rows may start together; between pages newer and older ones come, and all are put again."""
    store = opened()
    first = [
        Stored(row=step_row(s, rank=r, start_s=s // 3), job=None, owner_uid=0) for s, r in keys
    ]
    stored(store, 0, first)
    found: list[Row] = []
    cursor = None
    for number in range(1, 20):
        page = store.steps(EVERYTHING, ADMIN, limit=limit, cursor=cursor)
        found += page.steps
        cursor = page.cursor
        if cursor is None:
            break
        other = step_row(100 + number, start_s=float(data.draw(st.integers(-5, 5))))
        stored(store, number, [Stored(row=other, job=None, owner_uid=0)])
        stored(store, 0, first)
    old = [(row.step, row.rank) for row in found if row.step is not None and row.step < 100]
    assert sorted(old, key=str) == sorted(keys, key=str)
    assert len(set(shown(found))) == len(found)


@pytest.mark.parametrize("cursor", ["", "x", "AAAA", "é", "A" * 10_000, "lgECAwQFBgc", "\x00"])
def test_a_cursor_that_no_page_gave_is_refused(cursor: str) -> None:
    with pytest.raises(ValueError, match="the cursor is none that a page of steps gave"):
        opened().steps(EVERYTHING, ADMIN, limit=1, cursor=cursor)


@given(st.tuples(*[st.integers(-(2**63), 2**63 - 1)] * 6))
def test_a_cursor_leads_to_the_key_it_was_made_of(key: tuple[int, ...]) -> None:
    assert key_of(cursor_of(key)) == key


@given(st.binary(max_size=40))
def test_no_word_but_a_cursor_passes_for_one(word: bytes) -> None:
    text = urlsafe_b64encode(word).decode().rstrip("=")
    with contextlib.suppress(ValueError):
        assert all(-(2**63) <= each < 2**63 for each in key_of(text))
