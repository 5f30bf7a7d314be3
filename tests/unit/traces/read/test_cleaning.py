from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chopperd.model.arrays import Bools, Int64s
from chopperd.traces.read.cleaning import (
    Stretch,
    TablesTimes,
    Times,
    believable,
    capture,
    close_together,
)
from chopperd.traces.read.cleaning import outlying as outlying_of

SECOND_NS = 1_000_000_000
MINUTE_NS = 60 * SECOND_NS
DAY_NS = 24 * 60 * MINUTE_NS
NO_ROWS: Times = (np.empty(0, np.int64), np.empty(0, np.int64))


def column(*values: int) -> npt.NDArray[np.int64]:
    return np.array(values, dtype=np.int64)


def trace_of(
    records: Times = NO_ROWS,
    calls: Times = NO_ROWS,
    spans: Times = NO_ROWS,
    device_spans: Times = NO_ROWS,
    *,
    answered: bool = False,
) -> tuple[TablesTimes, Callable[[Int64s], Bools]]:
    def of_rows(rows: Int64s) -> Bools:
        return np.full(len(rows), answered)

    return (records, calls, spans, device_spans), of_rows


def outlying(tables: Sequence[Times]) -> list[Bools]:
    """Of one table or two, of a device and the host's calls."""
    return outlying_of(*trace_of(*tables))[: len(tables)]


def rows(*pairs: tuple[int, int]) -> Times:
    """Rows by start and end."""
    return column(*(start for start, _ in pairs)), column(*(end for _, end in pairs))


def work(count: int = 200, *more: tuple[int, int]) -> Times:
    """A ms apart from 1 ms on, 5 ns each, and more rows."""
    return rows(*((n * 1_000_000, n * 1_000_000 + 5) for n in range(1, count + 1)), *more)


def left_out(times: tuple[TablesTimes, Callable[[Int64s], Bools]]) -> list[list[int]]:
    """Indices of the outlying rows of each table."""
    return [np.flatnonzero(mask).tolist() for mask in outlying_of(*times)]


def test_the_capture_is_the_span_of_rows_with_a_start_and_a_length() -> None:
    first = (column(0, 50, 60), column(0, 55, 60))
    second = (column(52), column(90))
    assert capture([first, second]) == Stretch(50, 90)
    assert capture([(column(0, 7), column(9, 7))]) is None


def test_a_record_without_start_or_length_far_outside_is_not_believed() -> None:
    within = Stretch(100 * SECOND_NS, 101 * SECOND_NS)
    start = column(0, 0, 100 * SECOND_NS, 5 * SECOND_NS, 200 * SECOND_NS, 5 * SECOND_NS)
    end = column(0, 100 * SECOND_NS, 100 * SECOND_NS, 5 * SECOND_NS, 200 * SECOND_NS, 6 * SECOND_NS)
    assert believable(start, end, within).tolist() == [False, False, True, False, False, True]


def test_a_start_of_zero_alone_is_no_fault() -> None:
    within = Stretch(100, 1000)
    assert believable(column(0, 0), column(0, 300), within).all()


def test_with_no_capture_everything_is_believed() -> None:
    assert believable(column(0, 5), column(0, 5), None).all()


def test_a_row_that_lasts_far_beyond_the_last_start_is_outlying() -> None:
    start = column(10, 20, 30)
    end = column(15, 20 + 599 * SECOND_NS, 30 + 601 * SECOND_NS)
    assert [mask.tolist() for mask in outlying([(start, end)])] == [[False, False, True]]


def test_in_a_long_capture_a_row_may_last_as_long_as_that_was() -> None:
    start = np.arange(100, 3101, 100) * SECOND_NS
    end = start + SECOND_NS
    end[5] = 6100 * SECOND_NS
    assert not outlying([(start, end)])[0].any()
    end[5] += 1
    assert outlying([(start, end)])[0].tolist() == [n == 5 for n in range(31)]


def test_a_single_row_years_away_is_outlying_whichever_side_it_is_on() -> None:
    start = column(10**18, 10**18 + 5, 10**18 + 9, 2 * 10**18)
    assert outlying([(start, start + 3)])[0].tolist() == [False, False, False, True]
    start = column(5, 10**18, 10**18 + 5, 10**18 + 9)
    assert outlying([(start, start + 3)])[0].tolist() == [True, False, False, False]


def test_a_table_whose_rows_all_lie_elsewhere_has_a_clock_of_its_own() -> None:
    host = np.arange(1, 100) * SECOND_NS // 1000 + 10**18
    device = np.arange(1, 50) * SECOND_NS // 1000
    assert [mask.any() for mask in outlying([(host, host + 5), (device, device + 5)])] == [
        False
    ] * 2


def test_a_second_capture_in_one_file_stays() -> None:
    one = np.arange(1, 100) * SECOND_NS // 1000
    start = np.concatenate((one, one[:20] + 3600 * SECOND_NS))
    assert not outlying([(start, start + 5)])[0].any()


def test_rows_without_start_or_length_are_no_outliers_but_may_not_be_believed() -> None:
    start, end = column(0, 10**18, 10**18 + 5), column(0, 10**18 + 2, 10**18 + 9)
    masks = outlying([(start, end)])
    assert not masks[0].any()
    assert believable(start, end, capture([(start, end)])).tolist() == [False, True, True]
    assert [mask.tolist() for mask in outlying([(column(), column()), (column(0), column(0))])] == [
        [],
        [False],
    ]


def test_a_row_that_lasts_from_one_stretch_of_rows_to_another_is_right() -> None:
    """A rank hangs in a collective for 11 minutes, and all go on after that."""
    before = np.arange(1, 51) * SECOND_NS // 1000
    after = before[:30] + 660 * SECOND_NS
    start = np.concatenate((before, after, column(SECOND_NS)))
    end = np.concatenate((before + 5, after + 5, column(660 * SECOND_NS)))
    marker = (column(0, 1), column(7, 661 * SECOND_NS))
    for tables in ([(start, end), marker], [marker, (start, end)]):
        assert not any(mask.any() for mask in outlying(tables))


def test_rows_of_a_second_capture_may_not_last_for_decades() -> None:
    one = np.arange(1, 100) * SECOND_NS // 1000
    start = np.concatenate((one, one[:20] + 3600 * SECOND_NS))
    end = start + 5
    end[-1] = 10**18
    assert np.flatnonzero(outlying([(start, end)])[0]).tolist() == [len(start) - 1]


HANG: tuple[int, int] = (201_000_000, 11 * MINUTE_NS)
"""A collective that hangs at the end of a capture of 0.2 s, until the job is killed."""


def test_a_hanging_record_at_the_end_stays_where_a_call_waits_for_it() -> None:
    """A call or operator that began at any time and ends with it."""
    wait = (202_000_000, 11 * MINUTE_NS + 3_000_000)
    assert left_out(trace_of(work(200, HANG), work(200, wait))) == [[], [], [], []]
    assert left_out(trace_of(work(200, HANG), spans=work(200, wait))) == [[], [], [], []]


def test_a_hanging_record_stays_where_it_is_the_last_of_its_stream_and_was_launched() -> None:
    times = trace_of(work(200, HANG), work(200), answered=True)
    assert left_out(times) == [[], [], [], []]


def test_a_lone_endless_record_is_left_out() -> None:
    assert left_out(trace_of(work(200, HANG), work(200))) == [[200], [], [], []]
    # Nor does a call bear it out that ends at another time,
    wait = (202_000_000, 14 * MINUTE_NS)
    assert left_out(trace_of(work(200, HANG), work(200, wait))) == [[200], [200], [], []]
    # or the annotation on the device, whose end is made of it.
    annotation = work(2, (HANG[0] - 1, HANG[1] + 1))
    assert left_out(trace_of(work(200, HANG), work(200), device_spans=annotation)) == [
        [200],
        [],
        [],
        [2],
    ]


def test_the_annotation_around_a_record_that_stays_does_too() -> None:
    annotation = work(2, (HANG[0] - 1, HANG[1] + 1))
    times = trace_of(work(200, HANG), work(200), device_spans=annotation, answered=True)
    assert left_out(times) == [[], [], [], []]


def test_a_wait_for_a_kernel_that_never_ended_stays_where_calls_around_it_say_the_same() -> None:
    """Its record was never written."""
    wait, step = (202_000_000, 11 * MINUTE_NS), (150_000_000, 11 * MINUTE_NS + 7)
    assert left_out(trace_of(work(), work(200, wait), work(20, step))) == [[], [], [], []]
    assert left_out(trace_of(work(), work(200, wait), work(20))) == [[], [200], [], []]
    # The same row written twice is no second witness.
    assert left_out(trace_of(work(), work(200, wait, wait))) == [[], [200, 201], [], []]


@pytest.mark.parametrize(("length_ns", "stays"), [(DAY_NS, True), (DAY_NS + 1, False)])
def test_nothing_bears_out_more_than_a_day(length_ns: int, stays: bool) -> None:
    long = (201_000_000, 201_000_000 + length_ns)
    found = left_out(trace_of(work(200, long), work(200, long), answered=True))
    assert found == ([[], [], [], []] if stays else [[200], [200], [], []])


def test_a_few_rows_behind_a_hang_stay_where_host_and_device_tell_of_them() -> None:
    """Two of 1000 behind 20 minutes: one in five hundred of each."""
    late = [(20 * MINUTE_NS + n, 20 * MINUTE_NS + n + 5) for n in (0, 90)]
    assert left_out(trace_of(work(998, *late), work(998, *late))) == [[], [], [], []]
    assert left_out(trace_of(work(998, *late), work(998))) == [[998, 999], [], [], []]
    assert left_out(trace_of(work(998), work(998, *late))) == [[], [998, 999], [], []]


def test_a_few_rows_behind_a_hang_stay_where_a_row_lasts_until_then() -> None:
    late = [(20 * MINUTE_NS + n, 20 * MINUTE_NS + n + 5) for n in (0, 90)]
    step = (5, 20 * MINUTE_NS + 100)
    assert left_out(trace_of(work(998, *late), spans=work(20, step))) == [[], [], [], []]
    assert left_out(trace_of(calls=work(998, *late), spans=work(20, step))) == [[], [], [], []]


def test_times_at_the_ends_of_the_axis_bear_out_nothing() -> None:
    ends = ((-(2**63), -(2**63) + 5), (2**63 - 9, 2**63 - 1))
    assert left_out(trace_of(work(998, ends[0]), work(998, ends[1]))) == [[998], [998], [], []]


@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 900), st.integers(0, 900)), max_size=6),
        min_size=1,
        max_size=4,
    )
)
@settings(max_examples=100, deadline=None)
def test_of_rows_close_together_none_is_outlying(drawn: list[list[tuple[int, int]]]) -> None:
    tables = [
        rows(*((start * SECOND_NS, (start + lasts) * SECOND_NS) for start, lasts in table))
        for table in drawn
    ]
    span = [at for start, end in tables for at in (*start.tolist(), *end.tolist())]
    close = not span or max(span) - min(span) <= 600 * SECOND_NS
    assert close_together(tables) == close
    if close:
        assert not any(mask.any() for mask in outlying(tables))
