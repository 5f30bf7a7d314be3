import numpy as np
import pytest

from chopperd.traces.read.json_text import Scalar
from chopperd.traces.read.rows import (
    ABSENT,
    ColumnParts,
    Interner,
    LongestRows,
    counts_of,
    integer,
    integers,
)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (7, 7),
        (7.0, 7),
        ("7", 7),
        ("stream 7", 7),
        ("0x10", 16),
        ("0X1f", 31),
        ("stream -1", -1),
        ("Spans", ABSENT),
        ("", ABSENT),
        (float("inf"), ABSENT),
        (25300000000000000001, ABSENT),
        (2**63 - 1, 2**63 - 1),
    ],
)
def test_integers_are_read_from_every_form_that_kineto_has_used(
    value: Scalar, expected: int
) -> None:
    assert integer(value) == expected
    assert integers([value, 1]).tolist() == [expected, 1]
    assert integers([value, "none"]).tolist() == [expected, ABSENT]


def test_absent_integers_are_marked() -> None:
    assert integers([None, 0, 5]).tolist() == [ABSENT, 0, 5]
    assert integers([]).tolist() == []


def test_an_id_of_zero_means_none() -> None:
    assert counts_of([0, None, -3, 4]).tolist() == [ABSENT, ABSENT, ABSENT, 4]


def test_keys_are_numbered_in_the_order_asked_for() -> None:
    interner: Interner[str] = Interner()
    assert [interner[key] for key in ("b", "a", "b", "c")] == [0, 1, 0, 2]
    assert list(interner) == ["b", "a", "c"]


def test_columns_grow_by_the_rows_that_are_kept() -> None:
    parts = ColumnParts()
    parts.append(np.array([True, False, True]), x=np.array([1, 2, 3]))
    parts.append(np.array([True, True]), x=np.array([4, 5]))
    parts.add(x=np.array([6]))
    assert parts.whole("x", np.int64).tolist() == [1, 3, 4, 5, 6]
    column = parts.take("x", np.int32)
    assert column.tolist() == [1, 3, 4, 5, 6]
    assert column.dtype == np.int32


def test_a_column_without_rows_is_empty_and_typed() -> None:
    assert ColumnParts().take("x", np.int8).dtype == np.int8


def test_of_too_many_rows_the_longest_stay_however_they_come() -> None:
    """Lengths 0..9 us, at most 4: those under 1, 2, 4 and then 8 us go, and 8 and 9 us are left.

    From 4 us on there are six, from 8 us on two.
    """
    start_ns = np.zeros(10, np.int64)
    end_ns = np.arange(10) * 1000
    for cuts in ([10], [5, 10], list(range(1, 11))):
        rows = LongestRows(4)
        for first, last in zip([0, *cuts], cuts, strict=False):
            some = slice(first, last)
            rows.append(
                np.ones(last - first, np.bool_), start_ns=start_ns[some], end_ns=end_ns[some]
            )
        assert (rows.shortest_ns, rows.left_out, rows.count) == (8000, 8, 2)
        assert rows.take("end_ns", np.int64).tolist() == [8000, 9000]
