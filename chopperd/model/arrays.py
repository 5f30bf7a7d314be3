"""Short names of the numpy array types used throughout the package, and tables of such columns."""

from collections.abc import Sequence
from typing import TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

Bools: TypeAlias = npt.NDArray[np.bool_]
Int8s: TypeAlias = npt.NDArray[np.int8]
Int32s: TypeAlias = npt.NDArray[np.int32]
Int64s: TypeAlias = npt.NDArray[np.int64]
Float64s: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.signedinteger]
"""Integers of any width."""

TableT = TypeVar("TableT", bound=Struct)
"""A struct all of whose fields are columns of one length."""


class Timed(Struct, frozen=True, kw_only=True):
    """Rows with their starts and ends, ns."""

    start_ns: Int64s
    end_ns: Int64s

    def __len__(self) -> int:
        return len(self.start_ns)


def rows_of(table: TableT, rows: Int64s | Bools | slice) -> TableT:
    """Return some rows of a table, by index or mask."""
    return replace(table, **{name: getattr(table, name)[rows] for name in table.__struct_fields__})


def joined(tables: Sequence[TableT]) -> TableT:
    """Return the rows of several tables, at least one, one table after another."""
    if len(tables) == 1:
        return tables[0]
    columns = {
        name: np.concatenate([getattr(each, name) for each in tables])
        for name in tables[0].__struct_fields__
    }
    return replace(tables[0], **columns)
