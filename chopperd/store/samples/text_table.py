"""A CSV text as columns, with the line number of any cell that can't be read.

Knows nothing of samples. A recording has millions of cells, so they are found and their numbers
read by whole columns; only what is no plain decimal number goes through Python one by one.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from math import nan
from typing import Final, NoReturn, TypeVar

import numpy as np
import numpy.typing as npt

from chopperd.errors import StoreError
from chopperd.model.arrays import Bools, Float64s, Int64s

Value = TypeVar("Value")

_COMMA, _NEWLINE, _DOT, _PLUS, _ZERO = b",\n.+0"
#: Decimals of at most so many characters are read by column; int64 holds their digits.
_LONGEST: Final = 19
#: Rows that are read together, few enough for a processor's cache.
_BLOCK: Final = 4096
#: A whole number below this is exact in a float64, so that one division by a power of ten (exact
#: up to 10^22) gives the nearest float64, as `float` does.
_EXACT: Final = 1 << 53
_POWERS: Final = np.array([10.0**n for n in range(_LONGEST + 1)])


def parts_of_log(
    data: bytes, mark: str, is_first: Callable[[str], bool]
) -> Iterator[tuple[bytes, int]]:
    """Yield the recordings in a log, each with the number of its first line in the file.

    A line that has `mark` in it begins one if `is_first` says so.
    """
    starts = [0]
    for found in re.finditer(re.escape(mark.encode()), data):
        start = data.rfind(b"\n", 0, found.start()) + 1
        if start > starts[-1] and is_first(data[start : data.find(b"\n", start)].decode()):
            starts.append(start)
    for start, end in zip(starts, [*starts[1:], len(data)], strict=True):
        yield data[start:end], data.count(b"\n", 0, start) + 1


class TextTable:
    """The cells of a CSV text, read by column.

    Args:
        data: Data lines, each ended by just a newline; blank ones and such that start with `#` are
            skipped, quotes and blanks next to commas are dropped. A last line that was cut off
            (no line end, too few cells) is left out.
        names: One for each column.
        path: The file, for messages.
        first_line: Line number in the file of the first line of `data`.

    Raises:
        StoreError: A line has another number of cells than there are names.
    """

    def __init__(self, data: bytes, names: Sequence[str], *, path: str, first_line: int) -> None:
        self.path = path
        self.names = tuple(names)
        self._data, self._line_numbers = _data_lines(_bare(data, len(names)), first_line)
        self._bytes = np.frombuffer(self._data + b"\0" * _LONGEST, np.uint8)
        ends = np.flatnonzero((self._bytes == _COMMA) | (self._bytes == _NEWLINE))
        row_ends = np.flatnonzero(self._bytes[ends] == _NEWLINE)
        counts = np.diff(row_ends, prepend=-1)
        wrong = np.flatnonzero(counts != len(self.names))
        if len(wrong):
            line, count = self._line_numbers[int(wrong[0])], counts[wrong[0]]
            raise StoreError(f"{path}: line {line}: {count} cells where {len(names)} are named")
        starts = np.concatenate([[0], ends[:-1] + 1])[: len(ends)]
        # Column by column, since that is how they are read.
        self._starts = np.ascontiguousarray(starts.reshape(-1, len(names)).T)
        self._ends = np.ascontiguousarray(ends.reshape(-1, len(names)).T)

    def __len__(self) -> int:
        """The number of rows."""
        return int(self._ends.shape[1])

    def coded(self, name: str) -> tuple[list[str], Int64s]:
        """Return a column's distinct cells, and the index of each row's cell in them, (rows,)."""
        starts, ends = self._spans(name)
        codes = np.zeros(len(self), np.int64)
        # A code distinguishes cells by the characters read so far.
        for place in range(0, int((ends - starts).max(initial=0)), 4):
            codes = np.unique(codes, return_inverse=True)[1]
            for at in range(place, place + 4):
                inside = starts + at < ends
                character = self._bytes[np.where(inside, starts + at, 0)]
                codes = codes << 8 | np.where(inside, character, 0)
        _, rows, codes = np.unique(codes, return_index=True, return_inverse=True)
        return [self.cell(name, row) for row in rows.tolist()], codes

    def cells(self, name: str) -> list[str]:
        """Return the cells of a column, (rows,), without surrounding blanks."""
        different, codes = self.coded(name)
        return [different[code] for code in codes.tolist()]

    def parsed(self, name: str, convert: Callable[[str], Value]) -> list[Value]:
        """Convert the cells of a column, (rows,); equal cells are converted once.

        Raises:
            StoreError: `convert` raised ValueError for a cell; names the line.
        """
        different, codes = self.coded(name)
        values: list[Value] = []
        for code, cell in enumerate(different):
            try:
                values.append(convert(cell))
            except ValueError:
                self.fail(int(np.flatnonzero(codes == code)[0]), name, "can't be read")
        return [values[code] for code in codes.tolist()]

    def floats(self, name: str) -> Float64s:
        """Return a column as (rows,) float64; NaN for an empty cell or a missing column.

        Raises:
            StoreError: A cell is not a finite number.
        """
        if name not in self.names:
            return np.full(len(self), nan)
        return self._floats(name, *self._spans(name), np.arange(len(self)))

    def joined_floats(self, name: str, most: int) -> Float64s:
        """Parse cells of up to `most` numbers joined by `+`, as (rows, most); NaN where absent.

        Raises:
            StoreError: A cell has more than `most` numbers, or one that is not finite.
        """
        table = np.full((len(self), most), nan)
        if name not in self.names:
            return table
        starts, ends = self._spans(name)
        joints = np.flatnonzero(self._bytes == _PLUS)
        rows = np.searchsorted(starts, joints, side="right") - 1
        inside = (rows >= 0) & (joints < ends[rows])
        joints, rows = joints[inside], rows[inside]
        counts = np.bincount(rows, minlength=len(self))
        if (counts >= most).any():
            self.fail(int(np.argmax(counts >= most)), name, f"holds more than {most} numbers")
        starts = np.sort(np.concatenate([starts, joints + 1]))
        ends = np.sort(np.concatenate([ends, joints]))
        rows = np.repeat(np.arange(len(self)), counts + 1)
        places = np.arange(len(rows)) - (np.cumsum(counts + 1) - counts - 1)[rows]
        table[rows, places] = self._floats(name, starts, ends, rows)
        return table

    def int64s(self, name: str) -> Int64s:
        """Return a column as (rows,) int64; every cell must hold a whole number.

        Raises:
            StoreError: A cell is not a whole number of 64 bits.
        """
        digits, _, is_read = self._decimals(*self._spans(name), with_dot=False)
        for row in np.flatnonzero(~is_read).tolist():
            try:
                digits[row] = self._one(name, row, self.cell(name, row), int)
            except OverflowError:
                self.fail(row, name, "does not fit 64 bits")
        return digits

    def fail(self, row: int, name: str, problem: str) -> NoReturn:
        """Raise a StoreError that names the line and content of one cell."""
        line = self._line_numbers[row]
        raise StoreError(f"{self.path}: line {line}: {name} {self.cell(name, row)!r} {problem}")

    def _floats(self, name: str, starts: Int64s, ends: Int64s, rows: Int64s) -> Float64s:
        """Parse numbers in cells, or parts of cells, of a column; NaN for empty ones."""
        digits, decimals, is_read = self._decimals(starts, ends)
        is_read &= digits < _EXACT
        values: Float64s = np.where(is_read, digits / _POWERS[decimals], nan)
        for at in np.flatnonzero(~is_read & (ends > starts)).tolist():
            text = self._data[starts[at] : ends[at]].decode().strip()
            values[at] = self._one(name, int(rows[at]), text, float)
        if np.isinf(values).any():
            self.fail(int(rows[np.isinf(values)][0]), name, "is not finite")
        return values

    def _one(self, name: str, row: int, text: str, convert: Callable[[str], Value]) -> Value:
        """Convert the text of one cell or a part of it; StoreError if that fails."""
        try:
            return convert(text)
        except ValueError:
            self.fail(row, name, "can't be read")

    def cell(self, name: str, row: int) -> str:
        """Return one cell of a column, without surrounding blanks."""
        starts, ends = self._spans(name)
        return self._data[starts[row] : ends[row]].decode().strip()

    def _spans(self, name: str) -> tuple[Int64s, Int64s]:
        """Return start and end of each cell of a column in the data, (rows,)."""
        column = self.names.index(name)
        return self._starts[column], self._ends[column]

    def _decimals(
        self, starts: Int64s, ends: Int64s, *, with_dot: bool = True
    ) -> tuple[Int64s, Int64s, Bools]:
        """Parse texts as decimals: digits, number of decimals, whether each is such a number."""
        blocks = [
            _block_decimals(self._bytes, starts[at : at + _BLOCK], ends[at : at + _BLOCK], with_dot)
            for at in range(0, len(starts), _BLOCK)
        ]
        if not blocks:
            return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.bool_)
        digits, decimals, is_read = zip(*blocks, strict=True)
        return np.concatenate(digits), np.concatenate(decimals), np.concatenate(is_read)


def _block_decimals(
    data: npt.NDArray[np.uint8], starts: Int64s, ends: Int64s, with_dot: bool
) -> tuple[Int64s, Int64s, Bools]:
    """Parse cells like `1980` and `699.51`: digits, number of decimals, which are like that."""
    lengths = ends - starts
    digits, decimals = np.zeros_like(starts), np.zeros_like(starts)
    has_dot = np.zeros(len(starts), np.bool_)
    is_read: Bools = (lengths > 0) & (lengths <= _LONGEST)
    for place in range(int(lengths[is_read].max(initial=0))):
        inside = lengths > place
        character = data[starts + place]  # what is past the end of a cell is not used
        digit = character - np.uint8(_ZERO)  # wraps to above 9 for what comes before "0"
        is_digit = inside & (digit <= 9)
        digits = np.where(is_digit, digits * 10 + digit, digits)
        decimals += is_digit & has_dot
        others = inside ^ is_digit
        if others.any():
            is_dot = others & (character == _DOT) & ~has_dot if with_dot else ~inside & inside
            has_dot |= is_dot
            is_read &= ~others | is_dot
    is_read &= (digits >= 0) & (lengths > has_dot)
    return digits, decimals, is_read


def _bare(data: bytes, name_count: int) -> bytes:
    """Remove quotes, blanks next to commas, and an incomplete last line from the data."""
    for clutter, bare in ((b'"', b""), (b", ", b","), (b" ,", b",")):
        if clutter in data:
            data = data.replace(clutter, bare)
    if data.endswith(b"\n"):
        return data
    complete, _, last = data.rpartition(b"\n")
    if last.count(b",") + 1 < name_count:
        return complete + b"\n" if complete else b""
    return data + b"\n"


def _data_lines(data: bytes, first_line: int) -> tuple[bytes, Sequence[int]]:
    """Remove blank lines and comments; return the data, and the line number of each line left."""
    line_count = data.count(b"\n")
    if not (data.startswith((b"\n", b"#")) or b"\n\n" in data or b"\n#" in data):
        return data, range(first_line, first_line + line_count)
    lines = data.split(b"\n")[:-1]
    kept = [row for row, line in enumerate(lines) if line and not line.startswith(b"#")]
    return b"".join(lines[row] + b"\n" for row in kept), [first_line + row for row in kept]
