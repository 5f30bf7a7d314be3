"""Store a report as one Parquet file: a line a step and device, then a line a device in total.

Columns are those of the CSV, with their types; lists in a row are lists of structures. All else of
the document is in the file's metadata, so that nothing is lost.
"""

from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from chopperd.errors import StoreError
from chopperd.model.report import SCHEMA, ReportDocument
from chopperd.model.report_rows import Row
from chopperd.report.forms.columns import (
    KEYS,
    Kind,
    Table,
    columns_of,
    list_table,
    lists_of,
    own_name,
    row_table,
)

if TYPE_CHECKING:
    import pyarrow

_SCHEMA_KEY: Final = b"chopperd.schema"
_DOCUMENT_KEY: Final = b"chopperd.document"
PARQUET_MAGIC: Final = b"PAR1"


class ReportTables(Struct, frozen=True, kw_only=True):
    """A report in pieces: its rows, the lists in them, and the rest of the document."""

    rows: Table  # as of `row_table`
    lists: Mapping[str, Table]  # by the field of a row, as of `list_table`
    document: ReportDocument  # the rest, with no rows


def tables_of(document: ReportDocument) -> ReportTables:
    """Split a document into tables and the rest."""
    return ReportTables(
        rows=row_table(document),
        lists={field: list_table(document, field) for field in lists_of(Row)},
        document=replace(document, steps=(), totals=()),
    )


def parquet_bytes(document: ReportDocument) -> bytes:
    """Encode a document as a Parquet file; raise `ImportError` without pyarrow."""
    import pyarrow as pa  # noqa: PLC0415 - pyarrow is an extra
    from pyarrow import parquet  # noqa: PLC0415

    rows = row_table(document)
    columns = {name: pa.array(rows.columns[name], _arrow(rows.kinds[name])) for name in rows.kinds}
    every = (*document.steps, *document.totals)
    for field, item in lists_of(Row).items():
        wanted = columns_of(item)
        kind = pa.list_(pa.struct([(column.name, _arrow(column.kind)) for column in wanted]))
        lists = [
            [{column.name: column.of(each) for column in wanted} for each in getattr(row, field)]
            for row in every
        ]
        columns[field] = pa.array(lists, kind)
    rest = msgspec.json.encode(replace(document, steps=(), totals=()))
    metadata = {_SCHEMA_KEY: SCHEMA.encode(), _DOCUMENT_KEY: rest}
    table = pa.table(columns).replace_schema_metadata(metadata)
    file = BytesIO()
    parquet.write_table(table, file, compression="zstd")
    return file.getvalue()


def read_parquet(path: Path) -> ReportTables:
    """Read a report from a file that `parquet_bytes` encoded.

    Raises:
        ImportError: pyarrow is not installed.
        StoreError: The file is not of this form.
    """
    import pyarrow as pa  # noqa: PLC0415
    from pyarrow import parquet  # noqa: PLC0415

    try:
        table = parquet.read_table(path)
        document = msgspec.json.decode(
            (table.schema.metadata or {}).get(_DOCUMENT_KEY, b""), type=ReportDocument
        )
    except (pa.ArrowException, OSError, msgspec.DecodeError) as error:
        raise StoreError(f"{path}: not a report that chopperd wrote as Parquet") from error
    nested = [field.name for field in table.schema if pa.types.is_list(field.type)]
    return ReportTables(
        rows=_flat(table.drop_columns(nested)),
        lists={name: _items(table, name) for name in nested},
        document=document,
    )


def _items(table: "pyarrow.Table", name: str) -> Table:
    from pyarrow import compute  # noqa: PLC0415

    column = table.column(name).combine_chunks()
    keys = table.select([key for key in KEYS if key in table.column_names])
    joined = keys.take(compute.list_parent_indices(column))
    items = column.flatten()
    for number, field in enumerate(items.type):
        joined = joined.append_column(own_name(field.name), items.field(number))
    return _flat(joined)


def _flat(table: "pyarrow.Table") -> Table:
    return Table(
        kinds={field.name: _kind(field.type) for field in table.schema},
        columns={name: table.column(name).to_pylist() for name in table.column_names},
    )


def _arrow(kind: Kind) -> "pyarrow.DataType":
    import pyarrow as pa  # noqa: PLC0415

    types = {int: pa.int64(), float: pa.float64(), bool: pa.bool_(), str: pa.string()}
    return types[kind]


def _kind(stored: "pyarrow.DataType") -> Kind:
    kinds: tuple[Kind, ...] = (int, float, bool)
    return next((kind for kind in kinds if stored == _arrow(kind)), str)
