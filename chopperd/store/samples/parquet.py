"""Sample files as Parquet: the columns of the CSV with their types, its first line as metadata."""

from io import BytesIO
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from chopperd.errors import ConfigError, StoreError
from chopperd.model.arrays import Float64s, Int64s
from chopperd.model.devices import MOST_DIES
from chopperd.model.kinds import Cause
from chopperd.model.samples import VALUE_COLUMNS, GpuSamples, SampleSet
from chopperd.store.samples.columns import (
    DIES,
    REQUIRED_COLUMNS,
    SampleColumns,
    SampleHeader,
    cause_bits,
    header_line,
    own_samples,
    parsed_header,
    written_columns,
)

if TYPE_CHECKING:
    import pyarrow

#: How the names of such files end.
PARQUET: Final = ".parquet"
_MAGIC: Final = b"PAR1"
_HEADER_KEY: Final = b"chopperd-samples"


def check_parquet() -> None:
    """See that Parquet can be read and written here.

    Raises:
        ConfigError: pyarrow is not installed.
    """
    try:
        import pyarrow  # noqa: F401, PLC0415 - pyarrow is an extra, and takes long to import
    except ImportError as error:
        raise ConfigError(["Parquet needs pyarrow: pip install 'chopperd[analysis]'"]) from error


def is_parquet(path: Path) -> bool:
    """Whether a file begins as Parquet does; False for one that can't be read."""
    try:
        with path.open("rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except OSError:
        return False


def parquet_of(samples: SampleSet) -> bytes:
    """The file with these samples, rows in order of time.

    Raises:
        ConfigError: pyarrow is not installed.
    """
    check_parquet()
    import pyarrow as pa  # noqa: PLC0415
    from pyarrow import parquet  # noqa: PLC0415

    def array(name: str, column: np.ndarray) -> "pyarrow.Array":
        if column.dtype != object:
            return pa.array(column, from_pandas=True)  # NaN as null
        return pa.array(column.tolist(), pa.list_(pa.float64()) if name == DIES else pa.string())

    written = written_columns(samples, _die_cells)
    columns = {name: array(name, column) for name, column in written.items()}
    table = pa.table(columns).replace_schema_metadata({_HEADER_KEY: header_line(samples).encode()})
    file = BytesIO()
    parquet.write_table(table, file, compression="zstd")
    return file.getvalue()


def read_parquet_samples(path: Path) -> SampleSet:
    """The samples in such a file, or in another program's with the same columns.

    Raises:
        ConfigError: pyarrow is not installed.
        StoreError: It can't be read, or holds something else.
    """
    check_parquet()
    import pyarrow as pa  # noqa: PLC0415
    from pyarrow import parquet  # noqa: PLC0415

    try:
        table = parquet.read_table(path)
        missing = [name for name in REQUIRED_COLUMNS if name not in table.column_names]
        if missing:
            raise StoreError(f"{path}: no column {missing[0]}; not a sample file")
        columns = _columns(table, path)
    except (pa.ArrowException, OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise StoreError(f"{path}: not a sample file: {reason}") from error
    return own_samples([(_header(table, path), columns)], str(path))


def _header(table: "pyarrow.Table", path: Path) -> SampleHeader:
    line = (table.schema.metadata or {}).get(_HEADER_KEY)
    return SampleHeader() if line is None else parsed_header(line.decode(), str(path))


def _columns(table: "pyarrow.Table", path: Path) -> SampleColumns:
    import pyarrow as pa  # noqa: PLC0415

    limited = {cause: f"limited_{cause.label}_ns" for cause in Cause}
    names = table.column_names
    if table.column("gpu").null_count:
        raise ValueError("a row without gpu")
    return SampleColumns(
        labels=table.column("gpu").cast(pa.string()).to_pylist(),
        t_unix_ns=_int64s(table, "t_unix_ns", 0),
        read_span_ns=_int64s(table, "read_span_ns", 0),
        causes=_causes(table),
        values={name: _floats(table, name) for name in VALUE_COLUMNS},
        limited_ns={
            cause: _floats(table, name) for cause, name in limited.items() if name in names
        },
        die_clocks_mhz=_dies(table, path) if DIES in names else None,
    )


def _int64s(table: "pyarrow.Table", name: str, absent: int) -> Int64s:
    import pyarrow as pa  # noqa: PLC0415

    if name not in table.column_names:
        return np.full(table.num_rows, absent, np.int64)
    column = table.column(name)
    if column.null_count:
        raise ValueError(f"a row without {name}")
    found: Int64s = column.cast(pa.int64()).to_numpy()
    return found


def _floats(table: "pyarrow.Table", name: str) -> Float64s:
    """A column with NaN where it has nothing; all NaN without the column."""
    import pyarrow as pa  # noqa: PLC0415

    if name not in table.column_names:
        return np.full(table.num_rows, np.nan)
    values: Float64s = table.column(name).cast(pa.float64()).to_numpy().copy()
    values[np.isinf(values)] = np.nan
    return values


def _causes(table: "pyarrow.Table") -> Int64s:
    """The bit sets of `cause`; without the column, or in a row without it, nothing is known."""
    if "cause" not in table.column_names:
        return np.full(table.num_rows, Cause.UNKNOWN.bit, np.int64)
    texts = table.column("cause").to_pylist()
    bits = {text: cause_bits(text) for text in set(texts) if text is not None}
    return np.array([bits.get(text, Cause.UNKNOWN.bit) for text in texts], np.int64)


def _dies(table: "pyarrow.Table", path: Path) -> Float64s:
    """Clocks of dies, (n, `MOST_DIES`) float64, NaN where absent."""
    dies_mhz = np.full((table.num_rows, MOST_DIES), np.nan)
    for row, cell in enumerate(table.column(DIES).to_pylist()):
        if cell is None:
            continue
        if len(cell) > MOST_DIES:
            raise StoreError(f"{path}: {DIES} holds more than {MOST_DIES} numbers")
        dies_mhz[row, : len(cell)] = [np.nan if mhz is None else mhz for mhz in cell]
    return dies_mhz


def _die_cells(gpu: GpuSamples) -> list[list[float | None] | None]:
    """The clocks of the dies in each row; None where none is known."""
    if gpu.die_clocks_mhz is None:
        return [None] * len(gpu)
    rows = gpu.die_clocks_mhz.tolist()
    known = [[None if isnan(mhz) else mhz for mhz in row] for row in rows]
    return [row if any(mhz is not None for mhz in row) else None for row in known]
