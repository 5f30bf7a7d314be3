"""A CSV text as columns of cells, with the line number of whatever can't be read.

Knows nothing of samples. Splits whole columns at once, since a recording has millions of cells.
"""

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import nan
from typing import NoReturn, TypeVar

import msgspec
import numpy as np

from chopperd.errors import StoreError
from chopperd.model.arrays import Float64s, Int64s

Value = TypeVar("Value")
Number = TypeVar("Number", int, float)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextTable:
    """Cells by column.

    Attributes:
        path: The file, for messages.
        columns: Cells of each column, all equally long, without surrounding blanks.
        line_numbers: (rows,) Line in the file of each row, from 1.
    """

    path: str
    columns: dict[str, Sequence[str]]
    line_numbers: Sequence[int]

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.line_numbers)

    def floats(self, name: str, convert: Callable[[str], float] = float) -> Float64s:
        """A column as (rows,) float64; NaN where the cell is empty or the column is missing.

        Raises:
            StoreError: A cell is not a finite number.
        """
        cells = self.columns.get(name)
        values = np.full(len(self), nan)
        if not cells:
            return values
        if "" in cells:
            rows = [row for row, cell in enumerate(cells) if cell]
            values[rows] = self._numbers(name, [cells[row] for row in rows], convert)
        else:
            values[:] = self._numbers(name, cells, convert)
        if np.isinf(values).any():
            self.fail(int(np.flatnonzero(np.isinf(values))[0]), name, "is not finite")
        return values

    def int64s(self, name: str) -> Int64s:
        """A column as (rows,) int64; every cell must hold a whole number.

        Raises:
            StoreError: A cell is not a whole number of 64 bits.
        """
        values = _decoded(self.columns[name], int) or self.parsed(name, int)
        try:
            return np.array(values, dtype=np.int64)
        except OverflowError:
            row = next(i for i, value in enumerate(values) if not -(2**63) <= value < 2**63)
            self.fail(row, name, "does not fit 64 bits")

    def _numbers(
        self, name: str, cells: Sequence[str], convert: Callable[[str], float]
    ) -> Sequence[float]:
        """The numbers in cells of a column, none of them empty."""
        fast = _decoded(cells, float) if convert is float else None
        return self.parsed(name, convert, cells) if fast is None else fast

    def parsed(
        self, name: str, convert: Callable[[str], Value], cells: Sequence[str] | None = None
    ) -> list[Value]:
        """The converted cells of a column, or just those of its cells that are given.

        Raises:
            StoreError: `convert` raised ValueError for a cell; names the line.
        """
        chosen = self.columns[name] if cells is None else cells
        try:
            return [convert(cell) for cell in chosen]
        except ValueError:
            refused = _first_refused(chosen, convert)
        self.fail(self.columns[name].index(refused), name, "can't be read")

    def fail(self, row: int, name: str, problem: str) -> NoReturn:
        """Raise the error for one cell."""
        cell = self.columns[name][row]
        raise StoreError(f"{self.path}: line {self.line_numbers[row]}: {name} {cell!r} {problem}")


def table_of(
    lines: Sequence[str], names: Sequence[str], *, path: str, first_line: int, ends_in_newline: bool
) -> TextTable:
    """The table of data lines; blank lines and lines that start with `#` are passed over.

    A last line that was cut off (no line end, too few cells) is left out.

    Args:
        lines: Data lines without line ends.
        names: One for each column.
        path: The file, for messages.
        first_line: Line number of the first of them.
        ends_in_newline: Whether the last of them was ended.

    Raises:
        StoreError: A line has another number of cells than there are names.
    """
    numbers = [i for i, line in enumerate(lines, first_line) if line and line[0] != "#"]
    rows = [lines[number - first_line] for number in numbers]
    split = _split_quoted(rows) if any('"' in row for row in rows) else None
    counts = [len(row) for row in split] if split else [row.count(",") + 1 for row in rows]
    if rows and not ends_in_newline and counts[-1] < len(names):
        del rows[-1], numbers[-1], counts[-1]
    _check_counts(counts, numbers, len(names), path)
    if split:
        cells = [cell.strip() for row in split[: len(rows)] for cell in row]
    else:
        cells = ",".join(rows).replace(" ,", ",").replace(", ", ",").split(",") if rows else []
    columns: dict[str, Sequence[str]] = {
        name: cells[i :: len(names)] for i, name in enumerate(names)
    }
    return TextTable(path=path, columns=columns, line_numbers=numbers)


def _decoded(cells: Sequence[str], kind: type[Number]) -> list[Number] | None:
    """The numbers in the cells; None if not all of them are numbers as JSON writes them.

    Takes half the time of `kind` on each cell, which remains for what else it can read.
    """
    try:
        return msgspec.json.decode(f"[{','.join(cells)}]", type=list[kind])  # type: ignore[valid-type]
    except msgspec.DecodeError:
        return None


def _split_quoted(rows: Sequence[str]) -> list[list[str]]:
    return list(csv.reader(rows, skipinitialspace=True))


def _check_counts(counts: Sequence[int], numbers: Sequence[int], wanted: int, path: str) -> None:
    for count, number in zip(counts, numbers, strict=True):
        if count != wanted:
            raise StoreError(f"{path}: line {number}: {count} cells where {wanted} are named")


def _first_refused(cells: Sequence[str], convert: Callable[[str], Value]) -> str:
    """The first cell that `convert` refuses; there is one."""
    for cell in cells:
        try:
            convert(cell)
        except ValueError:
            return cell
    raise AssertionError("no cell was refused")
