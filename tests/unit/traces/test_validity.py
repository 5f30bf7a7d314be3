import numpy as np
import numpy.typing as npt

from chopperd.traces.validity import Stretch, believable, capture

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
