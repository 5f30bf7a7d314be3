"""Columns that grow by one array per block, and fields of mixed type as integers."""

import re
from array import array
from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias, TypeVar, cast

import numpy as np
import numpy.typing as npt

from chopperd.model.arrays import Bools, Int64s
from chopperd.traces.read.json_text import Scalar

Column: TypeAlias = npt.NDArray[np.signedinteger]
KeyT = TypeVar("KeyT")
IntT = TypeVar("IntT", np.int8, np.int32, np.int64)

ABSENT: Final = -1
BEYOND: Final = -2
"""A number that stands for a value beyond those that are told apart."""
_LONGEST_TEXT: Final = 64
"""That may be a number."""
_HEX: Final = re.compile(r"0[xX][0-9a-fA-F]+")
_DECIMAL: Final = re.compile(r"(?:stream +(?=[-\d]))?([-+]?\d+)", re.ASCII)


class Interner(dict[KeyT, int]):
    """Numbers its keys in the order in which they are first asked for.

    Args:
        most: How many keys are numbered; any other is `BEYOND`. None: all.
    """

    def __init__(self, most: int | None = None) -> None:
        super().__init__()
        self.most = most

    def __missing__(self, key: KeyT) -> int:
        """Number a new key."""
        if self.is_full:
            return BEYOND
        self[key] = number = len(self)
        return number

    @property
    def is_full(self) -> bool:
        """Whether no other key will be numbered."""
        return self.most is not None and len(self) >= self.most

    def numbers(self, keys: Sequence[KeyT]) -> list[int]:
        """The number of each, of many that are new."""
        new = [key for key in dict.fromkeys(keys) if key not in self]
        if self.most is not None:
            new = new[: self.most - len(self)]
        self.update(zip(new, range(len(self), len(self) + len(new)), strict=True))
        return list(map(self.__getitem__, keys))


class ColumnParts:
    """The columns of some rows, kept as one array per block."""

    def __init__(self) -> None:
        self._parts: dict[str, list[Column]] = {}

    def append(self, keep: Bools, **columns: Column) -> None:
        """Take the rows where `keep` is set."""
        everything = bool(keep.all())
        for name, column in columns.items():
            part = column if everything else column[keep]
            self._parts.setdefault(name, []).append(part)

    def add(self, **columns: Column) -> None:
        """Take all rows."""
        for name, column in columns.items():
            self._parts.setdefault(name, []).append(column)

    def whole(self, name: str, dtype: type[IntT]) -> npt.NDArray[IntT]:
        """A whole column, (n,) `dtype`, which stays here too."""
        column = self.take(name, dtype)
        self._parts[name] = [column]
        return column

    def take(self, name: str, dtype: type[IntT]) -> npt.NDArray[IntT]:
        """A whole column, (n,) `dtype`; its parts are given up."""
        parts = self._parts.pop(name, [])
        if not parts:
            return np.empty(0, dtype)
        whole = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return whole.astype(dtype, copy=False)


def integers(values: Iterable[Scalar]) -> Int64s:
    """The values as integers, (n,) int64; `ABSENT` where one is absent, no number, or too big."""
    given = [ABSENT if value is None else value for value in values]
    try:
        return np.frombuffer(array("q", cast("list[int]", given)), np.int64).copy()
    except (TypeError, OverflowError):
        return np.array([integer(value) for value in given], dtype=np.int64)


def counts_of(values: Sequence[Scalar]) -> Int64s:
    """As `integers`, `ABSENT` also for 0 and below: ids and sizes that mean "none"."""
    found = integers(values)
    found[found <= 0] = ABSENT
    return found


def integer(value: Scalar) -> int:
    """One value as an integer within int64: 7, 7.0, "7", "0x7" and "stream 7" are 7."""
    try:
        number = _from_text(value) if isinstance(value, str) else int(value or 0)
    except (ValueError, OverflowError):
        return ABSENT
    return number if -(2**63) <= number < 2**63 else ABSENT


def _from_text(text: str) -> int:
    text = text.strip(" ") if len(text) <= _LONGEST_TEXT else ""
    if _HEX.fullmatch(text):
        return int(text, 16)
    decimal = _DECIMAL.fullmatch(text)
    return int(decimal[1]) if decimal else ABSENT
