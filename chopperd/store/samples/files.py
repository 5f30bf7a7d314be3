"""Sample files: reads our own, CSV, and those of other monitors; writes our own.

The format is a first line `# chopperd-samples/1 {json}` and then CSV, one row a sample; or the same
columns as Parquet, with that line in the metadata.
"""

import gzip
import zlib
from codecs import BOM_UTF8
from collections.abc import Callable, Sequence
from datetime import tzinfo
from io import BytesIO
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from chopperd.errors import ConfigError, StoreError
from chopperd.model.arrays import Float64s, Int64s
from chopperd.model.devices import MOST_DIES
from chopperd.model.kinds import Cause
from chopperd.model.samples import GpuSamples, SampleSet
from chopperd.store.disk import replaced_file
from chopperd.store.samples import monitors
from chopperd.store.samples.columns import (
    DIES,
    FLOAT_COLUMNS,
    HEADER_MARK,
    REQUIRED_COLUMNS,
    SampleColumns,
    SampleHeader,
    cause_bits,
    header_line,
    own_samples,
    parsed_header,
    written_columns,
)
from chopperd.store.samples.nvidia_smi import looks_like_smi, parsed_smi
from chopperd.store.samples.plain_csv import parsed_plain
from chopperd.store.samples.text_table import TextTable, parts_of_log

if TYPE_CHECKING:
    import pyarrow

#: Suffix of Parquet files.
PARQUET: Final = ".parquet"
_PARQUET_MAGIC: Final = b"PAR1"
_HEADER_KEY: Final = b"chopperd-samples"
_GZIP_MAGIC: Final = b"\x1f\x8b"
#: Detector and reader of other monitors' files; the last takes what is left.
_OTHERS: Final = (
    (monitors.looks_like_json, monitors.parsed_prometheus),
    (monitors.looks_like_dcgmi, monitors.parsed_dcgmi),
    (bool, parsed_plain),
)


def read_samples(
    path: Path, *, tz: tzinfo | None = None, smi_fields: Sequence[str] = ()
) -> SampleSet:
    """Read the samples of a file, which may be compressed by gzip.

    The kind is found by content: ours, ours as Parquet, CSV with the same columns and
    no first line or with other names and units, `nvidia-smi --query-gpu=timestamp,...
    --format=csv`, `amd-smi metric --csv`, `dcgmi dmon` with times, and a Prometheus range. Rows are
    sorted by time; of rows of one GPU with the same time only the first stays. A log that goes on
    with a further header holds a further recording.

    Args:
        path: The file.
        tz: Zone of the times of `nvidia-smi`, which writes local time; None is this machine's.
        smi_fields: Query fields of `nvidia-smi` output that was written with `noheader`.

    Raises:
        StoreError: The file can't be read or is none of these; names the line.
        ConfigError: pyarrow, which Parquet takes, is not installed.
    """
    if _is_parquet(path):
        return _parquet_samples(path)
    data = _data(path)
    if not data.strip():
        raise StoreError(f"{path}: the file is empty")
    line = data.partition(b"\n")[0].decode()
    if line.startswith(HEADER_MARK) or {*REQUIRED_COLUMNS} <= {*_names(line)}:
        parts = parts_of_log(data, HEADER_MARK, lambda text: text.startswith(HEADER_MARK))
        return own_samples([_recording(part, at, path) for part, at in parts], str(path))
    if monitors.looks_like_amd_smi(data):
        return monitors.parsed_amd_smi(data, path=str(path))
    if smi_fields or looks_like_smi(line):
        return parsed_smi(data, path=str(path), tz=tz, fields=smi_fields)
    return next(read for fits, read in _OTHERS if fits(data))(data, path=str(path))


def write_samples(path: Path, samples: SampleSet) -> None:
    """Write a sample file, whole or not at all.

    It is compressed where the name ends in `.gz`, and Parquet where it ends in `.parquet`. Columns
    in which no GPU has a value are left out.

    Raises:
        StoreError: The file can't be written.
        ConfigError: pyarrow, which Parquet takes, is not installed.
    """
    with replaced_file(path) as file:
        file.write(_parquet_of(samples) if path.suffix == PARQUET else _text_of(samples, path))


def _text_of(samples: SampleSet, path: Path) -> bytes:
    columns = written_columns(samples, _die_cells)
    cells = [
        map(_number if column.dtype == np.float64 else str, column.tolist())
        for column in columns.values()
    ]
    rows = [header_line(samples), ",".join(columns), *map(",".join, zip(*cells, strict=True))]
    data = ("\n".join(rows) + "\n").encode()
    return gzip.compress(data, 6) if path.suffix == ".gz" else data


def _data(path: Path) -> bytes:
    """Read a file's text in UTF-8, unzipped, each line ended by just a newline."""
    try:
        data = path.read_bytes()
        if data.startswith(_GZIP_MAGIC):
            data = gzip.decompress(data)
    except (EOFError, zlib.error) as error:
        raise StoreError(f"{path}: the gzip data is cut off or damaged") from error
    except OSError as error:
        raise StoreError(f"{path}: can't be read: {error.strerror or error}") from error
    try:
        data.decode()
    except UnicodeDecodeError as error:
        raise StoreError(f"{path}: not text (byte {error.start}); not a sample file") from error
    return data.removeprefix(BOM_UTF8).replace(b"\r\n", b"\n")


def _recording(data: bytes, line: int, path: Path) -> tuple[SampleHeader, SampleColumns]:
    """Parse one recording: its header, if it has one, and its samples."""
    header = SampleHeader()
    first, _, rest = data.partition(b"\n")
    if first.startswith(HEADER_MARK.encode()):
        header = parsed_header(first.decode(), str(path))
        (first, _, rest), line = rest.partition(b"\n"), line + 1
    names = _names(first.decode())
    missing = [name for name in REQUIRED_COLUMNS if name not in names]
    if missing or len(set(names)) != len(names):
        problem = f"no column {missing[0]}" if missing else "a column is named twice"
        raise StoreError(f"{path}: line {line}: {problem}; not a sample file")
    return header, _columns(TextTable(rest, names, path=str(path), first_line=line + 1))


def _names(line: str) -> list[str]:
    return [name.strip().strip('"') for name in line.split(",")]


def _columns(table: "TextTable | ParquetTable") -> SampleColumns:
    """Read samples from a table; without their column, causes are unknown, read lengths are 0."""
    names, unknown = table.names, np.full(len(table), Cause.UNKNOWN.bit)
    spans_ns, causes = np.zeros(len(table), np.int64), "cause"
    return SampleColumns(
        labels=table.cells("gpu"),
        t_unix_ns=table.int64s("t_unix_ns"),
        read_span_ns=table.int64s("read_span_ns") if "read_span_ns" in names else spans_ns,
        causes=np.array(table.parsed(causes, cause_bits), np.int64) if causes in names else unknown,
        floats={name: table.floats(name) for name in FLOAT_COLUMNS if name in names},
        die_clocks_mhz=table.joined_floats(DIES, MOST_DIES) if DIES in names else None,
    )


def _die_cells(gpu: GpuSamples) -> list[str]:
    """Format the clocks of the dies in each row, joined by `+`; empty where none is known."""
    if gpu.die_clocks_mhz is None:
        return [""] * len(gpu)
    different, codes = np.unique(gpu.die_clocks_mhz, return_inverse=True)
    texts = np.array([_number(value) for value in different.tolist()], object)
    rows = texts[codes].reshape(gpu.die_clocks_mhz.shape).tolist()
    return ["+".join(row) if any(row) else "" for row in rows]


def _number(value: float) -> str:
    """Format a number as the shortest text that reads back as the same; empty for NaN."""
    return "" if isnan(value) else repr(value).removesuffix(".0")


# Parquet.


def check_parquet() -> None:
    """Check that Parquet can be read and written here.

    Raises:
        ConfigError: pyarrow is not installed.
    """
    try:
        import pyarrow  # noqa: F401, PLC0415 - pyarrow is an extra, and takes long to import
    except ImportError as error:
        raise ConfigError(["Parquet needs pyarrow: pip install 'chopperd[analysis]'"]) from error


def _is_parquet(path: Path) -> bool:
    """Whether a file begins as Parquet does; False for one that can't be read."""
    try:
        with path.open("rb") as file:
            return file.read(len(_PARQUET_MAGIC)) == _PARQUET_MAGIC
    except OSError:
        return False


def _parquet_of(samples: SampleSet) -> bytes:
    """Encode samples as a Parquet file, rows in order of time."""
    check_parquet()
    import pyarrow as pa  # noqa: PLC0415
    from pyarrow import parquet  # noqa: PLC0415

    def array(name: str, column: np.ndarray) -> "pyarrow.Array":
        if column.dtype != object:
            return pa.array(column, from_pandas=True)  # NaN as null
        return pa.array(column.tolist(), pa.list_(pa.float64()) if name == DIES else pa.string())

    written = written_columns(samples, _die_lists)
    columns = {name: array(name, column) for name, column in written.items()}
    table = pa.table(columns).replace_schema_metadata({_HEADER_KEY: header_line(samples).encode()})
    file = BytesIO()
    parquet.write_table(table, file, compression="zstd")
    return file.getvalue()


def _parquet_samples(path: Path) -> SampleSet:
    """Read the samples in a Parquet file of ours, or of another program with the same columns."""
    check_parquet()
    import pyarrow as pa  # noqa: PLC0415
    from pyarrow import parquet  # noqa: PLC0415

    try:
        table = ParquetTable(parquet.read_table(path), str(path))
        missing = [name for name in REQUIRED_COLUMNS if name not in table.names]
        if missing:
            raise StoreError(f"{path}: no column {missing[0]}; not a sample file")
        columns = _columns(table)
    except (pa.ArrowException, OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise StoreError(f"{path}: not a sample file: {reason}") from error
    header = SampleHeader() if table.header is None else parsed_header(table.header, str(path))
    return own_samples([(header, columns)], str(path))


class ParquetTable:
    """A Parquet table, read by column with the methods of a `TextTable`.

    Methods raise ValueError or pyarrow's errors for columns of another type.
    """

    def __init__(self, table: "pyarrow.Table", path: str) -> None:
        self.names: tuple[str, ...] = tuple(table.column_names)
        line = (table.schema.metadata or {}).get(_HEADER_KEY)
        self.header: str | None = None if line is None else line.decode()
        self._table = table
        self._path = path

    def __len__(self) -> int:
        """The number of rows."""
        return int(self._table.num_rows)

    def cells(self, name: str) -> list[str]:
        """Return a column as text; every row must have a value."""
        texts: list[str] = self._full(name).cast("string").to_pylist()
        return texts

    def parsed(self, name: str, convert: Callable[[str], int]) -> list[int]:
        """Convert the texts of a column; a row without text gets the bit of an unknown cause."""
        texts = self._table.column(name).to_pylist()
        values = {text: convert(text) for text in set(texts) if text is not None}
        return [values.get(text, Cause.UNKNOWN.bit) for text in texts]

    def int64s(self, name: str) -> Int64s:
        """Return a column as (rows,) int64; every row must have a value."""
        values: Int64s = self._full(name).cast("int64").to_numpy()
        return values

    def floats(self, name: str) -> Float64s:
        """Return a column as (rows,) float64; NaN where it has no finite value."""
        values: Float64s = self._table.column(name).cast("float64").to_numpy().copy()
        values[np.isinf(values)] = np.nan
        return values

    def joined_floats(self, name: str, most: int) -> Float64s:
        """Return a column of lists as (rows, most) float64, NaN where absent.

        Raises:
            StoreError: A list has more than `most` numbers.
        """
        table = np.full((len(self), most), np.nan)
        for row, cell in enumerate(self._table.column(name).to_pylist()):
            values = cell or []
            if len(values) > most:
                raise StoreError(f"{self._path}: {name} holds more than {most} numbers")
            table[row, : len(values)] = [np.nan if value is None else value for value in values]
        return table

    def _full(self, name: str) -> "pyarrow.ChunkedArray":
        column = self._table.column(name)
        if column.null_count:
            raise ValueError(f"a row without {name}")
        return column


def _die_lists(gpu: GpuSamples) -> list[list[float | None] | None]:
    """List the clocks of the dies in each row; None where none is known."""
    if gpu.die_clocks_mhz is None:
        return [None] * len(gpu)
    rows = gpu.die_clocks_mhz.tolist()
    known = [[None if isnan(mhz) else mhz for mhz in row] for row in rows]
    return [row if any(mhz is not None for mhz in row) else None for row in known]
