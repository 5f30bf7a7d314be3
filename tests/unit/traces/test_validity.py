import numpy as np
import numpy.typing as npt
from hypothesis import given, settings
from hypothesis import strategies as st

from chopperd.traces.validity import Stretch, believable, capture, close_together, outlying

SECOND_NS = 1_000_000_000


def column(*values: int) -> npt.NDArray[np.int64]:
    return np.array(values, dtype=np.int64)


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


@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 900), st.integers(0, 900)), max_size=6),
        min_size=1,
        max_size=3,
    )
)
@settings(max_examples=100, deadline=None)
def test_of_rows_close_together_none_is_outlying(rows: list[list[tuple[int, int]]]) -> None:
    tables = [
        (
            column(*(start * SECOND_NS for start, _ in table)),
            column(*((start + lasts) * SECOND_NS for start, lasts in table)),
        )
        for table in rows
    ]
    span = [at for start, end in tables for at in (*start.tolist(), *end.tolist())]
    close = not span or max(span) - min(span) <= 600 * SECOND_NS
    assert close_together(tables) == close
    if close:
        assert not any(mask.any() for mask in outlying(tables))
