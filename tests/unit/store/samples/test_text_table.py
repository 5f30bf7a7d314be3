"""Numbers read by whole columns must equal what `float` and `int` make of each cell."""

import re
from math import nan

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chopperd.errors import StoreError
from chopperd.store.samples.text_table import TextTable

decimals = st.from_regex(r"[0-9]{1,20}(\.[0-9]{0,20})?|\.[0-9]{1,19}", fullmatch=True)
numbers = st.floats(allow_nan=False, allow_infinity=False).map(repr)
signed = st.from_regex(r"[+-][0-9]{1,18}|[0-9]e-?[0-9]{1,2}", fullmatch=True)


def column(cells: list[str]) -> TextTable:
    lines = "".join(f"{cell},x\n" for cell in cells)
    return TextTable(lines.encode(), ["a", "b"], path="t.csv", first_line=1)


@given(cells=st.lists(st.just("") | decimals | numbers | signed, max_size=20))
@settings(max_examples=25, deadline=None)
def test_floats_equal_those_of_python_to_the_last_bit(cells: list[str]) -> None:
    expected = [float(cell) if cell else nan for cell in cells]
    np.testing.assert_array_equal(column(cells).floats("a"), expected)


@given(numbers=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20))
@settings(max_examples=25, deadline=None)
def test_whole_numbers_are_exact_over_all_64_bits(numbers: list[int]) -> None:
    assert column([str(number) for number in numbers]).int64s("a").tolist() == numbers


@pytest.mark.parametrize("cell", ["9223372036854775808", "9999999999999999999", "-1" + "0" * 19])
def test_a_whole_number_past_64_bits_is_refused(cell: str) -> None:
    with pytest.raises(StoreError, match=f"line 2: a '{cell}' does not fit 64 bits"):
        column(["1", cell]).int64s("a")


@pytest.mark.parametrize("cell", [".", "1..2", "1.2.3", "-", "1,", "x1", "1x", "0x10", "1 2"])
def test_what_is_no_number_is_refused_with_its_line(cell: str) -> None:
    with pytest.raises(StoreError, match="line 2: "):
        column(["1", cell, "3"]).floats("a")


def test_many_rows_are_read_the_same_as_few() -> None:
    cells = [f"{n / 8}" for n in range(10_000)]  # more than one block
    assert column(cells).floats("a").tolist() == [n / 8 for n in range(10_000)]


@given(cells=st.lists(st.text("ab+_", max_size=11), max_size=30))
@settings(max_examples=25, deadline=None)
def test_cells_come_back_in_their_order_whatever_they_hold(cells: list[str]) -> None:
    table = column(cells)
    assert table.cells("a") == cells
    different, codes = table.coded("a")
    assert len(set(different)) == len(different)
    assert [different[code] for code in codes.tolist()] == cells


def test_line_numbers_count_the_lines_that_are_passed_over() -> None:
    data = b"\n1,x\n# comment\n\nbad,x\n"
    table = TextTable(data, ["a", "b"], path="t.csv", first_line=10)
    assert len(table) == 2
    with pytest.raises(StoreError, match=r"t\.csv: line 14: a 'bad'"):
        table.floats("a")


def test_a_missing_column_of_numbers_is_all_nan() -> None:
    assert np.isnan(column(["1", "2"]).floats("c")).all()


decimals_or_nothing = st.lists(st.just("") | decimals | numbers, min_size=1, max_size=4)


@given(rows=st.lists(decimals_or_nothing, max_size=12))
@settings(max_examples=50, deadline=None)
def test_joined_numbers_equal_those_of_python_each_in_its_place(rows: list[list[str]]) -> None:
    cells = ["+".join(row) for row in rows if not any("e+" in cell for cell in row)]
    expected = np.full((len(cells), 4), nan)
    for row, cell in enumerate(cells):
        for place, part in enumerate(cell.split("+")):
            expected[row, place] = float(part) if part else nan
    np.testing.assert_array_equal(column(cells).joined_floats("a", 4), expected)


def test_joints_in_other_columns_are_none_of_a_columns() -> None:
    lines = b"1+2,3+4\n5,6+7+8\n,+\n"
    table = TextTable(lines, ["a", "b"], path="t.csv", first_line=1)
    expected = [[1, 2, nan], [5, nan, nan], [nan] * 3]
    np.testing.assert_array_equal(table.joined_floats("a", 3), expected)
    np.testing.assert_array_equal(table.joined_floats("c", 3), np.full((3, 3), nan))


@pytest.mark.parametrize(
    ("cell", "says"),
    [("1+2+3", "holds more than 2 numbers"), ("1+x", "can't be read"), ("1e999", "is not finite")],
)
def test_joined_cells_that_cannot_be_are_refused_with_their_line(cell: str, says: str) -> None:
    with pytest.raises(StoreError, match=re.escape(f"line 2: a '{cell}' {says}")):
        column(["1+2", cell]).joined_floats("a", 2)
