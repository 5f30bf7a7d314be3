"""Device windows, each cut worked out by hand; and their laws."""

from collections.abc import Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from chopperd.model.arrays import Bools
from chopperd.model.timeline import DeviceWindow
from chopperd.traces.timeline.layout import device_windows, main_stream
from tests.trace_building import column

#: (step, start_ns, length_ns, computes, on main stream)
Rows = list[tuple[int, int, int, bool, bool]]


def windows(rows: Rows, cycle: Sequence[int] = ()) -> tuple[DeviceWindow, ...]:
    rows = sorted(rows, key=lambda row: (row[1], row[1] + row[2]))
    start_ns = column([row[1] for row in rows])
    return device_windows(
        step=column([row[0] for row in rows]).astype(np.int32),
        start_ns=start_ns,
        end_ns=start_ns + column([row[2] for row in rows]),
        compute=flags([row[3] for row in rows]),
        on_main_stream=flags([row[4] for row in rows]),
        cycle=cycle,
    )


def flags(values: list[bool]) -> Bools:
    return np.array(values, np.bool_)


def bounds(found: tuple[DeviceWindow, ...]) -> list[tuple[int, int, int]]:
    return [(window.step, window.start_ns, window.end_ns) for window in found]


def test_a_window_starts_at_the_first_own_compute_kernel_on_the_main_stream() -> None:
    found = windows(
        [
            (0, 0, 5, False, True),  # a copy
            (0, 10, 5, True, False),  # compute elsewhere
            (0, 20, 30, True, True),
            (1, 40, 5, True, False),
            (1, 60, 30, True, True),
            (-1, 200, 30, True, True),  # not its own
        ]
    )
    assert bounds(found) == [(0, 20, 60), (1, 60, 90)]
    assert [window.tail for window in found] == [False, True]


def test_without_main_stream_compute_any_compute_cuts_and_else_any_record() -> None:
    found = windows(
        [
            (0, 0, 5, False, True),
            (0, 10, 5, True, False),
            (1, 30, 5, False, False),
            (1, 40, 5, False, True),
        ]
    )
    assert bounds(found) == [(0, 10, 30), (1, 30, 45)]


def test_a_step_without_records_leaves_its_time_with_the_step_before() -> None:
    found = windows([(0, 0, 5, True, True), (2, 50, 5, True, True)])
    assert bounds(found) == [(0, 0, 50), (2, 50, 55)]


def test_the_last_window_of_a_cycle_ends_with_its_work_and_is_a_tail() -> None:
    found = windows([(n, 50 * n, 5, True, True) for n in range(4)], cycle=(0, 0, 1, 1))
    assert bounds(found) == [(0, 0, 50), (1, 50, 55), (2, 100, 150), (3, 150, 155)]
    assert [window.tail for window in found] == [False, True, False, True]


def test_work_that_goes_on_into_the_next_cycle_is_cut_there() -> None:
    found = windows([(0, 0, 90, True, True), (1, 50, 5, True, True)], cycle=(0, 1))
    assert bounds(found) == [(0, 0, 50), (1, 50, 55)]


def test_cuts_never_go_back_and_may_leave_a_window_empty() -> None:
    found = windows([(0, 40, 5, True, True), (1, 10, 5, True, True), (2, 60, 5, True, True)])
    assert bounds(found) == [(0, 40, 40), (1, 40, 60), (2, 60, 65)]


def test_a_last_step_that_ended_before_its_cut_has_an_empty_window() -> None:
    found = windows([(0, 40, 5, True, True), (1, 10, 5, True, True)])
    assert bounds(found) == [(0, 40, 40), (1, 40, 40)]


def test_the_last_window_ends_at_the_last_own_record_of_any_class() -> None:
    found = windows([(0, 0, 5, True, True), (0, 10, 80, False, False), (-1, 50, 99, True, True)])
    assert bounds(found) == [(0, 0, 90)]


def test_a_device_without_own_records_has_no_window() -> None:
    assert windows([(-1, 0, 5, True, True)]) == ()
    assert windows([]) == ()


rows_of_steps = st.lists(
    st.tuples(
        st.integers(-1, 4), st.integers(0, 60), st.integers(0, 9), st.booleans(), st.booleans()
    ),
    max_size=30,
)


@settings(max_examples=25, deadline=None)
@given(rows_of_steps)
def test_windows_abut_and_there_is_one_for_each_step_with_records(rows: Rows) -> None:
    found = windows(rows)
    assert [window.step for window in found] == sorted({row[0] for row in rows} - {-1})
    assert [w.end_ns for w in found[:-1]] == [w.start_ns for w in found[1:]]
    assert all(window.start_ns <= window.end_ns for window in found)
    assert [window.tail for window in found] == [False] * (len(found) - 1) + [True] * bool(found)
    assert found == windows(list(reversed(rows)))


def test_the_main_stream_has_the_most_compute_time() -> None:
    stream, lengths = column([7, 20, 7, 20]), column([10, 25, 10, 100])
    assert main_stream(stream, lengths, flags([True, True, True, False])) == 20
    assert main_stream(stream, column([10, 15, 10, 100]), flags([True, True, True, False])) == 7
    assert main_stream(stream, column([10, 15, 10, 3]), flags([False] * 4)) == 7
