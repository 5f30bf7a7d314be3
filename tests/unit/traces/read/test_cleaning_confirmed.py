"""Rows that bear out others, by plain search."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from chopperd.traces.read.cleaning import LONGEST_WAIT_NS, confirmed, ending, last_of_stream

MINUTE_NS = 60 * 10**9
#: Starts and lengths in steps of half a minute, so that borders are met; some last over a day.
drawn_rows = st.lists(
    st.tuples(st.integers(0, 30), st.sampled_from([0, 1, 3, 9, 2881])), max_size=9
)
instants = st.lists(st.integers(0, 60), max_size=9)


@given(drawn_rows, drawn_rows, instants)
@settings(max_examples=80, deadline=None)
def test_rows_around_and_rows_that_end_are_those_of_a_plain_search(
    one: list[tuple[int, int]], other: list[tuple[int, int]], at: list[int]
) -> None:
    half = MINUTE_NS // 2
    tables = [
        (
            np.array([start * half for start, _ in each], np.int64),
            np.array([(start + length) * half for start, length in each], np.int64),
        )
        for each in (one, other)
    ]
    sound = {
        (start * half, (start + length) * half)
        for start, length in (*one, *other)
        if 0 < length * half <= LONGEST_WAIT_NS
    }
    at_ns = np.array(at, np.int64) * half
    assert confirmed(at_ns, tables).tolist() == [
        any(start - MINUTE_NS <= t <= end + MINUTE_NS for start, end in sound)
        for t in at_ns.tolist()
    ]
    assert ending(at_ns, tables).tolist() == [
        sum(abs(end - t) <= MINUTE_NS for _, end in sound) for t in at_ns.tolist()
    ]


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(6, 8), st.integers(0, 5)), max_size=12))
@settings(max_examples=60, deadline=None)
def test_the_last_of_a_stream_is_what_nothing_starts_after(
    records: list[tuple[int, int, int]],
) -> None:
    columns = np.array(records, np.int64).reshape(-1, 3).T
    assert last_of_stream(*columns).tolist() == [
        not any(one[:2] == other[:2] and other[2] > one[2] for other in records) for one in records
    ]
