"""Short names of the numpy array types used throughout the package, and tables of such columns."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Bools: TypeAlias = npt.NDArray[np.bool_]
Int8s: TypeAlias = npt.NDArray[np.int8]
Int32s: TypeAlias = npt.NDArray[np.int32]
Int64s: TypeAlias = npt.NDArray[np.int64]
Float64s: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.signedinteger]
"""Integers of any width."""

TableT = TypeVar("TableT", bound="DataclassInstance")
"""A dataclass all of whose fields are columns of one length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """Rows with their starts and ends, ns."""

    start_ns: Int64s
    end_ns: Int64s

    def __len__(self) -> int:
        return len(self.start_ns)


def rows_of(table: TableT, rows: Int64s | Bools | slice) -> TableT:
    """Return some rows of a table, by index or mask."""
    return replace(table, **{one.name: getattr(table, one.name)[rows] for one in fields(table)})


def joined(tables: Sequence[TableT]) -> TableT:
    """Return the rows of several tables, at least one, one table after another."""
    if len(tables) == 1:
        return tables[0]
    columns = {
        one.name: np.concatenate([getattr(each, one.name) for each in tables])
        for one in fields(tables[0])
    }
    return replace(tables[0], **columns)
