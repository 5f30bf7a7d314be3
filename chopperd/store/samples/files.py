"""Sample files: reads our own, bare CSV, `nvidia-smi` and `amd-smi` output; writes our own.

The format is a first line `# chopperd-samples/1 {json}` and then CSV, one row a sample; or the same
columns as Parquet, with that line in the metadata.
"""

import gzip
import zlib
from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from datetime import tzinfo
from math import isnan
from pathlib import Path
from typing import Final

import numpy as np

from chopperd.errors import StoreError
from chopperd.model.arrays import Int64s
from chopperd.model.devices import MOST_DIES
from chopperd.model.kinds import Cause
from chopperd.model.samples import VALUE_COLUMNS, GpuSamples, SampleSet
from chopperd.store.disk import replaced_file
from chopperd.store.samples.columns import (
    DIES,
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
from chopperd.store.samples.monitors import (
    looks_like_amd_smi,
    looks_like_dcgmi,
    looks_like_json,
    parsed_amd_smi,
    parsed_dcgmi,
    parsed_prometheus,
)
from chopperd.store.samples.nvidia_smi import looks_like_smi, parsed_smi
from chopperd.store.samples.parquet import (
    PARQUET,
    is_parquet,
    parquet_of,
    read_parquet_samples,
)
from chopperd.store.samples.plain_csv import parsed_plain
from chopperd.store.samples.text_table import TextTable

_GZIP_MAGIC: Final = b"\x1f\x8b"
#: Detector and reader of other monitors' files; the last takes what is left.
_OTHERS: Final = (
    (looks_like_json, parsed_prometheus),
    (looks_like_dcgmi, parsed_dcgmi),
    (bool, parsed_plain),
)


def read_samples(
    path: Path, *, tz: tzinfo | None = None, smi_fields: Sequence[str] = ()
) -> SampleSet:
    """Read the samples of a file, which may be compressed by gzip.

    The kind is found by content: ours, ours as Parquet, CSV with the same columns and
    no first line or with other names and units, `nvidia-smi --query-gpu=timestamp,...
    --format=csv`, `amd-smi metric --csv`, `dcgmi dmon` with times, and a Prometheus range. Rows are
    sorted by time; of rows of one GPU with the same time the first is kept. A log that goes on with
    a further header holds a further recording.

    Args:
        path: The file.
        tz: Zone of the times of `nvidia-smi`, which writes local time; None is this machine's.
        smi_fields: Query fields of `nvidia-smi` output that was written with `noheader`.

    Raises:
        StoreError: The file can't be read or is none of these; names the line.
        ConfigError: pyarrow, which Parquet takes, is not installed.
    """
    if is_parquet(path):
        return read_parquet_samples(path)
    data = _data(path)
    if not data.strip():
        raise StoreError(f"{path}: the file is empty")
    line = data.partition(b"\n")[0].decode()
    if line.startswith(HEADER_MARK) or {*REQUIRED_COLUMNS} <= {*_names(line)}:
        parts = [_recording(part, line, path) for part, line in _recordings(data)]
        return own_samples(parts, str(path))
    if looks_like_amd_smi(data):
        return parsed_amd_smi(data, path=str(path))
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
        file.write(parquet_of(samples) if path.suffix == PARQUET else _text_of(samples, path))


def _text_of(samples: SampleSet, path: Path) -> bytes:
    columns = written_columns(samples, _die_cells)
    cells = [_cells(column) for column in columns.values()]
    rows = [header_line(samples), ",".join(columns), *map(",".join, zip(*cells, strict=True))]
    data = ("\n".join(rows) + "\n").encode()
    return gzip.compress(data, 6) if path.suffix == ".gz" else data


def _cells(column: np.ndarray) -> list[str]:
    """A column as text."""
    return list(map(_number if column.dtype == np.float64 else str, column.tolist()))


def _data(path: Path) -> bytes:
    """The text of a file in UTF-8, each line ended by just a newline."""
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


def _recordings(data: bytes) -> Iterator[tuple[bytes, int]]:
    """The parts of a file, each from a first line on, with the line that it begins at."""
    starts = [0]
    while (found := data.find(b"\n" + HEADER_MARK.encode(), starts[-1])) >= 0:
        starts.append(found + 1)
    for start, end in zip(starts, [*starts[1:], len(data)], strict=True):
        yield data[start:end], data.count(b"\n", 0, start) + 1


def _recording(data: bytes, line: int, path: Path) -> tuple[SampleHeader, SampleColumns]:
    """One recording: its header, if it has one, and its samples."""
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


def _columns(table: TextTable) -> SampleColumns:
    limited = {cause: f"limited_{cause.label}_ns" for cause in Cause}
    spans, has_dies = "read_span_ns", DIES in table.names
    return SampleColumns(
        labels=table.cells("gpu"),
        t_unix_ns=table.int64s("t_unix_ns"),
        read_span_ns=table.int64s(spans) if spans in table.names else _filled(table, 0),
        causes=_causes(table),
        values={name: table.floats(name) for name in VALUE_COLUMNS},
        limited_ns={
            cause: table.floats(name) for cause, name in limited.items() if name in table.names
        },
        die_clocks_mhz=table.joined_floats(DIES, MOST_DIES) if has_dies else None,
    )


def _filled(table: TextTable, value: int) -> Int64s:
    return np.full(len(table), value, dtype=np.int64)


def _causes(table: TextTable) -> Int64s:
    """The bit sets of the `cause` column; without the column, nothing is known of causes."""
    if "cause" not in table.names:
        return _filled(table, Cause.UNKNOWN.bit)
    return np.array(table.parsed("cause", cause_bits), dtype=np.int64)


def _die_cells(gpu: GpuSamples) -> list[str]:
    """The clocks of the dies in each row, joined by `+`; empty where none is known."""
    dies_mhz = gpu.die_clocks_mhz
    if dies_mhz is None:
        return [""] * len(gpu)
    different, codes = np.unique(dies_mhz, return_inverse=True)
    texts = np.array([_number(value) for value in different.tolist()], object)
    rows = texts[codes].reshape(dies_mhz.shape).tolist()
    return ["+".join(row) if any(row) else "" for row in rows]


def _number(value: float) -> str:
    """The shortest text that reads back as the same number; empty for NaN."""
    return "" if isnan(value) else repr(value).removesuffix(".0")
